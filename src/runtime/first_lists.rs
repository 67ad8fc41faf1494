//! Delays a controller's first reconciliation until its watches have received their initial lists.
//!
//! Each listed object requests a reconciliation. For example, a Stack, its Workspace and its Updates all request a
//! reconciliation of the Stack. The work queue deduplicates the requests for an object only until the reconciliation
//! starts. Without the delay, the controller would therefore repeat the reconciliations after each list.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, TryStreamExt};
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;

/// Maximum delay. After this time, reconciliations start even if a list is incomplete, for example because the
/// controller lacks a permission.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Initial lists that the watches of one controller receive. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FirstLists {
    /// Number of incomplete lists.
    missing: Arc<watch::Sender<usize>>,
}

impl FirstLists {
    /// Registers a watch, and returns a stream with the same events.
    pub fn track<K, S>(
        &self,
        events: S,
    ) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static + use<K, S>
    where
        S: Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
        K: 'static,
    {
        let mut incomplete = Some(Incomplete::new(self.missing.clone()));
        events.inspect_ok(move |event| {
            if matches!(event, Event::InitDone) {
                drop(incomplete.take());
            }
        })
    }

    /// Registers the initial list of another controller's watch. The returned future ends when the list is complete.
    pub fn track_list(
        &self,
        mut is_listed: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let incomplete = Incomplete::new(self.missing.clone());
        async move {
            // An error means that the other controller has ended.
            drop(is_listed.wait_for(|is_listed| *is_listed).await);
            drop(incomplete);
        }
    }

    /// Waits until all initial lists are complete, or until [`MAX_DELAY`] has passed. After the delay, later calls do
    /// not wait, so a watch that never receives a list delays the controller only once.
    pub async fn complete(&self) {
        let mut missing = self.missing.subscribe();
        let is_late = tokio::time::timeout(MAX_DELAY, missing.wait_for(|missing| *missing == 0)).await.is_err();
        if is_late {
            let missing = self.missing.send_replace(0);
            tracing::warn!(missing, "starting reconciliations before the first lists of all watches are complete");
        }
    }
}

/// Incomplete list. Dropping this value marks the list as complete, even if the watch ends without a list.
struct Incomplete(Arc<watch::Sender<usize>>);

impl Incomplete {
    fn new(missing: Arc<watch::Sender<usize>>) -> Self {
        missing.send_modify(|missing| *missing += 1);
        Incomplete(missing)
    }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        self.0.send_modify(|missing| *missing = missing.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use futures::channel::mpsc;
    use tokio::time::Instant;

    use super::*;
    use crate::api::auto::Workspace;

    type Item = Result<Event<Workspace>, watcher::Error>;

    async fn delay(lists: &FirstLists) -> Duration {
        let began = Instant::now();
        lists.complete().await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn reconciliations_wait_for_all_first_lists() {
        let lists = FirstLists::default();
        assert_eq!(delay(&lists).await, Duration::ZERO, "no watch");
        let (one, events) = mpsc::unbounded::<Item>();
        let mut first = Box::pin(lists.track(events));
        let (other, events) = mpsc::unbounded::<Item>();
        let mut second = Box::pin(lists.track(events));
        for event in [Event::Init, Event::InitDone] {
            one.unbounded_send(Ok(event)).unwrap();
            first.next().await.unwrap().unwrap();
        }
        assert!(delay(&lists).await >= MAX_DELAY, "the second list is incomplete");
        assert_eq!(delay(&lists).await, Duration::ZERO, "the delay applies only once");
        other.unbounded_send(Ok(Event::InitDone)).unwrap();
        second.next().await.unwrap().unwrap();
        assert_eq!(delay(&lists).await, Duration::ZERO);
        one.unbounded_send(Ok(Event::Init)).unwrap();
        first.next().await.unwrap().unwrap();
        assert_eq!(delay(&lists).await, Duration::ZERO, "later lists do not delay reconciliations");
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_watch_delays_nothing() {
        let lists = FirstLists::default();
        let (sender, events) = mpsc::unbounded::<Item>();
        let watch = lists.track(events);
        drop((sender, watch));
        assert_eq!(delay(&lists).await, Duration::ZERO);
    }
}
