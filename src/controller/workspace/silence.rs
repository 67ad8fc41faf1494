//! Tracks how long the agent in each pod has been silent, or has ignored a call. An agent that does not respond can be busy with a run or a
//! command of a user, so the controller deletes its pod only after a timeout. The recorded times exist only in memory.
//! After a restart, the time is measured from the next failed call, so a restart can only delay the deletion of a pod.
//!
//! The transition time of the condition `Ready` is not suitable: it does not change if the Workspace was already not
//! ready for another reason when the agent became silent.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

/// Silent agents, by namespace and name of the Workspace.
#[derive(Default)]
pub(super) struct Silences {
    /// Hold the lock only for short critical sections, and never across an `.await`.
    known: Mutex<HashMap<(String, String), Silence>>,
}

struct Silence {
    pod_uid: String,
    since: Timestamp,
}

impl Silences {
    /// Records the result of a reconciliation, and returns the time since which the agent has been silent.
    /// `silent_pod` is the UID of the pod whose agent does not respond, or `None` if there is no such pod.
    pub(super) fn record(
        &self,
        (namespace, name): (&str, &str),
        silent_pod: Option<&str>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let (mut known, key) = (self.lock(), (namespace.to_owned(), name.to_owned()));
        let Some(pod_uid) = silent_pod else {
            known.remove(&key);
            return None;
        };
        let started = || Silence { pod_uid: pod_uid.to_owned(), since: now };
        let silence = known.entry(key).or_insert_with(started);
        if silence.pod_uid != pod_uid {
            *silence = started();
        }
        Some(silence.since)
    }

    /// Removes the state of a deleted Workspace.
    pub(super) fn forget(&self, (namespace, name): (&str, &str)) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Silence>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_starts_with_the_first_failed_call_and_ends_with_a_response() {
        let at = |second: i64| Timestamp::from_second(second).expect("timestamp in range");
        let (silences, app) = (Silences::default(), ("team", "app"));
        let rows = [
            ("a response", None, 10, None),
            ("the first failed call", Some("a"), 20, Some(20)),
            ("another failed call", Some("a"), 30, Some(20)),
            ("another pod", Some("b"), 40, Some(40)),
            ("another failed call to this pod", Some("b"), 50, Some(40)),
            ("a response of this pod", None, 60, None),
            ("a failed call after a response", Some("b"), 70, Some(70)),
        ];
        for (name, silent_pod, now, expected) in rows {
            assert_eq!(silences.record(app, silent_pod, at(now)), expected.map(at), "{name}");
        }
        assert_eq!(silences.record(("team", "other"), Some("b"), at(80)), Some(at(80)), "another Workspace");
        silences.forget(app);
        assert_eq!(silences.record(app, Some("b"), at(90)), Some(at(90)), "the Workspace was deleted");
    }
}
