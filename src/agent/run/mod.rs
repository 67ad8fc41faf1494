//! Executes one operation: writes its settings, runs the CLI and returns the result.

mod attempt;
mod context;
mod login;
mod operation_result;
mod plan;
mod plan_error;
mod policies;
mod recovery;
mod request;
mod secrets_provider;
mod stack;
mod stack_outputs;

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::cancellation::Cause;
use super::environment;
use super::memory;
use super::settings::Desired;
use crate::api::bounds;
use crate::pulumi::active_update::ActiveUpdate;
use crate::pulumi::arguments::{self, OperationKind, Options};
use crate::pulumi::project::Project;
use crate::pulumi::stack_name::Qualified;
use crate::pulumi::{advice, failure};
use crate::rpc::proto::{self, PendingCreates};

use attempt::Attempt;
use context::{AttemptError, RunError};
use login::Period;
use operation_result::OperationResult;
use recovery::Holder;

pub use context::Run;
pub use login::{LastLogin, Login, disable_credential_helper};
pub use policies::RunPolicies;
pub use recovery::can_hold_lock;
pub use request::OperationRequest;

/// Message for a successful `up` whose event log is incomplete.
const INCOMPLETE_LOG: &str = "the CLI reported success, but its event log is incomplete, for example because the disk \
                              of the node is full; the list of changes can be incomplete, and the outputs are unknown";
/// Message for another successful run whose event log is incomplete.
const INCOMPLETE_CHANGES: &str = "the CLI reported success, but its event log is incomplete, for example because the \
                                  disk of the node is full; the list of changes can be incomplete";
/// Warning about a successful `up` whose state contained no resources before the run. To detect such a state before an
/// `up`, the agent would have to start another CLI process before each run.
const STATE_WAS_EMPTY: &str = "the state contained no resources before the run, so the run created all resources \
                               again; the earlier resources probably still exist, and no stack manages them";
/// Message for a preview whose event log is incomplete.
const INCOMPLETE_PREVIEW: &str = "the changes of the preview are unknown, because the event log of the CLI is \
                                  incomplete, for example because the disk of the node is full";

/// Note about a Pulumi stack whose configuration is in an ESC environment.
const IGNORED_SETTINGS: &str = "the Pulumi CLI ignored the configuration of the Stack and the settings file in the source, because the \
                                configuration of this Pulumi stack is in an ESC environment: set the values in this environment, and \
                                remove spec.config, spec.configRef, spec.environment and the settings file";

impl Run {
    /// Runs the operation to completion, and converts an error into a result.
    pub async fn execute(&self) -> proto::Result {
        let killed_before = memory::kill_count();
        let mut operation_result = match self.perform().await {
            Ok(operation_result) => operation_result,
            Err(error) => {
                self.end_processes().await;
                let outcome = if self.is_cancelled() { proto::Outcome::Canceled } else { error.outcome() };
                let message = match error.is_cancellation() {
                    true => self.canceled_message(),
                    false => advice::with(&error.to_string()),
                };
                OperationResult { outcome, ..OperationResult::failed(self.with_cause(&message)) }
            }
        };
        // The pending creates of earlier runs remain in the state until the engine starts.
        let was_in_doubt = self.parameters.pending_creates != PendingCreates::Unspecified;
        operation_result.interrupted |=
            was_in_doubt && !operation_result.engine_began && operation_result.outcome != proto::Outcome::Succeeded;
        operation_result.pod_terminated = operation_result.outcome != proto::Outcome::Succeeded
            && self.cancel_request.borrow().cause == Some(Cause::Terminated);
        if operation_result.outcome != proto::Outcome::Succeeded
            && let Some(why) = memory::killed_since(killed_before)
        {
            operation_result.message = format!("{why}: {}", operation_result.message);
        }
        let result = operation_result.into_result(&self.redactor(), self.record.request().started);
        let project = Project::read(&self.directory()).ok();
        let backend = operation_result::first_bytes(
            &environment::backend_url(&self.environment, project.as_ref()).unwrap_or_default(),
            operation_result::MAX_NAME,
        );
        let project = project.map(|project| proto::Project { name: project.name, runtime: project.runtime });
        let ignored = self.environment.removed.iter().take(bounds::IGNORED_VARIABLES as usize);
        let ignored_variables =
            ignored.map(|name| operation_result::first_bytes(name, operation_result::MAX_NAME)).collect();
        proto::Result { project, backend, config_inputs: self.config_inputs.clone(), ignored_variables, ..result }
    }

