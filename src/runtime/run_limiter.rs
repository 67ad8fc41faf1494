//! Limits the number of open runs in total, in each namespace and on each node. [`FairQueue`] selects the queued run
//! that starts next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::Stream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::runtime::fair_queue::FairQueue;
pub use crate::runtime::fair_queue::{Full, Limits, Run};
use crate::telemetry::metrics::Metrics;

/// Grants slots to runs. A value of type `W` identifies a run to requeue, for example a reference to its object.
/// Cheap to clone.
pub struct RunLimiter<W> {
    shared: Arc<Shared<W>>,
}

impl<W> Clone for RunLimiter<W> {
    fn clone(&self) -> Self {
        RunLimiter { shared: self.shared.clone() }
    }
}

struct Shared<W> {
    metrics: Metrics,
    /// Signals that the next run may be able to start.
    changed: Notify,
    /// Open and queued runs. The lock is held only for short critical sections and never across an `.await`.
    queue: Mutex<FairQueue<W>>,
}

/// Permit for an open run. When the last permit of a run is dropped, the slot of the run is free.
#[must_use = "the slot becomes free when the permit is dropped"]
pub struct Permit<W> {
    uid: String,
    shared: Arc<Shared<W>>,
}

impl<W> std::fmt::Debug for Permit<W> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Permit").field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl<W> Drop for Permit<W> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.close(&self.uid, Instant::now());
        self.shared.update(queue);
    }
}

impl<W: Send + 'static> RunLimiter<W> {
    pub fn new(limits: Limits, metrics: Metrics) -> Self {
        let queue = Mutex::new(FairQueue::new(limits));
        let shared = Arc::new(Shared { metrics, changed: Notify::new(), queue });
        // The metrics are a part of the shared state, so a strong reference would keep the state forever.
        let weak = Arc::downgrade(&shared);
        let uses = move || weak.upgrade().map(|shared| shared.lock().uses()).unwrap_or_default();
        shared.metrics.runs().slots().observe(limits.all, uses);
        RunLimiter { shared }
    }
}

impl<W> RunLimiter<W> {
    /// Acquires a slot for a run. If no slot is free, queues the run. When the run may start, [`RunLimiter::requeues`]
    /// returns `key`.
    pub fn acquire(&self, run: &Run, key: W) -> Result<Permit<W>, Full> {
        let mut queue = self.shared.lock();
        let granted = queue.request(run, key, Instant::now());
        self.shared.update(queue);
        granted.map(|()| self.permit(run))
    }

    /// Acquires a slot for a run that started before this process. The run counts toward the limits, but is never
    /// rejected.
    pub fn adopt(&self, run: &Run) -> Permit<W> {
        let mut queue = self.shared.lock();
        queue.adopt(run, Instant::now());
        self.shared.update(queue);
        self.permit(run)
    }

    /// Removes a run that is queued or has a reserved slot, and that no longer needs a slot.
    pub fn withdraw(&self, uid: &str) {
        let mut queue = self.shared.lock();
        queue.withdraw(uid, Instant::now());
        self.shared.update(queue);
    }

    /// Returns a stream that identifies the queued runs that may start. Each item is the `key` from
    /// [`RunLimiter::acquire`]. The stream must have only one consumer.
    pub fn requeues(&self) -> impl Stream<Item = W> + Send + 'static
    where
        W: Send + 'static,
    {
        futures::stream::unfold(self.shared.clone(), |shared| async move {
            let key = shared.next_requeue().await;
            Some((key, shared))
        })
    }

    fn permit(&self, run: &Run) -> Permit<W> {
        Permit { uid: run.uid.clone(), shared: self.shared.clone() }
    }
}

impl<W> Shared<W> {
    fn lock(&self) -> MutexGuard<'_, FairQueue<W>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, queue: MutexGuard<'_, FairQueue<W>>) {
        self.metrics.runs().count(queue.open(), queue.queued(), queue.oldest());
        drop(queue);
        self.changed.notify_one();
    }

    async fn next_requeue(&self) -> W {
        loop {
            let expiry = {
                let mut queue = self.lock();
                if let Some(key) = queue.next_requeue(Instant::now()) {
                    return key;
                }
                queue.next_expiry()
            };
            let expired = async {
                match expiry {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = expired => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
