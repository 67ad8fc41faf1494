//! Selects the changes to watched objects that trigger a reconciliation.
//!
//! For the kinds of this controller, changes to the spec, the finalizers, the deletion timestamp and the request
//! annotations trigger a reconciliation. Status changes trigger no reconciliation, because the controller itself writes
//! the status. For other kinds, such as pods, a filter compares the relevant state of each object.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use futures::{Stream, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference};
use kube::runtime::predicates::{finalizers, generation};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{Predicate, WatchStreamExt};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::api::auto::{AppliedByOther, RunBinding, RunProgress, Update, UpdateSpec, UpdateStatus};
use crate::api::bounds;
use crate::api::conditions::{COMPLETE, PROGRESSING, update_reason};
use crate::api::names::{
    ANNOTATION_ACKNOWLEDGE, ANNOTATION_CANCEL, ANNOTATION_CONFIRM_DESTROY, ANNOTATION_FORCE_AT,
    ANNOTATION_RECONCILIATION_REQUEST, ANNOTATION_REFRESH, ANNOTATION_REQUESTED_AT, ANNOTATION_RESET_AT,
    ANNOTATION_RESOLVE, LABEL_COMPONENT, LABEL_RUN, LABEL_SHARD, LABEL_STACK_COMPONENT, LABEL_STACK_NAME,
    LABEL_UPDATE_NAME, LABEL_WORKSPACE_NAME,
};
use crate::api::pulumi::PulumiStack;
use crate::api::tolerant::{ParseError, Tolerant};
use crate::runtime::index::StoreWriter;
use crate::runtime::reconcile::ReconcileRunner;
use crate::runtime::tolerant_watcher::watcher_with;

/// Request annotations. A change to one of these annotations triggers a reconciliation.
const REQUEST_ANNOTATIONS: [&str; 9] = [
    ANNOTATION_ACKNOWLEDGE,
    ANNOTATION_CANCEL,
    ANNOTATION_CONFIRM_DESTROY,
    ANNOTATION_RECONCILIATION_REQUEST,
    ANNOTATION_REQUESTED_AT,
    ANNOTATION_FORCE_AT,
    ANNOTATION_RESET_AT,
    ANNOTATION_REFRESH,
    ANNOTATION_RESOLVE,
];

/// Maximum length of a request annotation in the cache of Updates, in bytes. The cache contains the hash of a longer
/// value.
const MAX_REQUEST: usize = 256;

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

/// Returns a stream of the objects whose changes trigger a reconciliation, for the dispatcher. `store`
/// receives all objects. `runner` removes its state for deleted objects.
///
/// A reconciliation reads its object from the API, so the store needs only the fields that lookups use. `strip` removes
/// all other fields from the spec and the status. With thousands of objects, these fields would use most of the
/// controller's memory. The stream delays the end of its initial list until the controller's other watches have
/// received their initial lists. `on_invalid` receives each object that cannot be parsed. `on_event` receives each
/// event after the store contains the change, except for the objects of the first list, because the store contains a
/// list only when the list is complete.
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
    let stored = watcher_with(api, config, last, on_invalid)
        .modify(move |object: &mut K| {
            strip_metadata(object);
            strip(object);
        })
        .and_then(move |event| {
            // The dispatcher starts no reconciliation before the store contains the initial list.
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
        });
    after_list(stored)
        .inspect_ok(on_event)
        .touched_objects()
        .predicate_filter(generation.combine(finalizers).combine(deletion).combine(requests), Default::default())
}

/// Delays the events about a repeated list until the list is complete, because the store contains the listed objects
/// only then. The dispatcher ignores a request for an object that the store does not contain. The first list needs no
/// delay, because the dispatcher starts no reconciliation before the store contains this list.
pub fn after_list<K: Send + 'static>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static {
    let (mut is_first, mut listed) = (true, Vec::new());
    let ready = move |event: Event<K>| match event {
        event if is_first => {
            is_first = !matches!(event, Event::InitDone);
            vec![event]
        }
        Event::Init => {
            listed = vec![Event::Init];
            Vec::new()
        }
        Event::InitApply(_) => {
            listed.push(event);
            Vec::new()
        }
        Event::InitDone => {
            listed.push(event);
            std::mem::take(&mut listed)
        }
        event => vec![event],
    };
    events.map_ok(ready).map_ok(|events| futures::stream::iter(events.into_iter().map(Ok))).try_flatten()
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

