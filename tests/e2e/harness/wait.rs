//! Waits with a limit; a timeout reports the last observed state.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Result of one poll.
pub enum Look<T> {
    Found(T),
    /// Describes the observed state.
    NotYet(String),
}

/// Time limits, chosen for a small machine that executes many runs.
#[derive(Clone, Copy, Debug)]
pub enum WaitLimit {
    /// One response of the API server.
    Call,
    /// One reaction of a controller.
    Reaction,
    /// Pod start and a short run.
    Run,
    /// A run with retries, or the kubelet's delay until a changed Secret reaches a volume.
    Long,
}

impl WaitLimit {
    pub fn limit(self) -> Duration {
        Duration::from_secs(match self {
            WaitLimit::Call => 30,
            WaitLimit::Reaction => 60,
            WaitLimit::Run => 180,
            WaitLimit::Long => 300,
        })
    }
}

/// Interval between two polls.
const PAUSE: Duration = Duration::from_millis(150);

/// Polls until `look` returns `Found`; panics with the last observed state when the limit is reached.
pub async fn wait_until<T>(what: impl Display, wait_limit: WaitLimit, mut look: impl AsyncFnMut() -> Look<T>) -> T {
    let end = Instant::now() + wait_limit.limit();
    let mut seen = "nothing yet".to_owned();
    loop {
        match timeout(WaitLimit::Call.limit(), look()).await {
            Ok(Look::Found(found)) => return found,
            Ok(Look::NotYet(state)) => seen = state,
            Err(_) => {
                panic!("waited {:?} for {what}; the last look did not end. Seen before: {seen}", wait_limit.limit())
            }
        }
        assert!(Instant::now() < end, "waited {:?} for {what}. Seen last: {seen}", wait_limit.limit());
        sleep(PAUSE).await;
    }
}

/// Calls the API server; panics on an error or a timeout.
pub async fn api_call<T>(doing: impl Display, call: impl Future<Output = kube::Result<T>>) -> T {
    match timeout(WaitLimit::Call.limit(), call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => panic!("{doing}: {error}"),
        Err(_) => panic!("{doing}: the API server did not answer in {:?}", WaitLimit::Call.limit()),
    }
}
