//! Accepts, runs and cancels operations. Only one operation runs at a time.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use super::cancellation::{CancelRequest, Cause, Liveness, cancellation_grace};
use super::environment::{self, Environment};
use super::interactive_session;
use super::journal::{self, Journal, JournalError, JournalRecord, Reader, Request};
use super::layout::Layout;
use super::processes::{self, RunProcesses};
use super::refusal::Refusal;
use super::run::{LastLogin, Login, OperationRequest, Run, RunPolicies, disable_credential_helper};
use super::run_metadata;
use super::settings::{self, Settings};
use super::source::{CurrentSource, Source};
use super::starting_operations::{RunCall, StartingOperations};
use super::workspace_lock::{WorkspaceGuard, WorkspaceLock};
use crate::pulumi::project::Project;
use crate::rpc::proto;
use crate::rpc::protocol::settings_digest;

/// Identity of this agent. The agent rejects a run request that contains another identity.
#[derive(Clone, Debug)]
pub struct Identity {
    pub pod_uid: String,
    /// Random ID that the agent generates at each start.
    pub start_id: String,
    /// Process space in which the process IDs of this agent's children are valid.
    pub process_space: String,
}

pub struct Operations {
    pub identity: Identity,
    pub layout: Layout,
    pub workspace_lock: WorkspaceLock,
    pub journal: Arc<Journal>,
    pub source: Arc<Source>,
    pub settings: Arc<Settings>,
    pub tasks: TaskTracker,
    pub starting: StartingOperations,
    open: Mutex<Option<RunningOperation>>,
    /// Time between the graceful and the forced cancellation of a run.
    cancellation_grace: Duration,
    /// Time at which the agent cancels a run forcefully, or `None` if the pod is not terminating.
    forced_at: Mutex<Option<Instant>>,
    /// Name of the stack that is selected in the CLI. Commands that users run in the pod apply to this stack.
    selected: Arc<Mutex<Option<String>>>,
    last_login: LastLogin,
}

/// Outcome of a request to run an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    Begun,
    /// The operation is already in the journal, or another call is starting it.
    Known,
    /// The operation cannot start now, for the given reason. The journal does not contain the operation.
    Held(String),
}

/// The operation that is running.
struct RunningOperation {
    id: String,
    cancel_request: watch::Sender<CancelRequest>,
}

impl Operations {
    pub fn new(
        identity: Identity,
        layout: Layout,
        workspace_lock: WorkspaceLock,
        journal: Arc<Journal>,
        source: Arc<Source>,
        settings: Arc<Settings>,
        cancellation_grace: Duration,
    ) -> Self {
        let tasks = source.tasks.clone();
        let (starting, open, forced_at, selected, last_login) = Default::default();
        Operations {
            identity,
            layout,
            workspace_lock,
            journal,
            source,
            settings,
            tasks,
            starting,
            open,
            cancellation_grace,
            forced_at,
            selected,
            last_login,
        }
    }

    /// Terminates the processes of operations that a previous agent left unfinished, and records these operations as
    /// interrupted. This agent cannot call `wait` for the processes, because they are not its children.
    pub async fn recover(&self) -> Result<(), Refusal> {
        self.journal.forget_unfinished_of_other_pods(&self.identity.pod_uid);
        for record in self.journal.unfinished() {
            let request = record.request();
            if request.process_space == self.identity.process_space {
                let processes = Reader::processes(record.clone()).unwrap_or_default();
                let sessions = processes.into_iter().map(|process| process.pid).collect();
                let run_processes = RunProcesses::new(&request.id, sessions);
                run_processes.end().await;
            }
            tracing::warn!(operation = request.id, "operation interrupted by a restart of the agent");
            let result = proto::Result {
                outcome: proto::Outcome::Interrupted.into(),
                message:
                    "the agent in the workspace pod restarted during the run: the container was killed or ran out of \
                          memory; no process of the run is left"
                        .to_owned(),
                started: request.started,
                ended: journal::now(),
                interrupted: true,
                ..result_with_stack_of(request)
            };
            self.journal.finish(&record, result);
        }
        Ok(())
    }

