//! Waits until caches are synced. An object that is missing from an incomplete cache may still exist.

use std::fmt;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use kube::Resource;
use tokio::sync::watch;

use crate::runtime::index::Indexed;
use crate::runtime::reconcile::ReconcileError;

/// Maximum time that one reconcile waits before it releases its slot.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Requeue interval after that time.
const RETRY: Duration = Duration::from_secs(1);

/// Caches on which the decisions of a reconciler depend.
#[derive(Default)]
pub struct CacheSync {
    caches: Vec<Cache>,
    is_synced: AtomicBool,
    was_logged: AtomicBool,
}

struct Cache {
    kind: String,
    is_listed: watch::Receiver<bool>,
}

impl Cache {
    /// Waits until the cache contains the first list of the API server.
    async fn synced(&self) {
        // A dropped writer never completes its cache; it is dropped only when the controller ends.
        if self.is_listed.clone().wait_for(|is_listed| *is_listed).await.is_err() {
            std::future::pending().await
        }
    }
}

impl fmt::Debug for CacheSync {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.caches.iter().map(|cache| &cache.kind)).finish()
    }
}

impl CacheSync {
    /// Adds a cache.
    #[must_use]
    pub fn with<K, G>(mut self, objects: &Indexed<K, G>) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
        G: Hash + Eq,
    {
        self.caches.push(Cache { kind: K::kind(&()).into_owned(), is_listed: objects.is_listed() });
        self
    }

    /// Waits until all caches are synced, for a limited time.
    ///
    /// # Errors
    /// At least one cache is not synced yet. The reconcile is retried.
    pub async fn wait(&self) -> Result<(), ReconcileError> {
        if self.is_synced.load(Ordering::Acquire) {
            return Ok(());
        }
        let all = join_all(self.caches.iter().map(Cache::synced));
        if tokio::time::timeout(WAIT_TIMEOUT, all).await.is_ok() {
            self.is_synced.store(true, Ordering::Release);
            return Ok(());
        }
        let missing = self.caches.iter().filter(|cache| !*cache.is_listed.borrow());
        let missing = missing.map(|cache| cache.kind.as_str()).collect::<Vec<_>>().join(", ");
        if !self.was_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                kinds = missing,
                "caches not synced; check that the controller has permission to list these kinds"
            );
        }
        Err(ReconcileError::waiting(format!("cache sync of {missing}"), RETRY))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::runtime::watcher::Event;
    use tokio::time::Instant;

    use super::*;
    use crate::runtime::index::{IndexWriter, StoreWriter as _, indexed};

    fn cache<K>() -> (Indexed<K, ()>, IndexWriter<K, ()>)
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
    {
        indexed(|_| vec![()])
    }

    /// Several controllers wait for the list of Updates, each with several reconciles.
    #[tokio::test(start_paused = true)]
    async fn every_reconcile_continues_once_the_initial_list_is_complete() {
        let (updates, mut writer) = cache::<ConfigMap>();
        let controllers = [CacheSync::default().with(&updates), CacheSync::default().with(&updates)];
        let start = Instant::now();
        let reconcile = async |controller: usize| {
            controllers[controller].wait().await.expect("it is listed within the timeout");
            assert_eq!(updates.in_group(&()).len(), 1, "the groups are built before");
            start.elapsed()
        };
        let list = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let mut listed = ConfigMap::default();
            listed.metadata.name = Some("listed".to_owned());
            for event in [Event::Init, Event::InitApply(listed), Event::InitDone] {
                writer.apply(&event);
            }
        };
        let (times, ()) = tokio::join!(join_all((0..10).map(|number| reconcile(number % 2))), list);
        assert_eq!(times, [Duration::from_secs(2); 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn cache_sync_waits_for_the_first_list_of_every_cache() {
        let (one, mut one_writer) = cache::<ConfigMap>();
        let (two, mut two_writer) = cache::<Secret>();
        let sync = CacheSync::default().with(&one).with(&two);
        let mut listed = ConfigMap::default();
        listed.metadata.name = Some("listed".to_owned());
        for event in [Event::Init, Event::InitApply(listed), Event::InitDone] {
            assert!(sync.wait().await.is_err(), "before {event:?}");
            one_writer.apply(&event);
        }
        let error = sync.wait().await.expect_err("one of two is not listed").to_string();
        assert_eq!(error, "waiting for cache sync of Secret");
        two_writer.apply(&Event::Init);
        let (waited, ()) = tokio::join!(sync.wait(), async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            two_writer.apply(&Event::InitDone);
        });
        assert!(waited.is_ok(), "it was listed meanwhile: {waited:?}");
        two_writer.apply(&Event::Init);
        assert!(sync.wait().await.is_ok(), "a restarted watch keeps its objects");
    }
}
