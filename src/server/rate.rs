//! Rate limits with a burst.

use std::time::Duration;

use tokio::time::Instant;

/// Burst and constant rate of a rate limit.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Maximum number of requests in a burst.
    pub burst: u32,
    /// Interval between two requests after the burst.
    pub interval: Duration,
}

/// State of a rate limit: the time from which the rate limit permits a complete burst again.
#[derive(Clone, Copy, Debug)]
pub struct Bucket(Instant);

impl Bucket {
    /// Adds a request to a bucket. Returns `None` if the request exceeds the rate limit.
    pub fn take(bucket: Option<Bucket>, rate: Rate, now: Instant) -> Option<Bucket> {
        let full = bucket.map_or(now, |bucket| bucket.0.max(now)) + rate.interval;
        (full.saturating_duration_since(now) <= rate.interval * rate.burst).then_some(Bucket(full))
    }

    /// Returns whether the rate limit permits a complete burst.
    pub fn is_full(self, now: Instant) -> bool {
        self.0 <= now
    }
}
