//! Wakes Stacks when a dependency named in `dependsOn` or `prerequisites` changes, and finds dependency cycles.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::Stream;
use futures::channel::mpsc;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::pulumi::Stack;
use crate::controller::stack::dependency_cycle;
use crate::controller::stack::groups::{StackGroup, Stacks};
use crate::controller::stack::prerequisites;
use crate::runtime::backoff::ObjectKey;

/// Capacity of the queue of Stacks to wake. If it is full, the periodic requeue wakes the Stack.
const WAITING: usize = 1024;
/// Maximum number of Stacks in the message about a cycle.
const NAMED: usize = 10;

/// Index of the dependents of each Stack. Cheap to clone.
#[derive(Clone)]
pub struct Dependents {
    stacks: Stacks,
    /// Whether references to other namespaces are ignored. Otherwise a user could delay the deletion of a Stack in another namespace.
    no_cross_namespace_refs: bool,
    /// Locked for short sections only, never across an await.
    known: Arc<Mutex<Known>>,
    wake: mpsc::Sender<ObjectRef<Stack>>,
}

#[derive(Default)]
struct Known {
    /// Hash of the fields of each Stack that its dependents wait for.
    standings: HashMap<ObjectKey, u64>,
    /// The cached Stacks from before a relist, while the relist is in progress.
    before_list: Vec<Arc<Stack>>,
}

impl fmt::Debug for Dependents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Dependents").finish_non_exhaustive()
    }
}

impl Dependents {
    /// Returns the index and the stream of Stacks to wake, which the Stack controller consumes.
    pub fn new(
        stacks: Stacks,
        no_cross_namespace_refs: bool,
    ) -> (Dependents, impl Stream<Item = ObjectRef<Stack>> + Send + 'static) {
        let (wake, woken) = mpsc::channel(WAITING);
        (Dependents { stacks, no_cross_namespace_refs, known: Arc::default(), wake }, woken)
    }

    /// Returns a sender that wakes Stacks.
    pub fn waker(&self) -> mpsc::Sender<ObjectRef<Stack>> {
        self.wake.clone()
    }

    /// Handles a watch event after the store has applied it, and wakes the affected Stacks.
    pub fn note(&self, event: &Event<Stack>) {
        let mut known = self.lock();
        let woken = match event {
            Event::Apply(stack) if known.has_changed(stack) => self.keys_of(stack),
            Event::Apply(_) | Event::InitApply(_) => Vec::new(),
            Event::Delete(stack) => self.affected_by_deletion(&mut known, stack),
            Event::Init => {
                known.before_list = self.stacks.store().state();
                Vec::new()
            }
            Event::InitDone => self.affected_by_relist(&mut known),
        };
        drop(known);
        woken.iter().for_each(|stack| self.wake_one(stack));
    }

    /// Returns the Stacks that the deletion of a Stack affects: its dependents, and its dependencies, which may wait for its deletion.
    fn affected_by_deletion(&self, known: &mut Known, stack: &Stack) -> Vec<ObjectKey> {
        known.standings.remove(&key(stack));
        let needed = self.needs(stack).map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        needed.chain(self.keys_of(stack)).collect()
    }

    /// Returns the Stacks that a relist affects. A Stack that is missing from the list was deleted while the watch was interrupted.
    fn affected_by_relist(&self, known: &mut Known) -> Vec<ObjectKey> {
        let mut woken = Vec::new();
        for stack in std::mem::take(&mut known.before_list) {
            if self.stacks.store().get(&ObjectRef::from_obj(&*stack)).is_none() {
                woken.extend(self.affected_by_deletion(known, &stack));
            }
        }
        for stack in self.stacks.store().state() {
            if known.has_changed(&stack) {
                woken.extend(self.keys_of(&stack));
            }
        }
        woken.sort_unstable();
        woken.dedup();
        woken
    }

