//! Clients, caches and settings that all Stack reconciliations share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use kube::core::Selector;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;
use crate::artifact::{Fetcher, Store};
use crate::controller::namespaces::Namespaces;
use crate::controller::stack::approval::Approvals;
use crate::controller::stack::arrivals::Arrivals;
use crate::controller::stack::dependents::{Dependents, Stacks};
use crate::controller::stack::destroy_limit::DestroyLimit;
use crate::controller::stack::duplicate_stacks::DuplicateStacks;
use crate::controller::stack::policy_packs::ClusterPack;
use crate::controller::stack::prerequisites::evaluator::Evaluator;
use crate::controller::stack::source_watches::SourceWatches;
use crate::controller::stack::workspace_state::MutatedWorkspaces;
use crate::controller::update::{RunQueue, UpdateGroup, Updates};
use crate::runtime::backoff::ObjectKey;
use crate::runtime::events::Events;
use crate::runtime::first_objects::FirstObjects;
use crate::runtime::index::CacheSync;
use crate::runtime::reads::Reader;
use crate::runtime::requeue::Requeue;
use crate::runtime::scope::Scope;
use crate::runtime::writes::Writer;
use crate::source::flux::Sources;
use crate::source::git::Git;
use crate::source::kinds::GroupKind;
use crate::telemetry::metrics::Metrics;

/// Maximum number of Stacks in [`StackCache`].
const MAX_STACKS: usize = 256;
/// Maximum JSON size of a Stack in the cache, in bytes. The controller always reads a larger Stack from the API server.
const MAX_STACK_SIZE: usize = 32 * 1024;

pub struct Context {
    pub sources: Sources,
    pub source_watches: SourceWatches,
    pub git: Git,
    pub dependents: Dependents,
    pub stack_cache: StackCache,
    pub mutated_workspaces: MutatedWorkspaces,
    /// Workspaces in the initial list of the Workspace watch. The first reconciliation of each Stack uses these
    /// Workspaces.
    pub first_workspaces: FirstObjects<Workspace>,
    pub evaluator: Evaluator,
    pub duplicates: DuplicateStacks,
    pub reader: Reader,
    pub writer: Writer,
    pub fetcher: Fetcher,
    pub store: Store,
    pub events: Events,
    pub metrics: Metrics,
    /// Cache of all Stacks that the controller manages. For each Stack, the cache contains only the references and the
    /// readiness.
    pub stacks: Stacks,
    /// Cache of all Updates that the controller manages.
    pub updates: Updates,
    /// Queue of the run slots.
    pub run_queue: RunQueue,
    /// Cache of all Approvals that the controller watches. Without permission to list Approvals, this cache stays
    /// empty, and the controller executes no plan that requires an approval.
    pub approvals: Approvals,
    /// Waits until the Stack cache and the Update cache are complete.
    pub caches: CacheSync,
    /// Pauses and schedules of namespaces.
    pub namespaces: Namespaces,
    pub destroy_limit: DestroyLimit,
    /// Label selector of Secrets and ConfigMaps whose changes trigger runs.
    pub watched: Option<Selector>,
    /// Maximum interval jitter, in percent.
    pub interval_jitter: u8,
    /// ServiceAccount for the Workspace pods if a Stack does not set a ServiceAccount.
    pub default_service_account: Option<String>,
    /// Namespaces and shard that the controller watches.
    pub scope: Scope,
    /// Whether the controller forbids Stacks to refer to objects in other namespaces.
    pub no_cross_namespace_refs: bool,
    /// Policy packs that the controller adds to all Stacks.
    pub cluster_policy_packs: Arc<[ClusterPack]>,
    /// Source kinds whose artifacts have equal content if their revisions are equal, even if their digests differ.
    pub same_revision_kinds: Arc<[GroupKind]>,
    /// Requeue interval for unmet dependencies and unavailable sources.
    pub requeue_dependency: std::time::Duration,
    /// Requeues Workspaces that wait for the bytes of an artifact.
    pub requeue_workspace: Requeue<Workspace>,
    /// Detection and fetch times of the artifacts that are not in a Workspace yet.
    pub arrivals: Arrivals,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// Returns the cached Updates of a Stack.
    pub fn updates_of(&self, namespace: &str, stack: &str) -> Vec<Arc<Update>> {
        self.updates.in_group(&UpdateGroup::stack(namespace, stack))
    }

    /// Requeues a Workspace whose artifact is available.
    pub fn artifact_arrived(&self, namespace: &str, workspace: &str) {
        self.requeue_workspace.request(ObjectRef::new(workspace).within(namespace));
    }
}

