//! Index that maps objects to the Stacks that refer to them. The index requeues Stacks when a dependency in `dependsOn`
//! or `prerequisites` changes, and detects dependency cycles.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::pulumi::Stack;
use crate::controller::stack::prerequisites;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::index::{IndexWriter, Indexed, indexed};
use crate::runtime::requeue::{self, Requeue, Requeues};
use crate::source;
use crate::source::kinds::GroupKind;

/// Maximum number of Stacks in a message about a dependency cycle.
const MAX_LISTED: usize = 10;

/// Object or kind to which a Stack refers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackGroup {
    /// Stack in `dependsOn` or `prerequisites`.
    Needs(ObjectKey),
    /// Object that the Stack uses as its source.
    Source(GroupKind, ObjectKey),
    /// Kind of the Stack's source.
    SourceKind(GroupKind),
}

/// Stack cache, indexed by the references in each Stack.
pub type Stacks = Indexed<Stack, StackGroup>;

/// Creates an empty Stack cache and its writer.
pub fn stacks() -> (Stacks, IndexWriter<Stack, StackGroup>) {
    indexed(groups_of)
}

fn groups_of(stack: &Stack) -> Vec<StackGroup> {
    let own = stack.namespace().unwrap_or_default();
    let needs = prerequisites::references(&stack.spec, &own)
        .map(|(namespace, name)| StackGroup::Needs((namespace.to_owned(), name.to_owned())));
    let sources = source::named_objects(&stack.spec, &own).into_iter();
    let sources = sources.flat_map(|(kind, key)| [StackGroup::SourceKind(kind.clone()), StackGroup::Source(kind, key)]);
    needs.chain(sources).collect()
}

/// Index of each Stack's dependents. Cheap to clone.
#[derive(Clone)]
pub struct Dependents {
    stacks: Stacks,
    /// Whether the index ignores references to other namespaces. If the index does not ignore them, a user can delay
    /// the deletion of a Stack in another namespace.
    no_cross_namespace_refs: bool,
    /// Hold the lock only for short critical sections, and never across an `.await`.
    state: Arc<Mutex<WatchState>>,
    requeue: Requeue<Stack>,
}

#[derive(Default)]
struct WatchState {
    /// Maps each Stack to the hash of the fields that can unblock its dependents.
    watched: HashMap<ObjectKey, u64>,
    /// Stacks that the cache contained before a watch relist. Empty unless a relist is in progress.
    before_list: Vec<Arc<Stack>>,
}

impl fmt::Debug for Dependents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Dependents").finish_non_exhaustive()
    }
}

impl Dependents {
    /// Returns the index, and the stream of Stacks to requeue. The Stack controller consumes the stream.
    pub fn new(stacks: Stacks, no_cross_namespace_refs: bool) -> (Dependents, Requeues<Stack>) {
        let (requeue, requeued) = requeue::queue();
        (Dependents { stacks, no_cross_namespace_refs, state: Arc::default(), requeue }, requeued)
    }

    /// Returns the write side of the stream.
    pub fn requeue(&self) -> Requeue<Stack> {
        self.requeue.clone()
    }

    /// Handles a watch event, and requeues the affected Stacks. The cache must already contain the change.
    pub fn handle(&self, event: &Event<Stack>) {
        let mut state = self.lock();
        let affected = match event {
            Event::Apply(stack) if state.has_changed(stack) => self.keys_of(stack),
            Event::Apply(_) | Event::InitApply(_) => Vec::new(),
            Event::Delete(stack) => self.affected_by_deletion(&mut state, stack),
            Event::Init => {
                state.before_list = self.stacks.store().state();
                Vec::new()
            }
            Event::InitDone => self.affected_by_relist(&mut state),
        };
        drop(state);
        for (namespace, name) in affected {
            self.requeue.request(ObjectRef::new(&name).within(&namespace));
        }
    }

    /// Returns the Stacks that the deletion of a Stack affects. These are the dependents of the deleted Stack, and its
    /// dependencies. The deletion of a dependency may wait until the Stack no longer exists.
    fn affected_by_deletion(&self, state: &mut WatchState, stack: &Stack) -> Vec<ObjectKey> {
        state.watched.remove(&key(stack));
        let needed = self.needs(stack).map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        needed.chain(self.keys_of(stack)).collect()
    }

