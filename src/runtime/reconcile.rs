//! Reconcile runner, with a work queue, a log span, a timeout, a panic guard and metrics. The runner converts each
//! reconciliation result to a requeue.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use kube::Resource;
use thiserror::Error;
use tokio::sync::Notify;
use tracing::Instrument;

use crate::runtime::backoff::{Backoff, ObjectKey};
use crate::runtime::first_lists::FirstLists;
use crate::runtime::reads::ReadError;
use crate::runtime::work_queue::WorkQueue;
use crate::runtime::writes::WriteError;
use crate::telemetry::chain;
use crate::telemetry::logging::panic_message;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::reconciles::ReconcileResult;

/// Number of consecutive failures after which the status of an object must contain the error. Most errors disappear
/// before.
const REPORTED_FAILURES: u32 = 3;

/// Result of a successful reconciliation, and the next action after any reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The runner does not requeue the object. The next change triggers a reconciliation.
    Settled,
    /// The runner requeues the object after this time. A change can trigger a reconciliation earlier.
    After(Duration),
}

/// Reason why a reconciliation did not succeed. The reason determines when the runner requeues the object.
#[derive(Debug, Error)]
pub enum ReconcileError {
    /// No progress is possible until the object changes, so the runner does not requeue the object.
    #[error("stalled: {reason}")]
    Stalled { reason: String },
    /// A requirement is not met yet. This is not a failure. The runner requeues the object after the time `after`.
    #[error("waiting for {on}")]
    Waiting { on: String, after: Duration },
    /// The error is temporary, so the runner requeues the object with backoff.
    #[error(transparent)]
    Transient(Box<dyn StdError + Send + Sync>),
    /// The error is temporary, and the conditions of the object already contain its cause. The runner requeues the object
    /// with backoff, but does not replace the conditions.
    #[error(transparent)]
    Reported(Box<dyn StdError + Send + Sync>),
}

impl ReconcileError {
    pub fn stalled(reason: impl Into<String>) -> Self {
        ReconcileError::Stalled { reason: reason.into() }
    }

    pub fn waiting(on: impl Into<String>, after: Duration) -> Self {
        ReconcileError::Waiting { on: on.into(), after }
    }

    pub fn transient(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        ReconcileError::Transient(source.into())
    }

    pub fn reported(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        ReconcileError::Reported(source.into())
    }
}

impl From<WriteError> for ReconcileError {
    fn from(error: WriteError) -> Self {
        ReconcileError::transient(error)
    }
}

impl From<ReadError> for ReconcileError {
    fn from(error: ReadError) -> Self {
        ReconcileError::transient(error)
    }
}

/// Result of a reconciliation for the dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub outcome: Outcome,
    /// Error of the reconciliation, if at least [`REPORTED_FAILURES`] consecutive reconciliations of the object have
    /// failed. The status of the object must contain this error.
    pub repeated_error: Option<String>,
}

/// Result of a reconciliation: an outcome, an error, a panic or a timeout.
enum End {
    Outcome(Outcome),
    Error(ReconcileError),
    Panic(Box<dyn Any + Send>),
    Timeout,
}

/// Runner that executes the reconciliations of one controller.
pub struct ReconcileRunner {
    controller: &'static str,
    kind: &'static str,
    group: &'static str,
    timeout: Duration,
    metrics: Metrics,
    backoff: Backoff,
    first_lists: FirstLists,
    /// Hold the lock only for short critical sections, and never across an `.await`.
    queue: Mutex<WorkQueue>,
    /// Notifies the dispatcher that the order of the queue has changed.
    reordered: Notify,
    on_deleted: Box<dyn Fn(&ObjectKey) + Send + Sync>,
}

impl fmt::Debug for ReconcileRunner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ReconcileRunner").field("controller", &self.controller).finish_non_exhaustive()
    }
}

