//! Dispatcher of a controller: starts the reconciliations in the order of the work queue.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SelectAll};
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::runtime::backoff::ObjectKey;
use crate::runtime::reconcile::{Ended, Outcome, ReconcileError, ReconcileRunner};
use crate::runtime::triggers::Trigger;
use crate::runtime::work_queue::{Next, Urgency};

/// Requeue interval after a panic outside of the reconcile function.
const PANIC_REQUEUE_INTERVAL: Duration = Duration::from_secs(60);

/// Reconciliations in progress.
type Running = FuturesUnordered<BoxFuture<'static, (Arc<ObjectKey>, Outcome)>>;

/// Function that reports a repeated error in the status of an object.
pub(super) type ReportError<K> = Arc<dyn Fn(Arc<K>, String) -> BoxFuture<'static, ()> + Send + Sync>;

/// Dispatcher for the objects of one kind.
pub(super) struct Dispatcher<K, U>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    pub(super) runner: Arc<ReconcileRunner>,
    /// Store that contains all objects. The dispatcher ignores triggers for other objects.
    pub(super) objects: Store<K>,
    /// Returns the urgency of an object's next reconciliation.
    pub(super) urgency: U,
    /// The dispatcher awaits the report before the next reconciliation of the object, so that an outdated report
    /// cannot replace the status of a successful reconciliation.
    pub(super) report_error: ReportError<K>,
}

impl<K, U> Dispatcher<K, U>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    U: Fn(&K) -> Urgency,
{
    /// Starts reconciliations until `end` is canceled, and then waits for the reconciliations in progress. The first
    /// reconciliation starts when the store contains the initial list.
    pub(super) async fn run<R>(
        self,
        mut triggers: SelectAll<Trigger<K>>,
        reconcile: impl Fn(Arc<K>) -> R,
        end: CancellationToken,
    ) where
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        if end.run_until_cancelled(self.add_listed(&mut triggers)).await.is_none() {
            return;
        }
        let mut running = Running::new();
        while !end.is_cancelled() {
            self.add_due();
            self.start(&mut running, &reconcile);
            self.runner.record_depth();
            let next_time = self.runner.queue().next_time();
            tokio::select! {
                () = end.cancelled() => {}
                Some(object) = triggers.next() => self.add(&key(object)),
                Some((key, outcome)) = running.next() => self.finish(&key, outcome),
                () = self.runner.reordered() => {}
                () = until(next_time) => {}
            }
        }
        while running.next().await.is_some() {}
    }

    /// Waits until the store contains the initial list, and then adds the objects that are due.
    async fn add_listed(&self, triggers: &mut SelectAll<Trigger<K>>) {
        let (mut listed, mut due) = (pin!(self.objects.wait_until_ready()), HashSet::new());
        loop {
            tokio::select! {
                // An error means that the watch has ended.
                _ = &mut listed => break,
                Some(object) = triggers.next() => {
                    due.insert(key(object));
                }
            }
        }
        due.iter().for_each(|key| self.add(key));
    }

    /// Makes an object due if it exists.
    fn add(&self, key: &ObjectKey) {
        if let Some(object) = self.get(key) {
            // The function must not run while the queue is locked.
            let urgency = (self.urgency)(&object);
            self.runner.queue().add(key, urgency);
        }
    }

    fn get(&self, (namespace, name): &ObjectKey) -> Option<Arc<K>> {
        self.objects.get(&ObjectRef::new(name).within(namespace))
    }

    /// Adds the objects whose delay has passed.
    fn add_due(&self) {
        let now = Instant::now();
        let take = || self.runner.queue().take_due(now);
        std::iter::from_fn(take).for_each(|key| self.add(&key));
    }

    /// Starts the reconciliations for which slots are free.
    fn start<R>(&self, running: &mut Running, reconcile: &impl Fn(Arc<K>) -> R)
    where
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        let next = || self.runner.queue().start();
        for key in std::iter::from_fn(next) {
            let Some(object) = self.get(&key) else {
                self.finish(&key, Outcome::Settled);
                continue;
            };
            let (runner, work) = (self.runner.clone(), reconcile(object.clone()));
            let report_error = self.report_error.clone();
            let task = tokio::spawn(async move {
                let Ended { outcome, repeated_error } = runner.run(object.as_ref(), work).await;
                if let Some(error) = repeated_error {
                    report_error(object, error).await;
                }
                outcome
            });
            // If the dispatcher is dropped, the reconciliations end.
            let task = AbortOnDropHandle::new(task);
            running.push(Box::pin(async move { (key, outcome(task).await) }));
        }
    }

    fn finish(&self, key: &Arc<ObjectKey>, outcome: Outcome) {
        let delay = match outcome {
            Outcome::Settled => None,
            Outcome::After(delay) => Some(delay),
        };
        let next = self.runner.queue().finish(key, delay, Instant::now());
        if next == Next::Deleted {
            self.runner.forget_key(key);
        }
        if next != Next::Recorded {
            self.add(key);
        }
    }
}

/// Returns the outcome of a reconciliation task.
async fn outcome(task: AbortOnDropHandle<Outcome>) -> Outcome {
    task.await.unwrap_or_else(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "reconciliation task failed");
        Outcome::After(PANIC_REQUEUE_INTERVAL)
    })
}

/// Waits until a time. Without a time, waits forever.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn key<K: Resource<DynamicType = ()>>(object: ObjectRef<K>) -> ObjectKey {
    (object.namespace.unwrap_or_default(), object.name)
}

#[cfg(test)]
mod tests;
