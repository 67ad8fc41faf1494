//! Backoff of failing objects: each failure doubles an object's retry delay, and a success resets the delay.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Default of the Flux flag `--min-retry-delay`.
pub const DEFAULT_MIN_RETRY_DELAY: Duration = Duration::from_millis(750);
/// Default of the Flux flag `--max-retry-delay`.
pub const DEFAULT_MAX_RETRY_DELAY: Duration = Duration::from_secs(15 * 60);
/// Maximum number of failing objects in memory. If more objects fail, the backoff evicts the object whose last failure
/// is the oldest.
const MAX_OBJECTS: usize = 16 * 1024;

/// Namespace and name of an object.
pub type ObjectKey = (String, String);

/// Retry delays of failing objects.
#[derive(Debug)]
pub struct Backoff {
    min_delay: Duration,
    max_delay: Duration,
    capacity: usize,
    /// Failures of each object. Hold the lock only for short critical sections, and never across an `.await`.
    failures: Mutex<HashMap<ObjectKey, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::new(DEFAULT_MIN_RETRY_DELAY, DEFAULT_MAX_RETRY_DELAY, MAX_OBJECTS)
    }
}

impl Backoff {
    /// Creates a backoff with these minimum and maximum delays.
    pub fn between(min_delay: Duration, max_delay: Duration) -> Self {
        Backoff::new(min_delay, max_delay, MAX_OBJECTS)
    }

    fn new(min_delay: Duration, max_delay: Duration, capacity: usize) -> Self {
        Backoff { min_delay, max_delay, capacity, failures: Mutex::default() }
    }

    /// Records a failure and returns the retry delay of the object. The delay doubles with each failure, up to the
    /// maximum delay.
    pub fn failed(&self, key: &ObjectKey) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if !failures.contains_key(key) && failures.len() >= self.capacity {
            let oldest = failures.iter().min_by_key(|(_, failures)| failures.last).map(|(key, _)| key.clone());
            oldest.map(|key| failures.remove(&key));
        }
        let entry = failures.entry(key.clone()).or_insert_with(|| Failures { count: 0, last: Instant::now() });
        let delay = self.min_delay.saturating_mul(2_u32.saturating_pow(entry.count)).min(self.max_delay);
        *entry = Failures { count: entry.count.saturating_add(1), last: Instant::now() };
        delay
    }

    /// Returns the number of failures of the object since its last success.
    pub fn failures(&self, key: &ObjectKey) -> u32 {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.get(key).map_or(0, |failures| failures.count)
    }

    /// Resets an object's delay after a successful reconciliation or after the object has been deleted.
    pub fn forget(&self, key: &ObjectKey) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ("apps".to_owned(), name.to_owned())
    }

    #[test]
    fn the_delay_doubles_up_to_its_limit_and_resets_after_success() {
        let backoff = Backoff::default();
        let delays: Vec<u128> = (0..12).map(|_| backoff.failed(&key("a")).as_millis()).collect();
        let expected = [750, 1500, 3000, 6000, 12000, 24000, 48000, 96000, 192_000, 384_000, 768_000, 900_000];
        assert_eq!(delays, expected);
        assert_eq!(backoff.failed(&key("b")), DEFAULT_MIN_RETRY_DELAY, "another object is not affected");
        backoff.forget(&key("a"));
        assert_eq!(backoff.failed(&key("a")), DEFAULT_MIN_RETRY_DELAY);
    }

    #[test]
    fn many_failures_do_not_overflow_the_delay() {
        let backoff = Backoff::default();
        for _ in 0..1000 {
            backoff.failed(&key("a"));
        }
        assert_eq!(backoff.failed(&key("a")), DEFAULT_MAX_RETRY_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_recorded_objects_is_bounded_and_the_oldest_is_evicted() {
        let backoff = Backoff::new(DEFAULT_MIN_RETRY_DELAY, DEFAULT_MAX_RETRY_DELAY, 2);
        for name in ["a", "b", "c"] {
            backoff.failed(&key(name));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(backoff.failed(&key("c")), DEFAULT_MIN_RETRY_DELAY * 2);
        assert_eq!(backoff.failed(&key("a")), DEFAULT_MIN_RETRY_DELAY, "the backoff was reset");
        assert_eq!(backoff.failures.lock().unwrap().len(), 2);
    }
}
