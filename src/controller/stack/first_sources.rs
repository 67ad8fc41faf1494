//! Cache of the sources that the controller reads during the first reconciliations after its start.
//!
//! After its start, the controller reconciles all Stacks, and many Stacks can share one source. With the cache, the
//! controller reads such a source only once. When a source changes, its watch first removes the source from the cache
//! and then requeues the Stacks that use the source.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::tolerant::count_values;
use crate::runtime::backoff::ObjectKey;
use crate::source::flux::Found;
use crate::source::kinds::GroupKind;

/// Maximum size of a source in the cache.
const MAX_SOURCE: Size = Size { bytes: 32 * 1024, values: 500 };
/// Maximum size of all sources in the cache. If the cache is full, the controller reads an uncached source separately
/// for each Stack.
const MAX_TOTAL: Size = Size { bytes: 8 * 1024 * 1024, values: 128_000 };

/// Maximum number of recorded revisions.
const MAX_REVISIONS: usize = 4096;

/// Size of sources. A parsed object can require a hundred times the memory of its text, so the size includes the number
/// of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    /// Bytes of JSON.
    bytes: usize,
    /// Number of JSON values.
    values: usize,
}

impl Size {
    fn of(json: &str) -> Self {
        Size { bytes: json.len(), values: count_values(json) }
    }

    fn plus(self, other: Size) -> Self {
        Size { bytes: self.bytes + other.bytes, values: self.values + other.values }
    }

    fn minus(self, other: Size) -> Self {
        Size { bytes: self.bytes.saturating_sub(other.bytes), values: self.values.saturating_sub(other.values) }
    }

    fn is_within(self, limit: Size) -> bool {
        self.bytes <= limit.bytes && self.values <= limit.values
    }
}

#[derive(Default)]
pub(super) struct FirstSources {
    /// Hold the lock only for short critical sections, and never across an `.await`.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of changes to all sources. If the number increases during a read, the result of the read can be outdated.
    changes: u64,
    found: HashMap<(GroupKind, ObjectKey), (Found, Size)>,
    /// Hash of the last revision of each source that [`FirstSources::is_new_revision`] received.
    revisions: HashMap<(GroupKind, ObjectKey), u64>,
    /// Size of all sources in `found`.
    size: Size,
}

impl FirstSources {
    /// Returns the cached source. If the cache lacks the source, returns the number of changes, which
    /// [`FirstSources::insert`] requires.
    pub(super) fn get(&self, kind: &GroupKind, key: &ObjectKey) -> Result<Found, u64> {
        let state = self.lock();
        state.found.get(&(kind.clone(), key.clone())).map(|(found, _)| found.clone()).ok_or(state.changes)
    }

    /// Returns whether a call with this source and revision is the first call. The cache forgets calls occasionally.
    pub(super) fn is_new_revision(&self, kind: &GroupKind, key: &ObjectKey, revision: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        revision.hash(&mut hasher);
        let revision = hasher.finish();
        let mut state = self.lock();
        if state.revisions.len() >= MAX_REVISIONS {
            state.revisions.clear();
        }
        state.revisions.insert((kind.clone(), key.clone()), revision) != Some(revision)
    }

    /// Adds a source to the cache, unless a source has changed since the read started. `changes` is the number of
    /// changes at the start of the read.
    pub(super) fn insert(&self, kind: &GroupKind, key: ObjectKey, found: &Found, changes: u64) {
        let size = Size::of(&found.data_json());
        let found = found.without_managed_fields();
        let mut state = self.lock();
        let fits = size.is_within(MAX_SOURCE) && state.size.plus(size).is_within(MAX_TOTAL);
        if state.changes == changes && fits {
            state.add((kind.clone(), key), found, size);
        }
    }

    /// Removes a changed source from the cache.
    pub(super) fn remove(&self, kind: &GroupKind, key: &ObjectKey) {
        let mut state = self.lock();
        state.changes += 1;
        state.remove(&(kind.clone(), key.clone()));
    }

    /// Removes all sources from the cache.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        *state = State { changes: state.changes + 1, ..State::default() };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, key: (GroupKind, ObjectKey), found: Found, size: Size) {
        self.remove(&key);
        self.size = self.size.plus(size);
        self.found.insert(key, (found, size));
    }

    fn remove(&mut self, key: &(GroupKind, ObjectKey)) {
        if let Some((_, size)) = self.found.remove(key) {
            self.size = self.size.minus(size);
        }
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
    fn each_revision_of_a_source_is_new_once() {
        let sources = FirstSources::default();
        let calls = [("app", "1", true), ("app", "1", false), ("other", "1", true), ("app", "2", true)];
        for (name, revision, is_new) in calls {
            assert_eq!(sources.is_new_revision(&kind(), &key(name), revision), is_new, "{name} {revision}");
        }
        sources.clear();
        assert!(sources.is_new_revision(&kind(), &key("app"), "2"), "the calls were forgotten");
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
        for (values, is_stored) in [(1, true), (MAX_SOURCE.values, false)] {
            let sources = FirstSources::default();
            sources.insert(&kind(), key("app"), &Found::with_data(serde_json::json!({"spec": vec![0; values]})), 0);
            assert_eq!(sources.get(&kind(), &key("app")).is_ok(), is_stored, "{values}");
        }
    }

    #[test]
    fn the_total_size_of_the_stored_sources_is_limited() {
        let sources = FirstSources::default();
        let source = Found::with_data(serde_json::json!({"spec": vec![0; 98]}));
        let size = Size::of(&source.data_json());
        assert_eq!(size.values, 100, "the object, the list and its numbers");
        for number in 0..=MAX_TOTAL.values / size.values {
            sources.insert(&kind(), key(&number.to_string()), &source, 0);
        }
        assert_eq!(sources.lock().found.len(), MAX_TOTAL.values / size.values);
        // A removed source makes room for another source.
        sources.remove(&kind(), &key("0"));
        sources.insert(&kind(), key("new"), &source, 1);
        assert!(sources.get(&kind(), &key("new")).is_ok());
        sources.clear();
        assert_eq!(sources.lock().size, Size::default());
    }
}
