//! The process of an agent: it accepts, runs and cancels operations as `src/agent/operations.rs` does, with the real
//! journal and the real locks. All its tasks end with the container.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube_sim::nodes::Nodes;
use kube_sim::{Key, Server};
use pulumi_controller::agent::cancellation::{self, CancelRequest, Cause, cancellation_grace};
use pulumi_controller::agent::journal::{self, Journal, JournalRecord, Request};
use pulumi_controller::agent::refusal::Refusal;
use pulumi_controller::agent::starting_operations::{RunCall, StartingOperations};
use pulumi_controller::agent::workspace_lock::{WorkspaceGuard, WorkspaceLock};
use pulumi_controller::agent::{OperationRequest, check_same_content, termination_message};
use pulumi_controller::api::names::PULUMI_CONTAINER;
use pulumi_controller::pulumi::backend::URL_VARIABLE;
use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, Outcome};
use pulumi_controller::rpc::protocol::settings_digest;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::backend::history::Verdict;
use super::super::backend::{Backend, StackId};
use super::mounts::Mounts;
use super::program::Program;
use super::run::Run;
use super::{container_id, is_container_running, text};

/// Maximum time that the agent waits until the controller has recorded the results.
const RECORD_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which the agent checks whether its run has ended, and the kubelet whether the grace period has ended.
const POLL: Duration = Duration::from_secs(1);
/// Exit code of a process that SIGKILL has ended.
const KILLED: i32 = 137;
/// First process ID of the CLI in a container.
const FIRST_PID: u32 = 20;

/// Volume with the source and the journal. It survives a restart of the container, and the volume of a claim also
/// survives the pod.
pub struct Volume {
    directory: tempfile::TempDir,
    content: Mutex<Installed>,
}

#[derive(Clone, Default)]
struct Installed {
    /// Pod that has installed the source.
    pod_uid: String,
    artifact: Option<proto::Artifact>,
    program: Program,
    settings_digest: String,
}

impl Default for Volume {
    fn default() -> Volume {
        // A file system in memory, because the journal syncs its files.
        let memory = std::path::Path::new("/dev/shm");
        // Other worlds with the same random numbers have other processes.
        let prefix = format!("agent-{}-", std::process::id());
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(&prefix);
        let directory = if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() };
        Volume { directory: directory.expect("a temporary directory"), content: Mutex::default() }
    }
}

pub struct Container {
    pub pod: Key,
    pub pod_uid: String,
    pub node: String,
    /// ID of the container, which is also the start ID of the agent.
    pub id: String,
    pub mounts: Mounts,
    pub workspace_lock: WorkspaceLock,
    pub journal: Arc<Journal>,
    server: Server,
    backend: Backend,
    volume: Arc<Volume>,
    starting: StartingOperations,
    open: Mutex<Option<RunningOperation>>,
    grace: Duration,
    forced_at: Mutex<Option<Instant>>,
    /// Pulumi stack that is selected in the CLI.
    selected: Mutex<Option<String>>,
    pids: Arc<AtomicU32>,
    /// Host name in the locks of the pod.
    host: String,
    killed: CancellationToken,
    is_terminating: AtomicBool,
    is_unreachable: AtomicBool,
    connections: Mutex<CancellationToken>,
}

struct RunningOperation {
    id: String,
    cancel_request: watch::Sender<CancelRequest>,
}

/// Outcome of a request to run an operation.
pub enum Admission {
    Begun,
    Known,
    Held(String),
}

