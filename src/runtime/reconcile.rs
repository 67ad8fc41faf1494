//! What is around every reconcile: a slot that namespaces share fairly, a span for its logs, a limit on its time, a guard
//! against panics, its metrics, and what its result means for the next one.

use std::any::Any;
use std::collections::HashSet;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use kube::Resource;
use kube::runtime::controller::Action;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::runtime::backoff::{Backoff, ObjectKey};
use crate::runtime::fair_slots::{FairSlots, Limits};
use crate::runtime::reads::ReadError;
use crate::runtime::writes::WriteError;
use crate::telemetry::chain;
use crate::telemetry::logging::panic_message;
use crate::telemetry::metrics::{Metrics, ReconcileResult};

/// As good as no limit.
const UNLIMITED: usize = 1 << 20;
/// How soon an object is reconciled for which there is no room to wait.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// What a reconcile that did its work wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing until something changes.
    Settled,
    /// To run again after this long, if nothing changes before.
    After(Duration),
}

/// Why a reconcile could not do its work, and with that, when the next one runs.
#[derive(Debug, Error)]
pub enum ReconcileError {
    /// Nothing can be done until the object changes.
    #[error("stalled: {reason}")]
    Stalled { reason: String },
    /// Something else has to happen first. No failure.
    #[error("waiting for {on}")]
    Waiting { on: String, after: Duration },
    /// It may work another time; tried again after a delay that grows.
    #[error(transparent)]
    Transient(Box<dyn StdError + Send + Sync>),
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

/// The end of a reconcile, whatever way it took.
enum End {
    Outcome(Outcome),
    Error(ReconcileError),
    Panic(Box<dyn Any + Send>),
    Timeout,
}

/// The driver of one controller's reconciles.
pub struct ReconcileRunner {
    controller: &'static str,
    kind: &'static str,
    group: &'static str,
    timeout: Duration,
    metrics: Metrics,
    slots: FairSlots,
    /// Whoever waits for a slot then waits no more.
    end: CancellationToken,
    backoff: Backoff,
    /// The objects that have been reconciled. Locked for short sections only, never across an await.
    known: Mutex<HashSet<ObjectKey>>,
    when_gone: Box<dyn Fn(&ObjectKey) + Send + Sync>,
}

impl fmt::Debug for ReconcileRunner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ReconcileRunner").field("controller", &self.controller).finish_non_exhaustive()
    }
}

