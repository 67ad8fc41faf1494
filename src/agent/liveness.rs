//! Tracks the activity of a run.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::clock;

/// Last activity of a run. Readers of output and events update it; the idle timeout reads it.
#[derive(Debug)]
pub struct Liveness {
    begun: Instant,
    /// Milliseconds since the start of the run.
    last: AtomicU64,
    /// The same instant in milliseconds since 1970, for display.
    last_time: AtomicI64,
}

impl Liveness {
    pub fn begin() -> Self {
        Liveness { begun: Instant::now(), last: AtomicU64::new(0), last_time: AtomicI64::new(clock::now()) }
    }

    /// Records activity.
    pub fn note(&self) {
        let since = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
        self.last_time.store(clock::now(), Ordering::Relaxed);
    }

    pub fn since_begin(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the time since the last activity.
    pub fn silent(&self) -> Duration {
        self.since_begin().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }

    /// Returns the time of the last activity in milliseconds since 1970.
    pub fn last_time(&self) -> i64 {
        self.last_time.load(Ordering::Relaxed)
    }
}