impl ReconcileRunner {
    /// Creates a runner. `controller` is the name of the controller in logs and metrics. `timeout` applies to each
    /// reconciliation.
    pub fn new<K>(controller: &'static str, timeout: Duration, metrics: Metrics) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        ReconcileRunner {
            controller,
            kind: leak(K::kind(&())),
            group: leak(K::group(&())),
            timeout,
            metrics,
            backoff: Backoff::default(),
            first_lists: FirstLists::default(),
            queue: Mutex::new(WorkQueue::new(usize::MAX, usize::MAX)),
            reordered: Notify::new(),
            on_deleted: Box::new(|_| ()),
        }
    }

    /// Sets the callback that the runner calls after an object has been deleted. The runner holds no lock during the
    /// call, and can call the callback several times for the same object.
    #[must_use]
    pub fn on_deleted(self, callback: impl Fn(&ObjectKey) + Send + Sync + 'static) -> Self {
        ReconcileRunner { on_deleted: Box::new(callback), ..self }
    }

    /// Limits the number of concurrent reconciliations in total and per namespace, so that slow reconciliations in one
    /// namespace do not delay other namespaces. The limits also apply, separately, to urgent reconciliations.
    #[must_use]
    pub fn with_slots(self, total: usize, per_namespace: usize) -> Self {
        ReconcileRunner { queue: Mutex::new(WorkQueue::new(total, per_namespace)), ..self }
    }

    /// Replaces the default backoff.
    #[must_use]
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        ReconcileRunner { backoff, ..self }
    }

    /// Returns the initial lists of the controller's watches. The first reconciliation waits for these lists.
    pub fn first_lists(&self) -> &FirstLists {
        &self.first_lists
    }

    /// Returns whether a reconciliation of the object has started since the process started.
    pub fn has_begun<K: Resource>(&self, object: &K) -> bool {
        self.has_begun_key(&key(object))
    }

    /// Returns whether a reconciliation of the object with this key has started since the process started.
    pub fn has_begun_key(&self, key: &ObjectKey) -> bool {
        self.queue().has_begun(key)
    }

    /// Gives the first reconciliation of an existing object high priority, because the object has changed or its source
    /// has changed. Later reconciliations always have high priority.
    pub fn promote<K: Resource>(&self, object: &K) {
        self.queue().promote(&key(object));
    }

    /// Makes the next reconciliation of a queued object urgent, for example because its run can start.
    pub fn expedite<K: Resource>(&self, object: &K) {
        self.expedite_key(&key(object));
    }

    /// Makes the next reconciliation of the queued object with this key urgent.
    pub fn expedite_key(&self, key: &ObjectKey) {
        self.queue().expedite(key);
        self.reordered.notify_one();
    }

    /// Marks the object as reconciled.
    #[cfg(test)]
    pub fn begin<K: Resource>(&self, object: &K) {
        use crate::runtime::work_queue::Urgency;
        let (key, mut queue) = (key(object), self.queue());
        queue.add(&key, Urgency::Urgent);
        let started = queue.start().expect("free slots");
        assert_eq!(*started, key);
        queue.finish(&started, None, tokio::time::Instant::now());
    }

    /// Returns the sorted names of the promoted objects.
    #[cfg(test)]
    pub fn promoted(&self) -> Vec<String> {
        self.queue().promoted()
    }

    /// Waits until an expedited object can start.
    pub(super) async fn reordered(&self) {
        self.reordered.notified().await;
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, WorkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the number of waiting objects as a metric.
    pub(super) fn record_depth(&self) {
        self.metrics.reconciles().set_queue_depth(self.controller, self.queue().depth());
    }

    /// Executes one reconciliation of `object`, and returns the next action and a repeated error. The function also
    /// returns an action after an error, a panic or a timeout.
    pub async fn run<K: Resource>(
        &self,
        object: &K,
        work: impl Future<Output = Result<Outcome, ReconcileError>> + Send,
    ) -> Ended {
        let key = key(object);
        let span = tracing::info_span!(
            "reconcile",
            controller = self.controller,
            controllerGroup = self.group,
            controllerKind = self.kind,
            name = key.1,
            namespace = key.0,
            reconcileID = %uuid::Uuid::new_v4(),
            revision = tracing::field::Empty,
            trace_id = tracing::field::Empty,
        );
        self.metrics.reconciles().started(self.controller, &key);
        let started = Instant::now();
        // The future is boxed, because reconciliation futures are large.
        let work = Box::pin(tokio::time::timeout(self.timeout, work).instrument(span.clone()));
        let end = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(Ok(Ok(outcome))) => End::Outcome(outcome),
            Ok(Ok(Err(error))) => End::Error(error),
            Ok(Err(_)) => End::Timeout,
            Err(payload) => End::Panic(payload),
        };
        let Conclusion { outcome, result, error } = span.in_scope(|| self.conclude(&key, end));
        self.metrics.reconciles().ended(self.controller, (self.kind, &key.0, &key.1), result, started.elapsed());
        let repeated_error = error.filter(|_| self.backoff.failures(&key) >= REPORTED_FAILURES);
        Ended { outcome, repeated_error }
    }

    /// Removes the runner's state for a deleted object.
    pub fn forget<K: Resource>(&self, object: &K) {
        let key = key(object);
        self.queue().forget(&key);
        self.forget_key(&key);
    }

    /// Removes the runner's state for objects that do not exist according to `exists`, because the watch can miss
    /// deletions.
    pub fn retain(&self, exists: impl Fn(&str, &str) -> bool) {
        let known = self.queue().keys();
        for key in known.iter().filter(|key| !exists(&key.0, &key.1)) {
            self.queue().forget(key);
            self.forget_key(key);
        }
    }

    /// Removes all state of a deleted object except for its entry in the queue.
    pub(super) fn forget_key(&self, key: &ObjectKey) {
        self.backoff.forget(key);
        self.metrics.forget(self.kind, &key.0, &key.1);
        (self.on_deleted)(key);
    }

    fn conclude(&self, key: &ObjectKey, end: End) -> Conclusion {
        match end {
            End::Outcome(Outcome::Settled) => {
                self.backoff.forget(key);
                Conclusion::without_error(Outcome::Settled, ReconcileResult::Success)
            }
            End::Outcome(Outcome::After(delay)) => {
                self.backoff.forget(key);
                Conclusion::without_error(Outcome::After(delay), ReconcileResult::RequeueAfter)
            }
            End::Error(error) => self.conclude_error(key, &error),
            End::Timeout => {
                let delay = self.backoff.failed(key);
                let error = format!("the reconciliation timed out after {} s", self.timeout.as_secs());
                tracing::error!(error, retry_in = ?delay, "reconciliation failed");
                Conclusion::failed(delay, ReconcileResult::Error, error)
            }
            End::Panic(payload) => {
                self.metrics.reconciles().panicked(self.controller);
                let (delay, panic) = (self.backoff.failed(key), panic_message(&*payload));
                tracing::error!(error = panic, retry_in = ?delay, "reconciliation panicked");
                Conclusion::failed(delay, ReconcileResult::Error, format!("the reconciliation panicked: {panic}"))
            }
        }
    }

    fn conclude_error(&self, key: &ObjectKey, error: &ReconcileError) -> Conclusion {
        match error {
            ReconcileError::Stalled { reason } => {
                self.backoff.forget(key);
                self.metrics.reconciles().stalled(self.controller);
                tracing::error!(error = reason, "reconciliation stalled until the object changes");
                Conclusion::without_error(Outcome::Settled, ReconcileResult::Error)
            }
            ReconcileError::Waiting { on, after } => {
                self.backoff.forget(key);
                tracing::debug!(on, retry_in = ?after, "reconciliation waiting");
                Conclusion::without_error(Outcome::After(*after), ReconcileResult::RequeueAfter)
            }
            ReconcileError::Reported(source) => {
                let delay = self.backoff.failed(key);
                tracing::error!(error = chain(&**source), retry_in = ?delay, "reconciliation failed");
                Conclusion::without_error(Outcome::After(delay), ReconcileResult::Error)
            }
            ReconcileError::Transient(source) => {
                let delay = self.backoff.failed(key);
                let error = chain(&**source);
                // Conflicts and the loss of leadership are expected. The runner retries the reconciliation with
                // backoff, and does not report a failure.
                match source.downcast_ref::<WriteError>() {
                    Some(write) if write.is_conflict() => {
                        tracing::debug!(error, retry_in = ?delay, "retrying reconciliation");
                        return Conclusion::failed(delay, ReconcileResult::RequeueAfter, error);
                    }
                    Some(write) if write.is_not_leader() => {
                        tracing::debug!(error, retry_in = ?delay, "retrying reconciliation");
                        return Conclusion::without_error(Outcome::After(delay), ReconcileResult::RequeueAfter);
                    }
                    _ => {}
                }
                tracing::error!(error, retry_in = ?delay, "reconciliation failed");
                Conclusion::failed(delay, ReconcileResult::Error, error)
            }
        }
    }
}

/// Next action, result for the metrics, and error of a reconciliation.
struct Conclusion {
    outcome: Outcome,
    result: ReconcileResult,
    error: Option<String>,
}

impl Conclusion {
    fn without_error(outcome: Outcome, result: ReconcileResult) -> Self {
        Conclusion { outcome, result, error: None }
    }

    fn failed(delay: Duration, result: ReconcileResult, error: String) -> Self {
        Conclusion { outcome: Outcome::After(delay), result, error: Some(error) }
    }
}

fn key<K: Resource>(object: &K) -> ObjectKey {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// Leaks the name of a kind. The leak is harmless, because there are few kinds and the process uses their names until
/// it exits.
fn leak(name: std::borrow::Cow<'static, str>) -> &'static str {
    match name {
        std::borrow::Cow::Borrowed(name) => name,
        std::borrow::Cow::Owned(name) => Box::leak(name.into_boxed_str()),
    }
}

#[cfg(test)]
mod tests;