    /// Returns the Stacks that a relist affects. A Stack that the list does not contain was deleted while the watch was
    /// interrupted.
    fn affected_by_relist(&self, state: &mut WatchState) -> Vec<ObjectKey> {
        let mut affected = Vec::new();
        for stack in std::mem::take(&mut state.before_list) {
            if self.stacks.store().get(&ObjectRef::from_obj(&*stack)).is_none() {
                affected.extend(self.affected_by_deletion(state, &stack));
            }
        }
        for stack in self.stacks.store().state() {
            if state.has_changed(&stack) {
                affected.extend(self.keys_of(&stack));
            }
        }
        affected.sort_unstable();
        affected.dedup();
        affected
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

    /// Returns a Stack from the cache. The cached Stack contains only some of the fields.
    pub fn cached(&self, (namespace, name): &ObjectKey) -> Option<Arc<Stack>> {
        self.stacks.store().get(&ObjectRef::new(name).within(namespace))
    }

    /// Returns the names in the shortest dependency cycle that contains the Stack. If a Stack is in another namespace,
    /// its name includes the namespace.
    pub fn cycle(&self, stack: &Stack) -> Option<Vec<String>> {
        let of = key(stack);
        let is_needed = self.stacks.has_group(&StackGroup::Needs(of.clone()));
        // A Stack without dependents is not in a cycle. Most Stacks have no dependents, so this check usually avoids
        // the search.
        if !is_needed && !self.needs(stack).any(|(namespace, name)| (namespace, name) == (&*of.0, &*of.1)) {
            return None;
        }
        let path = find_cycle(&of, |at, reach| match *at == of {
            true => self.needs(stack).for_each(|(namespace, name)| reach(namespace, name)),
            false => {
                let found = self.cached(at);
                let needs = found.iter().flat_map(|found| self.needs(found));
                needs.for_each(|(namespace, name)| reach(namespace, name));
            }
        })?;
        let mut named: Vec<String> =
            path.iter().take(MAX_LISTED).map(|key| prerequisites::display_name(key, &of.0)).collect();
        if path.len() > MAX_LISTED {
            named.extend(["…".to_owned(), prerequisites::display_name(&of, &of.0)]);
        }
        Some(named)
    }

    /// Returns the dependencies of a Stack. Omits dependencies in namespaces to which the Stack must not refer.
    fn needs<'a>(&self, stack: &'a Stack) -> impl Iterator<Item = (&'a str, &'a str)> {
        let own = stack.metadata.namespace.as_deref().unwrap_or_default();
        let own_only = self.no_cross_namespace_refs;
        prerequisites::references(&stack.spec, own).filter(move |(namespace, _)| *namespace == own || !own_only)
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchState {
    /// Returns whether the fields that can unblock dependents have changed since the last event of this Stack.
    fn has_changed(&mut self, stack: &Stack) -> bool {
        let watched_fields = watched_fields(stack);
        self.watched.insert(key(stack), watched_fields) != Some(watched_fields)
    }
}

fn key(stack: &Stack) -> ObjectKey {
    (stack.namespace().unwrap_or_default(), stack.name_any())
}

/// Returns a hash of the fields that can unblock dependents. The hash excludes the reason of the condition `Ready`,
/// which changes often and unblocks no dependents.
fn watched_fields(stack: &Stack) -> u64 {
    let mut hasher = DefaultHasher::new();
    (stack.metadata.generation, stack.metadata.deletion_timestamp.is_some(), stack.finalizers()).hash(&mut hasher);
    prerequisites::watched_fields(stack).hash(&mut hasher);
    hasher.finish()
}

/// Returns the shortest path from a Stack through its dependencies back to the Stack. `needs` calls its second argument
/// for each dependency of its first argument, with the namespace and the name of the dependency. The search takes
/// linear time, because it visits each Stack only once.
fn find_cycle(of: &ObjectKey, needs: impl Fn(&ObjectKey, &mut dyn FnMut(&str, &str))) -> Option<Vec<ObjectKey>> {
    let mut visited: HashMap<String, HashSet<String>> = HashMap::new();
    // All visited Stacks, each with its predecessor's position in this list.
    let mut reached: Vec<(ObjectKey, usize)> = vec![(of.clone(), 0)];
    let mut position = 0;
    while let Some((at, _)) = reached.get(position).cloned() {
        let mut is_closed = false;
        needs(&at, &mut |namespace, name| {
            is_closed |= namespace == of.0 && name == of.1;
            if !visited.get(namespace).is_some_and(|names| names.contains(name)) {
                visited.entry(namespace.to_owned()).or_default().insert(name.to_owned());
                reached.push(((namespace.to_owned(), name.to_owned()), position));
            }
        });
        if is_closed {
            return Some(cycle_path(of, &reached, position));
        }
        position += 1;
    }
    None
}

/// Returns the path from the first Stack to the Stack at this position, and back to the first Stack.
fn cycle_path(of: &ObjectKey, reached: &[(ObjectKey, usize)], mut position: usize) -> Vec<ObjectKey> {
    let mut path = vec![of.clone()];
    while let Some((key, from)) = reached.get(position).filter(|_| position > 0) {
        path.push(key.clone());
        position = *from;
    }
    path.push(of.clone());
    path.reverse();
    path
}

#[cfg(test)]
mod tests;
