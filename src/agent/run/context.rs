//! Data of an accepted operation, and the CLI calls, timeouts and errors that all steps of a run use.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::login::{self, Login, LoginError, Period, login_error};
use super::plan_error::PlanError;
use super::policies::RunPolicies;
use super::request::OperationRequest;
use crate::agent::cancellation::{CancelRequest, Cause, Liveness, MAX_SIGINT_DELAY};
use crate::agent::command::{Call, CallError, CliVersion, Ended, Input, Stdout};
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
    /// What the CLI is doing while the engine is not running: see [`Run::begin_step`].
    pub step: Mutex<Option<String>>,
    /// Notes about settings without effect, for the message of a successful operation.
    pub notes: Mutex<Vec<String>>,
}

/// A CLI call of a run, other than the operation itself. By default, the call runs in the directory of the program. A
/// call that reads or writes the settings file must run in this directory, like the operation itself. In another
/// directory, the CLI would resolve a relative `stackConfigDir` to another path.
pub(super) struct StepCall<'a> {
    /// What the call does, such as `creating the stack`.
    step: &'a str,
    arguments: Vec<OsString>,
    directory: Option<PathBuf>,
    input: Input,
    stdout: Stdout,
    locks_stack: bool,
    /// Time for which the call may continue after the run was canceled.
    grace: Duration,
}

impl<'a> StepCall<'a> {
    pub(super) fn new(step: &'a str, arguments: Vec<OsString>) -> Self {
        let (directory, input, stdout) = (None, Input::None, Stdout::Logged);
        StepCall { step, arguments, directory, input, stdout, locks_stack: false, grace: Duration::ZERO }
    }

    /// A call that locks the stack. If the run is canceled, the call has time to remove its lock.
    pub(super) fn that_locks_stack(self) -> Self {
        StepCall { locks_stack: true, ..self }.with_grace()
    }

    /// A call whose result is also needed after the run was canceled.
    pub(super) fn with_grace(self) -> Self {
        StepCall { grace: MAX_SIGINT_DELAY, ..self }
    }

    pub(super) fn in_directory(self, directory: PathBuf) -> Self {
        StepCall { directory: Some(directory), ..self }
    }

    pub(super) fn with_input(self, input: Input) -> Self {
        StepCall { input, ..self }
    }

    pub(super) fn captured(self) -> Self {
        StepCall { stdout: Stdout::Captured, ..self }
    }
}

impl Run {
    /// Returns the message. If the run was canceled because of a timeout or the termination of the pod, the returned
    /// message starts with this cause and the step that was canceled.
    pub(super) fn with_cause(&self, message: &str) -> String {
        match self.cancel_request.borrow().cause {
            None | Some(Cause::Requested) => message.to_owned(),
            Some(cause) => match message.strip_prefix(failure::CANCELED) {
                Some(rest) => format!("{cause}{rest}"),
                None => format!("{cause}{}: {message}", self.during_step()),
            },
        }
    }

    /// Records and reports what the CLI is doing while the engine is not running, such as `creating the stack`.
    pub(super) fn begin_step(&self, step: &str) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(step.to_owned());
        self.record.append(progress::Event::Step(step.to_owned()));
    }

    /// Adds a note about a setting without effect to the message of the operation if the operation succeeds.
    pub(super) fn add_note(&self, note: String) {
        tracing::warn!(operation = self.record.request().id, note);
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }

    /// Records and reports that the engine is running.
    pub(super) fn end_step(&self) {
        if self.step.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            self.record.append(progress::Event::Step(String::new()));
        }
    }

    /// Returns the current step as the end of a message about a canceled run. Returns an empty string while the engine
    /// is running.
    pub(super) fn during_step(&self) -> String {
        let step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        step.as_ref().map(|step| format!(" while the CLI was {step}")).unwrap_or_default()
    }

    /// Runs a CLI call. Only the timeout of the run limits the duration of the call, because a secrets provider or a
    /// state backend can be slow.
    ///
    /// If the call locks the stack, the function writes the process ID and the end of the call to the journal. If such
    /// a call is killed, a later run uses this ID to identify the lock of the call.
    pub(super) async fn call(&self, call: StepCall<'_>) -> Result<Ended, RunCallError> {
        self.log_in(Period::Call).await?;
        self.begin_step(call.step);
        let locks_stack = call.locks_stack;
        let result = self.call_without_login(call).await;
        let interrupted = match &result {
            Ok(ended) => Some(ended.exit.has_crashed() || lock::remains(&ended.stderr.text())),
            // The agent has killed the call, or kills the call at the end of the run.
            Err(CallError::Canceled | CallError::Timeout(_) | CallError::Wait(_)) => Some(true),
            Err(CallError::Start(_)) => None,
        };
        if let Some(interrupted) = interrupted.filter(|_| locks_stack) {
            self.record.append(progress::Event::Exited(proto::Exited { interrupted }));
        }
        Ok(result?)
    }

    async fn call_without_login(&self, call: StepCall<'_>) -> Result<Ended, CallError> {
        let StepCall { arguments, directory, input, stdout, locks_stack, grace, .. } = call;
        let begun = |pid| {
            if locks_stack {
                self.record.append(progress::Event::Started(proto::Started { pid }));
            }
        };
        let call = Call {
            arguments,
            directory: &directory.unwrap_or_else(|| self.layout.program()),
            environment: &self.environment.variables,
            operation: &self.record.request().id,
            log: self.log(),
            input,
            stdout,
            begun: &begun,
        };
        let end = async {
            self.until_canceled(grace).await;
            CallError::Canceled
        };
        call.run_until(end).await
    }

    /// Waits until the run is canceled or exceeds its timeout, and then for `grace`, but not longer than until the
    /// forced cancellation.
    async fn until_canceled(&self, grace: Duration) {
        let mut requests = self.cancel_request.subscribe();
        let requested = requests.wait_for(CancelRequest::is_requested);
        match self.parameters.limits.timeout {
            None => drop(requested.await),
            Some(limit) => {
                let left = limit.saturating_sub(self.liveness.since_begin());
                if tokio::time::timeout(left, requested).await.is_err() {
                    self.cancel_at_timeouts(Duration::ZERO);
                }
            }
        }
        let forced_at = self.cancel_request.borrow().forced_at;
        let end = Instant::now() + grace;
        tokio::time::sleep_until(forced_at.map_or(end, |forced_at| end.min(forced_at))).await;
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
        let step = "logging in to Pulumi Cloud";
        self.begin_step(step);
        let ended = self.call_without_login(StepCall::new(step, arguments)).await?;
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
    #[error("the Pulumi command was not started: failed to process the state: {0}")]
    State(StateFileError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{}", failure::CANCELED)]
    Canceled,
}

impl RunError {
    /// Returns whether the run stopped only because it was canceled.
    pub(super) fn is_cancellation(&self) -> bool {
        match self {
            RunError::Canceled => true,
            RunError::Call { error, .. } => error.is_cancellation(),
            RunError::Login(error) | RunError::Attempt(AttemptError::Login(error)) => error.is_cancellation(),
            _ => false,
        }
    }

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

impl RunCallError {
    /// Returns whether the call ended because the run was canceled.
    pub(super) fn is_cancellation(&self) -> bool {
        match self {
            RunCallError::Login(error) => error.is_cancellation(),
            RunCallError::Call(error) => matches!(error, CallError::Canceled),
        }
    }
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
