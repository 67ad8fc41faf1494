//! Store of watched objects that indexes the objects by group, such as a Workspace's Updates or a source's Stacks.
//! Without the index, each change would require a scan of all objects.
//!
//! [`CacheSync`] waits until the stores contain complete lists, because the cluster can contain objects that are not in
//! an incomplete store.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::join_all;
use kube::Resource;
use kube::runtime::reflector::{self, Lookup, ObjectRef, Store};
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::runtime::reconcile::ReconcileError;

/// Maximum time that a reconciliation waits for the caches. After this time, the reconciliation ends and releases
/// its slot.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before the controller requeues an object after the wait for the caches has timed out.
const WAIT_REQUEUE_INTERVAL: Duration = Duration::from_secs(1);

/// Function that returns an object's groups. An object can be in any number of groups.
type GroupsOf<K, G> = fn(&K) -> Vec<G>;

/// Read side of an indexed store. Cheap to clone. All clones share the objects.
pub struct Indexed<K: Resource<DynamicType = ()> + Clone + 'static, G> {
    store: Store<K>,
    groups: Groups<K, G>,
    is_listed: watch::Receiver<bool>,
}

/// Write side of an indexed store, for one watch.
pub struct IndexWriter<K: Resource<DynamicType = ()> + Clone + 'static, G> {
    writer: reflector::store::Writer<K>,
    store: Store<K>,
    groups: Groups<K, G>,
    groups_of: GroupsOf<K, G>,
    is_listed: watch::Sender<bool>,
}

/// Members of each group. Hold the lock only for short critical sections, and never across an `.await`.
type Groups<K, G> = Arc<RwLock<HashMap<G, HashSet<Member<K>>>>>;

/// Creates both sides of an empty store. `groups_of` returns the groups of an object.
pub fn indexed<K, G>(groups_of: GroupsOf<K, G>) -> (Indexed<K, G>, IndexWriter<K, G>)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let (store, writer) = reflector::store();
    let groups = Groups::default();
    let (listed, is_listed) = watch::channel(false);
    let reader = Indexed { store: store.clone(), groups: groups.clone(), is_listed };
    (reader, IndexWriter { writer, store, groups, groups_of, is_listed: listed })
}

impl<K: Resource<DynamicType = ()> + Clone + 'static, G: Hash + Eq> Indexed<K, G> {
    /// Returns the objects of a group in an unspecified order.
    pub fn in_group(&self, group: &G) -> Vec<Arc<K>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.get(group).into_iter().flatten().map(|member| member.0.clone()).collect()
    }

    /// Returns one object of each group that satisfies `predicate`.
    pub fn one_per_group(&self, predicate: impl Fn(&G) -> bool) -> Vec<Arc<K>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        let members = groups.iter().filter(|(group, _)| predicate(group)).map(|(_, members)| members);
        members.filter_map(|members| members.iter().next()).map(|member| member.0.clone()).collect()
    }

    /// Returns whether a group contains an object.
    pub fn has_group(&self, group: &G) -> bool {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).contains_key(group)
    }

    /// Returns the underlying store, which maps names to objects.
    pub fn store(&self) -> &Store<K> {
        &self.store
    }

    /// Returns a channel whose value becomes `true` after the first complete list. `Store::wait_until_ready` is not
    /// sufficient, because it notifies only the last waiter, and does not wait until the groups are complete.
    pub fn is_listed(&self) -> watch::Receiver<bool> {
        self.is_listed.clone()
    }
}

/// Write side of a store.
pub trait StoreWriter<K: Resource<DynamicType = ()> + Clone + 'static>: Send + 'static {
    /// Applies a watch event to the store. The caller must apply an event before consumers receive the event.
    /// Otherwise, a consumer could read an older version of the object from the store.
    fn apply(&mut self, event: &Event<K>);

    fn reader(&self) -> Store<K>;
}

impl<K> StoreWriter<K> for reflector::store::Writer<K>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    fn apply(&mut self, event: &Event<K>) {
        self.apply_watcher_event(event);
    }

    fn reader(&self) -> Store<K> {
        self.as_reader()
    }
}

