//! Executes one operation, from its settings to its result.

mod attempt;
pub mod backend;
mod context;
mod ending;
mod error;
mod locks;
mod pending;
mod request;
mod secrets;

use std::collections::BTreeMap;

use super::cancellation::Cause;
use super::command::Stdout;
use super::memory;
use super::settings::Wanted;
use crate::pulumi::arguments::{self, OperationKind};
use crate::pulumi::outputs::{self, Output};
use crate::pulumi::project::Project;
use crate::pulumi::stack_name::Qualified;
use crate::pulumi::{advice, failure};
use crate::rpc::proto::{self, PendingCreates};

use attempt::Attempt;
pub use context::Run;
use ending::Ending;
use error::{AttemptError, RevealError, RunError};
pub use request::OperationRequest;
impl Run {
    /// Runs the operation to its end. Errors become results.
    pub async fn execute(&self) -> proto::Result {
        let killed_before = memory::kills();
        let mut ending = match self.perform().await {
            Ok(ending) => ending,
            Err(error) => {
                self.end_processes().await;
                let outcome = if self.is_cancelled() { proto::Outcome::Canceled } else { proto::Outcome::Failed };
                Ending { outcome, ..Ending::failed(self.explained(&advice::with(&error.to_string()))) }
            }
        };
        // Pending creates stay unresolved until the engine has worked on the state.
        let was_in_doubt = self.asked.pending_creates != PendingCreates::Unspecified;
        ending.interrupted |= was_in_doubt && !ending.engine_began && ending.outcome != proto::Outcome::Succeeded;
        ending.pod_terminated = ending.outcome != proto::Outcome::Succeeded
            && self.cancel_request.borrow().cause == Some(Cause::Terminated);
        if ending.outcome != proto::Outcome::Succeeded
            && let Some(why) = memory::killed_since(killed_before)
        {
            ending.message = format!("{why}: {}", ending.message);
        }
        let result = ending.into_result(&self.redactor(), self.record.request().started);
        let project = Project::read(&self.directory()).ok();
        let backend =
            ending::bounded(&backend::url(&self.environment, project.as_ref()).unwrap_or_default(), ending::MAX_NAME);
        let project = project.map(|project| proto::Project { name: project.name, runtime: project.runtime });
        proto::Result { project, backend, config_inputs: self.config_inputs.clone(), ..result }
    }

    /// Returns whether this is a destroy of a stack other than the one with the resources.
    fn destroys_another(&self) -> bool {
        let project = Project::read(&self.directory()).ok();
        let backend = backend::url(&self.environment, project.as_ref());
        let project = project.as_ref().map(|project| project.name.as_str());
        self.asked.destroys_another(&Qualified { name: &self.wanted.stack, project, backend: backend.as_deref() })
    }

    async fn perform(&self) -> Result<Ending, RunError> {
        if self.asked.kind == OperationKind::Destroy && self.destroys_another() {
            return Ok(Ending::another_stack(&self.wanted.stack));
        }
        let missing_secrets = self.settings.apply(&self.settings_wanted(), &self.current_source)?;
        if self.is_cancelled() {
            return Ok(self.canceled("before the CLI was started"));
        }
        if let Some(ending) = self.settle_pending_creates().await? {
            return Ok(ending);
        }
        if self.select && self.is_forward() && !self.is_cancelled() {
            self.select().await;
        }
        if self.is_cancelled() {
            return Ok(self.canceled("before the CLI was started"));
        }
        if let Some(ending) = self.encrypt(&missing_secrets).await? {
            return Ok(ending);
        }
        if let Some(ending) = self.drift().await? {
            return Ok(ending);
        }
        if self.is_cancelled() {
            return Ok(self.canceled("before the CLI was started"));
        }
        let first = self.unlocked_attempt().await?;
        if !first.is_stack_missing() {
            return Ok(self.conclude(first).await);
        }
        if self.asked.kind == OperationKind::Destroy {
            let ending = Ending::stack_not_found(&self.wanted.stack);
            return Ok(ending.after(&first.stdout, &first.stderr));
        }
        if !self.asked.makes_stack() {
            let stack = &self.wanted.stack;
            return Ok(Ending::failed(format!(
                "the backend has no stack {stack}, and none is to be made for this run"
            )));
        }
        if self.is_cancelled() {
            return Ok(self.canceled("before the stack was made"));
        }
        if let Some(ending) = self.init().await? {
            return Ok(ending);
        }
        if self.is_cancelled() {
            return Ok(self.canceled("before the CLI was started"));
        }
        let second = self.attempt().await?;
        Ok(self.conclude(second).await)
    }