    /// Starts an operation, unless the operation is already in the journal, another operation is running, or a user has an
    /// interactive session.
    /// `call` is the guard of the call, and `config_inputs` is the keyed hash of the configuration files for the
    /// operation.
    pub fn run(
        self: &Arc<Self>,
        call: &RunCall,
        request: proto::RunRequest,
        config_inputs: String,
    ) -> Result<Admission, Refusal> {
        journal::validate_id(&request.id).map_err(|error| Refusal::Invalid(error.to_string()))?;
        if let Some(admission) = self.admission_without_start(&request)? {
            return Ok(admission);
        }
        let parameters = OperationRequest::of(&request)?;
        self.refuse_other_agent(&request)?;
        // The token must exist before this call acquires the lock. The shutdown waits until all tokens are dropped, and
        // therefore waits for this operation, too.
        let token = self.tasks.token();
        // Two controllers can both be the leader for a short time, and start the same operation simultaneously. If the
        // other call fails, the operation is not in the journal, and this caller tries again.
        let Some(guard) = self.workspace_lock.lock_for_operation(&request.id)? else { return Ok(Admission::Known) };
        // Another call may have started and finished the operation since the first journal check.
        if self.knows(&request)? {
            return Ok(Admission::Known);
        }
        let current_source = self.refuse_other_source(&request)?;
        let desired = verified_settings(&request)?;
        let mut environment = environment::build(&self.layout, &request.environment)?.without_refused_options()?;
        let config = settings::resolve_config(&self.layout, &mut environment, &desired)?;
        run_metadata::add_to(&mut environment, &request);
        if request.oidc_login.is_some() {
            disable_credential_helper(&mut environment);
        }
        let policies = self.policies(&parameters, &desired, &mut environment)?;
        let tags = run_metadata::stack_tags(&self.layout, &environment, &request.stack_tags);
        if let Some(session) = interactive_session::find(&self.layout)? {
            return Ok(Admission::Held(interactive_session::describe(&session)));
        }
        let cancel_request = call.cancel_request.clone();
        let record = self.begin(&request, &desired, &environment, &cancel_request)?;
        // The pod can start to terminate after this call has acquired the lock, but before the call registers the
        // operation.
        self.cancel_if_terminated();
        let select = *lock(&self.selected) != Some(desired.stack.clone());
        let login =
            request.oidc_login.clone().map(|login| Login::new(login, request.timeout_seconds, self.last_login.clone()));
        let (layout, settings) = (self.layout.clone(), self.settings.clone());
        let (journal, cancellation_grace, liveness) =
            (self.journal.clone(), self.cancellation_grace, Liveness::begin());
        let run = Run {
            layout,
            settings,
            journal,
            record,
            parameters,
            policies,
            stack: desired.stack.clone(),
            desired,
            config,
            tags,
            config_inputs,
            current_source,
            environment,
            login,
            cancel_request,
            cancellation_grace,
            liveness,
            select,
            version: self.source.version.clone(),
            step: Mutex::default(),
            notes: Mutex::default(),
        }
        .with_organization();
        let log_span = run_metadata::log_span(&request.traceparent);
        self.tasks.spawn(self.clone().finish(run, guard, token).instrument(log_span));
        Ok(Admission::Begun)
    }

    fn policies(
        &self,
        parameters: &OperationRequest,
        desired: &proto::Settings,
        environment: &mut Environment,
    ) -> Result<RunPolicies, Refusal> {
        let directory_of = |artifact: &proto::Artifact| self.source.policy_pack_directory(artifact);
        RunPolicies::new(parameters.kind, &desired.policy_packs, directory_of, &self.layout, environment)
    }

    /// Returns the reply if the operation is in the journal or must wait for another operation. The controller starts the
    /// runs of a Workspace one after another, but a client can delete the Update of an open run.
    fn admission_without_start(&self, request: &proto::RunRequest) -> Result<Option<Admission>, Refusal> {
        if self.knows(request)? {
            return Ok(Some(Admission::Known));
        }
        let other = self.workspace_lock.open_operation().filter(|id| *id != request.id);
        let other = other.filter(|_| !self.workspace_lock.is_draining());
        let held = |id| Admission::Held(format!("run {id}, whose Update was deleted, is still open in the pod"));
        Ok(other.map(held))
    }

    /// Returns whether an operation is in the journal.
    ///
    /// # Errors
    ///
    /// Returns an error if the operation in the journal differs from the request.
    fn knows(&self, request: &proto::RunRequest) -> Result<bool, Refusal> {
        let Some(record) = self.journal.find(&request.id) else { return Ok(false) };
        check_same_content(&record, request).map(|()| true)
    }

    /// Registers an operation as the running operation, and writes it to the journal.
    fn begin(
        &self,
        request: &proto::RunRequest,
        desired: &proto::Settings,
        environment: &Environment,
        cancel_request: &watch::Sender<CancelRequest>,
    ) -> Result<Arc<JournalRecord>, Refusal> {
        // Registers the operation first, because clients can cancel an operation as soon as it is in the journal.
        *lock(&self.open) = Some(RunningOperation { id: request.id.clone(), cancel_request: cancel_request.clone() });
        self.journal.begin(self.journal_request(request, desired, environment)).map_err(|error| {
            *lock(&self.open) = None;
            match error {
                JournalError::Write { id, source } => {
                    Refusal::system(format!("failed to write operation {id} to the journal"))(source)
                }
                other => Refusal::Precondition(other.to_string()),
            }
        })
    }

