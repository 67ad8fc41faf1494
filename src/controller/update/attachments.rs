//! The light tasks that are attached to open runs: one for each, in memory only.
//!
//! A task reads what the agent says and wakes the reconciler; it never writes to the API.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use kube::runtime::reflector::ObjectRef;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::api::auto::Update;
use crate::rpc::client::{AgentAddress, Agents, RpcError};
use crate::rpc::proto::{self, attach_reply::Part};
use crate::runtime::runs::Permit;

/// The first wait before an agent that did not answer is called again; it doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// What a task knows of its run.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// Nothing yet.
    Connecting,
    /// The run goes on.
    Running,
    /// The agent does not answer.
    Unreachable(String),
    /// The agent does not have this run and will not start it.
    Refused(String),
    /// The same, because of the state that the workspace is in now: a Secret is missing, for example.
    NotNow(String),
    /// The run has ended.
    Ended(Box<proto::Result>),
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
    permits: Arc<Mutex<HashMap<String, Permit<ObjectRef<Update>>>>>,
}

struct Attachment {
    seen: Seen,
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
        Attachments { agents, wake, tasks, end, open: Arc::default(), permits: Arc::default() }
    }

    /// What is known of a run; `None` when nothing is attached to it.
    pub fn seen(&self, uid: &str) -> Option<Seen> {
        self.lock().get(uid).map(|a| a.seen.clone())
    }

    /// Attaches to a run, starting it if the agent does not know it. Does nothing when a task is there already.
    pub fn attach(&self, target: Target) {
        let uid = target.request.id.clone();
        let token = self.end.child_token();
        {
            let mut open = self.lock();
            if open.contains_key(&uid) {
                return;
            }
            open.insert(uid, Attachment { seen: Seen::Connecting, _guard: token.clone().drop_guard() });
        }
        let this = self.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = this.follow(target) => {}
            }
        });
    }

    /// Keeps the place of a run until it is detached.
    pub fn keep(&self, uid: &str, permit: Permit<ObjectRef<Update>>) {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), permit);
    }

    /// Forgets a run, ends its task and gives its place back.
    pub fn detach(&self, uid: &str) {
        self.lock().remove(uid);
        self.permits.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Asks the agent to end a run.
    pub async fn cancel(&self, address: &AgentAddress, uid: &str) -> Result<(), RpcError> {
        self.agents.connect(address).await?.cancel(uid).await
    }

    /// Tells the agent that the result is recorded.
    pub async fn acknowledge(&self, address: &AgentAddress, uid: &str) -> Result<(), RpcError> {
        self.agents.connect(address).await?.acknowledge(uid).await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Attachment>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(&self, target: Target) {
        let mut wait = FIRST_RETRY;
        let mut from = 0;
        loop {
            let seen = match self.follow_once(&target, &mut from).await {
                Ok(seen) => seen,
                Err(error) => Seen::Unreachable(error.to_string()),
            };
            let ended = matches!(seen, Seen::Ended(_) | Seen::Refused(_) | Seen::NotNow(_));
            self.tell(&target, seen);
            if ended {
                return;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_RETRY);
        }
    }

    /// One connection: attach, start the run if it is not known, read until it ends.
    async fn follow_once(&self, target: &Target, from: &mut u64) -> Result<Seen, RpcError> {
        let agent = self.agents.connect(&target.address).await?;
        let id = &target.request.id;
        let mut attachment = match agent.attach(id, *from).await {
            Err(error) if error.is_not_found() => {
                match agent.run(target.request.clone()).await {
                    Err(error) if error.is_precondition() => return Ok(Seen::NotNow(error.message)),
                    Err(error) if error.is_refusal() => return Ok(Seen::Refused(error.message)),
                    other => other?,
                };
                agent.attach(id, *from).await?
            }
            other => other?,
        };
        self.tell(target, Seen::Running);
        while let Some(reply) = attachment.next().await? {
            match reply.part {
                Some(Part::Progress(progress)) => *from = progress.sequence + 1,
                Some(Part::Result(result)) => return Ok(Seen::Ended(Box::new(result))),
                None => {}
            }
        }
        Ok(Seen::Unreachable("the agent ended the stream without a result".to_owned()))
    }

    /// Keeps what was seen and wakes the reconciler if it is news.
    fn tell(&self, target: &Target, seen: Seen) {
        {
            let mut open = self.lock();
            let Some(attachment) = open.get_mut(&target.request.id) else { return };
            if attachment.seen == seen {
                return;
            }
            attachment.seen = seen;
        }
        if self.wake.clone().try_send(target.update.clone()).is_err() {
            tracing::debug!(update = %target.update, "the reconciler could not be woken; it looks again by itself");
        }
    }
}
