//! Rate limit for the calls of a receiver: a burst, then a constant rate.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of calls in a burst, such as pushes to several branches.
const BURST: u32 = 20;
/// Interval at which a further call is allowed.
const INTERVAL: Duration = Duration::from_secs(1);

/// Remaining calls of a receiver.
#[derive(Debug)]
pub struct RateLimit {
    left: u32,
    counted: Instant,
}

impl RateLimit {
    pub fn new(now: Instant) -> Self {
        RateLimit { left: BURST, counted: now }
    }

    /// Takes a call from the limit. Returns `false` if none is left.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.counted).as_secs() / INTERVAL.as_secs();
        let more = u32::try_from(passed).unwrap_or(BURST).min(BURST);
        // The remainder of the current interval counts toward the next call.
        self.counted += INTERVAL * u32::try_from(passed).unwrap_or_default();
        self.left = (self.left + more).min(BURST);
        let allowed = self.left > 0;
        self.left -= u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_calls_at_once_are_allowed_then_one_per_second() {
        let begin = Instant::now();
        let mut limit = RateLimit::new(begin);
        let mut takes = |milliseconds: u64| limit.take(begin + Duration::from_millis(milliseconds));
        assert!((0..20).all(|_| takes(0)));
        let rows = [(0, false), (999, false), (1000, true), (1900, false), (2000, true), (2000, false), (2999, false)];
        for (milliseconds, wanted) in rows {
            assert_eq!(takes(milliseconds), wanted, "after {milliseconds} ms");
        }
        assert!((0..20).all(|_| takes(3_600_000)), "after an hour all are there again");
        assert!(!takes(3_600_000), "and no more than that");
    }
}
