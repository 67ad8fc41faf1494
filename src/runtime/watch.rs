//! Selects the changes to watched objects that trigger a reconciliation.
//!
//! For the kinds of this controller, changes to the spec, the finalizers, the deletion timestamp and the request
//! annotations trigger a reconciliation. Status changes trigger no reconciliation, because the controller itself writes
//! the status. For other kinds, such as pods, a filter compares the relevant state of each object.

use std::collections::HashMap;
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
    ANNOTATION_CANCEL, ANNOTATION_CONFIRM_DESTROY, ANNOTATION_FORCE_AT, ANNOTATION_RECONCILIATION_REQUEST,
    ANNOTATION_REFRESH, ANNOTATION_REQUESTED_AT, ANNOTATION_RESET_AT, ANNOTATION_RESOLVE, LABEL_COMPONENT, LABEL_RUN,
    LABEL_SHARD, LABEL_STACK_COMPONENT, LABEL_STACK_NAME, LABEL_UPDATE_NAME, LABEL_WORKSPACE_NAME,
};
use crate::api::tolerant::{ParseError, Tolerant};
use crate::runtime::index::StoreWriter;
use crate::runtime::reconcile::ReconcileRunner;
use crate::runtime::tolerant_watcher::watcher_with;

/// Request annotations. A change to one of these annotations triggers a reconciliation.
const REQUEST_ANNOTATIONS: [&str; 8] = [
    ANNOTATION_CANCEL,
    ANNOTATION_CONFIRM_DESTROY,
    ANNOTATION_RECONCILIATION_REQUEST,
    ANNOTATION_REQUESTED_AT,
    ANNOTATION_FORCE_AT,
    ANNOTATION_RESET_AT,
    ANNOTATION_REFRESH,
    ANNOTATION_RESOLVE,
];

/// Labels that the controller reads from its caches.
const CACHED_LABELS: [&str; 7] = [
    LABEL_STACK_COMPONENT,
    LABEL_STACK_NAME,
    LABEL_SHARD,
    LABEL_COMPONENT,
    LABEL_WORKSPACE_NAME,
    LABEL_RUN,
    LABEL_UPDATE_NAME,
];

/// Returns a stream of the objects whose changes trigger a reconciliation, for `Controller::for_stream`. `store`
/// receives all objects. `runner` removes its state for deleted objects.
///
/// A reconciliation reads its object from the API, so the store needs only the fields that lookups use. `strip` removes
/// all other fields from the spec and the status. With thousands of objects, these fields would use most of the
/// controller's memory. The stream delays the end of its initial list until the controller's other watches have
/// received their initial lists. `on_invalid` receives each object that cannot be parsed. `on_event` receives each
/// event after the store contains the change.
pub fn changes<K>(
    api: Api<Tolerant<K>>,
    config: watcher::Config,
    strip: impl Fn(&mut K) + Send + 'static,
    on_invalid: impl Fn(&ObjectMeta, &ParseError) + Send + 'static,
    mut store: impl StoreWriter<K>,
    runner: Arc<ReconcileRunner>,
    on_event: impl FnMut(&Event<K>) + Send + 'static,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let reader = store.reader();
    let stored = store.reader();
    let last = move |metadata: &ObjectMeta| {
        let reference = ObjectRef::new(metadata.name.as_deref()?).within(metadata.namespace.as_deref()?);
        Some(K::clone(&*stored.get(&reference)?))
    };
    let first_lists = runner.first_lists().clone();
    watcher_with(api, config, last, on_invalid)
        .modify(move |object: &mut K| {
            strip_metadata(object);
            strip(object);
        })
        .and_then(move |event| {
            // kube-rs starts no reconciliation before the store contains the initial list.
            let first_lists = matches!(event, Event::InitDone).then(|| first_lists.clone());
            async move {
                if let Some(first_lists) = first_lists {
                    first_lists.complete().await;
                }
                Ok::<_, watcher::Error>(event)
            }
        })
        .inspect_ok(move |event| store.apply(event))
        .inspect_ok(move |event| match event {
            Event::Delete(object) => runner.forget(object),
            // If an object is deleted while the watch is interrupted, no event reports the deletion, but the new list
            // lacks the object.
            Event::InitDone => {
                runner.retain(|namespace, name| reader.get(&ObjectRef::new(name).within(namespace)).is_some());
            }
            Event::Apply(_) | Event::Init | Event::InitApply(_) => {}
        })
        .inspect_ok(on_event)
        .touched_objects()
        .predicate_filter(generation.combine(finalizers).combine(deletion).combine(requests), Default::default())
}