    /// Runs an operation to completion and writes the result to the journal, even after a panic.
    async fn finish(self: Arc<Self>, run: Run, guard: WorkspaceGuard, _token: TaskTrackerToken) {
        let request = run.record.request();
        tracing::info!(operation = request.id, update = request.name, stack = run.desired.stack, "operation started");
        let result = match AssertUnwindSafe(run.execute()).catch_unwind().await {
            Ok(result) => result,
            Err(_) => {
                // The panic is already in the log.
                run.end_processes().await;
                let message =
                    "internal error in the agent: the run was interrupted; no process of the run is left".to_owned();
                let outcome = proto::Outcome::Interrupted.into();
                let (started, ended) = (request.started, journal::now());
                proto::Result { outcome, message, started, ended, interrupted: true, ..result_with_stack_of(request) }
            }
        };
        if run.select && result.outcome() == proto::Outcome::Succeeded && run.parameters.kind.is_forward() {
            *lock(&self.selected) = Some(run.desired.stack.clone());
        }
        tracing::info!(operation = request.id, update = request.name, outcome = ?result.outcome(), "operation ended");
        // Releases the lock before the result becomes visible, so that a client that receives the result can start the
        // next operation immediately.
        *lock(&self.open) = None;
        drop(guard);
        self.journal.finish(&run.record, result);
    }

    /// Registers a `Run` call.
    ///
    /// # Errors
    ///
    /// Returns an error if the operation has not begun, and [`Operations::find_or_prevent`] has prevented its start.
    pub fn register(&self, id: &str) -> Result<RunCall, Refusal> {
        let call = self.starting.register(id);
        match call.is_prevented && self.journal.find(id).is_none() {
            true => Err(Refusal::Precondition(format!("operation {id} was canceled before it began"))),
            false => Ok(call),
        }
    }

    /// Returns the record of an operation.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal::Starting`] if a `Run` call is starting the operation, because the operation can still begin.
    pub fn find(&self, id: &str) -> Result<Arc<JournalRecord>, Refusal> {
        // Checks the calls before the journal, because a call writes to the journal before it ends.
        let is_starting = self.starting.find(id).is_some();
        self.record(id, is_starting)
    }

    /// Returns the record of an operation in the same way as [`Operations::find`]. If the operation is unknown, later
    /// `Run` calls do not start it.
    pub fn find_or_prevent(&self, id: &str) -> Result<Arc<JournalRecord>, Refusal> {
        journal::validate_id(id).map_err(|error| Refusal::Invalid(error.to_string()))?;
        let is_starting = !self.starting.prevent(id);
        self.record(id, is_starting)
    }

    fn record(&self, id: &str, is_starting: bool) -> Result<Arc<JournalRecord>, Refusal> {
        self.journal.find(id).ok_or_else(|| match is_starting {
            true => Refusal::Starting(id.to_owned()),
            false => Refusal::UnknownOperation(id.to_owned()),
        })
    }

    /// Handles a `Cancel` call. The cancellation is graceful at first, and forced when the grace period ends. A client
    /// repeats the call if it does not receive the reply, so a repeated call has no effect. The call has no effect
    /// either if the operation is complete. If a `Run` call is starting the operation, the operation ends as soon as it
    /// begins.
    pub fn cancel(&self, id: &str, pod_ends_in_seconds: u32) -> Result<(), Refusal> {
        let now = Instant::now();
        let (cause, grace) = match pod_ends_in_seconds {
            0 => (Cause::Requested, self.cancellation_grace),
            seconds => (Cause::Terminated, cancellation_grace(Duration::from_secs(seconds.into()))),
        };
        let forced_at = now + grace;
        let cancel = |sender: &watch::Sender<CancelRequest>| {
            sender.send_modify(|cancel_request| cancel_request.cancel(cause, now, forced_at));
        };
        // Cancels the start first, because the operation can begin at any time and then keeps this cancellation.
        let starting = self.starting.find(id);
        starting.iter().for_each(cancel);
        if self.journal.find(id).is_none() && starting.is_none() {
            return Err(Refusal::UnknownOperation(id.to_owned()));
        }
        if let Some(open) = lock(&self.open).as_ref().filter(|open| open.id == id) {
            cancel(&open.cancel_request);
        }
        Ok(())
    }

    /// Rejects new operations and sources, and cancels the running operation. The cancellation is graceful at first,
    /// and forced when the grace period ends.
    pub fn terminate(&self) {
        *lock(&self.forced_at) = Some(Instant::now() + self.cancellation_grace);
        self.workspace_lock.terminate();
        self.cancel_if_terminated();
    }