// The life of the process.
impl Container {
    pub fn start(
        server: &Server,
        backend: &Backend,
        key: Key,
        pod: &Value,
        id: &str,
        volume: Arc<Volume>,
    ) -> Arc<Container> {
        let uid = text(pod, "/metadata/uid");
        {
            let mut content = lock(&volume.content);
            if content.pod_uid != uid {
                // The bootstrap of a new pod discards the source of the previous pod.
                *content = Installed { pod_uid: uid.to_owned(), ..Installed::default() };
            }
        }
        let grace = pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_u64).unwrap_or_default();
        let host = match (text(pod, "/spec/hostname"), text(pod, "/metadata/name")) {
            ("", name) => name.to_owned(),
            (name, _) => name.to_owned(),
        };
        let killed = CancellationToken::new();
        let container = Arc::new(Container {
            pod: key.clone(),
            pod_uid: uid.to_owned(),
            node: text(pod, "/spec/nodeName").to_owned(),
            id: id.to_owned(),
            mounts: Mounts { server: server.clone(), pod: key },
            workspace_lock: WorkspaceLock::default(),
            journal: Arc::new(Journal::open(volume.directory.path()).expect("a journal")),
            server: server.clone(),
            backend: backend.clone(),
            volume,
            starting: StartingOperations::default(),
            open: Mutex::default(),
            grace: Duration::from_secs(grace),
            forced_at: Mutex::default(),
            selected: Mutex::default(),
            pids: Arc::new(AtomicU32::new(FIRST_PID)),
            host,
            connections: Mutex::new(killed.child_token()),
            killed,
            is_terminating: AtomicBool::new(false),
            is_unreachable: AtomicBool::new(false),
        });
        container.recover();
        container
    }

    pub fn is_running(&self) -> bool {
        !self.killed.is_cancelled()
    }

    pub fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::Relaxed)
    }

    /// Returns a token that resets the connections.
    pub fn connections(&self) -> CancellationToken {
        lock(&self.connections).clone()
    }

    /// Runs a task until the process is killed.
    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let killed = self.killed.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = killed.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Ends the process, or sends SIGTERM, in accordance with the pod. `node` is whether the node is ready, or `None` if it
    /// no longer exists.
    pub fn sync(self: &Arc<Self>, pod: Option<&Value>, node: Option<bool>) {
        let pod = pod.filter(|pod| text(pod, "/metadata/uid") == self.pod_uid);
        // The processes on a lost node continue, even if their pod is deleted.
        let is_lost = node == Some(false);
        let is_running =
            pod.is_some_and(|pod| is_container_running(pod) && container_id(pod).as_ref() == Some(&self.id));
        if node.is_none() || (!is_running && !is_lost) {
            self.killed.cancel();
            return;
        }
        let was_lost = self.is_unreachable.swap(is_lost, Ordering::Relaxed);
        if was_lost && !is_lost {
            std::mem::replace(&mut *lock(&self.connections), self.killed.child_token()).cancel();
        }
        let is_deleting = pod.is_some_and(|pod| pod.pointer("/metadata/deletionTimestamp").is_some());
        if is_deleting && !is_lost && !self.is_terminating.swap(true, Ordering::Relaxed) {
            let agent = self.clone();
            self.spawn(async move {
                let (code, message) = tokio::select! {
                    biased;
                    () = agent.grace_period() => (KILLED, Vec::new()),
                    message = agent.terminate() => (0, message),
                };
                let message = String::from_utf8_lossy(&message);
                // The pod can be gone. The result then ends with it.
                let _ = Nodes::new(&agent.server).end_containers(&agent.pod, PULUMI_CONTAINER, code, &message);
            });
        }
    }

    /// Waits until the grace period of the pod has ended.
    async fn grace_period(&self) {
        while let Some(pod) = self.server.get_key(&self.pod) {
            let end = text(&pod, "/metadata/deletionTimestamp").parse::<jiff::Timestamp>();
            if end.is_ok_and(|end| end <= self.server.now()) {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Cancels the run, and waits until the controller has recorded its result, as the agent does after SIGTERM. Returns
    /// the termination message.
    async fn terminate(&self) -> Vec<u8> {
        let end = Instant::now() + self.grace.saturating_sub(cancellation::reserve(self.grace));
        *lock(&self.forced_at) = Some(Instant::now() + cancellation_grace(self.grace));
        self.workspace_lock.terminate();
        self.cancel_if_terminated();
        while self.workspace_lock.open_operation().is_some() && Instant::now() < end {
            tokio::time::sleep(POLL).await;
        }
        let pending = self.journal.unacknowledged();
        let message = pending.last().map(|last| termination_message(last)).unwrap_or_default();
        let end = Instant::now() + RECORD_TIMEOUT;
        for record in &pending {
            let mut state = record.watch();
            if timeout_at(end, state.wait_for(|state| state.acknowledged)).await.is_err() {
                break;
            }
        }
        message
    }

    /// Ends the runs that the previous process has left unfinished.
    fn recover(&self) {
        self.journal.forget_unfinished_of_other_pods(&self.pod_uid);
        for record in self.journal.unfinished() {
            let request = record.request();
            let project = request.project.clone().map(|name| {
                let runtime = request.runtime.clone().unwrap_or_default();
                proto::Project { name, runtime }
            });
            let result = proto::Result {
                outcome: Outcome::Interrupted.into(),
                message: "the agent in the workspace pod restarted during the run".to_owned(),
                started: request.started,
                ended: journal::now(),
                interrupted: true,
                project,
                backend: request.backend.clone().unwrap_or_default(),
                ..proto::Result::default()
            };
            self.journal.finish(&record, result);
        }
    }
}

// The operations.
impl Container {
    pub fn artifact(&self) -> Option<proto::Artifact> {
        lock(&self.volume.content).artifact.clone()
    }

    pub fn settings_digest(&self) -> String {
        lock(&self.volume.content).settings_digest.clone()
    }

    pub fn project_name(&self) -> String {
        lock(&self.volume.content).program.project.clone()
    }

    pub fn has_session(&self) -> bool {
        self.backend.has_session()
    }

    /// Installs a source. Returns whether it was already installed.
    pub fn install(&self, artifact: proto::Artifact, program: Program) -> Result<bool, Refusal> {
        if self.artifact().as_ref() == Some(&artifact) {
            return Ok(true);
        }
        let _guard = self.workspace_lock.lock_for_source()?;
        let mut content = lock(&self.volume.content);
        (content.artifact, content.program) = (Some(artifact), program);
        content.settings_digest.clear();
        Ok(false)
    }

    pub fn register(&self, id: &str) -> Result<RunCall, Refusal> {
        let call = self.starting.register(id);
        match call.is_prevented && self.journal.find(id).is_none() {
            true => Err(Refusal::Precondition(format!("operation {id} was canceled before it began"))),
            false => Ok(call),
        }
    }

    /// Returns the record of an operation. If it is unknown and `prevents` is true, later calls do not start it.
    pub fn find(&self, id: &str, prevents: bool) -> Result<Arc<JournalRecord>, Refusal> {
        journal::validate_id(id).map_err(|error| Refusal::Invalid(error.to_string()))?;
        let is_starting = if prevents { !self.starting.prevent(id) } else { self.starting.find(id).is_some() };
        self.journal.find(id).ok_or_else(|| match is_starting {
            true => Refusal::Starting(id.to_owned()),
            false => Refusal::UnknownOperation(id.to_owned()),
        })
    }

    fn knows(&self, request: &proto::RunRequest) -> Result<bool, Refusal> {
        let Some(record) = self.journal.find(&request.id) else { return Ok(false) };
        check_same_content(&record, request).map(|()| true)
    }

    pub fn run(
        self: &Arc<Self>,
        call: &RunCall,
        request: proto::RunRequest,
        config_inputs: String,
    ) -> Result<Admission, Refusal> {
        journal::validate_id(&request.id).map_err(|error| Refusal::Invalid(error.to_string()))?;
        if self.knows(&request)? {
            return Ok(Admission::Known);
        }
        let parameters = OperationRequest::of(&request)?;
        for (what, desired, found) in [
            ("another pod", &request.pod_uid, &self.pod_uid),
            ("another instance of the agent", &request.start_id, &self.id),
        ] {
            if desired != found {
                return Err(Refusal::Precondition(format!("operation {} is bound to {what}", request.id)));
            }
        }
        let Some(guard) = self.workspace_lock.lock_for_operation(&request.id)? else { return Ok(Admission::Known) };
        let installed = lock(&self.volume.content).clone();
        if installed.artifact != request.artifact {
            return Err(Refusal::Precondition("another source is installed".to_owned()));
        }
        let settings = request.settings.clone().unwrap_or_default();
        if settings_digest(&settings) != request.settings_digest {
            return Err(Refusal::Precondition("the settings do not match their digest".to_owned()));
        }
        let config = self.config(&settings)?;
        if self.has_session() {
            return Ok(Admission::Held("a user is running the CLI in the pod".to_owned()));
        }
        let variable = request.environment.iter().rfind(|variable| variable.name == URL_VARIABLE);
        let backend = match variable.and_then(|variable| variable.source.as_ref()) {
            Some(Source::Value(url)) => url.clone(),
            Some(Source::File(path)) => self.mounts.file(path).unwrap_or_default(),
            _ => String::new(),
        };
        let stack = StackId::new(&settings.stack, &installed.program.project, &backend);
        let cancel_request = call.cancel_request.clone();
        *lock(&self.open) = Some(RunningOperation { id: request.id.clone(), cancel_request: cancel_request.clone() });
        let entry = self.journal_request(&request, &settings, &installed.program, &backend);
        let record = self.journal.begin(entry).map_err(|error| Refusal::Precondition(error.to_string()))?;
        self.cancel_if_terminated();
        let selects = *lock(&self.selected) != Some(settings.stack.clone());
        let run = Run {
            backend: self.backend.clone(),
            journal: self.journal.clone(),
            record,
            parameters,
            program: installed.program,
            config,
            config_inputs,
            stack,
            pod: self.pod.name().to_owned(),
            host: self.host.clone(),
            pids: self.pids.clone(),
            cancel_request,
            cancellation_grace: cancellation_grace(self.grace),
            begun: Instant::now(),
            selects,
            request,
        };
        self.spawn(self.clone().finish(run, guard));
        Ok(Admission::Begun)
    }

    async fn finish(self: Arc<Self>, run: Run, guard: WorkspaceGuard) {
        lock(&self.volume.content).settings_digest.clone_from(&run.request.settings_digest);
        let mut execution = self.backend.accept(&run.request.id, self.pod.name());
        let result = run.execute().await;
        if result.outcome() == Outcome::Succeeded && run.parameters.kind.is_forward() {
            *lock(&self.selected) = Some(run.record.request().stack.clone());
        }
        *lock(&self.open) = None;
        drop(guard);
        execution.end(Verdict::Ended(result.outcome()));
        self.journal.finish(&run.record, result);
    }

    /// Returns the configuration. A missing file is an error.
    fn config(&self, settings: &proto::Settings) -> Result<BTreeMap<String, String>, Refusal> {
        let value = |item: &proto::ConfigItem| match item.file.as_str() {
            "" => Some(item.value.trim_matches('"').to_owned()),
            path => self.mounts.file(path),
        };
        let missing = |item: &proto::ConfigItem| Refusal::Precondition(format!("{} does not exist", item.file));
        let entry = |item: &proto::ConfigItem| Ok((item.key.clone(), value(item).ok_or_else(|| missing(item))?));
        settings.config.iter().map(entry).collect()
    }

    fn journal_request(
        &self,
        request: &proto::RunRequest,
        settings: &proto::Settings,
        program: &Program,
        backend: &str,
    ) -> Request {
        let artifact = request.artifact.clone().unwrap_or_default();
        Request {
            id: request.id.clone(),
            name: request.name.clone(),
            kind: request.kind,
            digest: artifact.digest,
            directory: artifact.directory,
            stack: settings.stack.clone(),
            settings_digest: request.settings_digest.clone(),
            refresh: request.refresh,
            message: request.message.clone(),
            start_id: self.id.clone(),
            process_space: self.id.clone(),
            pod_uid: Some(self.pod_uid.clone()),
            started: journal::now(),
            project: Some(program.project.clone()),
            runtime: Some(program.runtime.clone()),
            backend: Some(backend.to_owned()),
        }
    }

    pub fn cancel(&self, id: &str, pod_ends_in_seconds: u32) -> Result<(), Refusal> {
        let now = Instant::now();
        let (cause, grace) = match pod_ends_in_seconds {
            0 => (Cause::Requested, cancellation_grace(self.grace)),
            seconds => (Cause::Terminated, cancellation_grace(Duration::from_secs(seconds.into()))),
        };
        let cancel = |sender: &watch::Sender<CancelRequest>| {
            sender.send_modify(|request| request.cancel(cause, now, now + grace));
        };
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

    fn cancel_if_terminated(&self) {
        let Some(forced_at) = *lock(&self.forced_at) else { return };
        if let Some(open) = lock(&self.open).as_ref() {
            let now = Instant::now();
            open.cancel_request.send_modify(|request| request.cancel(Cause::Terminated, now, forced_at));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
