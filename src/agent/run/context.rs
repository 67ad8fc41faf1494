//! Data of an accepted operation, and the CLI calls, timeouts and errors that all steps of a run use.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::login::{self, Login, LoginError, Period, login_error};
use super::plan_error::PlanError;
use super::policies::RunPolicies;
use super::request::OperationRequest;
use crate::agent::cancellation::{CancelRequest, Cause, Liveness};
use crate::agent::command::{Call, CallError, CliVersion, Ended, Stdout};
use crate::agent::environment::{self, Environment};
use crate::agent::journal::{Journal, JournalRecord};
use crate::agent::layout::Layout;
use crate::agent::output::PodLog;
use crate::agent::processes::RunProcesses;
use crate::agent::redactor::Redactor;
use crate::agent::settings::{ApplyError, Settings};
use crate::agent::source::CurrentSource;
use crate::pulumi::failure::{self, lock};
use crate::pulumi::project::Project;
use crate::pulumi::settings::Entry;
use crate::pulumi::state::StateError;
use crate::rpc::proto::{self, progress};

/// Timeout for a CLI call other than the operation itself, such as an export of the state.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of a state that the agent changes, in bytes. A change requires two copies of the state in memory. The
/// agent can also read larger states.
pub(super) const MAX_CHANGED: u64 = 64 * 1024 * 1024;

/// An accepted operation.
pub struct Run {
    pub layout: Layout,
    pub settings: Arc<Settings>,
    pub journal: Arc<Journal>,
    pub record: Arc<JournalRecord>,
    pub parameters: OperationRequest,
    pub policies: RunPolicies,
    pub desired: proto::Settings,
    /// Stack name that the run passes to the CLI. For Pulumi Cloud, this name can contain an organization that the
    /// settings omit.
    pub stack: String,
    /// Configuration values, including values from Secrets and ConfigMaps.
    pub config: Vec<Entry>,
    /// Tags of the Pulumi stack. Empty unless the backend is Pulumi Cloud.
    pub tags: Vec<(String, String)>,
    /// Keyed hash of the files that contain configuration values.
    pub config_inputs: String,
    pub current_source: CurrentSource,
    pub environment: Environment,
    /// Login to Pulumi Cloud, or `None` if the run uses the credentials in its environment.
    pub login: Option<Login>,
    pub cancel_request: watch::Sender<CancelRequest>,
    /// Time between the graceful and the forced cancellation.
    pub cancellation_grace: Duration,
    pub liveness: Liveness,
    /// Whether the run must select the stack first, so that commands that users run in the pod apply to this stack.
    pub select: bool,
    pub version: CliVersion,
}

impl Run {
    /// Returns the message. If the run was canceled because of a timeout or the termination of the pod, the returned
    /// message starts with this cause.
    pub(super) fn with_cause(&self, message: &str) -> String {
        match self.cancel_request.borrow().cause {
            None | Some(Cause::Requested) => message.to_owned(),
            Some(cause) => match message.strip_prefix(failure::CANCELED) {
                Some(rest) => format!("{cause}{rest}"),
                None => format!("{cause}: {message}"),
            },
        }
    }

    pub(super) async fn call(&self, arguments: Vec<OsString>, stdout: Stdout) -> Result<Ended, RunCallError> {
        self.call_in(&self.layout.program(), arguments, None, stdout, &|_| {}).await
    }

    /// Runs a CLI call that locks the stack, in the directory of the program.
    pub(super) async fn locking_call(&self, arguments: Vec<OsString>) -> Result<Ended, RunCallError> {
        self.locking_call_in(&self.layout.program(), arguments).await
    }

    /// Runs a CLI call that locks the stack. The function writes the process ID and the end of the call to the journal.
    /// If the call is killed, a later run uses this ID to identify the lock of the call.
    pub(super) async fn locking_call_in(
        &self,
        directory: &Path,
        arguments: Vec<OsString>,
    ) -> Result<Ended, RunCallError> {
        let begun = |pid| self.record.append(progress::Event::Started(proto::Started { pid }));
        let result = self.call_in(directory, arguments, None, Stdout::Logged, &begun).await;
        let interrupted = match &result {
            Ok(ended) => Some(ended.exit.has_crashed() || lock::remains(&ended.stderr.text())),
            // The agent has killed the call, or kills the call at the end of the run.
            Err(RunCallError::Call(CallError::Timeout(_) | CallError::Wait(_))) => Some(true),
            Err(_) => None,
        };
        if let Some(interrupted) = interrupted {
            self.record.append(progress::Event::Exited(proto::Exited { interrupted }));
        }
        result
    }

    /// Runs a CLI call with this stdin. The function passes the process ID to `begun`.
    ///
    /// A call that reads or writes the settings file must run in the directory of the program, like the operation
    /// itself. In another directory, the CLI would resolve a relative `stackConfigDir` to another path.
    pub(super) async fn call_in(
        &self,
        directory: &Path,
        arguments: Vec<OsString>,
        stdin: Option<Zeroizing<Vec<u8>>>,
        stdout: Stdout,
        begun: &(dyn Fn(u32) + Send + Sync),
    ) -> Result<Ended, RunCallError> {
        self.log_in(Period::Call).await?;
        Ok(self.call_without_login(directory, arguments, stdin, stdout, begun).await?)
    }

