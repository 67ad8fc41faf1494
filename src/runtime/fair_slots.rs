//! Slots that keys, such as namespaces or pods, share fairly. The slots limit concurrent work that uses memory, CPU or
//! connections.
//!
//! All keys together use at most `total` slots at the same time, and one key uses at most `per_key` slots. The waiting
//! key with the fewest slots gets the next free slot. If several keys have equally few slots, the key with the oldest
//! last grant gets the slot. A key that rarely needs a slot therefore waits only for the next free slot, even if other
//! keys have many or slow callers.

pub(super) mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::runtime::fair_slots::queue::{Place, Priority, Queue};

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
    /// Maximum number of slots and of waiting callers per key.
    max_per_key: usize,
    /// Maximum number of waiting callers of all keys.
    places: usize,
    /// Hold the lock only for short critical sections, and never across an `.await`.
    queue: Mutex<Queue<Arc<Notify>>>,
}

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
            grant_all(&mut queue);
        }
    }
}

impl Drop for Slot {
    /// Frees the slot. If the caller still waits for the slot, removes the caller from the queue.
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.leave(&self.key, self.place, self.is_common);
        grant_all(&mut queue);
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
        let Limits { total, per_key, waiting_per_key } = limits;
        let max_per_key = per_key.saturating_add(waiting_per_key);
        Self(Arc::new(Shared { max_per_key, places, queue: Mutex::new(Queue::new(total, per_key)) }))
    }

    /// Waits for a slot. Dropping the future at any time does not leak a slot.
    ///
    /// # Errors
    /// Returns [`Busy`] if too many callers are waiting.
    pub async fn acquire(&self, key: &str) -> Result<Slot, Busy> {
        let (slot, granted) = self.enqueue(key)?;
        granted.notified().await;
        Ok(slot)
    }

    /// Adds a caller that waits for a slot. The returned `Notify` signals that the caller has the slot.
    fn enqueue(&self, key: &str) -> Result<(Slot, Arc<Notify>), Busy> {
        let granted = Arc::new(Notify::new());
        let mut queue = self.0.lock();
        let (in_use, waiting) = queue.of_key(key);
        let has_place = waiting < self.0.places.saturating_sub(queue.waiting());
        if in_use + waiting >= self.0.max_per_key || !(queue.is_free_for(key) || has_place) {
            return Err(Busy { waiting });
        }
        let place = queue.enqueue(key, Priority::High, Arc::clone(&granted));
        grant_all(&mut queue);
        drop(queue);
        Ok((Slot { shared: Arc::clone(&self.0), key: key.to_owned(), place, is_common: true }, granted))
    }
}

/// Grants all free slots to waiting callers.
fn grant_all(queue: &mut Queue<Arc<Notify>>) {
    while let Some(granted) = queue.grant() {
        granted.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue<Arc<Notify>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
