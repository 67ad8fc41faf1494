//! One operation from its settings to its result.

mod attempt;
mod ending;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::cancellation::Wish;
use super::command::{Call, CallError, Ended, Stdout};
use super::environment::Environment;
use super::journal::JournalRecord;
use super::layout::Layout;
use super::output::PodLog;
use super::processes::Family;
use super::redactor::Redactor;
use super::settings::{ApplyError, Settings};
use super::source::InPlace;
use crate::pulumi::arguments::{self, OperationKind};
use crate::pulumi::events::RunSummary;
use crate::pulumi::failure::{self, FailureKind};
use crate::pulumi::outputs::{self, Output, OutputsError};
use crate::rpc::proto;

use attempt::{Attempt, AttemptError};
use ending::Ending;

const SIGKILL: i32 = rustix::process::Signal::KILL.as_raw();

/// How long a call of the CLI beside the run itself may take.
const CALL_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the stack's settings cannot be put in force: {0}")]
    Settings(#[from] ApplyError),
    #[error(transparent)]
    Attempt(#[from] AttemptError),
    #[error("cannot make the stack: {0}")]
    Init(CallError),
    #[error("the stack cannot be made: {0}")]
    InitFailed(String),
}

#[derive(Debug, thiserror::Error)]
enum RevealError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("`pulumi stack output` failed: {0}")]
    Failed(String),
    #[error(transparent)]
    Outputs(#[from] OutputsError),
}

/// An operation that was accepted.
pub struct Run {
    pub layout: Layout,
    pub settings: Arc<Settings>,
    pub record: Arc<JournalRecord>,
    pub kind: OperationKind,
    pub wanted: proto::Settings,
    pub in_place: InPlace,
    pub environment: Environment,
    pub wish: watch::Receiver<Wish>,
    /// Whether a person's commands in the pod do not find the stack yet.
    pub select: bool,
}

impl Run {
    /// Runs to the end; whatever happens becomes a result.
    pub async fn execute(&self) -> proto::Result {
        let ending = match self.perform().await {
            Ok(ending) => ending,
            Err(error) => {
                self.end_processes().await;
                let outcome = if self.is_cancelled() { proto::Outcome::Canceled } else { proto::Outcome::Failed };
                Ending { outcome, message: error.to_string(), ..Ending::default() }
            }
        };
        ending.into_result(&self.redactor(), self.record.request().started)
    }

    /// Comes back when no process of the run is left.
    pub async fn end_processes(&self) {
        let id = &self.record.request().id;
        if let Err(error) = Family::new(id, Vec::new()).end().await {
            tracing::error!(operation = id, %error, "cannot look for the processes of the run");
        }
    }

    async fn perform(&self) -> Result<Ending, RunError> {
        let digest = &self.record.request().settings_digest;
        self.settings.apply(&self.wanted, digest, &self.in_place)?;
        if self.is_cancelled() {
            return Ok(Ending::canceled("canceled before the CLI was started"));
        }
        if self.select && self.kind == OperationKind::Up {
            self.select_or_init().await;
            if self.is_cancelled() {
                return Ok(Ending::canceled("canceled before the CLI was started"));
            }
        }
        let first = self.attempt().await?;
        if !first.is_stack_missing() {
            return Ok(self.conclude(first).await);
        }
        if self.kind == OperationKind::Destroy {
            return Ok(Ending::succeeded("the backend has no such stack: there was nothing to destroy"));
        }
        if self.is_cancelled() {
            return Ok(Ending::canceled("canceled before the stack was made"));
        }
        self.init().await?;
        if self.is_cancelled() {
            return Ok(Ending::canceled("canceled before the CLI was started"));
        }
        let second = self.attempt().await?;
        Ok(self.conclude(second).await)
    }

    async fn attempt(&self) -> Result<Attempt, AttemptError> {
        let request = self.record.request();
        let event_log = self.record.event_log();
        let operation = arguments::Operation {
            kind: self.kind,
            stack: &self.wanted.stack,
            event_log: &event_log,
            refresh: request.refresh,
            message: Some(request.message.as_str()).filter(|message| !message.is_empty()),
        };
        attempt::run(self, arguments::arguments(&operation)).await
    }

    /// Makes the stack. That another one made it in between is as good.
    async fn init(&self) -> Result<(), RunError> {
        let ended =
            self.call(arguments::stack_init(&self.wanted.stack), Stdout::Logged).await.map_err(RunError::Init)?;
        let stderr = ended.stderr.text();
        if ended.exit.success() || failure::stack_exists(&stderr) {
            return Ok(());
        }
        let failure = failure::classify(ended.exit, &ended.stdout.text(), &stderr, &RunSummary::default());
        Err(RunError::InitFailed(failure.message))
    }

    /// From how the CLI ended to what is reported.
    async fn conclude(&self, attempt: Attempt) -> Ending {
        let changes = attempt.changes();
        let mut ending = if attempt.exit.success() { self.success(&attempt).await } else { self.failure(&attempt) };
        ending.changes = changes;
        ending.permalink = attempt.permalink;
        ending
    }

    async fn success(&self, attempt: &Attempt) -> Ending {
        if self.kind == OperationKind::Destroy {
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
        let failure = failure::classify(attempt.exit, &attempt.stdout.text(), &attempt.stderr.text(), &attempt.summary);
        let outcome = match failure.kind {
            // It had no chance to save its state and to unlock, whoever killed it.
            FailureKind::Killed { signal } if signal == SIGKILL => proto::Outcome::Interrupted,
            _ if self.is_cancelled() => proto::Outcome::Canceled,
            FailureKind::Killed { .. } => proto::Outcome::Interrupted,
            FailureKind::Canceled => proto::Outcome::Canceled,
            FailureKind::Conflict { .. } => proto::Outcome::Conflict,
            FailureKind::InvalidAccessToken => proto::Outcome::InvalidAccessToken,
            FailureKind::StackMissing | FailureKind::Failed => proto::Outcome::Failed,
        };
        Ending { outcome, message: failure.message, ..Ending::default() }
    }

    /// The outputs with the real values of the secret ones; another call of the CLI only when there are any.
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

    /// Before the first run in a pod, for a person's commands there. It makes a new stack as well: else a run would fail,
    /// the stack be made, and the run be tried again. What is wrong with stack or backend, the run itself says.
    async fn select_or_init(&self) {
        match self.call(arguments::stack_select_or_init(&self.wanted.stack), Stdout::Logged).await {
            Ok(ended) if ended.exit.success() => {}
            Ok(ended) => tracing::warn!(said = ended.stderr.last_lines(5), "cannot select the stack"),
            Err(error) => tracing::warn!(%error, "cannot select the stack"),
        }
    }

    async fn call(&self, arguments: Vec<std::ffi::OsString>, stdout: Stdout) -> Result<Ended, CallError> {
        let call = Call {
            arguments,
            directory: &self.directory(),
            environment: &self.environment.variables,
            operation: &self.record.request().id,
            limit: CALL_LIMIT,
            log: self.log(),
            stdout,
        };
        call.run().await
    }

    fn directory(&self) -> PathBuf {
        self.layout.workspace()
    }

    fn log(&self) -> PodLog {
        PodLog { name: self.record.request().name.clone(), redactor: self.redactor() }
    }

    fn redactor(&self) -> Redactor {
        self.environment.redactor()
    }

    fn is_cancelled(&self) -> bool {
        self.wish.borrow().is_made()
    }
}