/// Removes all fields of an Update that lookups in the caches do not use. The remaining fields describe the place in the
/// queue, the state and the locks of the run, and determine the required protocol version. The request of a run uses the
/// Update from the API server. Users can create many large Updates, so the caches contain no long texts and lists.
///
/// The finalizers remain, because the removal of a finalizer needs its position in the list.
pub fn strip_update(update: &mut Update) {
    let is_stack = |owner: &OwnerReference| owner.kind == "Stack" && owner.api_version.starts_with("pulumi.com/");
    let owner = update.metadata.owner_references.take().into_iter().flatten().find(is_stack);
    update.metadata.owner_references = owner.map(|owner| vec![owner]);
    for value in update.metadata.annotations.iter_mut().flat_map(BTreeMap::values_mut) {
        if value.len() > MAX_REQUEST {
            // The hash still shows that the value has changed.
            *value = format!("{:x}", hash(value));
        }
    }
    update.spec = strip_update_spec(std::mem::take(&mut update.spec));
    update.status = update.status.take().map(strip_update_status);
}

fn strip_update_spec(spec: UpdateSpec) -> UpdateSpec {
    // The required protocol version depends only on the presence of URNs and on the presence of an organization.
    let placeholder = |urns: Vec<String>| if urns.is_empty() { Vec::new() } else { vec![String::new()] };
    let applied_stack = |applied: PulumiStack| PulumiStack {
        name: if applied.name.contains('/') { "/".to_owned() } else { String::new() },
        ..PulumiStack::default()
    };
    let duration = |text: Option<String>| text.map(|text| truncate(text, bounds::DURATION));
    UpdateSpec {
        workspace_name: truncate(spec.workspace_name, bounds::NAME),
        stack_name: truncate(spec.stack_name, bounds::STACK),
        artifact: None,
        source: None,
        ttl_after_completed: duration(spec.ttl_after_completed),
        message: None,
        target: placeholder(spec.target),
        replace: placeholder(spec.replace),
        policy_packs_digest: None,
        applied_stack: spec.applied_stack.map(applied_stack),
        applied_by_others: spec.applied_by_others.iter().take(1).map(|_| AppliedByOther::default()).collect(),
        timeout: duration(spec.timeout),
        idle_timeout: duration(spec.idle_timeout),
        ..spec
    }
}

fn strip_update_status(status: UpdateStatus) -> UpdateStatus {
    let has_run = status.run.is_some();
    // The Workspace controller needs the condition `Progressing` in two cases, both without `status.run`: the Pulumi
    // Kubernetes Operator started the run, or the run waits for references. In the second case, the Workspace needs an
    // agent that can check whether the references are mounted.
    let is_kept = |condition: &Condition| match condition.type_.as_str() {
        COMPLETE => true,
        PROGRESSING => {
            !has_run && (condition.status == "True" || condition.reason == update_reason::REFERENCE_NOT_FOUND)
        }
        _ => false,
    };
    let without_message = |condition| Condition { message: String::new(), ..condition };
    let pid = status.progress.and_then(|progress| progress.pid);
    let run = |run: RunBinding| RunBinding {
        host: run.host,
        node_name: run.node_name,
        concurrency_group: run.concurrency_group,
        timeout: run.timeout,
        ..RunBinding::default()
    };
    UpdateStatus {
        conditions: status.conditions.into_iter().filter(is_kept).map(without_message).collect(),
        run: status.run.map(run),
        progress: pid.map(|pid| RunProgress { pid: Some(pid), ..RunProgress::default() }),
        start_time: status.start_time,
        end_time: status.end_time,
        // The URL of an interrupted run identifies its lock in Pulumi Cloud.
        permalink: status.permalink.filter(|_| status.interrupted == Some(true)),
        interrupted: status.interrupted,
        termination_evidence: status.termination_evidence,
        ..UpdateStatus::default()
    }
}

