//! Delays an action that has no lasting effect, although the controller repeats the action with the same content.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Minimum time after the last action before the controller resets the count. The actual time is either this minimum or
/// twice the delay, whichever is longer.
const RESET_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Delays between the actions with the same content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    /// Number of actions after which the next action is not delayed.
    pub immediate: u32,
    /// First delay. Each further action doubles the delay, up to `longest`.
    pub first: Duration,
    pub longest: Duration,
}

/// Number of actions with the same content, by namespace and name of the Workspace. The counts exist only in memory and
/// start at zero after a restart.
pub(super) struct Repeats {
    delays: Delays,
    /// Hold the lock only for short critical sections, and never across an `.await`.
    known: Mutex<HashMap<(String, String), Repeated>>,
}

struct Repeated {
    content: String,
    count: u32,
    last: Instant,
}

impl Repeated {
    fn pause(&self, delays: Delays) -> Duration {
        let Some(delayed) = self.count.checked_sub(delays.immediate + 1) else { return Duration::ZERO };
        (delays.first * (1 << delayed.min(16))).min(delays.longest)
    }

    fn is_over(&self, delays: Delays) -> bool {
        self.last.elapsed() > RESET_INTERVAL.max(self.pause(delays) * 2)
    }
}

impl Repeats {
    pub(super) fn new(delays: Delays) -> Self {
        Repeats { delays, known: Mutex::default() }
    }

    /// Records that the controller has performed the action with the given content.
    pub(super) fn record(&self, (namespace, name): (&str, &str), content: &str) {
        let mut known = self.lock();
        known.retain(|_, repeated| !repeated.is_over(self.delays));
        let key = (namespace.to_owned(), name.to_owned());
        let before = known.get(&key).filter(|repeated| repeated.content == content).map_or(0, |r| r.count);
        let count = before.saturating_add(1);
        known.insert(key, Repeated { content: content.to_owned(), count, last: Instant::now() });
    }

    /// Returns the remaining delay for the given content, or `None` if the controller can perform the action now.
    pub(super) fn pause(&self, (namespace, name): (&str, &str), content: &str) -> Option<Duration> {
        let known = self.lock();
        let repeated = known.get(&(namespace.to_owned(), name.to_owned()))?;
        let left = repeated.pause(self.delays).saturating_sub(repeated.last.elapsed());
        (repeated.content == content && !left.is_zero()).then_some(left)
    }

    /// Removes the state of a deleted Workspace.
    pub(super) fn forget(&self, (namespace, name): (&str, &str)) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Repeated>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: (&str, &str) = ("apps", "web");
    const MINUTE: Duration = Duration::from_secs(60);

    fn repeats() -> Repeats {
        Repeats::new(Delays { immediate: 4, first: MINUTE, longest: 30 * MINUTE })
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_actions_with_the_same_content_are_delayed() {
        let repeats = repeats();
        for _ in 0..4 {
            repeats.record(WEB, "hash");
            assert_eq!(repeats.pause(WEB, "hash"), None);
        }
        for minutes in [1, 2, 4, 8, 16, 30, 30] {
            repeats.record(WEB, "hash");
            let pause = minutes * MINUTE;
            assert_eq!(repeats.pause(WEB, "hash"), Some(pause));
            assert_eq!(repeats.pause(WEB, "other"), None, "other content is not delayed");
            assert_eq!(repeats.pause(("apps", "api"), "hash"), None);
            tokio::time::advance(pause).await;
            assert_eq!(repeats.pause(WEB, "hash"), None, "the action is repeated");
        }
        tokio::time::advance(Duration::from_secs(3601)).await;
        repeats.record(WEB, "hash");
        assert_eq!(repeats.pause(WEB, "hash"), None, "the count is reset");
    }

    #[tokio::test(start_paused = true)]
    async fn changed_content_resets_the_count() {
        let repeats = repeats();
        (0..5).for_each(|_| repeats.record(WEB, "hash"));
        repeats.record(WEB, "other");
        assert_eq!((repeats.pause(WEB, "hash"), repeats.pause(WEB, "other")), (None, None));
    }
}