    /// Returns the cached dependents of a Stack.
    pub fn of(&self, stack: &Stack) -> Vec<Arc<Stack>> {
        let own = stack.metadata.namespace.as_deref();
        let mut dependents = self.stacks.in_group(&StackGroup::Needs(key(stack)));
        dependents.retain(|other| other.metadata.namespace.as_deref() == own || !self.no_cross_namespace_refs);
        dependents
    }

    fn keys_of(&self, stack: &Stack) -> Vec<ObjectKey> {
        self.of(stack).iter().map(|dependent| key(dependent)).collect()
    }

    /// Returns a Stack from the cache, reduced to some fields.
    pub fn cached(&self, (namespace, name): &ObjectKey) -> Option<Arc<Stack>> {
        self.stacks.store().get(&ObjectRef::new(name).within(namespace))
    }

    fn wake_one(&self, (namespace, name): &ObjectKey) {
        if self.wake.clone().try_send(ObjectRef::new(name).within(namespace)).is_err() {
            tracing::debug!(namespace, stack = name, "dropped a wake-up: queue is full");
        }
    }

    /// Returns the names in the shortest dependency cycle that contains the Stack, relative to its namespace.
    pub fn cycle(&self, stack: &Stack) -> Option<Vec<String>> {
        let of = key(stack);
        let is_needed = self.stacks.has_group(&StackGroup::Needs(of.clone()));
        // Most Stacks have no dependents and so are in no cycle, which saves the search.
        if !is_needed && !self.needs(stack).any(|(namespace, name)| (namespace, name) == (&*of.0, &*of.1)) {
            return None;
        }
        let path = dependency_cycle::find(&of, |at, reach| match *at == of {
            true => self.needs(stack).for_each(|(namespace, name)| reach(namespace, name)),
            false => {
                let found = self.cached(at);
                let needs = found.iter().flat_map(|found| self.needs(found));
                needs.for_each(|(namespace, name)| reach(namespace, name));
            }
        })?;
        let mut named: Vec<String> =
            path.iter().take(NAMED).map(|key| prerequisites::display_name(key, &of.0)).collect();
        if path.len() > NAMED {
            named.extend(["…".to_owned(), prerequisites::display_name(&of, &of.0)]);
        }
        Some(named)
    }

    /// Returns the dependencies of a Stack that it is allowed to name.
    fn needs<'a>(&self, stack: &'a Stack) -> impl Iterator<Item = (&'a str, &'a str)> {
        let own = stack.metadata.namespace.as_deref().unwrap_or_default();
        let own_only = self.no_cross_namespace_refs;
        prerequisites::references(&stack.spec, own).filter(move |(namespace, _)| *namespace == own || !own_only)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Whether the fields that dependents wait for have changed since the last event of this Stack.
    fn has_changed(&mut self, stack: &Stack) -> bool {
        let standing = standing(stack);
        self.standings.insert(key(stack), standing) != Some(standing)
    }
}

fn key(stack: &Stack) -> ObjectKey {
    (stack.namespace().unwrap_or_default(), stack.name_any())
}

