//! When a run was last seen or heard of.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::clock;

/// Noted by whoever reads the output or the events, asked by whoever ends what is idle.
#[derive(Debug)]
pub struct Liveness {
    begun: Instant,
    /// Milliseconds since the begin.
    last: AtomicU64,
    /// The same by the clock, in milliseconds since 1970, for people.
    last_time: AtomicI64,
}

impl Liveness {
    pub fn begin() -> Self {
        Liveness { begun: Instant::now(), last: AtomicU64::new(0), last_time: AtomicI64::new(clock::now()) }
    }

    /// Something was seen or heard.
    pub fn note(&self) {
        let since = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
        self.last_time.store(clock::now(), Ordering::Relaxed);
    }

    pub fn since_begin(&self) -> Duration {
        self.begun.elapsed()
    }

    /// For how long there was nothing.
    pub fn silent(&self) -> Duration {
        self.since_begin().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }

    /// When it was last, in milliseconds since 1970.
    pub fn last_time(&self) -> i64 {
        self.last_time.load(Ordering::Relaxed)
    }
}
