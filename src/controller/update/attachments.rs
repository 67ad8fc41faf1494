//! The light tasks that are attached to open runs: one for each, in memory only.
//!
//! A task reads what the agent says and wakes the reconciler; it never writes to the API.

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
use crate::controller::update::progress::{ChangeFilter, Progress};
use crate::rpc::client::{self as rpc, AgentAddress, Agents, RpcError};
use crate::rpc::proto::{self, attach_reply::Part};
use crate::runtime::run_limiter::Permit;
use rate_limit::RateLimit;

/// The first wait before an agent that did not answer is called again; it doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// How soon a run is asked for again that waits for a person in the pod.
const HELD_RETRY: Duration = Duration::from_secs(3);
/// Progress is told at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// What has to be told at once is told at most this often.
const URGENT_INTERVAL: Duration = Duration::from_secs(1);
/// The longest that the agent is given to take note of a recorded result.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest of an agent's words that end up in a condition, in bytes.
const MAX_WORDS: usize = 1024;

/// What a task knows of its run.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// Nothing yet.
    Connecting,
    /// The run goes on, and the agent tells of it.
    Running,
    /// The agent will start it, but not yet: why, in its words.
    Held(String),
    /// The agent does not have this run, and was not asked to start it.
    NeverStarted,
    /// The agent does not answer.
    Unreachable(String),
    /// The agent does not have this run and will not start it.
    Refused(String),
    /// The same, because of the state that the workspace is in now: a Secret is missing, for example.
    NotNow(String),
    /// The run has ended.
    Ended(Box<proto::Result>),
}

/// What is known of a run that a task is attached to.
#[derive(Clone, Debug)]
pub struct Look {
    pub seen: Seen,
    /// How far it is, as it was told last.
    pub progress: Option<RunProgress>,
    /// Where the agent is asked.
    pub ip: IpAddr,
}

/// All attachments of this process, by the Update's UID.
#[derive(Clone)]
pub struct Attachments {
    agents: Agents,
    wake: mpsc::Sender<ObjectRef<Update>>,
    tasks: TaskTracker,
    /// Runs go on without a task; the next controller attaches again.
    end: CancellationToken,
    // A std mutex: held for moments only, never across an await.
    open: Arc<Mutex<HashMap<String, Attachment>>>,
    /// The places of open runs, given back when a run is detached. The same kind of mutex.
    places: Arc<Mutex<HashMap<String, Place>>>,
    serials: Arc<AtomicU64>,
}

/// The place of an open run, and whose it is.
struct Place {
    update: ObjectRef<Update>,
    _permit: Permit<ObjectRef<Update>>,
}

struct Attachment {
    /// Of its task: one that was replaced says nothing any more.
    serial: u64,
    seen: Seen,
    progress: Option<RunProgress>,
    address: AgentAddress,
    may_start: bool,
    /// Ends the task when the attachment is dropped.
    _guard: DropGuard,
}

/// A run to attach to.
#[derive(Clone, Debug)]
pub struct Target {
    pub update: ObjectRef<Update>,
    pub address: AgentAddress,
    /// What starts the run if the agent does not know it yet.
    pub request: proto::RunRequest,
    /// Whether it shall start at all; else it is only looked for.
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

    /// What is known of a run; `None` when nothing is attached to it.
    pub fn look(&self, uid: &str) -> Option<Look> {
        let open = self.lock();
        let attachment = open.get(uid)?;
        let (seen, progress) = (attachment.seen.clone(), attachment.progress.clone());
        Some(Look { seen, progress, ip: attachment.address.ip })
    }

    /// Attaches to a run. Does nothing when a task is there already that asks at this address for the same.
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

    /// Keeps the place of a run until it is detached.
    pub fn keep(&self, uid: &str, update: ObjectRef<Update>, permit: Permit<ObjectRef<Update>>) {
        self.places().insert(uid.to_owned(), Place { update, _permit: permit });
    }

    /// Forgets a run, ends its task and gives its place back.
    pub fn detach(&self, uid: &str) {
        self.lock().remove(uid);
        self.places().remove(uid);
    }

    /// The same for whatever is open of an Update that is gone: whoever has removed it did so without this process. A run that is
    /// attached to has its place.
    pub fn forget(&self, namespace: &str, name: &str) {
        let is_its = |update: &ObjectRef<Update>| update.name == name && update.namespace.as_deref() == Some(namespace);
        let places = self.places();
        let gone: Vec<String> =
            places.iter().filter(|(_, place)| is_its(&place.update)).map(|(uid, _)| uid.clone()).collect();
        drop(places);
        gone.iter().for_each(|uid| self.detach(uid));
    }

    /// Asks the agent to end a run.
    pub async fn cancel(&self, address: &AgentAddress, uid: &str) -> Result<(), RpcError> {
        self.agents.connect(address).await?.cancel(uid).await
    }

    /// Tells the agent that the result is recorded. Nobody waits for it: an agent that does not answer keeps its journal, and
    /// holds nothing up.
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

    /// One connection: attach, start the run if it is not known, read until it ends.
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

    /// The next message. Progress that has waited long enough is told meanwhile.
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
            ChangeFilter::None => {}
            ChangeFilter::Urgent => {
                // An agent that tells of another process again and again is not obeyed each time.
                let due = following.told.map_or(now, |told| told + URGENT_INTERVAL);
                following.due = Some(following.due.map_or(due, |before| before.min(due)));
                if due <= now {
                    self.tell_progress(following);
                }
            }
            ChangeFilter::Some => {
                let due = following.told.map_or(now, |told| told + PROGRESS_INTERVAL);
                following.due.get_or_insert(due);
            }
        }
    }

    /// Lets the reconciler see the progress, and wakes it.
    fn tell_progress(&self, following: &mut Following) {
        (following.told, following.due) = (Some(Instant::now()), None);
        let progress = following.progress.status();
        if self.keep_seen(following, |attachment| attachment.progress.replace(progress.clone()) != Some(progress)) {
            self.wake(&following.target);
        }
    }

    /// Keeps what was seen and wakes the reconciler if it is news. The last progress goes with an end.
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

    /// Changes what is kept of a run; false when another task follows it now, or none shall.
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

/// A run that a task follows.
struct Following {
    target: Target,
    serial: u64,
    /// The next sequence number.
    from: u64,
    progress: Progress,
    /// When progress was told last.
    told: Option<Instant>,
    /// When it is to be told next; none while there is nothing new.
    due: Option<Instant>,
    /// It stays with the task: a new connection gives the agent nothing.
    rate: RateLimit,
}

impl Following {
    fn new(target: Target, serial: u64) -> Self {
        let rate = RateLimit::new(Instant::now());
        Following { target, serial, from: 0, progress: Progress::default(), told: None, due: None, rate }
    }
}

/// What the agent says to people, bounded and on one line.
fn words(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    conditions::shorten(&line, MAX_WORDS)
}

#[cfg(test)]
mod tests;
