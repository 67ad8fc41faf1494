//! Slots that keys, such as namespaces or pods, share fairly. The slots limit concurrent work that uses memory, CPU or
//! connections.
//!
//! All keys together use at most `total` slots at the same time, and one key uses at most `per_key` slots. The waiting
//! key with the fewest slots gets the next free slot. If several keys have equally few slots, the key with the oldest
//! last grant gets the slot. A key that rarely needs a slot therefore waits only for the next free slot, even if other
//! keys have many or slow callers. The priority of a caller only affects the order of the callers of the same key.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Minimum number of latest grants that the record keeps. The record contains at most twice as many keys.
const MIN_RECORDED: usize = 1024;

/// Limits for the slots and for the waiting callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of slots in use at the same time.
    pub total: usize,
    /// Maximum number of slots in use by one key at the same time.
    pub per_key: usize,
    /// Maximum number of waiting callers per key. A further caller gets the error [`Busy`].
    pub waiting_per_key: usize,
}

/// Priority of a caller among the waiting callers of the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    High,
    Low,
}

/// Error for a caller that cannot wait, because too many callers are waiting. Contains the number of waiting callers of
/// the same key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} callers are already waiting for a slot")]
pub struct Busy {
    pub waiting: usize,
}

/// Set of slots. Cheap to clone. All clones share the slots.
#[derive(Clone, Debug)]
pub struct FairSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// Maximum number of waiting callers of all keys.
    places: usize,
    /// Hold the lock only for short critical sections, and never across an `.await`.
    queue: Mutex<Queue>,
}

/// Keys with their slots and waiting callers.
#[derive(Debug, Default)]
struct Queue {
    /// Keys with callers that hold a slot or wait for a slot.
    keys: HashMap<String, Key>,
    /// Number of slots that count towards the total.
    in_use: usize,
    /// Number of waiting callers of all keys.
    waiting: usize,
    /// Number of callers that have started to wait so far.
    arrivals: u64,
    /// Number of slots granted so far.
    grants: u64,
    /// For each key, the value of `grants` when the key last received a slot. The map also contains keys without
    /// callers. Otherwise, a key that leaves and returns would have an advantage over a key that waits.
    last_grants: HashMap<String, u64>,
}

#[derive(Debug, Default)]
struct Key {
    /// Number of slots in use.
    in_use: usize,
    /// Number of slots in use that count towards the total.
    common_in_use: usize,
    /// Waiting callers, in the order in which they receive slots.
    waiting: BTreeMap<Place, Arc<Notify>>,
}

/// Place of a caller in the order of its key's waiting callers: the priority, and the number of the arrival.
type Place = (Priority, u64);

/// Slot in use. Dropping this value frees the slot.
#[derive(Debug)]
#[must_use = "the slot is free again when this is dropped"]
pub struct Slot {
    shared: Arc<Shared>,
    key: String,
    place: Place,
    /// Whether the slot counts towards the total.
    is_common: bool,
}

impl Slot {
    /// Makes the slot count only towards the limit of its key. While this caller pauses, callers of other keys can use
    /// another slot.
    pub fn release_common(&mut self) {
        if std::mem::take(&mut self.is_common) {
            let mut queue = self.shared.lock();
            queue.release_common(&self.key);
            queue.grant(&self.shared.limits);
        }
    }
}

impl Drop for Slot {
    /// Frees the slot. If the caller still waits for the slot, removes the caller from the queue.
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.leave(&self.key, self.place, self.is_common);
        queue.grant(&self.shared.limits);
    }
}

impl FairSlots {
    pub fn new(limits: Limits) -> Self {
        Self::with_places(limits, usize::MAX)
    }

    /// Creates slots that also limit the number of waiting callers of all keys to `places`. A caller can wait only
    /// while more places are free than callers of its key are waiting. One key therefore occupies at most half of the
    /// places, a second key at most half of the remaining places, and so on.
    pub fn with_places(limits: Limits, places: usize) -> Self {
        Self(Arc::new(Shared { limits, places, queue: Mutex::default() }))
    }

    /// Waits for a slot with high priority. Dropping the future at any time does not leak a slot.
    ///
    /// # Errors
    /// Returns [`Busy`] if too many callers are waiting.
    pub async fn acquire(&self, key: &str) -> Result<Slot, Busy> {
        self.acquire_with_priority(key, Priority::High).await
    }

    /// Waits for a slot. Dropping the future at any time does not leak a slot.
    ///
    /// # Errors
    /// Returns [`Busy`] if too many callers are waiting.
    pub async fn acquire_with_priority(&self, key: &str, priority: Priority) -> Result<Slot, Busy> {
        let (slot, granted) = self.enqueue(key, priority)?;
        granted.notified().await;
        Ok(slot)
    }

    /// Adds a caller that waits for a slot. The returned `Notify` signals that the caller has the slot.
    fn enqueue(&self, key: &str, priority: Priority) -> Result<(Slot, Arc<Notify>), Busy> {
        let limits = &self.0.limits;
        let granted = Arc::new(Notify::new());
        let mut queue = self.0.lock();
        let (in_use, waiting) = queue.keys.get(key).map_or((0, 0), |key| (key.in_use, key.waiting.len()));
        let is_free = queue.in_use < limits.total && in_use < limits.per_key;
        let has_place = waiting < self.0.places.saturating_sub(queue.waiting);
        let is_full = in_use + waiting >= limits.per_key.saturating_add(limits.waiting_per_key);
        if is_full || !(is_free || has_place) {
            return Err(Busy { waiting });
        }
        queue.arrivals += 1;
        queue.waiting += 1;
        let place = (priority, queue.arrivals);
        queue.keys.entry(key.to_owned()).or_default().waiting.insert(place, Arc::clone(&granted));
        queue.grant(limits);
        drop(queue);
        Ok((Slot { shared: Arc::clone(&self.0), key: key.to_owned(), place, is_common: true }, granted))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Grants free slots to waiting callers.
    fn grant(&mut self, limits: &Limits) {
        while self.in_use < limits.total {
            let next = self.keys.iter().filter(|(_, key)| key.in_use < limits.per_key).filter_map(|(name, key)| {
                let ((_, arrival), _) = key.waiting.first_key_value()?;
                Some(((key.common_in_use, self.last_grants.get(name).copied(), *arrival), name))
            });
            let Some((_, name)) = next.min() else { return };
            let name = name.clone();
            let Some(key) = self.keys.get_mut(&name) else { return };
            let Some((_, granted)) = key.waiting.pop_first() else { return };
            key.in_use += 1;
            key.common_in_use += 1;
            self.in_use += 1;
            self.waiting = self.waiting.saturating_sub(1);
            self.record_grant(name);
            granted.notify_one();
        }
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

    /// Frees a caller's slot, or removes a waiting caller from the queue.
    fn leave(&mut self, name: &str, place: Place, is_common: bool) {
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

    fn release_common(&mut self, name: &str) {
        self.in_use = self.in_use.saturating_sub(1);
        if let Some(key) = self.keys.get_mut(name) {
            key.common_in_use = key.common_in_use.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