    fn settings_wanted(&self) -> Wanted<'_> {
        let digest = &self.record.request().settings_digest;
        Wanted { stack: &self.wanted.stack, digest, config: &self.config, environments: &self.wanted.environments }
    }

    /// Returns whether the operation works toward the resources that the program declares.
    fn is_forward(&self) -> bool {
        matches!(self.asked.kind, OperationKind::Up | OperationKind::Preview)
    }

    /// Runs an attempt, and a second one if the lock of a dead run was the only obstacle.
    async fn unlocked_attempt(&self) -> Result<Attempt, AttemptError> {
        let first = self.attempt().await?;
        if !first.is_kept_out() || self.is_cancelled() || !self.removed_dead_lock(&first.stderr.text()).await {
            return Ok(first);
        }
        // After a cancellation, the first attempt is reported, including the lock that blocked it.
        if self.is_cancelled() { Ok(first) } else { self.attempt().await }
    }

    async fn attempt(&self) -> Result<Attempt, AttemptError> {
        self.attempt_at(self.asked.kind).await
    }

    /// Returns an ending if the actual resources differ from the state and no drift is expected. The check changes
    /// nothing, so the next run detects the drift again.
    async fn drift(&self) -> Result<Option<Ending>, RunError> {
        if !self.asked.expects_no_drift() {
            return Ok(None);
        }
        let attempt = self.attempt_at(OperationKind::DriftCheck).await?;
        if attempt.exit.success() || attempt.is_stack_missing() {
            return Ok(None);
        }
        let ending = self.conclude(attempt).await;
        Ok(Some(Ending { interrupted: false, engine_began: false, ..ending }))
    }

    async fn attempt_at(&self, kind: OperationKind) -> Result<Attempt, AttemptError> {
        let request = self.record.request();
        let event_log = self.record.event_log();
        let operation = arguments::Operation {
            kind,
            stack: &self.wanted.stack,
            event_log: &event_log,
            refresh: request.refresh,
            message: Some(request.message.as_str()).filter(|message| !message.is_empty()),
            options: self.asked.options(),
        };
        attempt::run(self, arguments::arguments(&operation)).await
    }

    /// Creates the stack; returns an ending if that fails. Succeeds if another client has created the stack meanwhile.
    async fn init(&self) -> Result<Option<Ending>, RunError> {
        let ended = self.locking_call(arguments::stack_init(&self.wanted.stack, self.asked.secrets_provider())).await;
        let ended = ended.map_err(|error| RunError::Call { doing: "make the stack", error })?;
        if ended.exit.success() || failure::stack_exists(&ended.stderr.text()) {
            return Ok(None);
        }
        Ok(Some(self.failed_call("the stack cannot be made", &ended)))
    }

    /// Converts the exit of the CLI into the ending of the operation.
    async fn conclude(&self, attempt: Attempt) -> Ending {
        let ending = if attempt.exit.success() { self.success(&attempt).await } else { self.failure(&attempt) };
        let ending = Ending {
            changes: attempt.changes(),
            // A preview has no operations in flight that the state could contain.
            interrupted: self.asked.kind != OperationKind::Preview && attempt.is_cut_off(),
            engine_began: attempt.summary.began(),
            ..ending.after(&attempt.stdout, &attempt.stderr)
        };
        Ending { permalink: attempt.permalink, ..ending }
    }

    async fn success(&self, attempt: &Attempt) -> Ending {
        if self.asked.kind != OperationKind::Up {
            return Ending::succeeded("");
        }
        let said = attempt.summary.outputs().unwrap_or_default();
        let (outputs, message) = match self.reveal(said).await {
            Ok(outputs) => (outputs, String::new()),
            Err(error) => {
                let plain = said.iter().filter(|output| !output.secret).cloned().collect();
                (plain, format!("the values of the secret outputs cannot be read: {error}"))
            }
        };
        Ending { outputs, ..Ending::succeeded(&message) }
    }

    fn failure(&self, attempt: &Attempt) -> Ending {
        let failure = attempt.failure();
        if failure::is_unknown_flag(&attempt.stderr.text()) {
            // The controller compares the version with the oldest supported one.
            let version = self.version.clone();
            tokio::spawn(async move { version.get().await });
        }
        let outcome = ending::outcome(&failure.kind, self.is_cancelled());
        let message = self.explained(&failure.message);
        Ending { outcome, message, holders: ending::holders(failure.kind), ..Ending::default() }
    }

    /// Returns the ending of a run that was cancelled while none of its processes was running.
    fn canceled(&self, when: &str) -> Ending {
        let message = self.explained(&format!("{} {when}", failure::CANCELED));
        Ending { outcome: proto::Outcome::Canceled, ..Ending::failed(message) }
    }

    /// Returns the outputs with the values of the secret ones. Calls the CLI only if there are secret outputs.
    async fn reveal(&self, said: &[Output]) -> Result<Vec<Output>, RevealError> {
        if !outputs::need_values(said) {
            return Ok(outputs::combine(said, &BTreeMap::new())?);
        }
        let ended = self.call(arguments::stack_output(&self.wanted.stack), Stdout::Captured).await?;
        if !ended.exit.success() {
            return Err(RevealError::Failed(format!("{}: {}", ended.how(), ended.stderr.last_lines(5))));
        }
        Ok(outputs::combine(said, &outputs::parse(&ended.captured)?)?)
    }

    /// Selects the stack before the first run in a pod, for commands of users in the pod. Also creates a missing stack,
    /// because otherwise the run would fail, create the stack and run again. Errors are only logged: the run reports
    /// problems with the stack or the backend.
    async fn select(&self) {
        let stack = &self.wanted.stack;
        let arguments = match self.asked.makes_stack() {
            true => arguments::stack_select_or_init(stack, self.asked.secrets_provider()),
            false => arguments::stack_select(stack),
        };
        match self.locking_call(arguments).await {
            Ok(ended) if ended.exit.success() => {}
            Ok(ended) => tracing::warn!(said = ended.stderr.last_lines(5), "cannot select the stack"),
            Err(error) => tracing::warn!(%error, "cannot select the stack"),
        }
    }
}
