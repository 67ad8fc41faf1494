//! Limits the number of open runs in total, in each namespace, on each node and in each concurrency group.
//! [`FairQueue`] selects the next queued run.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::runtime::fair_queue::FairQueue;
use crate::runtime::fair_queue::estimate::{Estimate, Estimates};
use crate::runtime::fair_queue::forecast::Forecast;
pub use crate::runtime::fair_queue::{Full, Group, GroupKey, Limits, Run, Share};
use crate::telemetry::metrics::Metrics;

/// Limiter that grants slots to runs. A value of type `W` identifies a run to requeue, for example a reference to its
/// object. Cheap to clone.
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
    /// Signals that a queued run may be able to start.
    changed: Notify,
    /// Open and queued runs. Hold the lock only for short critical sections, and never across an `.await`.
    queue: Mutex<FairQueue<W>>,
    /// Estimates that the statuses of the queued runs display. Never locked together with `queue`.
    estimates: Mutex<Estimates>,
}

/// Reason why a run waits, and the run's estimated start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotWait {
    pub reason: Full,
    /// Estimate of the start. `None` if too many runs are queued.
    pub estimate: Option<Estimate>,
}

/// Queued run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    pub wait: SlotWait,
    /// Interval after which the caller must request the slot again to update the message.
    pub requeue_interval: Duration,
}

impl fmt::Display for SlotWait {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(formatter)?;
        self.estimate.map_or(Ok(()), |estimate| estimate.fmt(formatter))
    }
}

/// Permit for an open run. Dropping a run's last permit frees the run's slot.
#[must_use = "the slot becomes free when the permit is dropped"]
pub struct Permit<W> {
    uid: String,
    shared: Arc<Shared<W>>,
}

impl<W> fmt::Debug for Permit<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        let estimates = Mutex::default();
        let shared = Arc::new(Shared { metrics, changed: Notify::new(), queue, estimates });
        // The shared state contains the metrics, so a strong reference from the metrics to the state would be a cycle.
        let weak = Arc::downgrade(&shared);
        let uses = move || weak.upgrade().map(|shared| shared.lock().uses()).unwrap_or_default();
        shared.metrics.runs().slots().observe(limits.all, uses);
        RunLimiter { shared }
    }
}

impl<W> RunLimiter<W> {
    /// Acquires a slot for a run, or queues the run if no slot is free. When the queued run may start, the stream of
    /// [`RunLimiter::requeues`] returns `key`.
    ///
    /// # Errors
    /// Returns the reason why the run waits, and the run's estimated start.
    pub fn acquire(&self, run: &Run, key: W) -> Result<Permit<W>, Queued> {
        let now = Timestamp::now();
        let is_outdated = self.shared.estimates().is_outdated(&run.uid, now);
        let mut queue = self.shared.lock();
        let granted = queue.request(run, key, Instant::now());
        let forecast = (granted.is_err() && is_outdated).then(|| Forecast::new(&queue, run, now));
        self.shared.update(queue);
        match granted {
            Ok(()) => {
                self.shared.estimates().forget(&run.uid);
                Ok(self.permit(run))
            }
            Err(reason) => {
                // The simulation takes milliseconds, so run it without holding a lock.
                let new = forecast.map(Forecast::estimate);
                let mut estimates = self.shared.estimates();
                let estimate = estimates.display(&run.uid, new);
                let wait = SlotWait { reason, estimate };
                Err(Queued { wait, requeue_interval: estimates.requeue_interval(&run.uid) })
            }
        }
    }

    /// Returns why a queued run waits, and its displayed estimate. Returns `None` if the run is not queued.
    pub fn wait_of(&self, uid: &str) -> Option<SlotWait> {
        let reason = self.shared.lock().wait_of(uid)?;
        Some(SlotWait { reason, estimate: self.shared.estimates().get(uid) })
    }

    /// Returns why a run would wait, and its estimated start. Does not queue the run. Returns `None` if the run could
    /// start now.
    pub fn forecast(&self, run: &Run) -> Option<SlotWait> {
        let (reason, forecast) = {
            let queue = self.shared.lock();
            (queue.wait_of_new(run)?, Forecast::new(&queue, run, Timestamp::now()))
        };
        Some(SlotWait { reason, estimate: Some(forecast.estimate()) })
    }

    /// Records that a status displays this estimate of a run. [`RunLimiter::acquire`] returns the same estimate until
    /// a new estimate differs considerably.
    pub fn record_displayed(&self, uid: &str, estimate: Estimate) {
        self.shared.estimates().display(uid, Some(estimate));
    }

    /// Acquires a slot for a run that started before this process or in another shard. The run counts towards the
    /// limits as far as its share permits, but the limiter never rejects it.
    pub fn adopt(&self, run: &Run) -> Permit<W> {
        let mut queue = self.shared.lock();
        queue.adopt(run, Instant::now());
        self.shared.update(queue);
        self.permit(run)
    }

    /// Removes a run from the queue and frees its reserved slot, because the run no longer needs a slot.
    pub fn withdraw(&self, uid: &str) {
        let mut queue = self.shared.lock();
        queue.withdraw(uid, Instant::now());
        self.shared.update(queue);
        self.shared.estimates().forget(uid);
    }

    /// Withdraws all queued runs and all runs with a reserved slot that do not satisfy `is_needed`. The open runs keep
    /// their slots. `is_needed` receives the UID of a run, and must not call the limiter.
    pub fn retain(&self, is_needed: impl Fn(&str) -> bool) {
        let mut queue = self.shared.lock();
        let withdrawn = queue.retain(is_needed, Instant::now());
        self.shared.update(queue);
        let mut estimates = self.shared.estimates();
        withdrawn.iter().for_each(|uid| estimates.forget(uid));
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

    fn estimates(&self) -> MutexGuard<'_, Estimates> {
        self.estimates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, queue: MutexGuard<'_, FairQueue<W>>) {
        self.metrics.runs().count(queue.open(), queue.queued());
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
