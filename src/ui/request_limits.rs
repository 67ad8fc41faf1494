//! Limits the request rate of each user.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::server::{Bucket, Rate};

/// Rate limit for a user's requests.
const RATE: Rate = Rate { burst: 100, interval: Duration::from_millis(100) };
/// Maximum number of users that have their own rate limit. All further users share one rate limit.
const MAX_USERS: usize = 1024;

/// Rate limits by user name. Users beyond [`MAX_USERS`] share the rate limit with the key `None`. Hold the lock only
/// for short critical sections, and never across an `.await`.
#[derive(Default)]
pub(super) struct RequestLimits(Mutex<HashMap<Option<String>, Bucket>>);

impl RequestLimits {
    /// Counts a user's request, and returns whether the rate limit permits the request. All of a user's sessions share
    /// one rate limit.
    pub(super) fn may_request(&self, user: &str, now: Instant) -> bool {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_USERS {
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        let own = Some(user.to_owned());
        let key = if buckets.len() < MAX_USERS || buckets.contains_key(&own) { own } else { None };
        let Some(bucket) = Bucket::take(buckets.get(&key).copied(), RATE, now) else { return false };
        buckets.insert(key, bucket);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_may_send_a_hundred_requests_and_then_ten_per_second() {
        let (limits, begin) = (RequestLimits::default(), Instant::now());
        let sent = |user: &str, milliseconds: u64| {
            let now = begin + Duration::from_millis(milliseconds);
            (0..200).filter(|_| limits.may_request(user, now)).count()
        };
        let rows =
            [("alice", 0, 100), ("alice", 99, 0), ("alice", 1099, 10), ("bob", 1099, 100), ("alice", 60_000, 100)];
        for (user, milliseconds, expected) in rows {
            assert_eq!(sent(user, milliseconds), expected, "{user} after {milliseconds} ms");
        }
    }

    #[test]
    fn the_number_of_rate_limits_is_bounded() {
        let (limits, begin) = (RequestLimits::default(), Instant::now());
        let permitted = |now| (0..10_000).filter(|number| limits.may_request(&format!("user-{number}"), now)).count();
        assert_eq!(permitted(begin), MAX_USERS + 100, "further users share one rate limit");
        assert!(limits.0.lock().unwrap().len() <= MAX_USERS + 1);
        assert!(
            limits.may_request("user-9999", begin + Duration::from_secs(60)),
            "the limits of idle users are removed"
        );
        assert_eq!(limits.0.lock().unwrap().len(), 1);
    }
}
