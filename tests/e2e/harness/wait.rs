//! Waits with a timeout. If a wait times out, the failure message contains the last observed state.

use std::fmt::Display;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep, timeout};

/// Result of one poll.
pub enum Poll<T> {
    Found(T),
    /// Describes the observed state.
    NotYet(String),
}

/// The timeouts are long enough for a small machine with many concurrent runs.
#[derive(Clone, Copy, Debug)]
pub enum WaitLimit {
    /// Timeout of one API server request.
    Call,
    /// Timeout of one reconciliation.
    Reaction,
    /// Timeout for a pod start and a short run.
    Run,
    /// Timeout for a run with retries, or for the kubelet's sync of a changed Secret to a volume.
    Long,
    /// Timeout for the installation and the first run of a program. For a Go program, the first run compiles all
    /// packages of the Pulumi SDK.
    Compilation,
}

impl WaitLimit {
    pub fn limit(self) -> Duration {
        Duration::from_secs(match self {
            WaitLimit::Call => 30,
            WaitLimit::Reaction => 60,
            WaitLimit::Run => 180,
            WaitLimit::Long => 300,
            WaitLimit::Compilation => 600,
        })
    }
}

/// Interval between two polls.
const PAUSE: Duration = Duration::from_millis(150);
/// Maximum interval between two polls if no notification arrives.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Delay between a notification and the poll, so that several quick changes cause only one poll.
const SETTLING_TIME: Duration = Duration::from_millis(50);

/// Polls until `poll` returns `Found`. After the timeout, panics with the last observed state.
pub async fn wait_until<T>(what: impl Display, wait_limit: WaitLimit, poll: impl AsyncFnMut() -> Poll<T>) -> T {
    poll_until(what, wait_limit, poll, async || sleep(PAUSE).await).await
}

/// Polls after each notification until `poll` returns `Found`. Without a receiver of notifications, polls like
/// [`wait_until`].
pub async fn wait_for_change<T>(
    what: impl Display,
    wait_limit: WaitLimit,
    mut changes: Option<Receiver<()>>,
    poll: impl AsyncFnMut() -> Poll<T>,
) -> T {
    poll_until(what, wait_limit, poll, async || match &mut changes {
        Some(changes) => {
            // Ignores an error, which means that no more notifications follow.
            let _ = timeout(MAX_PAUSE, changes.changed()).await;
            sleep(SETTLING_TIME).await;
        }
        None => sleep(PAUSE).await,
    })
    .await
}

async fn poll_until<T>(
    what: impl Display,
    wait_limit: WaitLimit,
    mut poll: impl AsyncFnMut() -> Poll<T>,
    mut pause: impl AsyncFnMut(),
) -> T {
    let end = Instant::now() + wait_limit.limit();
    let mut seen = "nothing yet".to_owned();
    loop {
        match timeout(WaitLimit::Call.limit(), poll()).await {
            Ok(Poll::Found(found)) => return found,
            Ok(Poll::NotYet(state)) => seen = state,
            Err(_) => {
                panic!("waited {:?} for {what}; the last poll timed out. Last state: {seen}", wait_limit.limit())
            }
        }
        assert!(Instant::now() < end, "waited {:?} for {what}. Last state: {seen}", wait_limit.limit());
        pause().await;
    }
}

/// Waits for the response to a request to the API server. Panics on an error or a timeout.
pub async fn api_call<T>(action: impl Display, call: impl Future<Output = kube::Result<T>>) -> T {
    match timeout(WaitLimit::Call.limit(), call).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => panic!("{action}: {error}"),
        Err(_) => panic!("{action}: the API server did not respond within {:?}", WaitLimit::Call.limit()),
    }
}
