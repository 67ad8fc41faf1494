//! Queues through which other components make a controller reconcile objects immediately.

use std::sync::Arc;

use futures::channel::mpsc;
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};

use crate::api::auto::Update;

/// Capacity of a queue. A full queue can drop further objects, because the controllers also requeue every object
/// periodically.
const CAPACITY: usize = 4096;

/// Sender of objects that a controller must reconcile immediately.
pub(super) type Requeue<K> = mpsc::Sender<ObjectRef<K>>;
/// Receiver of the objects that the controller must reconcile immediately.
pub(super) type Requeues<K> = mpsc::Receiver<ObjectRef<K>>;

/// Creates an empty queue.
pub(super) fn queue<K: Resource<DynamicType = ()>>() -> (Requeue<K>, Requeues<K>) {
    mpsc::channel(CAPACITY)
}

/// Returns a function that requeues the cached Updates of a namespace that have not started their runs.
pub(super) fn runs_of_namespace(updates: Store<Update>, mut requeue: Requeue<Update>) -> impl FnMut(&str) {
    move |namespace| {
        for update in waiting_in(&updates, namespace) {
            drop(requeue.try_send(update));
        }
    }
}

/// Returns a function that requeues the cached objects of a namespace.
pub(super) fn objects_of_namespace<K>(objects: Store<K>, mut requeue: Requeue<K>) -> impl FnMut(&str)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    move |namespace| {
        for object in objects_in(&objects, namespace) {
            drop(requeue.try_send(object));
        }
    }
}

/// Returns the cached objects of a namespace.
pub(super) fn objects_in<K>(objects: &Store<K>, namespace: &str) -> Vec<ObjectRef<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let is_in_namespace = |object: &&Arc<K>| object.meta().namespace.as_deref() == Some(namespace);
    objects.state().iter().filter(is_in_namespace).map(|object| ObjectRef::from_obj(&**object)).collect()
}

/// Returns the cached Updates of a namespace that have not started their runs.
fn waiting_in(updates: &Store<Update>, namespace: &str) -> Vec<ObjectRef<Update>> {
    let is_bound = |update: &Update| update.status.as_ref().is_some_and(|status| status.run.is_some());
    let is_waiting = |update: &&Arc<Update>| {
        update.metadata.namespace.as_deref() == Some(namespace) && !update.is_complete() && !is_bound(update)
    };
    updates.state().iter().filter(is_waiting).map(|update| ObjectRef::from_obj(&**update)).collect()
}
