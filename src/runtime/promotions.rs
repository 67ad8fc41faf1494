//! Objects whose next reconciliation precedes other reconciliations.
//!
//! After its start, a controller reconciles each object once. Most of these reconciliations find nothing to do, so they
//! have low priority among the reconciliations of their namespace. An object with pending work is *promoted*: its first
//! reconciliation then has high priority. A queued object is promoted when its run can start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::runtime::backoff::ObjectKey;

/// Objects that wait for a promotion, or that were promoted since their last reconciliation. The map contains only
/// existing objects.
#[derive(Debug, Default)]
pub(super) struct Promotions {
    /// Hold the lock only for short critical sections, and never across an `.await`.
    objects: Mutex<HashMap<ObjectKey, Arc<Notify>>>,
}

impl Promotions {
    /// Promotes an object. The promotion also applies if the reconciliation starts to wait later.
    pub(super) fn promote(&self, key: &ObjectKey) {
        self.lock().entry(key.clone()).or_default().notify_one();
    }

    /// Waits until the object is promoted.
    pub(super) async fn promoted(&self, key: &ObjectKey) {
        let promotion = self.lock().entry(key.clone()).or_default().clone();
        promotion.notified().await;
    }

    /// Removes an object whose reconciliation has started or that no longer exists.
    pub(super) fn remove(&self, key: &ObjectKey) {
        let mut objects = self.lock();
        if objects.remove(key).is_some() && objects.is_empty() {
            objects.shrink_to_fit();
        }
    }

    /// Returns the sorted names of all objects in the map.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.lock().keys().map(|(_, name)| name.clone()).collect();
        names.sort();
        names
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<Notify>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
