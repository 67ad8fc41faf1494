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
use crate::runtime::cache_sync::CacheSync;
use crate::runtime::events::Events;
use crate::runtime::reads::Reader;
use crate::runtime::scope::Scope;
use crate::runtime::writes::Writer;
use crate::source::flux::Sources;
use crate::source::git::Git;
use crate::source::kinds::GroupKind;
use crate::telemetry::metrics::Metrics;

/// The dependencies of a Stack's reconcile.
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
    /// All Stacks that the controller watches, cut down.
    pub stacks: Stacks,
    /// All Updates that the controller watches.
    pub updates: Updates,
    /// Waits until all of both are there.
    pub caches: CacheSync,
    /// The labels of Secrets and ConfigMaps whose change is a reason to run.
    pub watched: Option<Selector>,
    /// By how many percent intervals are spread.
    pub interval_jitter: u8,
    /// The ServiceAccount of pods whose Stack names none.
    pub default_service_account: Option<String>,
    /// What of the cluster is watched.
    pub scope: Scope,
    /// Whether a Stack may name nothing in other namespaces.
    pub no_cross_namespace_refs: bool,
    /// Kinds of sources of which another digest of the same revision is the same content.
    pub same_revision_kinds: Arc<[GroupKind]>,
    /// How soon a Stack looks again at what it waits for, if nothing wakes it sooner.
    pub requeue_dependency: std::time::Duration,
    /// Wakes the Workspaces that wait for bytes.
    pub wake_workspace: mpsc::Sender<ObjectRef<Workspace>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// The Updates of a Stack.
    pub fn updates_of(&self, namespace: &str, stack: &str) -> Vec<Arc<Update>> {
        self.updates.in_group(&UpdateGroup::stack(namespace, stack))
    }

    /// Wakes a Workspace. A full queue is no loss: it looks again by itself.
    pub fn artifact_arrived(&self, namespace: &str, workspace: &str) {
        let reference = ObjectRef::new(workspace).within(namespace);
        if self.wake_workspace.clone().try_send(reference).is_err() {
            tracing::debug!(namespace, workspace, "the workspace could not be woken");
        }
    }
}