/// Returns the hash of the fields that dependents wait for. The reason of the `Ready` condition is excluded: it changes often and unblocks
/// no dependent.
fn standing(stack: &Stack) -> u64 {
    let mut hasher = DefaultHasher::new();
    (stack.metadata.generation, stack.metadata.deletion_timestamp.is_some(), stack.finalizers()).hash(&mut hasher);
    prerequisites::standing(stack).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use serde_json::json;

    use super::*;
    use crate::controller::stack::groups::stacks;
    use crate::runtime::index::StoreWriter as _;

    fn stack(namespace: &str, name: &str, needs: &[&str]) -> Stack {
        let prerequisites: Vec<_> = needs.iter().map(|name| json!({"name": name})).collect();
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"namespace": namespace, "name": name},
            "spec": {"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}, "prerequisites": prerequisites},
        }))
        .unwrap()
    }

    fn ready(name: &str, status: &str, reason: &str) -> Stack {
        let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        Stack { status: serde_json::from_value(json!({"conditions": [ready]})).unwrap(), ..stack("apps", name, &[]) }
    }

    /// Returns the Stacks that the events wake, in order.
    async fn woken(no_cross_namespace_refs: bool, events: Vec<Event<Stack>>) -> Vec<String> {
        let (store, mut writer) = stacks();
        let (dependents, woken) = Dependents::new(store, no_cross_namespace_refs);
        for event in events {
            writer.apply(&event);
            dependents.note(&event);
        }
        drop(dependents);
        woken.map(|stack| format!("{}/{}", stack.namespace.unwrap_or_default(), stack.name)).collect().await
    }

    fn listed(stacks: impl IntoIterator<Item = Stack>) -> Vec<Event<Stack>> {
        let all = stacks.into_iter().map(Event::InitApply);
        std::iter::once(Event::Init).chain(all).chain([Event::InitDone]).collect()
    }

    #[tokio::test]
    async fn dependents_are_woken_when_the_state_of_their_dependency_changes() {
        let others = [("apps", "a", vec!["base"]), ("apps", "b", vec![]), ("more", "c", vec!["base"])];
        let others = others.map(|(namespace, name, needs)| Event::Apply(stack(namespace, name, &needs)));
        let base = [
            Event::Apply(ready("base", "False", "UpdateFailed")),
            // A change of the reason unblocks no dependent.
            Event::Apply(ready("base", "False", "NotReadyInProgress")),
            Event::Apply(ready("base", "True", "ProcessingCompleted")),
            Event::Apply(ready("base", "True", "ProcessingCompleted")),
            Event::Delete(ready("base", "True", "ProcessingCompleted")),
        ];
        assert_eq!(woken(true, others.into_iter().chain(base).collect()).await, ["apps/a"; 3]);
    }

    #[tokio::test]
    async fn a_deleted_stack_wakes_its_dependencies() {
        let app = || stack("apps", "app", &["base"]);
        let seen = vec![Event::Apply(app()), Event::Delete(app())];
        assert_eq!(woken(true, seen).await, ["apps/base"]);
        let unseen =
            listed([app(), stack("apps", "base", &[])]).into_iter().chain(listed([stack("apps", "base", &[])]));
        assert_eq!(woken(true, unseen.collect()).await, ["apps/app", "apps/base"], "both lists wake");
    }

    #[tokio::test]
    async fn a_dependency_cycle_is_reported_and_a_long_one_is_truncated() {
        let (store, mut writer) = stacks();
        let mut add = |name: &str, needs: &str| writer.apply(&Event::Apply(stack("apps", name, &[needs])));
        let (dependents, _woken) = Dependents::new(store, true);
        [("a", "base"), ("d", "a"), ("b", "none")].iter().for_each(|(name, needs)| add(name, needs));
        assert_eq!(dependents.cycle(&stack("apps", "base", &["d"])).unwrap(), ["base", "d", "a", "base"]);
        assert_eq!(dependents.cycle(&stack("apps", "base", &["b"])), None);
        assert_eq!(dependents.cycle(&stack("apps", "new", &["new"])).unwrap(), ["new", "new"]);
        (0..100).for_each(|number| add(&format!("n{number}"), &format!("n{}", (number + 1) % 100)));
        let named = dependents.cycle(&stack("apps", "n0", &["n1"])).unwrap();
        assert_eq!((named.len(), named.last().map(String::as_str)), (NAMED + 2, Some("n0")), "{named:?}");
    }

    #[tokio::test]
    async fn cross_namespace_dependents_are_ignored_when_not_allowed() {
        let mut stranger = stack("more", "stranger", &[]);
        let base = json!([{"name": "base", "namespace": "apps"}]);
        stranger.spec.depends_on = serde_json::from_value(base).unwrap();
        let events = || vec![Event::Apply(stranger.clone()), Event::Apply(stack("apps", "base", &[]))];
        assert_eq!(woken(true, events()).await, [""; 0]);
        assert_eq!(woken(false, events()).await, ["more/stranger"]);
    }
}