    fn cancel_if_terminated(&self) {
        let Some(forced_at) = *lock(&self.forced_at) else { return };
        if let Some(open) = lock(&self.open).as_ref() {
            tracing::info!(operation = open.id, "canceling the operation: the pod is terminating");
            open.cancel_request
                .send_modify(|cancel_request| cancel_request.cancel(Cause::Terminated, Instant::now(), forced_at));
        }
    }

    fn refuse_other_agent(&self, request: &proto::RunRequest) -> Result<(), Refusal> {
        for (what, desired, found) in [
            ("another pod", &request.pod_uid, &self.identity.pod_uid),
            ("another instance of the agent", &request.start_id, &self.identity.start_id),
        ] {
            if desired != found {
                return Err(Refusal::Precondition(format!(
                    "operation {} is bound to {what}: expected {desired:?}, found {found:?}",
                    request.id
                )));
            }
        }
        Ok(())
    }

    fn refuse_other_source(&self, request: &proto::RunRequest) -> Result<CurrentSource, Refusal> {
        let desired = request.artifact.clone().unwrap_or_default();
        let Some(current_source) = self.source.current_source() else {
            return Err(Refusal::Precondition(format!(
                "no source is installed: operation {} requires {}",
                request.id, desired.digest
            )));
        };
        if (&current_source.digest, &current_source.directory) != (&desired.digest, &desired.directory) {
            return Err(Refusal::Precondition(format!(
                "another source is installed: {} with directory {:?}; operation {} requires {} with directory {:?}",
                current_source.digest, current_source.directory, request.id, desired.digest, desired.directory
            )));
        }
        Ok(current_source)
    }

    fn journal_request(
        &self,
        request: &proto::RunRequest,
        desired: &proto::Settings,
        environment: &Environment,
    ) -> Request {
        let artifact = request.artifact.clone().unwrap_or_default();
        let project = Project::read(&self.layout.workspace()).ok();
        let backend = environment::backend_url(environment, project.as_ref());
        Request {
            id: request.id.clone(),
            name: request.name.clone(),
            kind: request.kind,
            digest: artifact.digest,
            directory: artifact.directory,
            stack: desired.stack.clone(),
            settings_digest: request.settings_digest.clone(),
            refresh: request.refresh,
            message: request.message.clone(),
            start_id: self.identity.start_id.clone(),
            process_space: self.identity.process_space.clone(),
            pod_uid: Some(self.identity.pod_uid.clone()),
            started: journal::now(),
            project: project.as_ref().map(|project| project.name.clone()),
            runtime: project.map(|project| project.runtime),
            backend,
        }
    }
}

/// Returns the result of an interrupted run. The result contains the project and the state backend from the request,
/// because the controller needs both to identify the stack whose resources the run has changed.
fn result_with_stack_of(request: &Request) -> proto::Result {
    let runtime = request.runtime.clone().unwrap_or_default();
    let project = request.project.clone().map(|name| proto::Project { name, runtime });
    proto::Result { project, backend: request.backend.clone().unwrap_or_default(), ..proto::Result::default() }
}

impl Identity {
    pub fn new(pod_uid: String) -> std::io::Result<Self> {
        let start_id = uuid::Uuid::new_v4().to_string();
        Ok(Identity { pod_uid, start_id, process_space: processes::process_space()? })
    }
}

fn verified_settings(request: &proto::RunRequest) -> Result<proto::Settings, Refusal> {
    let settings = request.settings.clone().unwrap_or_default();
    if settings.stack.is_empty() {
        return Err(Refusal::Invalid(format!("operation {} has no stack name", request.id)));
    }
    let found = settings_digest(&settings);
    if found != request.settings_digest {
        return Err(Refusal::Precondition(format!(
            "settings of operation {} do not match their digest: expected {}, found {found}",
            request.id, request.settings_digest
        )));
    }
    Ok(settings)
}

/// Returns an error if a request differs from the operation with the same ID in the journal.
pub fn check_same_content(record: &JournalRecord, request: &proto::RunRequest) -> Result<(), Refusal> {
    let known = record.request();
    let artifact = request.artifact.clone().unwrap_or_default();
    let differs = [
        ("kind", known.kind != request.kind),
        ("artifact", (&known.digest, &known.directory) != (&artifact.digest, &artifact.directory)),
        ("settings digest", known.settings_digest != request.settings_digest),
        ("value of refresh", known.refresh != request.refresh),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        None => Ok(()),
        Some((what, _)) => {
            Err(Refusal::Precondition(format!("operation {} already exists with a different {what}", known.id)))
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
