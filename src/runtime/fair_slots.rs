//! Slots that keys, such as namespaces or pods, share fairly. The slots limit concurrent work that uses memory, CPU or
//! connections.
//!
//! All keys together use at most `total` slots at the same time, and one key uses at most `per_key` slots. A caller
//! first waits for a slot of its key, and then for one of the `total` common slots. The waiting key with the fewest
//! slots gets the next free common slot. If several keys have equally few slots, the key with the oldest last grant
//! gets the slot. A key that rarely needs a slot therefore waits only for the next free slot, even if other keys have
//! many or slow callers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

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

/// Error for a caller whose key already has the maximum number of waiting callers.
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
    /// Hold the lock only for short critical sections, and never across an `.await`.
    queue: Mutex<Queue>,
}

/// Keys, and callers that wait for a common slot.
#[derive(Debug, Default)]
struct Queue {
    /// Keys with callers that hold a slot or wait for a slot.
    keys: HashMap<String, Key>,
    /// Callers that hold their key's slot and wait for a common slot, in order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// Number of common slots in use.
    in_use: usize,
    /// Number of callers that have started to wait for a common slot so far.
    arrivals: u64,
    /// Number of common slots granted so far.
    grants: u64,
    /// For each key, the value of `grants` when the key last received a slot. The map also contains keys without
    /// callers. Otherwise, a key that leaves and returns would have an advantage over a key that waits.
    last_grants: HashMap<String, u64>,
}

#[derive(Debug)]
struct Key {
    slots: Arc<Semaphore>,
    /// Number of callers that hold a slot or wait for a slot.
    callers: usize,
    /// Number of common slots in use.
    in_use: usize,
}

/// Caller that waits for a common slot.
#[derive(Debug)]
struct Waiting {
    key: String,
    granted: Arc<Notify>,
}

/// Slot in use. Dropping this value frees the slot.
#[derive(Debug)]
#[must_use = "the slot is free again when this is dropped"]
pub struct Slot {
    // Rust drops the fields in this order, and therefore frees the common slot before the key's slot.
    common: Option<CommonSlot>,
    _own: OwnedSemaphorePermit,
    _caller: Caller,
}

impl Slot {
    /// Releases the common slot and keeps the key's slot. While this caller pauses, callers of other keys can use
    /// the common slot.
    pub fn release_common(&mut self) {
        self.common = None;
    }
}

impl FairSlots {
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared { limits, queue: Mutex::default() }))
    }

    /// Waits for a slot. Dropping the future at any time does not leak a slot.
    ///
    /// # Errors
    /// Returns [`Busy`] if the key already has the maximum number of waiting callers.
    pub async fn acquire(&self, key: &str) -> Result<Slot, Busy> {
        let (caller, slots) = self.register(key)?;
        // The semaphore is never closed.
        let own = slots.acquire_owned().await.map_err(|_| Busy { waiting: 0 })?;
        let (common, granted) = self.enqueue(key);
        granted.notified().await;
        Ok(Slot { common: Some(common), _own: own, _caller: caller })
    }

    /// Registers a caller of the key.
    fn register(&self, key: &str) -> Result<(Caller, Arc<Semaphore>), Busy> {
        let Limits { per_key, waiting_per_key, .. } = self.0.limits;
        let mut queue = self.0.lock();
        let entry = queue.keys.entry(key.to_owned()).or_insert_with(|| Key {
            slots: Arc::new(Semaphore::new(per_key)),
            callers: 0,
            in_use: 0,
        });
        if entry.callers >= per_key.saturating_add(waiting_per_key) {
            return Err(Busy { waiting: entry.callers.saturating_sub(per_key) });
        }
        entry.callers += 1;
        Ok((Caller { shared: Arc::clone(&self.0), key: key.to_owned() }, Arc::clone(&entry.slots)))
    }

    /// Adds a caller that waits for a common slot. The returned `Notify` signals that the caller has the slot.
    fn enqueue(&self, key: &str) -> (CommonSlot, Arc<Notify>) {
        let granted = Arc::new(Notify::new());
        let mut queue = self.0.lock();
        queue.arrivals += 1;
        let id = queue.arrivals;
        queue.waiting.insert(id, Waiting { key: key.to_owned(), granted: Arc::clone(&granted) });
        queue.grant(self.0.limits.total);
        (CommonSlot { shared: Arc::clone(&self.0), key: key.to_owned(), id }, granted)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Grants free common slots to waiting callers.
    fn grant(&mut self, total: usize) {
        while self.in_use < total {
            let precedence = |(id, waiting): &(&u64, &Waiting)| {
                let in_use = self.keys.get(&waiting.key).map_or(0, |key| key.in_use);
                (in_use, self.last_grants.get(&waiting.key).copied(), **id)
            };
            let Some(id) = self.waiting.iter().min_by_key(precedence).map(|(id, _)| *id) else { return };
            let Some(Waiting { key, granted }) = self.waiting.remove(&id) else { return };
            self.in_use += 1;
            if let Some(key) = self.keys.get_mut(&key) {
                key.in_use += 1;
            }
            self.record_grant(key);
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

    /// Releases a caller's common slot, or removes a caller without a slot from the queue.
    fn release(&mut self, id: u64, key: &str) {
        if self.waiting.remove(&id).is_some() {
            return;
        }
        self.in_use = self.in_use.saturating_sub(1);
        if let Some(key) = self.keys.get_mut(key) {
            key.in_use = key.in_use.saturating_sub(1);
        }
    }
}

/// Common slot that a caller holds or waits for. Dropping this value releases the slot or removes the caller from
/// the queue.
#[derive(Debug)]
struct CommonSlot {
    shared: Arc<Shared>,
    key: String,
    id: u64,
}

impl Drop for CommonSlot {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.release(self.id, &self.key);
        queue.grant(self.shared.limits.total);
    }
}

/// Registration of a caller. Dropping the last registration of a key removes the key.
#[derive(Debug)]
struct Caller {
    shared: Arc<Shared>,
    key: String,
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        if let Some(entry) = queue.keys.get_mut(&self.key) {
            entry.callers = entry.callers.saturating_sub(1);
            if entry.callers == 0 {
                queue.keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
