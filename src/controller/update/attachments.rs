//! Attaches tasks to open runs. Each run has at most one task. The tasks exist only in memory.
//!
//! A task reads the messages of the agent and requeues the Update. A task never writes to the Kubernetes API.

mod task;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::ObjectRef;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::api::auto::{RunProgress, Update};
use crate::controller::update::resource_steps::ResourceSteps;
use crate::rpc::client::{AgentAddress, Agents, RpcError};
use crate::rpc::proto;
use crate::runtime::requeue::Requeue;
use crate::runtime::run_limiter::Permit;

/// Timeout of the request that acknowledges a recorded result to the agent.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a response of the agent after which a run without a timeout loses its slot.
const MAX_SILENCE: SignedDuration = SignedDuration::from_hours(24);

/// State of a run as the attached task observes it.
#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    /// The agent has not responded yet.
    Connecting,
    /// The run is in progress. The agent reports its progress.
    Running,
    /// The agent delays the start of the run for the given reason.
    Held(String),
    /// The agent has no record of the run, and the task must not start the run.
    NeverStarted,
    /// The agent is unreachable for the given reason.
    Unreachable(String),
    /// The agent has no record of the run and rejects the start request for the given reason.
    Rejected(String),
    /// The agent cannot start the run in the current state of the workspace, for example because a Secret is missing.
    /// Contains the reason.
    PreconditionFailed(String),
    /// The run has completed.
    Ended(Box<proto::Result>),
}

/// State of a run to which a task is attached.
#[derive(Clone, Debug)]
pub struct RunSnapshot {
    pub run_state: RunState,
    /// Last reported progress.
    pub progress: Option<RunProgress>,
    /// IP address of the agent.
    pub ip: IpAddr,
    /// Whether the task may start the run.
    pub may_start: bool,
}

/// All attached tasks of this process, by UID of the Update.
#[derive(Clone)]
pub struct Attachments {
    agents: Agents,
    requeue: Requeue<Update>,
    tasks: TaskTracker,
    /// Stops the tasks on shutdown. The runs continue, and the next controller process attaches to them.
    end: CancellationToken,
    // Hold the lock only for short critical sections, and never across an `.await`. A std mutex is therefore
    // sufficient.
    open: Arc<Mutex<HashMap<String, Attachment>>>,
    /// Slots of open runs, by UID of the Update. [`Attachments::detach`] and [`Attachments::release_slot`] release the
    /// slot of a run. Hold the lock only for short critical sections, and never across an `.await`.
    slots: Arc<Mutex<HashMap<String, HeldSlot>>>,
    serials: Arc<AtomicU64>,
    /// Whether the tasks record resource operations.
    records_steps: bool,
}

/// Slot that an open run occupies, and the Update of the run.
struct HeldSlot {
    update: ObjectRef<Update>,
    /// `None` after [`Attachments::release_slot`].
    permit: Option<Permit<ObjectRef<Update>>>,
    /// Time after which the deadline of the run has certainly passed, or `None` if the run has no timeout.
    deadline: Option<Timestamp>,
}

struct Attachment {
    /// Serial number of the current task. Only the task that has this number can change the attachment.
    serial: u64,
    run_state: RunState,
    progress: Option<RunProgress>,
    /// Resource operations of a completed run, if the tasks record them.
    steps: Option<Arc<ResourceSteps>>,
    address: AgentAddress,
    may_start: bool,
    /// Time since which the agent has been unreachable, or `None` if the agent has responded to the last call.
    silent_since: Option<Timestamp>,
    /// Stops the task when this value is dropped.
    _guard: DropGuard,
}

/// Run to which a task is attached.
#[derive(Clone, Debug)]
pub struct Target {
    pub update: ObjectRef<Update>,
    pub address: AgentAddress,
    /// Request that starts the run if the agent has no record of the run.
    pub request: proto::RunRequest,
    /// Whether the task may start the run. If `false`, the task attaches to the run without starting it.
    pub may_start: bool,
}

impl std::fmt::Debug for Attachments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachments").finish_non_exhaustive()
    }
}

impl Attachments {
    pub fn new(agents: Agents, requeue: Requeue<Update>, tasks: TaskTracker, end: CancellationToken) -> Self {
        Attachments {
            agents,
            requeue,
            tasks,
            end,
            open: Arc::default(),
            slots: Arc::default(),
            serials: Arc::default(),
            records_steps: false,
        }
    }

    /// Configures whether the tasks record the resource operations of their runs.
    #[must_use]
    pub fn with_steps(self, records_steps: bool) -> Self {
        Attachments { records_steps, ..self }
    }

    /// Returns the resource operations of a completed run, if its task has recorded them.
    pub fn steps(&self, uid: &str) -> Option<Arc<ResourceSteps>> {
        self.lock().get(uid)?.steps.clone()
    }

    /// Returns the state of a run, or `None` if no task is attached to the run.
    pub fn snapshot(&self, uid: &str) -> Option<RunSnapshot> {
        let open = self.lock();
        let attachment = open.get(uid)?;
        let (run_state, progress) = (attachment.run_state.clone(), attachment.progress.clone());
        Some(RunSnapshot { run_state, progress, ip: attachment.address.ip, may_start: attachment.may_start })
    }