    /// If the stack name has no organization, the run adds the organization of the stack that manages the resources.
    pub(super) fn with_organization(self) -> Self {
        let applied = self.parameters.applied();
        let completed = applied.and_then(|applied| self.with_qualified(|stack| stack.name_with_organization(&applied)));
        Run { stack: completed.unwrap_or(self.stack), ..self }
    }

    /// Returns whether this operation creates its stack if the stack is missing.
    fn creates_stack(&self) -> bool {
        self.with_qualified(|stack| self.parameters.creates(stack))
    }

    /// Returns whether the state of this operation's stack must contain resources.
    fn expects_state(&self) -> bool {
        self.with_qualified(|stack| self.parameters.expects_state(stack))
    }

    /// Returns whether this operation would destroy a Pulumi stack that does not manage the resources.
    fn destroys_another(&self) -> bool {
        self.with_qualified(|stack| self.parameters.destroys_another(stack))
    }

    /// Returns the name of the other Stack that has applied the Pulumi stack of this operation.
    fn owner(&self) -> Option<String> {
        self.with_qualified(|stack| self.parameters.owner(stack).map(str::to_owned))
    }

    pub(super) fn with_qualified<T>(&self, evaluate: impl FnOnce(&Qualified<'_>) -> T) -> T {
        let project = Project::read(&self.directory()).ok();
        let backend = environment::backend_url(&self.environment, project.as_ref());
        let project = project.as_ref().map(|project| project.name.as_str());
        evaluate(&Qualified { name: &self.stack, project, backend: backend.as_deref() })
    }

    async fn perform(&self) -> Result<OperationResult, RunError> {
        if self.destroys_another() {
            return Ok(OperationResult::another_stack(&self.stack));
        }
        if let Some(owner) = self.owner() {
            return Ok(OperationResult::duplicate_stack(&self.stack, &owner));
        }
        let missing_secrets = self.settings.apply(&self.desired_settings(), &self.current_source)?;
        if self.parameters.kind.is_forward() {
            let omitted = self.settings.omitted_resources(&self.desired_settings())?;
            if !omitted.is_empty() {
                return Ok(OperationResult::resources_omitted(&omitted));
            }
        }
        self.stop_if_canceled()?;
        self.log_in(Period::Run).await?;
        if let Some(operation_result) = self.settle_pending_creates().await? {
            return Ok(operation_result);
        }
        if self.select && self.parameters.kind.is_forward() && !self.is_cancelled() {
            self.select().await?;
        }
        self.stop_if_canceled()?;
        let missing_secrets = match self.settle_secrets_provider(missing_secrets).await? {
            Ok(missing_secrets) => missing_secrets,
            Err(operation_result) => return Ok(*operation_result),
        };
        if let Some(operation_result) = self.encrypt(&missing_secrets).await? {
            return Ok(operation_result);
        }
        if let Some(operation_result) = self.check().await? {
            return Ok(operation_result);
        }
        self.stop_if_canceled()?;
        let first = self.unlocked_attempt(self.parameters.kind).await?;
        if !first.is_stack_missing() {
            return Ok(self.conclude(first).await);
        }
        if self.expects_state() {
            let operation_result = OperationResult::stack_not_found(&self.stack);
            return Ok(operation_result.with_last_output(&first.stdout, &first.stderr));
        }
        if !self.creates_stack() {
            let stack = &self.stack;
            return Ok(OperationResult::failed(format!(
                "stack {stack} not found in the backend, and this run must not create it: create the stack, or correct \
                 the stack name or the backend"
            )));
        }
        self.stop_if_canceled()?;
        if let Some(operation_result) = self.init().await? {
            return Ok(operation_result);
        }
        self.stop_if_canceled()?;
        let second = self.attempt(self.parameters.kind).await?;
        Ok(self.conclude(second).await)
    }

    fn desired_settings(&self) -> Desired<'_> {
        let digest = &self.record.request().settings_digest;
        Desired {
            stack: &self.desired.stack,
            digest,
            config: &self.config,
            environments: &self.desired.environments,
            tags: &self.tags,
        }
    }