/// Truncates text to one byte more than `max`, so that text that exceeds the maximum still differs from all valid texts.
/// Such text can be in an object that a client created with an older schema.
fn truncate(mut text: String, max: u32) -> String {
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    text.truncate(text.floor_char_boundary(max.saturating_add(1)));
    text
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

/// Returns the owner of each object whose `state` has changed since the last event, and of each deleted object, even if
/// the object was deleted while the watch was interrupted. The owner is the object to reconcile. Each item also
/// contains the changed object, or `None` if the watch has missed the deletion of the object.
pub fn only_changes<K, S, O>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    state: impl Fn(&K) -> S,
    owner: impl Fn(&K) -> Option<ObjectRef<O>>,
) -> impl Stream<Item = Result<(ObjectRef<O>, Option<K>), watcher::Error>>
where
    K: Resource<DynamicType = ()> + Debug,
    O: Resource<DynamicType = ()>,
    S: Hash,
{
    let mut states = LastStates::default();
    let changes = move |event: Event<K>| {
        let owners = states.changed(&event, &state, &owner);
        // An event about an object has at most one owner. The end of a list can have several owners, but no object.
        let mut object = object_of(event);
        futures::stream::iter(owners.into_iter().map(move |owner| Ok::<_, watcher::Error>((owner, object.take()))))
    };
    events.map_ok(changes).try_flatten()
}

fn object_of<K>(event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => Some(object),
        Event::Init | Event::InitDone => None,
    }
}

/// Last state and owner of each object. A cluster can contain many objects, so the keys are hashes of the UIDs. The API
/// server chooses the UIDs, so a user cannot cause a collision.
#[derive(Debug)]
pub struct LastStates<O> {
    states: HashMap<u64, LastState>,
    /// States of the objects in the list that a restarted watch receives. An object that the list lacks no longer
    /// exists.
    listed: HashMap<u64, LastState>,
    owner: PhantomData<fn() -> O>,
}

#[derive(Debug)]
struct LastState {
    /// Hash of the state.
    hash: u64,
    /// Namespace and name of the owner, separated by a slash. An `ObjectRef` would use more than twice the memory.
    owner: Option<Box<str>>,
}

impl LastState {
    fn new<O: Resource<DynamicType = ()>>(hash: u64, owner: Option<&ObjectRef<O>>) -> Self {
        let text = |owner: &ObjectRef<O>| format!("{}/{}", owner.namespace.as_deref().unwrap_or_default(), owner.name);
        LastState { hash, owner: owner.map(|owner| text(owner).into_boxed_str()) }
    }

    fn owner<O: Resource<DynamicType = ()>>(&self) -> Option<ObjectRef<O>> {
        let (namespace, name) = self.owner.as_deref()?.split_once('/')?;
        Some(ObjectRef::new(name).within(namespace))
    }
}

impl<O> Default for LastStates<O> {
    fn default() -> Self {
        LastStates { states: HashMap::new(), listed: HashMap::new(), owner: PhantomData }
    }
}

impl<O: Resource<DynamicType = ()>> LastStates<O> {
    /// Records the state of the object in an event. Returns the owner of the object if its state has changed since the
    /// last event, or if it was deleted. At the end of a list, returns the owners of the objects that the list lacks.
    pub fn changed<K: Resource<DynamicType = ()>, S: Hash>(
        &mut self,
        event: &Event<K>,
        state: impl Fn(&K) -> S,
        owner: impl Fn(&K) -> Option<ObjectRef<O>>,
    ) -> Vec<ObjectRef<O>> {
        let key = |object: &K| hash(&object.meta().uid);
        let read = |object: &K| (key(object), hash(&state(object)), owner(object));
        match event {
            Event::Apply(object) => {
                let (key, now, owner) = read(object);
                let before = self.states.insert(key, LastState::new(now, owner.as_ref()));
                let is_unchanged = before.is_some_and(|before| before.hash == now);
                owner.filter(|_| !is_unchanged).into_iter().collect()
            }
            Event::Delete(object) => {
                self.states.remove(&key(object));
                owner(object).into_iter().collect()
            }
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                let (key, now, owner) = read(object);
                self.listed.insert(key, LastState::new(now, owner.as_ref()));
                let is_unchanged = self.states.get(&key).is_some_and(|before| before.hash == now);
                owner.filter(|_| !is_unchanged).into_iter().collect()
            }
            Event::InitDone => {
                let before = std::mem::replace(&mut self.states, std::mem::take(&mut self.listed));
                let missing = before.iter().filter(|(key, _)| !self.states.contains_key(*key));
                missing.filter_map(|(_, last)| last.owner()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests;
