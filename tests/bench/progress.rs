//! Waits for many objects and prints the progress.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const PAUSE: Duration = Duration::from_millis(250);
const MESSAGE_INTERVAL: Duration = Duration::from_secs(10);

/// Waits until `count` returns at least `expected`. After the timeout `limit`, panics with the last state.
pub async fn until_count(what: &str, expected: usize, limit: Duration, count: impl AsyncFn() -> (usize, String)) {
    let (found, state) = wait_for_count(what, expected, limit, count).await;
    assert!(found >= expected, "timed out after {limit:?}: {what}: {found} of {expected}; {state}");
}

/// Waits until `count` returns at least `expected`, or until the timeout `limit` expires. Returns the last number and
/// state.
pub async fn wait_for_count(
    what: &str,
    expected: usize,
    limit: Duration,
    count: impl AsyncFn() -> (usize, String),
) -> (usize, String) {
    let began = Instant::now();
    let mut reported = began;
    loop {
        let (found, state) = count().await;
        if found >= expected {
            println!("{what}: all {expected} after {:.1} s", began.elapsed().as_secs_f64());
            return (found, state);
        }
        if began.elapsed() >= limit {
            return (found, state);
        }
        if reported.elapsed() >= MESSAGE_INTERVAL {
            reported = Instant::now();
            println!("{what}: {found} of {expected} after {:.0} s; {state}", began.elapsed().as_secs_f64());
        }
        sleep(PAUSE).await;
    }
}
