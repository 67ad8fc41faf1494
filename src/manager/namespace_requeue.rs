//! Requeues the objects of a namespace.

use std::sync::Arc;

use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};

use crate::api::auto::Update;
use crate::runtime::requeue::Requeue;

/// Returns a function that requeues the cached Updates of a namespace that have not started their runs.
pub(super) fn runs_of_namespace(updates: Store<Update>, requeue: Requeue<Update>) -> impl FnMut(&str) {
    move |namespace| waiting_in(&updates, namespace).into_iter().for_each(|update| requeue.request(update))
}

/// Returns a function that requeues the cached objects of a namespace.
pub(super) fn objects_of_namespace<K>(objects: Store<K>, requeue: Requeue<K>) -> impl FnMut(&str)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    move |namespace| objects_in(&objects, namespace).into_iter().for_each(|object| requeue.request(object))
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
