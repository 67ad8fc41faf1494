//! Tasks that are attached to open runs: one task per run, in memory only.
//!
//! A task reads the messages of the agent and wakes the reconciler. It never writes to the API.

mod rate_limit;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use kube::runtime::reflector::ObjectRef;
use prost::Message;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::api::auto::{RunProgress, Update};
use crate::api::conditions;
use crate::controller::update::progress::{Progress, ProgressChange};
use crate::rpc::client::{self as rpc, AgentAddress, Agents, RpcError};
use crate::rpc::proto::{self, attach_reply::Part};
use crate::runtime::run_limiter::Permit;
use rate_limit::RateLimit;

/// Initial delay before an unresponsive agent is called again. It doubles up to `MAX_RETRY`.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// Retry interval for a run that the agent delays because of an interactive session.
const HELD_RETRY: Duration = Duration::from_secs(3);
/// Minimum interval between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between two urgent reports.
const URGENT_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for acknowledging a recorded result to the agent.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a text from the agent in a condition, in bytes.
const MAX_MESSAGE: usize = 1024;

/// State of a run as its task sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    /// No answer yet.
    Connecting,
    /// The run is in progress, and the agent reports on it.
    Running,
    /// The agent delays the start, for this reason.
    Held(String),
    /// The agent does not know this run and may not start it.
    NeverStarted,
    /// The agent does not respond, for this reason.
    Unreachable(String),
    /// The agent does not know this run and refuses to start it.
    Rejected(String),
    /// The agent refuses to start the run in the present state of the workspace, for example without a Secret.
    PreconditionFailed(String),
    /// The run has ended.
    Ended(Box<proto::Result>),
}

/// State of a run that has an attached task.
#[derive(Clone, Debug)]
pub struct RunSnapshot {
    pub run_state: RunState,
    /// Last reported progress.
    pub progress: Option<RunProgress>,
    /// IP address at which the task calls the agent.
    pub ip: IpAddr,
}

/// All attachments of this process, by the UID of the Update.
#[derive(Clone)]
pub struct Attachments {
    agents: Agents,
    wake: mpsc::Sender<ObjectRef<Update>>,
    tasks: TaskTracker,
    /// Ends the tasks on shutdown. The runs continue, and the next controller attaches to them.
    end: CancellationToken,
    // A std mutex: held briefly, never across an await.
    open: Arc<Mutex<HashMap<String, Attachment>>>,
    /// Slots of open runs, released on detach. Also locked only briefly.
    slots: Arc<Mutex<HashMap<String, HeldSlot>>>,
    serials: Arc<AtomicU64>,
}

/// Slot of an open run, with its Update.
struct HeldSlot {
    update: ObjectRef<Update>,
    _permit: Permit<ObjectRef<Update>>,
}

struct Attachment {
    /// Serial number of the task. A replaced task can no longer change the attachment.
    serial: u64,
    run_state: RunState,
    progress: Option<RunProgress>,
    address: AgentAddress,
    may_start: bool,
    /// Ends the task when the attachment is dropped.
    _guard: DropGuard,
}

/// Run to attach to.
#[derive(Clone, Debug)]
pub struct Target {
    pub update: ObjectRef<Update>,
    pub address: AgentAddress,
    /// Starts the run if the agent does not know it yet.
    pub request: proto::RunRequest,
    /// Whether the run may start. Otherwise, the task only attaches to it.
    pub may_start: bool,
}

impl std::fmt::Debug for Attachments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachments").finish_non_exhaustive()
    }
}

impl Attachments {
    pub fn new(
        agents: Agents,
        wake: mpsc::Sender<ObjectRef<Update>>,
        tasks: TaskTracker,
        end: CancellationToken,
    ) -> Self {
        Attachments { agents, wake, tasks, end, open: Arc::default(), slots: Arc::default(), serials: Arc::default() }
    }

    /// Returns the state of a run, or `None` if no task is attached to it.
    pub fn snapshot(&self, uid: &str) -> Option<RunSnapshot> {
        let open = self.lock();
        let attachment = open.get(uid)?;
        let (run_state, progress) = (attachment.run_state.clone(), attachment.progress.clone());
        Some(RunSnapshot { run_state, progress, ip: attachment.address.ip })
    }