    /// Attaches a task to a run. Does nothing if a task with the same address and the same `may_start` is attached.
    pub fn attach(&self, target: Target) {
        let uid = target.request.id.clone();
        let token = self.end.child_token();
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        {
            let mut open = self.lock();
            let before = open.get(&uid);
            if before.is_some_and(|a| a.address == target.address && a.may_start == target.may_start) {
                return;
            }
            let (progress, silent_since) = before.map(|a| (a.progress.clone(), a.silent_since)).unwrap_or_default();
            let (address, may_start) = (target.address.clone(), target.may_start);
            let _guard = token.clone().drop_guard();
            let (run_state, steps) = (RunState::Connecting, None);
            open.insert(
                uid,
                Attachment { serial, run_state, progress, steps, address, may_start, silent_since, _guard },
            );
        }
        let this = self.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = this.follow(target, serial) => {}
            }
        });
    }

    /// Holds the slot of a run until [`Attachments::detach`] or [`Attachments::release_slot`] is called. If the run
    /// already holds a slot, its first deadline remains, because the run has not changed.
    pub fn hold_slot(
        &self,
        uid: &str,
        update: ObjectRef<Update>,
        permit: Permit<ObjectRef<Update>>,
        deadline: Option<Timestamp>,
    ) {
        let mut slots = self.slots();
        let deadline = slots.get(uid).and_then(|held| held.deadline).or(deadline);
        let earlier = slots.insert(uid.to_owned(), HeldSlot { update, permit: Some(permit), deadline });
        drop(slots);
        drop(earlier);
    }

    /// Releases the slot of a run after the deadline of the run.
    pub fn release_expired_slot(&self, uid: &str, now: Timestamp) {
        let is_expired = |held: &HeldSlot| held.deadline.is_some_and(|deadline| now > deadline);
        let is_expired = self.slots().get(uid).is_some_and(is_expired);
        if is_expired {
            self.release_slot(uid);
        }
    }

    /// Releases the slot of a run whose agent is unreachable: after the deadline of the run or, if the run has no
    /// timeout, after [`MAX_SILENCE`]. The run stays open, because it can still be in progress. Without this limit, a
    /// run on a lost node would hold its slot until a user resolves the run.
    pub fn release_silent_slot(&self, uid: &str, now: Timestamp) {
        let Some(since) = self.lock().get(uid).and_then(|attachment| attachment.silent_since) else { return };
        let limit = since.saturating_add(MAX_SILENCE).unwrap_or(Timestamp::MAX);
        let is_expired = |held: &HeldSlot| now > held.deadline.unwrap_or(limit);
        let is_expired = self.slots().get(uid).is_some_and(is_expired);
        if is_expired {
            self.release_slot(uid);
        }
    }

    /// Releases the slot of a run without stopping its task. [`Attachments::forget`] needs the remaining entry to find
    /// the task.
    pub fn release_slot(&self, uid: &str) {
        let permit = self.slots().get_mut(uid).and_then(|slot| slot.permit.take());
        drop(permit);
    }

    /// Stops the task of a run and releases the slot.
    pub fn detach(&self, uid: &str) {
        self.lock().remove(uid);
        self.slots().remove(uid);
    }

    /// Detaches the runs of a deleted Update. Each attached run has an entry in the slots, so the method finds the
    /// runs there.
    pub fn forget(&self, namespace: &str, name: &str) {
        let is_its = |update: &ObjectRef<Update>| update.name == name && update.namespace.as_deref() == Some(namespace);
        let slots = self.slots();
        let gone: Vec<String> =
            slots.iter().filter(|(_, slot)| is_its(&slot.update)).map(|(uid, _)| uid.clone()).collect();
        drop(slots);
        gone.iter().for_each(|uid| self.detach(uid));
    }

    /// Asks the agent to cancel a run.
    pub async fn cancel(&self, address: &AgentAddress, uid: &str) -> Result<(), RpcError> {
        self.agents.connect(address).await?.cancel(uid).await
    }

    /// Tells the agent of a run when the kubelet kills the containers of its pod, which is being deleted.
    pub async fn end_with_pod(&self, address: &AgentAddress, uid: &str, seconds: u32) -> Result<(), RpcError> {
        self.agents.connect(address).await?.end_with_pod(uid, seconds).await
    }

    /// Informs the agent in the background that the controller has recorded the result. The caller does not wait for
    /// the response. An agent that does not receive this call keeps the run journal.
    pub fn acknowledge(&self, address: AgentAddress, uid: String) {
        let agents = self.agents.clone();
        self.tasks.spawn(async move {
            let reply = async { agents.connect(&address).await?.acknowledge(&uid).await };
            let reply = tokio::time::timeout(ACKNOWLEDGE_TIMEOUT, reply).await;
            if !matches!(reply, Ok(Ok(()))) {
                tracing::info!(?reply, uid, "failed to acknowledge the result to the agent");
            }
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Attachment>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, HashMap<String, HeldSlot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