    /// Runs an attempt. If an interrupted run holds the lock and its processes have exited, the function removes the
    /// lock and runs a second attempt. The function also runs a second attempt if the update that blocked the first
    /// attempt has completed.
    async fn unlocked_attempt(&self, kind: OperationKind) -> Result<Attempt, AttemptError> {
        let first = self.attempt(kind).await?;
        if !first.is_locked_out() || self.is_cancelled() {
            return Ok(first);
        }
        let stderr = first.stderr.text();
        let holder = self.holder(&stderr).await;
        let is_unlocked = match &holder {
            Some(holder) => self.remove_stale_lock(holder).await,
            // The other Pulumi Cloud update has completed since the attempt.
            None => failure::conflicts_with_update(&stderr),
        };
        // A canceled run does not attempt the operation again. The result then contains the lock that blocked the first
        // attempt.
        if is_unlocked && !self.is_cancelled() {
            return self.attempt(kind).await;
        }
        Ok(Attempt { blocked_by: holder.and_then(Holder::into_update), ..first })
    }

    /// Runs the checks before the operation. If the agent must not start the operation, the function returns its
    /// result.
    async fn check(&self) -> Result<Option<OperationResult>, RunError> {
        if let Some(operation_result) = self.prepare_plan().await? {
            return Ok(Some(operation_result));
        }
        self.stop_if_canceled()?;
        self.check_drift().await
    }

    /// Checks for drift if the run must fail on drift. If the resources have drifted from the state, the function
    /// returns the result of the operation. The check does not change the state, so the next run detects the same
    /// drift.
    async fn check_drift(&self) -> Result<Option<OperationResult>, RunError> {
        if !self.parameters.expects_no_drift() {
            return Ok(None);
        }
        // Versions of the CLI before 3.229 lock the stack even for a preview of a refresh.
        let attempt = self.unlocked_attempt(OperationKind::DriftCheck).await?;
        if attempt.is_stack_missing() {
            return Ok(None);
        }
        if !attempt.exit.success() {
            return Ok(Some(self.conclude_check(attempt).await));
        }
        if !attempt.has_complete_log() {
            return Ok(Some(OperationResult::failed(INCOMPLETE_PREVIEW.to_owned())));
        }
        // The flag `--expect-no-changes` also fails if a program that the refresh runs changes a provider, for example
        // its short-lived token.
        let drift = OperationResult::drifted(attempt.summary.planned());
        Ok(drift.map(|result| result.with_last_output(&attempt.stdout, &attempt.stderr)))
    }

    /// Converts a check's failed attempt into the result of the operation. The attempt has changed no resources, so the
    /// result omits the changes that the check has found.
    async fn conclude_check(&self, attempt: Attempt) -> OperationResult {
        let operation_result = self.conclude(attempt).await;
        OperationResult { interrupted: false, engine_began: false, changes: BTreeMap::new(), ..operation_result }
    }

    async fn attempt(&self, kind: OperationKind) -> Result<Attempt, AttemptError> {
        self.log_in(Period::Call).await?;
        let request = self.record.request();
        let (event_log, plan_file) = (self.record.event_log(), self.record.plan_file());
        let policy_packs = self.policies.write(&self.record).map_err(AttemptError::PolicyPacks)?;
        let operation = arguments::Operation {
            kind,
            stack: &self.stack,
            event_log: &event_log,
            refresh: request.refresh,
            message: Some(request.message.as_str()).filter(|message| !message.is_empty()),
            plan: self.parameters.follows_cli_plan().then_some(plan_file.as_path()),
            save_plan: self.parameters.saves_cli_plan().then_some(plan_file.as_path()),
            options: Options { policy_packs: &policy_packs, ..self.parameters.options() },
        };
        attempt::run(self, kind, arguments::arguments(&operation)).await
    }