    /// Attaches a task to a run. Does nothing if a task with the same address and the same `may_start` exists.
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
            let progress = before.and_then(|a| a.progress.clone());
            let (address, may_start) = (target.address.clone(), target.may_start);
            let _guard = token.clone().drop_guard();
            let run_state = RunState::Connecting;
            open.insert(uid, Attachment { serial, run_state, progress, address, may_start, _guard });
        }
        let this = self.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = this.follow(target, serial) => {}
            }
        });
    }

    /// Holds the slot of a run until the run is detached.
    pub fn hold_slot(&self, uid: &str, update: ObjectRef<Update>, permit: Permit<ObjectRef<Update>>) {
        self.slots().insert(uid.to_owned(), HeldSlot { update, _permit: permit });
    }

    /// Ends the task of a run and releases its slot.
    pub fn detach(&self, uid: &str) {
        self.lock().remove(uid);
        self.slots().remove(uid);
    }

    /// Detaches the runs of an Update that was removed without this process. Every attached run has a slot, so the slots
    /// suffice to find them.
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

    /// Tells the agent in the background that the result is recorded. An agent that does not respond keeps its journal and
    /// delays nothing.
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

    async fn follow(&self, target: Target, serial: u64) {
        let mut following = Following::new(target, serial);
        let mut wait = FIRST_RETRY;
        loop {
            let run_state = match self.follow_once(&mut following).await {
                Ok(run_state) => run_state,
                Err(error) => RunState::Unreachable(error.to_string()),
            };
            let pause = match run_state {
                RunState::Ended(_)
                | RunState::Rejected(_)
                | RunState::PreconditionFailed(_)
                | RunState::NeverStarted => None,
                RunState::Held(_) => Some(HELD_RETRY),
                RunState::Connecting | RunState::Running | RunState::Unreachable(_) => Some(wait),
            };
            self.publish(&mut following, run_state);
            let Some(pause) = pause else { return };
            tokio::time::sleep(pause).await;
            wait = (wait * 2).min(MAX_RETRY);
        }
    }

    /// Handles one connection: attaches, starts the run if the agent does not know it, and reads until the end.
    async fn follow_once(&self, following: &mut Following) -> Result<RunState, RpcError> {
        let agent = self.agents.connect(&following.target.address).await?;
        let id = following.target.request.id.clone();
        let mut attachment = match agent.attach(&id, following.from).await {
            Err(error) if error.is_not_found() && !following.target.may_start => return Ok(RunState::NeverStarted),
            Err(error) if error.is_not_found() => {
                match agent.run(following.target.request.clone()).await {
                    Err(error) if error.is_precondition() => return Ok(RunState::PreconditionFailed(error.message)),
                    Err(error) if error.is_refusal() => return Ok(RunState::Rejected(error.message)),
                    Ok(reply) if !reply.held.is_empty() => return Ok(RunState::Held(one_line(&reply.held))),
                    other => other?,
                };
                agent.attach(&id, following.from).await?
            }
            other => other?,
        };
        self.publish(following, RunState::Running);
        while let Some(reply) = self.next(&mut attachment, following).await? {
            let pause = following.rate.spend(reply.encoded_len(), Instant::now());
            tokio::time::sleep(pause).await;
            match reply.part {
                Some(Part::Progress(progress)) => self.note(following, &progress),
                Some(Part::Result(result)) => return Ok(RunState::Ended(Box::new(result))),
                None => {}
            }
        }
        Ok(RunState::Unreachable("agent closed the stream without a result".to_owned()))
    }

    /// Returns the next message. Reports due progress in the meantime.
    async fn next(
        &self,
        attachment: &mut rpc::Attachment,
        following: &mut Following,
    ) -> Result<Option<proto::AttachReply>, RpcError> {
        let mut next = std::pin::pin!(attachment.next());
        loop {
            let Some(due) = following.due else { return next.await };
            tokio::select! {
                reply = &mut next => return reply,
                () = tokio::time::sleep_until(due) => self.publish_progress(following),
            }
        }
    }

    fn note(&self, following: &mut Following, progress: &proto::Progress) {
        following.from = progress.sequence + 1;
        let now = Instant::now();
        match following.progress.observe(progress) {
            ProgressChange::None => {}
            ProgressChange::Urgent => {
                // An agent that reports new processes continuously must not trigger a write each time.
                let due = following.published.map_or(now, |published| published + URGENT_INTERVAL);
                following.due = Some(following.due.map_or(due, |before| before.min(due)));
                if due <= now {
                    self.publish_progress(following);
                }
            }
            ProgressChange::Some => {
                let due = following.published.map_or(now, |published| published + PROGRESS_INTERVAL);
                following.due.get_or_insert(due);
            }
        }
    }

    /// Publishes the progress to the reconciler and wakes it.
    fn publish_progress(&self, following: &mut Following) {
        (following.published, following.due) = (Some(Instant::now()), None);
        let progress = following.progress.status();
        if self
            .change_attachment(following, |attachment| attachment.progress.replace(progress.clone()) != Some(progress))
        {
            self.wake(&following.target);
        }
    }

    /// Stores the state and wakes the reconciler if the state has changed. The end of a run includes its last progress.
    fn publish(&self, following: &mut Following, run_state: RunState) {
        let progress = matches!(run_state, RunState::Ended(_)).then(|| following.progress.status());
        let is_news = self.change_attachment(following, |attachment| {
            let is_news = attachment.run_state != run_state;
            attachment.run_state = run_state;
            attachment.progress = progress.or_else(|| attachment.progress.take());
            is_news
        });
        if is_news {
            self.wake(&following.target);
        }
    }

    /// Changes the attachment of a run. Returns false if another task or no task is attached now.
    fn change_attachment(&self, following: &Following, change: impl FnOnce(&mut Attachment) -> bool) -> bool {
        let mut open = self.lock();
        open.get_mut(&following.target.request.id).filter(|a| a.serial == following.serial).is_some_and(change)
    }

    fn wake(&self, target: &Target) {
        if self.wake.clone().try_send(target.update.clone()).is_err() {
            tracing::debug!(update = %target.update, "wake-up dropped; the periodic requeue covers it");
        }
    }
}

/// Run of one task.
struct Following {
    target: Target,
    serial: u64,
    /// Sequence number of the next message.
    from: u64,
    progress: Progress,
    /// Time of the last progress report.
    published: Option<Instant>,
    /// Time at which progress is due to be reported, or `None` if nothing has changed.
    due: Option<Instant>,
    /// Belongs to the task, so that an agent cannot reset the limit by reconnecting.
    rate: RateLimit,
}

impl Following {
    fn new(target: Target, serial: u64) -> Self {
        let rate = RateLimit::new(Instant::now());
        Following { target, serial, from: 0, progress: Progress::default(), published: None, due: None, rate }
    }
}

/// Returns a text from the agent for users, bounded and on one line.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    conditions::shorten(&line, MAX_MESSAGE)
}

#[cfg(test)]
mod tests;
