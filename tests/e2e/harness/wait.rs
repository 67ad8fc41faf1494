//! Waits with a timeout. The failure message contains the last observed state.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Result of one poll.
pub enum Poll<T> {
    Found(T),
    /// Describes the observed state.
    NotYet(String),
}

/// Timeouts, long enough for a small machine that executes many runs.
#[derive(Clone, Copy, Debug)]
pub enum WaitLimit {
    /// For one response of the API server.
    Call,
    /// For one reconciliation.
    Reaction,
    /// For the start of a pod and a short run.
    Run,
    /// For a run with retries, or until the kubelet has synced a changed Secret to a volume.
    Long,
    /// For the installation and the first run of a program, which compiles all packages of the Pulumi SDK for Go.
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

/// Polls until `poll` returns `Found`. After the timeout, panics with the last observed state.
pub async fn wait_until<T>(what: impl Display, wait_limit: WaitLimit, mut poll: impl AsyncFnMut() -> Poll<T>) -> T {
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
        sleep(PAUSE).await;
    }
}

/// Awaits a call to the API server. Panics on an error or a timeout.
pub async fn api_call<T>(action: impl Display, call: impl Future<Output = kube::Result<T>>) -> T {
    match timeout(WaitLimit::Call.limit(), call).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => panic!("{action}: {error}"),
        Err(_) => panic!("{action}: the API server did not respond within {:?}", WaitLimit::Call.limit()),
    }
}
