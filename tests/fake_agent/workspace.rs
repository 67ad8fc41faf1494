//! State of the simulated agents, one per workspace. The state is in memory, and a new pod starts with an empty state.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pulumi_controller::rpc::proto;
use pulumi_controller::rpc::protocol::PROTOCOL_VERSION;
use pulumi_controller::rpc::protocol::settings_digest;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Maximum number of operations that a workspace keeps.
const MAX_OPERATIONS: usize = 5;

/// Namespace and name of a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// All workspaces to which the controller has connected.
#[derive(Default)]
pub(super) struct Workspaces {
    all: Mutex<HashMap<Key, Workspace>>,
    /// Source that is already installed when a workspace connects for the first time.
    common: Mutex<Option<proto::Artifact>>,
    /// Workspaces whose status the controller has requested since the last call of `forget_called`.
    called: Mutex<HashSet<Key>>,
}

impl Workspaces {
    /// Returns the number of workspaces.
    pub(super) fn number(&self) -> usize {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Records a request for the status of a workspace.
    pub(super) fn record_call(&self, key: Key) {
        self.called.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }

    /// Returns the number of workspaces whose status the controller has requested.
    pub(super) fn called(&self) -> usize {
        self.called.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn forget_called(&self) {
        self.called.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Copies a workspace's installed source to all workspaces that connect later.
    pub(super) fn share_source(&self) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let artifact = all.values().find_map(|workspace| workspace.artifact.clone());
        *self.common.lock().unwrap_or_else(PoisonError::into_inner) = artifact;
    }

    /// Calls a function with the workspace. If the pod UID has changed, the function first resets the workspace.
    pub(super) fn with<T>(&self, key: &Key, pod_uid: &str, act: impl FnOnce(&mut Workspace) -> T) -> T {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = all.entry(key.clone()).or_insert_with(|| {
            let artifact = self.common.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Workspace { artifact, ..Workspace::new(pod_uid) }
        });
        if workspace.pod_uid != pod_uid {
            *workspace = Workspace::new(pod_uid);
        }
        act(workspace)
    }
}

pub(super) struct Workspace {
    pod_uid: String,
    start_id: String,
    artifact: Option<proto::Artifact>,
    policy_packs: Vec<proto::Artifact>,
    settings_digest: String,
    draining: bool,
    operations: VecDeque<Arc<Operation>>,
}

/// Run that succeeds after its duration or after a call of `finish_all`, unless the controller cancels the run earlier.
pub(super) struct Operation {
    id: String,
    began: jiff::Timestamp,
    ends: Instant,
    finished: CancellationToken,
    pub(super) cancelled: CancellationToken,
    is_acknowledged: AtomicBool,
}

impl Operation {
    pub(super) fn is_open(&self) -> bool {
        Instant::now() < self.ends && !self.finished.is_cancelled() && !self.cancelled.is_cancelled()
    }

    pub(super) async fn until_ended(&self) {
        tokio::select! {
            () = tokio::time::sleep_until(self.ends) => {}
            () = self.finished.cancelled() => {}
            () = self.cancelled.cancelled() => {}
        }
    }

    /// Acknowledges the result. Returns `true` for the first acknowledgment.
    pub(super) fn acknowledge(&self) -> bool {
        !self.is_acknowledged.swap(true, Ordering::Relaxed)
    }

    pub(super) fn started(&self) -> proto::Progress {
        let event = proto::progress::Event::Started(proto::Started { pid: 1 });
        proto::Progress { sequence: 0, time: self.began.as_millisecond(), event: Some(event) }
    }

    /// Returns a start event whose process ID depends on the number.
    pub(super) fn another_process(&self, number: u32) -> proto::Progress {
        let event = proto::progress::Event::Started(proto::Started { pid: number });
        proto::Progress { sequence: number.into(), time: i64::MIN, event: Some(event) }
    }

    /// Returns a result that exceeds the size limit of a status and has invalid timestamps.
    pub(super) fn huge_result(&self) -> proto::Result {
        proto::Result {
            started: i64::MIN,
            ended: i64::MAX,
            message: "m".repeat(500_000),
            permalink: format!("https://example.com/{}", "p".repeat(500_000)),
            changes: (0..50_000).map(|number| (format!("create-{number}"), 1)).collect(),
            last_output: "o".repeat(500_000),
            ..self.result()
        }
    }

    pub(super) fn result(&self) -> proto::Result {
        let outcome = if self.cancelled.is_cancelled() { proto::Outcome::Canceled } else { proto::Outcome::Succeeded };
        let output = proto::Output { name: "text".to_owned(), value: "\"hello\"".to_owned(), secret: false };
        proto::Result {
            outcome: outcome.into(),
            started: self.began.as_millisecond(),
            ended: jiff::Timestamp::now().as_millisecond(),
            outputs: vec![output],
            changes: [("same".to_owned(), 1)].into(),
            last_output: "Resources:\n    1 unchanged\n".to_owned(),
            ..proto::Result::default()
        }
    }
}

impl Workspace {
    fn new(pod_uid: &str) -> Workspace {
        Workspace {
            pod_uid: pod_uid.to_owned(),
            start_id: format!("{:016x}", fastrand::u64(..)),
            artifact: None,
            policy_packs: Vec::new(),
            settings_digest: String::new(),
            draining: false,
            operations: VecDeque::new(),
        }
    }

    pub(super) fn status(&self) -> proto::StatusReply {
        let pack = |artifact: &proto::Artifact| proto::PolicyPackState {
            artifact: Some(artifact.clone()),
            installed: true,
            ..proto::PolicyPackState::default()
        };
        proto::StatusReply {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            pulumi_version: "v3.200.0".to_owned(),
            start_id: self.start_id.clone(),
            pod_uid: self.pod_uid.clone(),
            artifact: self.artifact.clone(),
            settings_digest: self.settings_digest.clone(),
            open_operation: self.open_operation(),
            draining: self.draining,
            candidate: None,
            interactive_session: None,
            config_inputs: String::new(),
            mounted_inputs: std::collections::HashMap::new(),
            project_name: "stand-in".to_owned(),
            protocol_version: PROTOCOL_VERSION,
            policy_packs: self.policy_packs.iter().map(pack).collect(),
            uncached: None,
        }
    }

    pub(super) fn open_operation(&self) -> String {
        let open = self.operations.iter().find(|operation| operation.is_open());
        open.map(|operation| operation.id.clone()).unwrap_or_default()
    }

    /// Installs a source. Returns `true` if the source was already installed.
    pub(super) fn put(&mut self, artifact: proto::Artifact) -> Result<bool, Status> {
        if self.artifact.as_ref() == Some(&artifact) {
            return Ok(true);
        }
        if !self.open_operation().is_empty() {
            return Err(Status::failed_precondition("a run is open"));
        }
        self.artifact = Some(artifact);
        Ok(false)
    }

    /// Installs a policy pack. Returns `true` if the pack was already installed.
    pub(super) fn put_policy_pack(&mut self, artifact: proto::Artifact) -> bool {
        let is_installed = self.policy_packs.contains(&artifact);
        if !is_installed {
            self.policy_packs.push(artifact);
        }
        is_installed
    }

    /// Starts a run. Returns `true` if the run has already started. The fake agent rejects a request whose
    /// preconditions do not match this workspace.
    pub(super) fn run(
        &mut self,
        request: &proto::RunRequest,
        run_time: Duration,
        finished: CancellationToken,
    ) -> Result<bool, Status> {
        if self.find(&request.id).is_some() {
            return Ok(true);
        }
        let settings = request.settings.clone().unwrap_or_default();
        let refused = [
            (self.draining, "the agent is being drained"),
            (!self.open_operation().is_empty(), "another run is open"),
            (request.pod_uid != self.pod_uid, "the pod has another UID"),
            (request.start_id != self.start_id, "the agent has restarted"),
            (request.artifact != self.artifact, "another source is installed"),
            (request.settings_digest != settings_digest(&settings), "the settings do not match their digest"),
        ];
        if let Some((_, why)) = refused.into_iter().find(|(applies, _)| *applies) {
            return Err(Status::failed_precondition(why));
        }
        self.settings_digest.clone_from(&request.settings_digest);
        self.operations.truncate(MAX_OPERATIONS - 1);
        self.operations.push_front(Arc::new(Operation {
            id: request.id.clone(),
            began: jiff::Timestamp::now(),
            ends: Instant::now() + run_time,
            finished,
            cancelled: CancellationToken::new(),
            is_acknowledged: AtomicBool::new(false),
        }));
        Ok(false)
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Operation>> {
        self.operations.iter().find(|operation| operation.id == id).cloned()
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
    }
}