    async fn call_without_login(
        &self,
        directory: &Path,
        arguments: Vec<OsString>,
        stdin: Option<Zeroizing<Vec<u8>>>,
        stdout: Stdout,
        begun: &(dyn Fn(u32) + Send + Sync),
    ) -> Result<Ended, CallError> {
        let call = Call {
            arguments,
            directory,
            environment: &self.environment.variables,
            operation: &self.record.request().id,
            limit: CALL_TIMEOUT,
            log: self.log(),
            stdin,
            stdout,
            begun,
        };
        call.run().await
    }

    /// Logs in to Pulumi Cloud, unless an earlier access token remains valid for the whole period. If a repeated login
    /// within a run fails, the run continues with the earlier access token until this token expires.
    pub(super) async fn log_in(&self, period: Period) -> Result<(), LoginError> {
        let Some(login) = &self.login else { return Ok(()) };
        let project = Project::read(&self.directory()).ok();
        let url = environment::backend_url(&self.environment, project.as_ref()).unwrap_or_default();
        if !login.is_due(&url, &self.environment, period)? {
            return Ok(());
        }
        match self.exchange(login, &url).await {
            Err(error) if period == Period::Call && login.is_valid(&url, &self.environment) => {
                let operation = &self.record.request().id;
                tracing::warn!(operation, %error, "failed to renew the access token for Pulumi Cloud");
                Ok(())
            }
            result => result,
        }
    }

    async fn exchange(&self, login: &Login, url: &str) -> Result<(), LoginError> {
        let (claims, arguments) = login.begin(url)?;
        let started = Timestamp::now().as_second();
        let directory = self.layout.program();
        let ended = self.call_without_login(&directory, arguments, None, Stdout::Logged, &|_| {}).await?;
        if !ended.exit.success() {
            if login::is_unsupported(&ended.stderr.text()) {
                let found = self.version.get().await.trim().trim_start_matches('v').to_owned();
                return Err(LoginError::CliTooOld { found });
            }
            return Err(login_error(claims, ended.exit, &ended.stdout.text(), &ended.stderr.text()));
        }
        login.finish(url, &self.environment, started);
        Ok(())
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.layout.workspace()
    }

    pub(super) fn log(&self) -> PodLog {
        let name = self.record.request().name.clone();
        PodLog { name, redactor: self.redactor(), transcript: Some(self.record.transcript().clone()) }
    }

    pub(super) fn redactor(&self) -> Redactor {
        let tokens = self.login.as_ref().map(Login::secrets).unwrap_or_default();
        let redactor = self.environment.redactor_with(&tokens);
        if self.parameters.follows_cli_plan() { redactor.without_plan_values() } else { redactor }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel_at_timeouts(Duration::ZERO);
        self.cancel_request.borrow().is_requested()
    }

    /// Cancels the run if the run has exceeded one of its timeouts. `silent` is the time since the last activity of the
    /// processes.
    pub(super) fn cancel_at_timeouts(&self, silent: Duration) {
        let Some(cause) = self.parameters.limits.exceeded(self.liveness.since_begin(), silent) else { return };
        if self.cancel_request.borrow().is_requested() {
            return;
        }
        tracing::warn!(operation = self.record.request().id, ?cause, "canceling the run");
        let now = Instant::now();
        self.cancel_request
            .send_modify(|cancel_request| cancel_request.cancel(cause, now, now + self.cancellation_grace));
    }

    pub async fn end_processes(&self) {
        RunProcesses::new(&self.record.request().id, Vec::new()).end().await;
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("failed to apply the stack settings: {0}")]
    Settings(#[from] ApplyError),
    #[error(transparent)]
    Login(#[from] LoginError),
    #[error(transparent)]
    Attempt(#[from] AttemptError),
    #[error("failed to {action}: {error}")]
    Call { action: &'static str, error: RunCallError },
    #[error("the Pulumi command was not started: failed to process pending creates: {0}")]
    State(StateFileError),
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl RunError {
    /// Returns the outcome for an operation that fails with this error.
    pub(super) fn outcome(&self) -> proto::Outcome {
        match self {
            RunError::Login(error)
            | RunError::Attempt(AttemptError::Login(error))
            | RunError::Call { error: RunCallError::Login(error), .. } => error.outcome(),
            _ => proto::Outcome::Failed,
        }
    }
}

/// Error from a CLI call other than the operation itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunCallError {
    #[error(transparent)]
    Login(#[from] LoginError),
    #[error(transparent)]
    Call(#[from] CallError),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error(transparent)]
    Login(#[from] LoginError),
    #[error("failed to start the CLI: {0}")]
    Start(io::Error),
    #[error("failed to wait for the CLI: {0}")]
    Wait(io::Error),
    #[error("failed to prepare the event log: {0}")]
    EventLog(io::Error),
    #[error("failed to write the configuration of the policy packs: {0}")]
    PolicyPacks(io::Error),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StateFileError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("failed to read or write the exported state: {0}")]
    File(#[from] io::Error),
    #[error(
        "the state of {size} bytes exceeds the limit of {MAX_CHANGED} bytes for changes by the agent; run \
         `pulumi refresh --clear-pending-creates` in the pod, then request another run"
    )]
    TooLarge { size: u64 },
}
