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
const MAX_WORDS: usize = 1024;

/// State of a run as seen by its task.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// No answer yet.
    Connecting,
    /// The run is in progress, and the agent reports on it.
    Running,
    /// The agent delays the start, for this reason.
    Held(String),
    /// The agent does not know this run and was not asked to start it.
    NeverStarted,
    /// The agent does not respond, for this reason.
    Unreachable(String),
    /// The agent does not know this run and refuses to start it.
    Refused(String),
    /// The agent refuses to start the run in the present state of the workspace, for example without a Secret.
    NotNow(String),
    /// The run has ended.
    Ended(Box<proto::Result>),
}

/// State of a run that has an attached task.
#[derive(Clone, Debug)]
pub struct Look {
    pub seen: Seen,
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
    places: Arc<Mutex<HashMap<String, Place>>>,
    serials: Arc<AtomicU64>,
}

/// Slot of an open run, with its Update.
struct Place {
    update: ObjectRef<Update>,
    _permit: Permit<ObjectRef<Update>>,
}

struct Attachment {
    /// Serial number of the task. A replaced task can no longer change the attachment.
    serial: u64,
    seen: Seen,
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
        Attachments { agents, wake, tasks, end, open: Arc::default(), places: Arc::default(), serials: Arc::default() }
    }

    /// Returns the state of a run, or `None` if no task is attached to it.
    pub fn look(&self, uid: &str) -> Option<Look> {
        let open = self.lock();
        let attachment = open.get(uid)?;
        let (seen, progress) = (attachment.seen.clone(), attachment.progress.clone());
        Some(Look { seen, progress, ip: attachment.address.ip })
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
            let seen = Seen::Connecting;
            open.insert(uid, Attachment { serial, seen, progress, address, may_start, _guard });
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
    pub fn keep(&self, uid: &str, update: ObjectRef<Update>, permit: Permit<ObjectRef<Update>>) {
        self.places().insert(uid.to_owned(), Place { update, _permit: permit });
    }

    /// Ends the task of a run and releases its slot.
    pub fn detach(&self, uid: &str) {
        self.lock().remove(uid);
        self.places().remove(uid);
    }

    /// Detaches the runs of an Update that was removed without this process. Every attached run has a slot, so the slots
    /// suffice to find them.
    pub fn forget(&self, namespace: &str, name: &str) {
        let is_its = |update: &ObjectRef<Update>| update.name == name && update.namespace.as_deref() == Some(namespace);
        let places = self.places();
        let gone: Vec<String> =
            places.iter().filter(|(_, place)| is_its(&place.update)).map(|(uid, _)| uid.clone()).collect();
        drop(places);
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
            let told = async { agents.connect(&address).await?.acknowledge(&uid).await };
            let told = tokio::time::timeout(ACKNOWLEDGE_TIMEOUT, told).await;
            if !matches!(told, Ok(Ok(()))) {
                tracing::info!(?told, uid, "the agent could not be told that the result is recorded");
            }
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Attachment>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> std::sync::MutexGuard<'_, HashMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(&self, target: Target, serial: u64) {
        let mut following = Following::new(target, serial);
        let mut wait = FIRST_RETRY;
        loop {
            let seen = match self.follow_once(&mut following).await {
                Ok(seen) => seen,
                Err(error) => Seen::Unreachable(error.to_string()),
            };
            let pause = match seen {
                Seen::Ended(_) | Seen::Refused(_) | Seen::NotNow(_) | Seen::NeverStarted => None,
                Seen::Held(_) => Some(HELD_RETRY),
                Seen::Connecting | Seen::Running | Seen::Unreachable(_) => Some(wait),
            };
            self.tell(&mut following, seen);
            let Some(pause) = pause else { return };
            tokio::time::sleep(pause).await;
            wait = (wait * 2).min(MAX_RETRY);
        }
    }

    /// Handles one connection: attaches, starts the run if the agent does not know it, and reads until the end.
    async fn follow_once(&self, following: &mut Following) -> Result<Seen, RpcError> {
        let agent = self.agents.connect(&following.target.address).await?;
        let id = following.target.request.id.clone();
        let mut attachment = match agent.attach(&id, following.from).await {
            Err(error) if error.is_not_found() && !following.target.may_start => return Ok(Seen::NeverStarted),
            Err(error) if error.is_not_found() => {
                match agent.run(following.target.request.clone()).await {
                    Err(error) if error.is_precondition() => return Ok(Seen::NotNow(error.message)),
                    Err(error) if error.is_refusal() => return Ok(Seen::Refused(error.message)),
                    Ok(reply) if !reply.held.is_empty() => return Ok(Seen::Held(words(&reply.held))),
                    other => other?,
                };
                agent.attach(&id, following.from).await?
            }
            other => other?,
        };
        self.tell(following, Seen::Running);
        while let Some(reply) = self.next(&mut attachment, following).await? {
            let pause = following.rate.spend(reply.encoded_len(), Instant::now());
            tokio::time::sleep(pause).await;
            match reply.part {
                Some(Part::Progress(progress)) => self.note(following, &progress),
                Some(Part::Result(result)) => return Ok(Seen::Ended(Box::new(result))),
                None => {}
            }
        }
        Ok(Seen::Unreachable("the agent ended the stream without a result".to_owned()))
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
                () = tokio::time::sleep_until(due) => self.tell_progress(following),
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
                let due = following.told.map_or(now, |told| told + URGENT_INTERVAL);
                following.due = Some(following.due.map_or(due, |before| before.min(due)));
                if due <= now {
                    self.tell_progress(following);
                }
            }
            ProgressChange::Some => {
                let due = following.told.map_or(now, |told| told + PROGRESS_INTERVAL);
                following.due.get_or_insert(due);
            }
        }
    }

    /// Publishes the progress to the reconciler and wakes it.
    fn tell_progress(&self, following: &mut Following) {
        (following.told, following.due) = (Some(Instant::now()), None);
        let progress = following.progress.status();
        if self.keep_seen(following, |attachment| attachment.progress.replace(progress.clone()) != Some(progress)) {
            self.wake(&following.target);
        }
    }

    /// Stores the state and wakes the reconciler if the state has changed. The end of a run includes its last progress.
    fn tell(&self, following: &mut Following, seen: Seen) {
        let progress = matches!(seen, Seen::Ended(_)).then(|| following.progress.status());
        let is_news = self.keep_seen(following, |attachment| {
            let is_news = attachment.seen != seen;
            attachment.seen = seen;
            attachment.progress = progress.or_else(|| attachment.progress.take());
            is_news
        });
        if is_news {
            self.wake(&following.target);
        }
    }

    /// Changes the attachment of a run. Returns false if another task or no task is attached now.
    fn keep_seen(&self, following: &Following, change: impl FnOnce(&mut Attachment) -> bool) -> bool {
        let mut open = self.lock();
        open.get_mut(&following.target.request.id).filter(|a| a.serial == following.serial).is_some_and(change)
    }

    fn wake(&self, target: &Target) {
        if self.wake.clone().try_send(target.update.clone()).is_err() {
            tracing::debug!(update = %target.update, "the reconciler could not be woken; it looks again by itself");
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
    told: Option<Instant>,
    /// Time at which progress is due to be reported, or `None` if nothing has changed.
    due: Option<Instant>,
    /// Belongs to the task, so that an agent cannot reset the limit by reconnecting.
    rate: RateLimit,
}

impl Following {
    fn new(target: Target, serial: u64) -> Self {
        let rate = RateLimit::new(Instant::now());
        Following { target, serial, from: 0, progress: Progress::default(), told: None, due: None, rate }
    }
}

/// Returns a text from the agent for users, bounded and on one line.
fn words(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    conditions::shorten(&line, MAX_WORDS)
}

#[cfg(test)]
mod tests;