impl ReconcileRunner {
    /// `controller` is the name in logs and metrics, `timeout` bounds each reconcile.
    pub fn new<K>(controller: &'static str, timeout: Duration, metrics: Metrics) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        ReconcileRunner {
            controller,
            kind: leaked(K::kind(&())),
            group: leaked(K::group(&())),
            timeout,
            metrics,
            slots: FairSlots::new(Limits { total: UNLIMITED, per_key: UNLIMITED, waiting_per_key: UNLIMITED }),
            end: CancellationToken::new(),
            backoff: Backoff::default(),
            known: Mutex::default(),
            when_gone: Box::new(|_| ()),
        }
    }

    /// With something else to be let go of when an object is gone. It is called without a lock, and may be called again.
    #[must_use]
    pub fn when_gone(self, forget: impl Fn(&ObjectKey) + Send + Sync + 'static) -> Self {
        ReconcileRunner { when_gone: Box::new(forget), ..self }
    }

    /// With a limit on the reconciles at a time, in all and of one namespace: what a namespace waits for does not hold up
    /// others. After `end` none begins.
    #[must_use]
    pub fn with_slots(self, total: usize, per_namespace: usize, end: CancellationToken) -> Self {
        // Each object waits once at most, so those that wait need no limit of their own.
        let limits = Limits { total, per_key: per_namespace, waiting_per_key: UNLIMITED };
        ReconcileRunner { slots: FairSlots::new(limits), end, ..self }
    }

    /// With other delays after failures than the default.
    #[must_use]
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        ReconcileRunner { backoff, ..self }
    }

    /// Runs one reconcile of `object`, to its end whatever happens, and says when the next one is due.
    pub async fn run<K: Resource>(
        &self,
        object: &K,
        work: impl Future<Output = Result<Outcome, ReconcileError>> + Send,
    ) -> Result<Action, Infallible> {
        let key = key(object);
        let slot = tokio::select! {
            () = self.end.cancelled() => return Ok(Action::await_change()),
            slot = self.slots.acquire(&key.0) => slot,
        };
        let Ok(_slot) = slot else { return Ok(Action::requeue(BUSY_RETRY)) };
        let span = tracing::info_span!(
            "reconcile",
            controller = self.controller,
            controllerGroup = self.group,
            controllerKind = self.kind,
            name = key.1,
            namespace = key.0,
            reconcileID = %uuid::Uuid::new_v4(),
            revision = tracing::field::Empty,
        );
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        self.metrics.reconcile_begun(self.controller, &key);
        let begun = Instant::now();
        // On the heap: reconciles are large, and one task holds each of them.
        let work = Box::pin(tokio::time::timeout(self.timeout, work).instrument(span.clone()));
        let end = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(Ok(Ok(outcome))) => End::Outcome(outcome),
            Ok(Ok(Err(error))) => End::Error(error),
            Ok(Err(_)) => End::Timeout,
            Err(payload) => End::Panic(payload),
        };
        let (action, result) = span.in_scope(|| self.conclude(&key, end));
        self.metrics.reconcile_ended(self.controller, (self.kind, &key.0, &key.1), result, begun.elapsed());
        // The object went away meanwhile, perhaps by this reconcile.
        if !self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(&key) {
            self.forget_key(&key);
        }
        Ok(action)
    }

    /// An object is gone: nothing about it is kept.
    pub fn forget<K: Resource>(&self, object: &K) {
        let key = key(object);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        self.forget_key(&key);
    }

    /// Of all objects, only those that `exists` knows are left: the others went away unseen.
    pub fn retain(&self, exists: impl Fn(&str, &str) -> bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<ObjectKey> = known.extract_if(|(namespace, name)| !exists(namespace, name)).collect();
        drop(known);
        gone.iter().for_each(|key| self.forget_key(key));
    }

    fn forget_key(&self, key: &ObjectKey) {
        self.backoff.forget(key);
        self.metrics.forget(self.kind, &key.0, &key.1);
        (self.when_gone)(key);
    }

    fn conclude(&self, key: &ObjectKey, end: End) -> (Action, ReconcileResult) {
        match end {
            End::Outcome(Outcome::Settled) => {
                self.backoff.forget(key);
                (Action::await_change(), ReconcileResult::Success)
            }
            End::Outcome(Outcome::After(delay)) => {
                self.backoff.forget(key);
                (Action::requeue(delay), ReconcileResult::RequeueAfter)
            }
            End::Error(error) => self.conclude_error(key, &error),
            End::Timeout => {
                let delay = self.backoff.failed(key);
                let error = format!("the reconcile did not end within {} s", self.timeout.as_secs());
                tracing::error!(error, retry_in = ?delay, "reconcile failed");
                (Action::requeue(delay), ReconcileResult::Error)
            }
            End::Panic(payload) => {
                self.metrics.reconcile_panicked(self.controller);
                let delay = self.backoff.failed(key);
                tracing::error!(error = panic_message(&*payload), retry_in = ?delay, "reconcile panicked");
                (Action::requeue(delay), ReconcileResult::Error)
            }
        }
    }

    fn conclude_error(&self, key: &ObjectKey, error: &ReconcileError) -> (Action, ReconcileResult) {
        match error {
            ReconcileError::Stalled { reason } => {
                self.backoff.forget(key);
                self.metrics.reconcile_stalled(self.controller);
                tracing::error!(error = reason, "reconcile stalled until the object changes");
                (Action::await_change(), ReconcileResult::Error)
            }
            ReconcileError::Waiting { on, after } => {
                self.backoff.forget(key);
                tracing::debug!(on, retry_in = ?after, "waiting");
                (Action::requeue(*after), ReconcileResult::RequeueAfter)
            }
            ReconcileError::Transient(source) => {
                let delay = self.backoff.failed(key);
                // That somebody else wrote first, or leads now, is not a failure.
                if is_ordinary(&**source) {
                    tracing::debug!(error = chain(&**source), retry_in = ?delay, "reconcile tried again");
                    return (Action::requeue(delay), ReconcileResult::RequeueAfter);
                }
                tracing::error!(error = chain(&**source), retry_in = ?delay, "reconcile failed");
                (Action::requeue(delay), ReconcileResult::Error)
            }
        }
    }
}

/// The error policy for `Controller::run`: a driven reconcile never fails.
pub fn no_errors<K, C>(_object: Arc<K>, error: &Infallible, _context: Arc<C>) -> Action {
    match *error {}
}

fn key<K: Resource>(object: &K) -> ObjectKey {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn is_ordinary(error: &(dyn StdError + Send + Sync + 'static)) -> bool {
    let write = error.downcast_ref::<WriteError>();
    write.is_some_and(|error| error.is_conflict() || error.is_not_leader())
}

/// Names of kinds are few and live as long as the process.
fn leaked(name: std::borrow::Cow<'static, str>) -> &'static str {
    match name {
        std::borrow::Cow::Borrowed(name) => name,
        std::borrow::Cow::Owned(name) => Box::leak(name.into_boxed_str()),
    }
}