impl<K, G> StoreWriter<K> for IndexWriter<K, G>
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    G: Hash + Eq + Send + Sync + 'static,
{
    fn apply(&mut self, event: &Event<K>) {
        let reference = match event {
            Event::Apply(object) | Event::Delete(object) => Some(object.to_object_ref(())),
            Event::Init | Event::InitApply(_) | Event::InitDone => None,
        };
        let before = reference.as_ref().and_then(|reference| self.store.get(reference));
        self.writer.apply_watcher_event(event);
        match (reference, event) {
            (Some(reference), _) => self.replace(before, &reference),
            // After each list, the listed objects replace all objects in the store.
            (None, Event::InitDone) => {
                self.rebuild();
                self.is_listed.send_replace(true);
            }
            (None, _) => {}
        }
    }

    fn reader(&self) -> Store<K> {
        self.store.clone()
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static, G: Hash + Eq> IndexWriter<K, G> {
    fn replace(&self, before: Option<Arc<K>>, reference: &ObjectRef<K>) {
        let now = self.store.get(reference);
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = before {
            for group in (self.groups_of)(&before) {
                if let Some(members) = groups.get_mut(&group) {
                    members.remove(&Member(before.clone()));
                    if members.is_empty() {
                        groups.remove(&group);
                    }
                }
            }
        }
        if let Some(now) = now {
            self.add(&mut groups, &now);
        }
    }

    fn rebuild(&self) {
        let mut all = HashMap::new();
        self.store.state().iter().for_each(|object| self.add(&mut all, object));
        *self.groups.write().unwrap_or_else(PoisonError::into_inner) = all;
    }

    fn add(&self, groups: &mut HashMap<G, HashSet<Member<K>>>, object: &Arc<K>) {
        for group in (self.groups_of)(object) {
            groups.entry(group).or_default().replace(Member(object.clone()));
        }
    }
}

impl<K: Resource<DynamicType = ()> + Clone, G> Clone for Indexed<K, G> {
    fn clone(&self) -> Self {
        Indexed { store: self.store.clone(), groups: self.groups.clone(), is_listed: self.is_listed.clone() }
    }
}

impl<K: Resource<DynamicType = ()> + Clone, G> fmt::Debug for Indexed<K, G> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Indexed").finish_non_exhaustive()
    }
}

impl<K: Resource<DynamicType = ()> + Clone, G> fmt::Debug for IndexWriter<K, G> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("IndexWriter").finish_non_exhaustive()
    }
}

/// Member of a group: a pointer to an object in the store. All versions of an object are equal as members.
struct Member<K>(Arc<K>);

impl<K: Resource> Member<K> {
    fn name(&self) -> (Option<&str>, Option<&str>) {
        let metadata = self.0.meta();
        (metadata.namespace.as_deref(), metadata.name.as_deref())
    }
}

impl<K: Resource> PartialEq for Member<K> {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl<K: Resource> Eq for Member<K> {}

impl<K: Resource> Hash for Member<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

/// Caches on which a reconciler depends.
#[derive(Default)]
pub struct CacheSync {
    caches: Vec<Cache>,
    is_synced: AtomicBool,
    was_logged: AtomicBool,
}

struct Cache {
    kind: String,
    is_listed: watch::Receiver<bool>,
}

impl Cache {
    /// Waits until the cache contains the first complete list.
    async fn synced(&self) {
        // A cache without a writer never becomes complete. The controller drops its writers only when it shuts down.
        if self.is_listed.clone().wait_for(|is_listed| *is_listed).await.is_err() {
            std::future::pending().await
        }
    }
}

impl fmt::Debug for CacheSync {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.caches.iter().map(|cache| &cache.kind)).finish()
    }
}

impl CacheSync {
    /// Adds a cache.
    #[must_use]
    pub fn with<K, G>(mut self, objects: &Indexed<K, G>) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
        G: Hash + Eq,
    {
        self.caches.push(Cache { kind: K::kind(&()).into_owned(), is_listed: objects.is_listed() });
        self
    }

    /// Waits until all caches are complete or the timeout expires.
    ///
    /// # Errors Returns an error if a cache is not complete after the timeout. The runner then requeues the object.
    pub async fn wait(&self) -> Result<(), ReconcileError> {
        if self.is_synced.load(Ordering::Acquire) {
            return Ok(());
        }
        let all = join_all(self.caches.iter().map(Cache::synced));
        if tokio::time::timeout(WAIT_TIMEOUT, all).await.is_ok() {
            self.is_synced.store(true, Ordering::Release);
            return Ok(());
        }
        let missing = self.caches.iter().filter(|cache| !*cache.is_listed.borrow());
        let missing = missing.map(|cache| cache.kind.as_str()).collect::<Vec<_>>().join(", ");
        if !self.was_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                kinds = missing,
                "caches not synced; check that the controller has permission to list these kinds"
            );
        }
        Err(ReconcileError::waiting(format!("cache sync of {missing}"), WAIT_REQUEUE_INTERVAL))
    }
}

#[cfg(test)]
mod tests;
