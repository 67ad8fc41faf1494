//! Waits until caches are complete: what a reconciler does not find in a cache that is not, may well be there.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kube::Resource;
use kube::runtime::reflector::Store;

use crate::runtime::drive::ReconcileError;

/// How long one reconcile waits before it makes room for others.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon it looks again then.
const RETRY: Duration = Duration::from_secs(1);

/// The caches that a reconciler decides on.
#[derive(Default)]
pub struct CacheSync {
    caches: Vec<Cache>,
    is_synced: AtomicBool,
    was_logged: AtomicBool,
}

struct Cache {
    kind: String,
    /// Ends once the cache holds what the API server has listed.
    synced: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl fmt::Debug for CacheSync {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.caches.iter().map(|cache| &cache.kind)).finish()
    }
}

impl CacheSync {
    /// With one more cache.
    #[must_use]
    pub fn with<K>(mut self, store: &Store<K>) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        let store = store.clone();
        let synced = move || {
            let store = store.clone();
            // A writer that is gone never completes it: the controller ends.
            async move {
                if store.wait_until_ready().await.is_err() {
                    std::future::pending().await
                }
            }
            .boxed()
        };
        self.caches.push(Cache { kind: K::kind(&()).into_owned(), synced: Box::new(synced) });
        self
    }

    /// Waits until all caches are complete, for a while.
    ///
    /// # Errors
    /// Some of them are not yet; the reconcile is tried again.
    pub async fn wait(&self) -> Result<(), ReconcileError> {
        if self.is_synced.load(Ordering::Acquire) {
            return Ok(());
        }
        let all = join_all(self.caches.iter().map(|cache| (cache.synced)()));
        if tokio::time::timeout(PATIENCE, all).await.is_ok() {
            self.is_synced.store(true, Ordering::Release);
            return Ok(());
        }
        let missing = self.caches.iter().filter(|cache| (cache.synced)().now_or_never().is_none());
        let missing = missing.map(|cache| cache.kind.as_str()).collect::<Vec<_>>().join(", ");
        if !self.was_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                kinds = missing,
                "nothing is reconciled before these kinds are listed; see whether the controller may list them"
            );
        }
        Err(ReconcileError::waiting(format!("the first list of {missing}"), RETRY))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_the_first_list_of_every_cache() {
        let (one, mut one_writer) = reflector::store::<ConfigMap>();
        let (two, mut two_writer) = reflector::store::<Secret>();
        let sync = CacheSync::default().with(&one).with(&two);
        let mut listed = ConfigMap::default();
        listed.metadata.name = Some("listed".to_owned());
        for event in [Event::Init, Event::InitApply(listed), Event::InitDone] {
            assert!(sync.wait().await.is_err(), "before {event:?}");
            one_writer.apply_watcher_event(&event);
        }
        let error = sync.wait().await.expect_err("one of two is not listed").to_string();
        assert_eq!(error, "waiting for the first list of Secret");
        two_writer.apply_watcher_event(&Event::Init);
        let (waited, ()) = tokio::join!(sync.wait(), async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            two_writer.apply_watcher_event(&Event::InitDone);
        });
        assert!(waited.is_ok(), "it was listed meanwhile: {waited:?}");
        two_writer.apply_watcher_event(&Event::Init);
        assert!(sync.wait().await.is_ok(), "a watch that begins anew keeps what it has");
    }
}
