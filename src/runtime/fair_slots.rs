//! A limited number of slots that namespaces share fairly: for work that takes memory, CPU or a connection while it lasts.
//!
//! At most `total` slots are in use at once, at most `per_key` of them by one key (a namespace, a pod). A key waits for one of its own
//! slots first and only then, in the order of arrival, for one of the total. So each key has at most `per_key` entries in the common
//! queue, however many callers it has, and another key is never behind more than `per_key` entries of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many slots there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots in total.
    pub total: usize,
    /// Slots that one key may use at once.
    pub per_key: usize,
    /// Callers of one key that may wait at once. Further ones get [`Busy`].
    pub waiting_per_key: usize,
}

/// Too many callers of the same key wait already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} callers already wait for a slot")]
pub struct Busy {
    pub waiting: usize,
}

/// The slots. Cheap to clone; all clones share them.
#[derive(Clone, Debug)]
pub struct FairSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    total: Arc<Semaphore>,
    /// Only keys with a caller that holds a slot or waits. Locked for short sections only, never across an await.
    keys: Mutex<HashMap<String, Key>>,
}

#[derive(Debug)]
struct Key {
    slots: Arc<Semaphore>,
    /// Callers that hold a slot or wait.
    callers: usize,
}

/// A slot in use, until it is dropped.
#[derive(Debug)]
#[must_use = "the slot is free again when this is dropped"]
pub struct Slot {
    // Dropped in this order: the common slot is free before the key's own.
    total: Option<OwnedSemaphorePermit>,
    _own: OwnedSemaphorePermit,
    _caller: Caller,
}

impl Slot {
    /// Gives back the common slot and keeps the key's own: others go on while this key pauses.
    pub fn release_total(&mut self) {
        self.total = None;
    }
}

impl FairSlots {
    pub fn new(limits: Limits) -> Self {
        let total = Arc::new(Semaphore::new(limits.total));
        Self(Arc::new(Shared { limits, total, keys: Mutex::default() }))
    }

    /// Waits for a slot. A caller that stops waiting (its future is dropped) leaves nothing behind.
    ///
    /// # Errors
    /// Too many callers of this key wait already.
    pub async fn acquire(&self, key: &str) -> Result<Slot, Busy> {
        let (caller, slots) = self.enter(key)?;
        // Neither semaphore is ever closed.
        let closed = |_| Busy { waiting: 0 };
        let own = slots.acquire_owned().await.map_err(closed)?;
        let total = Arc::clone(&self.0.total).acquire_owned().await.map_err(closed)?;
        Ok(Slot { total: Some(total), _own: own, _caller: caller })
    }

    /// Counts a caller of the key.
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

/// Counts a caller of a key while it lives; the last one removes the key.
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