    /// Converts a completed attempt into the result of the operation.
    async fn conclude(&self, attempt: Attempt) -> OperationResult {
        let lost_state = attempt.summary.began_with_empty_state() && self.expects_state();
        let operation_result = match attempt.is_successful() {
            true if lost_state && self.parameters.kind.is_preview() => OperationResult::state_empty(&self.stack),
            true if lost_state => self.success(&attempt).await.with_warning(STATE_WAS_EMPTY),
            true => self.success(&attempt).await,
            false => self.failure(&attempt).await,
        };
        let operation_result = OperationResult {
            changes: attempt.changes(),
            // A preview leaves no pending operations, because a preview changes no resources.
            interrupted: !self.parameters.kind.is_preview() && attempt.is_interrupted(),
            engine_began: attempt.summary.began(),
            state_was_empty: lost_state && self.parameters.kind == OperationKind::Up,
            violations: attempt.summary.violations().clone(),
            ..operation_result.with_last_output(&attempt.stdout, &attempt.stderr)
        };
        let message = self.policies.name_packs(operation_result.message.clone());
        self.note_ignored_settings(&attempt);
        let message = if attempt.is_successful() { self.with_notes(message) } else { message };
        OperationResult { permalink: attempt.permalink, message, ..operation_result }
    }

    /// Adds a note if the CLI has ignored a settings file that contains settings of the user. The file can also contain
    /// only tags.
    fn note_ignored_settings(&self, attempt: &Attempt) {
        let is_in_source = || self.settings.is_in_source(&self.desired.stack, &self.current_source).unwrap_or_default();
        let has_settings = !self.config.is_empty() || !self.desired.environments.is_empty() || is_in_source();
        if has_settings && failure::ignores_settings_file(&attempt.stderr.text()) {
            self.add_note(IGNORED_SETTINGS.to_owned());
        }
    }

    fn with_notes(&self, message: String) -> String {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = Some(&message).filter(|message| !message.is_empty()).into_iter().chain(notes.iter());
        parts.map(String::as_str).collect::<Vec<_>>().join("; ")
    }

    async fn success(&self, attempt: &Attempt) -> OperationResult {
        if self.parameters.kind.is_preview() {
            return self.previewed(attempt).await;
        }
        if self.parameters.kind != OperationKind::Up {
            return OperationResult::succeeded(if attempt.has_complete_log() { "" } else { INCOMPLETE_CHANGES });
        }
        match attempt.summary.outputs() {
            // In an incomplete event log, the last outputs can be those before the run.
            Some(reported) if attempt.has_complete_log() => self.with_outputs(reported).await,
            _ => OperationResult::without_outputs(INCOMPLETE_LOG),
        }
    }

    /// Returns the result of a preview. The controller requires approvals and detects drift based on the list of
    /// changes, so an incomplete list is a failure.
    async fn previewed(&self, attempt: &Attempt) -> OperationResult {
        if !attempt.has_complete_log() {
            return OperationResult::failed(INCOMPLETE_PREVIEW.to_owned());
        }
        match self.saved_plan(attempt).await {
            Ok(plan) => {
                OperationResult { plan, ..OperationResult::succeeded("") }.with_planned_steps(attempt.summary.planned())
            }
            Err(error) => OperationResult::failed(error.to_string()),
        }
    }

    async fn failure(&self, attempt: &Attempt) -> OperationResult {
        let failure = match self.parameters.follows_cli_plan() {
            true => attempt.failure_with_plan(self.unplanned_deletions(attempt).await.as_deref()),
            false => attempt.failure(),
        };
        if failure::is_unknown_flag(&attempt.stderr.text()) {
            // Queries the CLI version in the background, because the controller compares this version with the minimum
            // supported version.
            let version = self.version.clone();
            tokio::spawn(async move { version.get().await });
        }
        let outcome = operation_result::outcome(&failure.kind, self.is_cancelled());
        let conflict = attempt.blocked_by.as_ref().map(ActiveUpdate::conflict_message);
        let message = self.with_cause(&conflict.unwrap_or(failure.message));
        OperationResult {
            outcome,
            message,
            retry_after: failure.retry_after,
            holders: operation_result::holders(failure.kind),
            ..OperationResult::default()
        }
    }

    /// Returns an error if the run was canceled.
    fn stop_if_canceled(&self) -> Result<(), RunError> {
        if self.is_cancelled() { Err(RunError::Canceled) } else { Ok(()) }
    }

    /// Returns the message of a run that was canceled before the engine started.
    fn canceled_message(&self) -> String {
        let step = self.during_step();
        let step = if step.is_empty() { " before the CLI was started" } else { &step };
        format!("{}{step}", failure::CANCELED)
    }
}
