//! Waiting with a limit, and saying what was there instead when the limit is reached.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// One look at the thing that is waited for.
pub enum Look<T> {
    Found(T),
    /// What is there instead.
    NotYet(String),
}

/// How long something may take. The machine may be small and many runs may be going on.
#[derive(Clone, Copy, Debug)]
pub enum WaitLimit {
    /// One answer of the API server.
    Call,
    /// A controller reacts.
    Reaction,
    /// A pod starts and a short run goes through.
    Run,
    /// The same with retries, or with the kubelet's delay until a changed Secret is in a volume.
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

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(150);

/// Looks again and again until it is there. Past the limit the test fails with what was seen last.
pub async fn wait_until<T>(what: impl Display, patience: WaitLimit, mut look: impl AsyncFnMut() -> Look<T>) -> T {
    let end = Instant::now() + patience.limit();
    let mut seen = "nothing yet".to_owned();
    loop {
        match timeout(WaitLimit::Call.limit(), look()).await {
            Ok(Look::Found(found)) => return found,
            Ok(Look::NotYet(state)) => seen = state,
            Err(_) => {
                panic!("waited {:?} for {what}; the last look did not end. Seen before: {seen}", patience.limit())
            }
        }
        assert!(Instant::now() < end, "waited {:?} for {what}. Seen last: {seen}", patience.limit());
        sleep(PAUSE).await;
    }
}

/// A call to the API server that has to succeed, within its limit.
pub async fn api_call<T>(doing: impl Display, call: impl Future<Output = kube::Result<T>>) -> T {
    match timeout(WaitLimit::Call.limit(), call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => panic!("{doing}: {error}"),
        Err(_) => panic!("{doing}: the API server did not answer in {:?}", WaitLimit::Call.limit()),
    }
}
