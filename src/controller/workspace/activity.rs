//! Tracks the last activity of each Workspace, which determines when an idle Workspace goes to sleep. The recorded
//! times exist only in memory. After a restart, the start of the process is the last activity of all Workspaces. A
//! restart can therefore only delay the time at which a Workspace goes to sleep.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

/// Time of the last activity, by namespace and name of the Workspace.
pub(super) struct Activity {
    started: Timestamp,
    /// Hold the lock only for short critical sections, and never across an `.await`.
    last: Mutex<HashMap<(String, String), Timestamp>>,
}

impl Default for Activity {
    fn default() -> Self {
        Self { started: Timestamp::now(), last: Mutex::default() }
    }
}

impl Activity {
    /// Records that a Workspace has an open run, an interactive session or a waiting Update.
    pub(super) fn record(&self, (namespace, name): (&str, &str), now: Timestamp) {
        self.lock().insert((namespace.to_owned(), name.to_owned()), now);
    }

    /// Returns the time of the last activity, or the start time of the process if no activity is recorded.
    pub(super) fn last(&self, (namespace, name): (&str, &str)) -> Timestamp {
        self.lock().get(&(namespace.to_owned(), name.to_owned())).copied().unwrap_or(self.started)
    }

    /// Removes the state of a Workspace that goes to sleep or is deleted.
    pub(super) fn forget(&self, (namespace, name): (&str, &str)) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Timestamp>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn the_first_activity_is_the_start_of_the_process() {
        let activity = Activity::default();
        let app = ("team", "app");
        assert_eq!(activity.last(app), activity.started);
        let later = activity.started + SignedDuration::from_secs(60);
        activity.record(app, later);
        assert_eq!(activity.last(app), later);
        assert_eq!(activity.last(("team", "other")), activity.started);
        activity.forget(app);
        assert_eq!(activity.last(app), activity.started);
    }
}
