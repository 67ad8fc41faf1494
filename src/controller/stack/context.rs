//! The dependencies of a Stack's reconcile.

use std::sync::Arc;

use futures::channel::mpsc;
use kube::core::Selector;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::{Update, Workspace};
use crate::artifact::{Fetcher, Store};
use crate::controller::stack::dependents::Dependents;
use crate::controller::stack::duplicate_stacks::DuplicateStacks;
use crate::controller::stack::groups::Stacks;
use crate::controller::stack::prerequisites::evaluator::Evaluator;
use crate::controller::stack::source_watches::SourceWatches;
use crate::controller::stack::stack_cache::StackCache;
use crate::controller::stack::workspace_drift::MutatedWorkspaces;
use crate::controller::update::{UpdateGroup, Updates};
use crate::runtime::events::Events;
use crate::runtime::index::CacheSync;
use crate::runtime::reads::Reader;
use crate::runtime::scope::Scope;
use crate::runtime::writes::Writer;
use crate::source::flux::Sources;
use crate::source::git::Git;
use crate::source::kinds::GroupKind;
use crate::telemetry::metrics::Metrics;

pub struct Context {
    pub sources: Sources,
    pub source_watches: SourceWatches,
    pub git: Git,
    pub dependents: Dependents,
    pub stack_cache: StackCache,
    pub mutated_workspaces: MutatedWorkspaces,
    pub evaluator: Evaluator,
    pub duplicates: DuplicateStacks,
    pub reader: Reader,
    pub writer: Writer,
    pub fetcher: Fetcher,
    pub store: Store,
    pub events: Events,
    pub metrics: Metrics,
    /// Cache of all Stacks in the scope of the controller. Each Stack is reduced to its references and its readiness.
    pub stacks: Stacks,
    /// Cache of all Updates in the scope of the controller.
    pub updates: Updates,
    /// Waits until both caches are synced.
    pub caches: CacheSync,
    /// Label selector for Secrets and ConfigMaps whose change triggers a run.
    pub watched: Option<Selector>,
    /// Maximum jitter of intervals, in percent.
    pub interval_jitter: u8,
    /// ServiceAccount for the pods of Stacks that do not name one.
    pub default_service_account: Option<String>,
    /// Namespaces and shard that the controller watches.
    pub scope: Scope,
    /// Whether a Stack may not refer to objects in other namespaces.
    pub no_cross_namespace_refs: bool,
    /// Kinds of sources whose artifacts of one revision have equal content, even if their digests differ.
    pub same_revision_kinds: Arc<[GroupKind]>,
    /// Requeue interval for unmet dependencies and unavailable sources.
    pub requeue_dependency: std::time::Duration,
    /// Wakes Workspaces that wait for artifact bytes.
    pub wake_workspace: mpsc::Sender<ObjectRef<Workspace>>,
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

    /// Wakes a Workspace. Dropping the wake-up when the queue is full is safe: the periodic requeue of the Workspace covers it.
    pub fn artifact_arrived(&self, namespace: &str, workspace: &str) {
        let reference = ObjectRef::new(workspace).within(namespace);
        if self.wake_workspace.clone().try_send(reference).is_err() {
            tracing::debug!(namespace, workspace, "the workspace could not be woken");
        }
    }
}
