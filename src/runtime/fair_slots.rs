//! Slots that are shared fairly between keys, such as namespaces or pods, and limit work that uses memory, CPU or
//! connections.
//!
//! At most `total` slots are in use at the same time, at most `per_key` of them by one key. A caller first waits for one of
//! the slots of its key and then, in order of arrival, for one of the `total` slots. Each key thus has at most `per_key`
//! entries in the common queue, regardless of the number of its callers, and a caller waits behind at most `per_key` entries
//! of each other key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits of the slots and their queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of slots in use.
    pub total: usize,
    /// Maximum number of slots in use by one key.
    pub per_key: usize,
    /// Maximum number of waiting callers of one key. Further callers get [`Busy`].
    pub waiting_per_key: usize,
}

/// Error if too many callers of the same key are waiting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} callers are already waiting for a slot")]
pub struct Busy {
    pub waiting: usize,
}

/// A set of slots. Cheap to clone; all clones share the slots.
#[derive(Clone, Debug)]
pub struct FairSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    total: Arc<Semaphore>,
    /// Keys with a caller that holds a slot or waits for one. The lock is held only briefly and never across an `await`.
    keys: Mutex<HashMap<String, Key>>,
}

#[derive(Debug)]
struct Key {
    slots: Arc<Semaphore>,
    /// Number of callers that hold a slot or wait for one.
    callers: usize,
}

/// A slot in use. Dropping it frees the slot.
#[derive(Debug)]
#[must_use = "the slot is free again when this is dropped"]
pub struct Slot {
    // The fields are dropped in this order, so that the common slot is free before the key's own slot.
    total: Option<OwnedSemaphorePermit>,
    _own: OwnedSemaphorePermit,
    _caller: Caller,
}

impl Slot {
    /// Releases the common slot and keeps the slot of the key, so that callers of other keys can continue while this caller
    /// pauses.
    pub fn release_total(&mut self) {
        self.total = None;
    }
}

impl FairSlots {
    pub fn new(limits: Limits) -> Self {
        let total = Arc::new(Semaphore::new(limits.total));
        Self(Arc::new(Shared { limits, total, keys: Mutex::default() }))
    }

    /// Waits for a slot. The future may be dropped at any time without losing a slot.
    ///
    /// # Errors
    /// Returns [`Busy`] if too many callers of this key are waiting.
    pub async fn acquire(&self, key: &str) -> Result<Slot, Busy> {
        let (caller, slots) = self.enter(key)?;
        // Neither semaphore is ever closed.
        let closed = |_| Busy { waiting: 0 };
        let own = slots.acquire_owned().await.map_err(closed)?;
        let total = Arc::clone(&self.0.total).acquire_owned().await.map_err(closed)?;
        Ok(Slot { total: Some(total), _own: own, _caller: caller })
    }

    /// Registers a caller of the key.
    fn enter(&self, key: &str) -> Result<(Caller, Arc<Semaphore>), Busy> {
        let Limits { per_key, waiting_per_key, .. } = self.0.limits;
        let mut keys = self.0.lock();
        let entry =
            keys.entry(key.to_owned()).or_insert_with(|| Key { slots: Arc::new(Semaphore::new(per_key)), callers: 0 });
        if entry.callers >= per_key.saturating_add(waiting_per_key) {
            return Err(Busy { waiting: entry.callers.saturating_sub(per_key) });
        }
        entry.callers += 1;
        Ok((Caller { shared: Arc::clone(&self.0), key: key.to_owned() }, Arc::clone(&entry.slots)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut keys = self.shared.lock();
        if let Some(entry) = keys.get_mut(&self.key) {
            entry.callers = entry.callers.saturating_sub(1);
            if entry.callers == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
