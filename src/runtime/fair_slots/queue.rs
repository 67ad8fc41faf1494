//! Queue that determines which waiting entry gets the next free slot.

use std::collections::{BTreeMap, HashMap};

/// Minimum number of latest grants that the record keeps. The record contains at most twice as many keys.
const MIN_RECORDED: usize = 1024;

/// Priority of an entry among the waiting entries of the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::runtime) enum Priority {
    High,
    Low,
}

/// Place of an entry in the order of its key's waiting entries: the priority, and the number of the arrival.
pub(in crate::runtime) type Place = (Priority, u64);

/// Keys with their slots and waiting entries of the type `T`.
#[derive(Debug)]
pub(in crate::runtime) struct Queue<T> {
    /// Maximum number of slots in use at the same time.
    total: usize,
    /// Maximum number of slots in use by one key at the same time.
    per_key: usize,
    /// Keys with entries that hold a slot or wait for a slot.
    keys: HashMap<String, Key<T>>,
    /// Number of slots that count towards the total.
    in_use: usize,
    /// Number of waiting entries of all keys.
    waiting: usize,
    /// Number of entries that have started to wait so far.
    arrivals: u64,
    /// Number of slots granted so far.
    grants: u64,
    /// For each key, the value of `grants` when the key last received a slot. The map also contains keys without
    /// entries. Otherwise, a key that leaves and returns would have an advantage over a key that waits.
    last_grants: HashMap<String, u64>,
}

#[derive(Debug)]
struct Key<T> {
    /// Number of slots in use.
    in_use: usize,
    /// Number of slots in use that count towards the total.
    common_in_use: usize,
    /// Waiting entries, in the order in which they receive slots.
    waiting: BTreeMap<Place, T>,
}

impl<T> Default for Key<T> {
    fn default() -> Self {
        Key { in_use: 0, common_in_use: 0, waiting: BTreeMap::new() }
    }
}

impl<T> Queue<T> {
    /// Creates an empty queue for `total` slots, of which one key can use `per_key`.
    pub(in crate::runtime) fn new(total: usize, per_key: usize) -> Self {
        Queue {
            total,
            per_key,
            keys: HashMap::new(),
            in_use: 0,
            waiting: 0,
            arrivals: 0,
            grants: 0,
            last_grants: HashMap::new(),
        }
    }

    /// Returns the number of slots in use and the number of waiting entries of a key.
    pub(super) fn of_key(&self, key: &str) -> (usize, usize) {
        self.keys.get(key).map_or((0, 0), |key| (key.in_use, key.waiting.len()))
    }

    /// Returns whether a slot is free for a key.
    pub(super) fn is_free_for(&self, key: &str) -> bool {
        self.in_use < self.total && self.of_key(key).0 < self.per_key
    }

    /// Returns the number of waiting entries of all keys.
    pub(in crate::runtime) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of keys that hold a slot or wait for a slot.
    #[cfg(test)]
    pub(in crate::runtime) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Adds an entry that waits for a slot, and returns its place.
    pub(in crate::runtime) fn enqueue(&mut self, key: &str, priority: Priority, entry: T) -> Place {
        self.arrivals += 1;
        self.waiting += 1;
        let place = (priority, self.arrivals);
        self.keys.entry(key.to_owned()).or_default().waiting.insert(place, entry);
        place
    }

    /// Grants a slot to the next waiting entry, and returns the entry. Returns `None` if no entry can get a slot.
    pub(in crate::runtime) fn grant(&mut self) -> Option<T> {
        if self.in_use >= self.total {
            return None;
        }
        let next = self.keys.iter().filter(|(_, key)| key.in_use < self.per_key).filter_map(|(name, key)| {
            let ((_, arrival), _) = key.waiting.first_key_value()?;
            Some(((key.common_in_use, self.last_grants.get(name).copied(), *arrival), name))
        });
        let name = next.min()?.1.clone();
        let key = self.keys.get_mut(&name)?;
        let (_, entry) = key.waiting.pop_first()?;
        key.in_use += 1;
        key.common_in_use += 1;
        self.in_use += 1;
        self.waiting = self.waiting.saturating_sub(1);
        self.record_grant(name);
        Some(entry)
    }

    /// Records a grant to a key. Occasionally deletes all records except those for the latest [`MIN_RECORDED`] grants.
    fn record_grant(&mut self, key: String) {
        self.grants += 1;
        self.last_grants.insert(key, self.grants);
        if self.last_grants.len() > 2 * MIN_RECORDED {
            let oldest = self.grants.saturating_sub(MIN_RECORDED as u64);
            self.last_grants.retain(|_, grant| *grant > oldest);
        }
    }

    /// Frees an entry's slot, or removes a waiting entry from the queue. `is_common` states whether the slot counts
    /// towards the total.
    pub(in crate::runtime) fn leave(&mut self, name: &str, place: Place, is_common: bool) {
        let Some(key) = self.keys.get_mut(name) else { return };
        let was_waiting = key.waiting.remove(&place).is_some();
        self.waiting = self.waiting.saturating_sub(usize::from(was_waiting));
        key.in_use = key.in_use.saturating_sub(usize::from(!was_waiting));
        let is_unused = key.in_use == 0 && key.waiting.is_empty();
        if is_common && !was_waiting {
            self.release_common(name);
        }
        if is_unused {
            self.keys.remove(name);
        }
    }

    /// Makes a slot of a key no longer count towards the total.
    pub(super) fn release_common(&mut self, name: &str) {
        self.in_use = self.in_use.saturating_sub(1);
        if let Some(key) = self.keys.get_mut(name) {
            key.common_in_use = key.common_in_use.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_orders_only_the_entries_of_the_same_key() {
        let mut queue = Queue::new(1, 1);
        let held = queue.enqueue("a", Priority::High, "held");
        assert_eq!(queue.grant(), Some("held"));
        let entries = [
            ("a", Priority::Low, "first"),
            ("a", Priority::Low, "second"),
            ("b", Priority::Low, "other key"),
            ("a", Priority::High, "urgent"),
        ];
        let mut places: Vec<_> =
            entries.map(|(key, priority, entry)| (queue.enqueue(key, priority, entry), entry)).into();
        places.push((held, "held"));
        let (mut granted, mut order) = (Some("held"), Vec::new());
        while let Some(entry) = granted {
            assert_eq!(queue.grant(), None, "the only slot is in use");
            let place = places.iter().find(|(_, name)| *name == entry).map(|(place, _)| *place);
            queue.leave(if entry == "other key" { "b" } else { "a" }, place.expect("a known entry"), true);
            order.push(entry);
            granted = queue.grant();
        }
        assert_eq!(order, ["held", "other key", "urgent", "first", "second"], "key b has no earlier grant");
        assert_eq!((queue.keys(), queue.waiting()), (0, 0));
    }

    #[test]
    fn the_number_of_recorded_keys_is_bounded() {
        let mut queue = Queue::new(1, 1);
        for index in 0..5 * MIN_RECORDED {
            let key = format!("key-{index}");
            let place = queue.enqueue(&key, Priority::High, ());
            assert_eq!(queue.grant(), Some(()));
            queue.leave(&key, place, true);
        }
        assert!(queue.last_grants.len() <= 2 * MIN_RECORDED);
    }
}
