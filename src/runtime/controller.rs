//! Startup code that all controllers share.

use std::fmt::Debug;
use std::sync::Arc;

use futures::FutureExt;
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::runtime::dispatcher::Dispatcher;
use crate::runtime::error_report::ErrorReporter;
use crate::runtime::events::Events;
use crate::runtime::index::StoreWriter;
use crate::runtime::invalid_objects::{self, InvalidObjects};
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::{Outcome, ReconcileError, ReconcileRunner};
use crate::runtime::scope::Scope;
use crate::runtime::triggers::{self, Trigger};
use crate::runtime::watch;
use crate::runtime::work_queue::Urgency;
use crate::runtime::writes::Writer;

/// Components that every controller needs. `S` is the store of the objects that the controller reconciles.
pub struct Start<S> {
    pub client: Client,
    pub reader: Reader,
    pub writer: Writer,
    pub events: Events,
    pub scope: Scope,
    /// Store that contains all objects in `scope`.
    pub store: S,
    pub runner: Arc<ReconcileRunner>,
    /// Token that stops the controller. When this token is canceled, the controller starts no further reconciliations
    /// and waits for the reconciliations in progress.
    pub end: CancellationToken,
}

impl<S> Debug for Start<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Start").field("runner", &self.runner).finish_non_exhaustive()
    }
}

impl<S> Start<S> {
    /// Runs the controller until `end` is canceled.
    ///
    /// For `strip` and `on_event`, see [`watch::changes`]. `triggers` trigger reconciliations in addition to the changes
    /// of the objects. `urgency` returns the urgency of an object's next reconciliation.
    pub async fn run<K, C, R>(
        self,
        strip: impl Fn(&mut K) + Send + 'static,
        mut on_event: impl FnMut(&Event<K>) + Send + 'static,
        urgency: impl Fn(&K) -> Urgency + Copy + Send + Sync + 'static,
        triggers: Vec<Trigger<K>>,
        reconcile: impl Fn(Arc<K>, Arc<C>) -> R + Copy + Send + 'static,
        context: Arc<C>,
    ) where
        S: StoreWriter<K>,
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
        C: Send + Sync + 'static,
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        let Start { client, reader, writer, events, scope, store, runner, end } = self;
        let objects = store.reader();
        let (invalid, queue) = InvalidObjects::new();
        let on_invalid = move |metadata: &_, error: &_| invalid.add(metadata, error);
        let promoting = runner.clone();
        let on_event = move |event: &Event<K>| {
            if let Event::Apply(object) = event {
                match urgency(object) {
                    Urgency::Normal => promoting.promote(object),
                    Urgency::Urgent => promoting.expedite(object),
                    Urgency::Queued => {}
                }
            }
            on_event(event);
        };
        let changes =
            watch::changes(scope.api(client), scope.own_kinds(), strip, on_invalid, store, runner.clone(), on_event);
        let reporter = ErrorReporter { reader, writer, events };
        let reports = invalid_objects::report::<K>(queue, reporter.clone());
        let changes = triggers::mapped(changes, |object| Some(ObjectRef::from_obj(&object)));
        let triggers = triggers.into_iter().chain([changes]).collect();
        let report_error = Arc::new(move |object: Arc<K>, error: String| {
            let reporter = reporter.clone();
            async move { reporter.report(object.as_ref(), &error).await }.boxed()
        });
        let dispatcher = Dispatcher { runner, objects, urgency, report_error };
        // A separate task for each controller, because the watches of a controller also parse their objects in this task.
        let dispatch = dispatcher.run(triggers, move |object| reconcile(object, context.clone()), end);
        let dispatching = AbortOnDropHandle::new(tokio::spawn(dispatch));
        // The reporting task ends when the dispatcher drops the change stream, which contains the sender of the queue.
        let (dispatched, ()) = tokio::join!(dispatching, reports);
        if let Err(error) = dispatched
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}
