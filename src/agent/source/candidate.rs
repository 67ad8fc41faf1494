//! A source on its way to its place: what is being done for it, and who may end that.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::wanted::Wanted;
use crate::agent::refusal::Refusal;
use crate::agent::workspace_lock::{WorkspaceGuard, WorkspaceLock};
use crate::rpc::proto;

/// How long it takes to the second attempt; twice as long to each one after.
const MIN_BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(10 * 60);
/// How often it looks whether what it waits for is over.
pub(super) const POLL: Duration = Duration::from_secs(1);

/// How long another one waits for it to give way. It may wait for a person itself.
const YIELD_TIMEOUT: Duration = Duration::from_secs(30);

/// Whoever waits for it is told once: that it is there, that it takes its time, or why it is refused.
type Answer = oneshot::Sender<Result<(), Refusal>>;

pub(super) struct Candidate {
    pub wanted: Wanted,
    /// Another one is wanted, or the agent ends.
    pub cancel: CancellationToken,
    /// It is in place, or given up.
    pub ended: CancellationToken,
    said: Mutex<Said>,
}

struct Said {
    doing: String,
    failure: String,
    answer: Option<Answer>,
}

impl Candidate {
    /// With a place to wait for its answer.
    pub fn new(wanted: Wanted, stop: &CancellationToken) -> (Self, oneshot::Receiver<Result<(), Refusal>>) {
        let (answer, answered) = oneshot::channel();
        let doing = "exchanging it with the one before".to_owned();
        let said = Mutex::new(Said { doing, answer: Some(answer), failure: String::new() });
        (Candidate { wanted, cancel: stop.child_token(), ended: CancellationToken::new(), said }, answered)
    }

    /// Says what is being done, which takes its time.
    pub fn say(&self, doing: impl Into<String>) {
        let doing = doing.into();
        tracing::info!(digest = %self.wanted.digest, doing, "source on its way");
        self.said().doing = doing;
        self.answer(Ok(()));
    }

    /// Gives way to another one; comes back when it has.
    pub async fn give_way(&self) -> Result<(), Refusal> {
        self.cancel.cancel();
        let ended = tokio::time::timeout(YIELD_TIMEOUT, self.ended.cancelled()).await;
        ended.map_err(|_| {
            let doing = self.said().doing.clone();
            Refusal::Precondition(format!("another source, {}, has to give way first: {doing}", self.wanted.digest))
        })
    }

    /// Answers, if nobody has.
    pub fn answer(&self, answer: Result<(), Refusal>) {
        if let Some(sender) = self.said().answer.take() {
            // Who asked may be gone.
            let _ = sender.send(answer);
        }
    }

    pub fn is_answered(&self) -> bool {
        self.said().answer.is_none()
    }

    /// Notes why it did not work this time.
    pub fn fail(&self, failure: &str) {
        tracing::warn!(digest = %self.wanted.digest, failure, "the source cannot be put in place; it is tried again");
        self.said().failure = failure.to_owned();
    }

    pub fn to_proto(&self) -> proto::Candidate {
        let said = self.said();
        let artifact = Some(self.wanted.artifact());
        proto::Candidate { artifact, doing: said.doing.clone(), failure: said.failure.clone() }
    }

    /// Waits for the next attempt, and then until nobody else has the workspace. None when it is not wanted any more.
    pub async fn pause(&self, attempts: u32, workspace_lock: &WorkspaceLock) -> Option<WorkspaceGuard> {
        let pause = MIN_BACKOFF.saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1))).min(MAX_BACKOFF);
        if !self.sleep(pause).await {
            return None;
        }
        self.enter(workspace_lock).await
    }

    /// Waits until nobody else has the workspace. None when it is not wanted any more.
    pub async fn enter(&self, workspace_lock: &WorkspaceLock) -> Option<WorkspaceGuard> {
        loop {
            if let Ok(pass) = workspace_lock.enter_source() {
                return Some(pass);
            }
            if !self.sleep(POLL).await {
                return None;
            }
        }
    }

    /// False when it is not wanted any more.
    pub async fn sleep(&self, time: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(time) => !self.cancel.is_cancelled(),
            () = self.cancel.cancelled() => false,
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