/// Removes the managed fields, all annotations except `REQUEST_ANNOTATIONS`, and all labels except `CACHED_LABELS`. The
/// `kubectl apply` annotation contains the complete object, and an object can have any number of labels.
pub fn strip_metadata<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
    object.labels_mut().retain(|name, _| CACHED_LABELS.contains(&name.as_str()));
    if object.labels().is_empty() {
        object.meta_mut().labels = None;
    }
    object.annotations_mut().retain(|name, _| REQUEST_ANNOTATIONS.contains(&name.as_str()));
    if object.annotations().is_empty() {
        object.meta_mut().annotations = None;
    }
}

/// Removes the Git metadata and fields of the status from an Update. The remaining fields describe the state and the
/// locks of the run. The request of a run, which contains the metadata, uses the Update from the API server.
pub fn strip_update(update: &mut Update) {
    update.spec.source = None;
    update.status = update.status.take().map(|status| {
        // The Workspace controller needs the condition `Progressing` in two cases, both without `status.run`: the
        // Pulumi Kubernetes Operator started the run, or the run waits for references. In the second case, the
        // Workspace needs an agent that can check whether the references are mounted.
        let is_kept = |condition: &Condition| match condition.type_.as_str() {
            COMPLETE => true,
            PROGRESSING => {
                status.run.is_none()
                    && (condition.status == "True" || condition.reason == update_reason::REFERENCE_NOT_FOUND)
            }
            _ => false,
        };
        let conditions = status.conditions.iter().filter(|condition| is_kept(condition)).cloned().collect();
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

/// Returns 1 if the object has a deletion timestamp, otherwise 0.
fn deletion<K: Resource>(object: &K) -> Option<u64> {
    Some(u64::from(object.meta().deletion_timestamp.is_some()))
}

/// Returns a hash of the request annotations.
fn requests<K: Resource>(object: &K) -> Option<u64> {
    let annotations = object.annotations();
    Some(hash(&REQUEST_ANNOTATIONS.map(|name| annotations.get(name))))
}

fn hash(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Drops events for objects whose `state` has not changed since the last event. The filter never drops deletions.
pub fn only_changes<K, S>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    state: impl Fn(&K) -> S,
) -> impl Stream<Item = Result<K, watcher::Error>>
where
    K: Resource<DynamicType = ()> + Debug,
    S: Hash,
{
    let mut states = LastStates::default();
    events.try_filter_map(move |event| std::future::ready(Ok(states.filter_changed(event, &state))))
}

/// Hash of each object's last state, by UID.
#[derive(Default)]
struct LastStates {
    states: HashMap<String, u64>,
    /// Hashes of the object states in the list that a restarted watch receives. An object that the list lacks no longer
    /// exists.
    listed: HashMap<String, u64>,
}

impl LastStates {
    fn filter_changed<K: Resource<DynamicType = ()>, S: Hash>(
        &mut self,
        event: Event<K>,
        state: impl Fn(&K) -> S,
    ) -> Option<K> {
        let key = |object: &K| object.uid().unwrap_or_default();
        match event {
            Event::Apply(object) => {
                let now = hash(&state(&object));
                let before = self.states.insert(key(&object), now);
                (before != Some(now)).then_some(object)
            }
            Event::Delete(object) => {
                self.states.remove(&key(&object));
                Some(object)
            }
            Event::Init => {
                self.listed.clear();
                None
            }
            Event::InitApply(object) => {
                let now = hash(&state(&object));
                self.listed.insert(key(&object), now);
                (self.states.get(&key(&object)) != Some(&now)).then_some(object)
            }
            Event::InitDone => {
                self.states = std::mem::take(&mut self.listed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
