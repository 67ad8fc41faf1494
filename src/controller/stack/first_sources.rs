//! Cache of the sources that the controller reads during the first reconciliations after its start.
//!
//! After its start, the controller reconciles all Stacks, and many Stacks can share one source. With the cache, the
//! controller reads such a source only once. When a source changes, its watch first removes the source from the cache
//! and then requeues the Stacks that use the source.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::tolerant::count_values;
use crate::runtime::backoff::ObjectKey;
use crate::source::flux::Found;
use crate::source::kinds::GroupKind;

/// Maximum number of sources in the cache. If the cache is full, the controller reads an uncached source separately for
/// each Stack.
const MAX_SOURCES: usize = 256;
/// Maximum number of JSON values in a stored source. A parsed object can require a hundred times the memory of its text.
const MAX_VALUES: usize = 500;
/// Maximum size of a stored source in bytes of JSON.
const MAX_SIZE: usize = 32 * 1024;

#[derive(Default)]
pub(super) struct FirstSources {
    /// Hold the lock only for short critical sections, and never across an `.await`.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of changes to all sources. If the number increases during a read, the result of the read can be outdated.
    changes: u64,
    found: HashMap<(GroupKind, ObjectKey), Found>,
}

impl FirstSources {
    /// Returns the cached source. If the cache lacks the source, returns the number of changes, which
    /// [`FirstSources::insert`] requires.
    pub(super) fn get(&self, kind: &GroupKind, key: &ObjectKey) -> Result<Found, u64> {
        let state = self.lock();
        state.found.get(&(kind.clone(), key.clone())).cloned().ok_or(state.changes)
    }

    /// Adds a source to the cache, unless a source has changed since the read started. `changes` is the number of
    /// changes at the start of the read.
    pub(super) fn insert(&self, kind: &GroupKind, key: ObjectKey, found: &Found, changes: u64) {
        let json = found.data_json();
        if json.len() > MAX_SIZE || count_values(&json) > MAX_VALUES {
            return;
        }
        let mut state = self.lock();
        if state.changes == changes && state.found.len() < MAX_SOURCES {
            state.found.insert((kind.clone(), key), found.without_managed_fields());
        }
    }

    /// Removes a changed source from the cache.
    pub(super) fn remove(&self, kind: &GroupKind, key: &ObjectKey) {
        let mut state = self.lock();
        state.changes += 1;
        state.found.remove(&(kind.clone(), key.clone()));
    }

    /// Removes all sources from the cache.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        *state = State { changes: state.changes + 1, found: HashMap::new() };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind() -> GroupKind {
        GroupKind::new("source.toolkit.fluxcd.io", "GitRepository")
    }

    fn key(name: &str) -> ObjectKey {
        ("team".to_owned(), name.to_owned())
    }

    #[test]
    fn a_changed_source_is_read_again() {
        let sources = FirstSources::default();
        let changes = sources.get(&kind(), &key("app")).expect_err("nothing was read");
        sources.insert(&kind(), key("app"), &Found::missing(), changes);
        assert!(sources.get(&kind(), &key("app")).is_ok());
        assert!(sources.get(&kind(), &key("other")).is_err());
        sources.remove(&kind(), &key("other"));
        assert!(sources.get(&kind(), &key("app")).is_ok(), "another source has changed");
        sources.remove(&kind(), &key("app"));
        assert!(sources.get(&kind(), &key("app")).is_err(), "the source has changed");
    }

    #[test]
    fn a_source_that_changes_during_its_read_is_not_stored() {
        let sources = FirstSources::default();
        let changes: [(&str, fn(&FirstSources)); 2] =
            [("changed", |sources| sources.remove(&kind(), &key("app"))), ("cleared", FirstSources::clear)];
        for (what, change) in changes {
            let before = sources.get(&kind(), &key("app")).expect_err("not stored");
            change(&sources);
            sources.insert(&kind(), key("app"), &Found::missing(), before);
            assert!(sources.get(&kind(), &key("app")).is_err(), "{what}");
        }
    }

    #[test]
    fn a_source_with_many_values_is_not_stored() {
        for (values, is_stored) in [(1, true), (MAX_VALUES, false)] {
            let sources = FirstSources::default();
            sources.insert(&kind(), key("app"), &Found::with_data(serde_json::json!({"spec": vec![0; values]})), 0);
            assert_eq!(sources.get(&kind(), &key("app")).is_ok(), is_stored, "{values}");
        }
    }

    #[test]
    fn the_number_of_stored_sources_is_limited() {
        let sources = FirstSources::default();
        for number in 0..=MAX_SOURCES {
            let changes = sources.get(&kind(), &key(&number.to_string())).expect_err("not stored");
            sources.insert(&kind(), key(&number.to_string()), &Found::missing(), changes);
        }
        assert_eq!(sources.lock().found.len(), MAX_SOURCES);
    }
}
