//! The changes of an own kind that ask for a reconcile: of the spec, of the finalizers, a deletion, and the annotations
//! with which people ask. Not the status: the controller writes it itself.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use futures::{Stream, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::runtime::predicates::{finalizers, generation};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{Predicate, WatchStreamExt};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::api::auto::{RunProgress, Update, UpdateStatus};
use crate::api::conditions::{COMPLETE, PROGRESSING, update_reason};
use crate::api::names::{
    ANNOTATION_CANCEL, ANNOTATION_FORCE_AT, ANNOTATION_RECONCILIATION_REQUEST, ANNOTATION_REQUESTED_AT,
    ANNOTATION_RESET_AT, ANNOTATION_RESOLVE,
};
use crate::runtime::index::StoreWriter;
use crate::runtime::reconcile::ReconcileRunner;
use crate::runtime::tolerant_watcher::{Tolerant, watcher_with};

/// A new value of one of these asks for a reconcile.
const REQUEST_ANNOTATIONS: [&str; 6] = [
    ANNOTATION_CANCEL,
    ANNOTATION_RECONCILIATION_REQUEST,
    ANNOTATION_REQUESTED_AT,
    ANNOTATION_FORCE_AT,
    ANNOTATION_RESET_AT,
    ANNOTATION_RESOLVE,
];

/// The objects whose change asks for a reconcile, for `Controller::for_stream`. All objects go into `store`; those that
/// are gone are forgotten by `drive`.
///
/// A reconcile reads its object anew, so the store needs no more than who looks into it: `cut_down` takes out the rest of
/// spec and status. With thousands of objects they would be most of the controller's memory. `seen` gets every event once the
/// store holds its object.
pub fn changes<K>(
    api: Api<Tolerant<K>>,
    config: watcher::Config,
    cut_down: impl Fn(&mut K) + Send + 'static,
    mut store: impl StoreWriter<K>,
    drive: Arc<ReconcileRunner>,
    seen: impl FnMut(&Event<K>) + Send + 'static,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let reader = store.reader();
    let known = store.reader();
    let last = move |metadata: &ObjectMeta| {
        let reference = ObjectRef::new(metadata.name.as_deref()?).within(metadata.namespace.as_deref()?);
        Some(K::clone(&*known.get(&reference)?))
    };
    watcher_with(api, config, last)
        .default_backoff()
        .modify(move |object: &mut K| {
            cut_down_metadata(object);
            cut_down(object);
        })
        .inspect_ok(move |event| store.apply(event))
        .inspect_ok(move |event| match event {
            Event::Delete(object) => drive.forget(object),
            // What went away while the watch was interrupted is not among the objects that were listed.
            Event::InitDone => {
                drive.retain(|namespace, name| reader.get(&ObjectRef::new(name).within(namespace)).is_some());
            }
            Event::Apply(_) | Event::Init | Event::InitApply(_) => {}
        })
        .inspect_ok(seen)
        .touched_objects()
        .predicate_filter(generation.combine(finalizers).combine(deletion).combine(requests), Default::default())
}

/// Leaves of the metadata what is looked at: not the managed fields, nor annotations that ask for nothing, of which one may
/// be the whole object as `kubectl apply` had it.
pub fn cut_down_metadata<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
    object.annotations_mut().retain(|name, _| REQUEST_ANNOTATIONS.contains(&name.as_str()));
    if object.annotations().is_empty() {
        object.meta_mut().annotations = None;
    }
}

/// Leaves of an Update what tells how far its run is, and by what a lock of it is known.
pub fn cut_down_update(update: &mut Update) {
    update.status = update.status.take().map(|status| {
        // Without a binding, that a run goes on says that the operator has started it. One that waits for references needs an
        // agent that knows them.
        let tells = |condition: &Condition| match condition.type_.as_str() {
            COMPLETE => true,
            PROGRESSING => {
                status.run.is_none()
                    && (condition.status == "True" || condition.reason == update_reason::REFERENCE_NOT_FOUND)
            }
            _ => false,
        };
        let conditions = status.conditions.iter().filter(|condition| tells(condition)).cloned().collect();
        let pid = status.progress.and_then(|progress| progress.pid);
        UpdateStatus {
            conditions,
            run: status.run,
            progress: pid.map(|pid| RunProgress { pid: Some(pid), ..RunProgress::default() }),
            start_time: status.start_time,
            end_time: status.end_time,
            interrupted: status.interrupted,
            termination_evidence: status.termination_evidence,
            ..UpdateStatus::default()
        }
    });
}

/// Whether the object is being deleted.
fn deletion<K: Resource>(object: &K) -> Option<u64> {
    Some(u64::from(object.meta().deletion_timestamp.is_some()))
}

/// What people ask for.
fn requests<K: Resource>(object: &K) -> Option<u64> {
    let annotations = object.annotations();
    let mut hasher = DefaultHasher::new();
    REQUEST_ANNOTATIONS.map(|name| annotations.get(name)).hash(&mut hasher);
    Some(hasher.finish())
}
