//! A source that is being put in place: its progress and its cancellation.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::wanted::Wanted;
use crate::agent::refusal::Refusal;
use crate::agent::workspace_lock::{WorkspaceGuard, WorkspaceLock};
use crate::rpc::proto;

/// Delay before the second attempt. It doubles with each attempt up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(10 * 60);
/// Interval at which conditions are polled.
pub(super) const POLL: Duration = Duration::from_secs(1);

/// Time that another source waits for this one to end. This one can wait for an interactive session.
const YIELD_TIMEOUT: Duration = Duration::from_secs(30);

/// Answer to the caller that delivered the source. It is sent once, when the source is in place, takes longer, or is
/// refused.
type Answer = oneshot::Sender<Result<(), Refusal>>;

pub(super) struct Candidate {
    pub wanted: Wanted,
    /// Cancelled when another source is requested or the agent shuts down.
    pub cancel: CancellationToken,
    /// Cancelled when the source is in place or abandoned.
    pub ended: CancellationToken,
    progress: Mutex<Progress>,
}

struct Progress {
    doing: String,
    failure: String,
    answer: Option<Answer>,
}

impl Candidate {
    /// Creates a candidate and the receiver of its answer.
    pub fn new(wanted: Wanted, stop: &CancellationToken) -> (Self, oneshot::Receiver<Result<(), Refusal>>) {
        let (answer, answered) = oneshot::channel();
        let doing = "replacing the previous source".to_owned();
        let progress = Mutex::new(Progress { doing, answer: Some(answer), failure: String::new() });
        (Candidate { wanted, cancel: stop.child_token(), ended: CancellationToken::new(), progress }, answered)
    }

    /// Reports a long step and answers the caller.
    pub fn report(&self, doing: impl Into<String>) {
        let doing = doing.into();
        tracing::info!(digest = %self.wanted.digest, doing, "putting the source in place");
        self.progress().doing = doing;
        self.answer(Ok(()));
    }

    /// Cancels this candidate in favor of another source and waits for its end.
    pub async fn supersede(&self) -> Result<(), Refusal> {
        self.cancel.cancel();
        let ended = tokio::time::timeout(YIELD_TIMEOUT, self.ended.cancelled()).await;
        ended.map_err(|_| {
            let doing = self.progress().doing.clone();
            Refusal::Precondition(format!("source {} is still being put in place: {doing}", self.wanted.digest))
        })
    }

    /// Answers the caller, unless it already has an answer.
    pub fn answer(&self, answer: Result<(), Refusal>) {
        if let Some(sender) = self.progress().answer.take() {
            // The caller may have disconnected.
            let _ = sender.send(answer);
        }
    }

    pub fn is_answered(&self) -> bool {
        self.progress().answer.is_none()
    }

    /// Records the error of the last attempt.
    pub fn fail(&self, failure: &str) {
        tracing::warn!(digest = %self.wanted.digest, failure, "failed to put the source in place; retrying");
        self.progress().failure = failure.to_owned();
    }

    pub fn to_proto(&self) -> proto::Candidate {
        let progress = self.progress();
        let artifact = Some(self.wanted.artifact());
        proto::Candidate { artifact, doing: progress.doing.clone(), failure: progress.failure.clone() }
    }

    /// Waits for the backoff and then for the workspace lock. Returns `None` if the source is no longer requested.
    pub async fn pause(&self, attempts: u32, workspace_lock: &WorkspaceLock) -> Option<WorkspaceGuard> {
        let pause = MIN_BACKOFF.saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1))).min(MAX_BACKOFF);
        if !self.sleep(pause).await {
            return None;
        }
        self.enter(workspace_lock).await
    }

    /// Waits for the workspace lock. Returns `None` if the source is no longer requested.
    pub async fn enter(&self, workspace_lock: &WorkspaceLock) -> Option<WorkspaceGuard> {
        loop {
            if let Ok(guard) = workspace_lock.lock_for_source() {
                return Some(guard);
            }
            if !self.sleep(POLL).await {
                return None;
            }
        }
    }

    /// Sleeps; returns `false` if the source is no longer requested.
    pub async fn sleep(&self, time: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(time) => !self.cancel.is_cancelled(),
            () = self.cancel.cancelled() => false,
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