/// Cache of complete Stacks, with one version of each Stack. Cheap to clone. All clones share the entries.
#[derive(Clone, Default)]
pub struct StackCache(Arc<Mutex<HashMap<ObjectKey, Arc<Stack>>>>);

impl StackCache {
    /// Returns the cached Stack if it has the same resource version as `part`.
    pub fn get(&self, key: &ObjectKey, part: &Stack) -> Option<Arc<Stack>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()?;
        let version = |stack: &Stack| (stack.uid(), stack.resource_version());
        (version(&known) == version(part)).then_some(known)
    }

    /// Adds a Stack to the cache. Adds this version of the Stack to the cache, and removes an older version.
    pub fn keep(&self, key: &ObjectKey, stack: &Arc<Stack>) {
        if serde_json::to_vec(stack.as_ref()).map_or(usize::MAX, |bytes| bytes.len()) > MAX_STACK_SIZE {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_STACKS && !kept.contains_key(key) {
            kept.clear();
        }
        kept.insert(key.clone(), Arc::clone(stack));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use jiff::SignedDuration;

    use super::*;
    use crate::api::pulumi::StackSpec;
    use crate::controller::stack::approvals;
    use crate::controller::test_parts::TestParts;
    use crate::runtime::critical_tasks::CriticalTasks;
    use crate::runtime::requeue;
    use crate::runtime::run_limiter::Limits;
    use crate::subprocess::Subprocess;

    impl Context {
        /// Returns a context with empty caches and default settings.
        pub(crate) fn of(parts: &TestParts, stacks: Stacks, updates: Updates) -> Self {
            let (tasks, end) = (|| parts.tasks.clone(), || parts.end.clone());
            let (dependents, _) = Dependents::new(stacks.clone(), true);
            let sources = Sources::new(parts.client.clone());
            let (client, scope) = (parts.client.clone(), parts.scope.clone());
            let (critical_tasks, _) = CriticalTasks::new(tasks());
            let (source_watches, _) =
                SourceWatches::new(client, scope, stacks.clone(), sources.clone(), critical_tasks, end());
            Context {
                evaluator: Evaluator::new(Subprocess::of_this_binary(), dependents.requeue(), tasks(), end()),
                duplicates: DuplicateStacks::new(dependents.requeue(), true),
                approvals: approvals().0,
                namespaces: Namespaces::without_watch(parts.reader.clone(), false),
                destroy_limit: DestroyLimit::new((0, SignedDuration::ZERO)),
                caches: CacheSync::default().with(&stacks).with(&updates),
                sources,
                source_watches,
                git: parts.git.clone(),
                dependents,
                stack_cache: StackCache::default(),
                mutated_workspaces: MutatedWorkspaces::default(),
                first_workspaces: FirstObjects::default(),
                scope: parts.scope.clone(),
                reader: parts.reader.clone(),
                writer: parts.writer.clone(),
                fetcher: parts.fetcher.clone(),
                store: parts.store.clone(),
                events: parts.events.clone(),
                metrics: parts.metrics.clone(),
                stacks,
                updates,
                run_queue: RunQueue::new(
                    Limits { all: 1, each_namespace: 1, each_node: 1 },
                    BTreeMap::new(),
                    parts.metrics.clone(),
                ),
                watched: None,
                interval_jitter: 0,
                cluster_policy_packs: Arc::default(),
                same_revision_kinds: Arc::default(),
                default_service_account: None,
                no_cross_namespace_refs: true,
                requeue_dependency: Duration::from_secs(30),
                requeue_workspace: requeue::queue().0,
                arrivals: Arrivals::default(),
            }
        }
    }

    fn stack(version: &str, text: usize) -> Arc<Stack> {
        let mut stack = Stack::new("base", StackSpec { stack: "x".repeat(text), ..StackSpec::default() });
        stack.metadata.resource_version = Some(version.to_owned());
        Arc::new(stack)
    }

    #[test]
    fn the_stack_cache_is_bounded_and_returns_only_the_same_version() {
        let stacks = StackCache::default();
        let key = |number: usize| ("apps".to_owned(), number.to_string());
        stacks.keep(&key(0), &stack("1", 1));
        assert_eq!(stacks.get(&key(0), &stack("1", 1)).map(|stack| stack.spec.stack.len()), Some(1));
        assert!(stacks.get(&key(0), &stack("2", 1)).is_none(), "a changed object is not cached");
        stacks.keep(&key(1), &stack("1", MAX_STACK_SIZE));
        assert!(stacks.get(&key(1), &stack("1", 1)).is_none(), "a large object is not cached");
        (0..10 * MAX_STACKS).for_each(|number| stacks.keep(&key(number), &stack("1", 1)));
        assert!(stacks.0.lock().unwrap().len() <= MAX_STACKS);
    }
}
