//! Stack: resolves the source, keeps the Workspace, starts Updates, records their results.

mod act;
mod active_update;
mod announce;
mod backend;
mod backoff;
mod build_update;
mod build_workspace;
#[cfg(test)]
mod cache_tests;
mod cancel;
mod decide;
mod deletion;
mod dependency_cycle;
mod dependents;
mod duplicate;
mod duplicate_stacks;
mod fetch;
mod groups;
mod history;
mod identity;
mod input_changes;
mod observe;
mod outputs;
mod ownership;
mod pko_migration;
mod prerequisites;
#[cfg(test)]
mod queue_simulation;
mod readiness;
mod requeue;
mod resolve;
mod schedule;
mod source_watches;
mod stack_cache;
mod status;
mod watches;
mod workspace_drift;

use std::sync::Arc;

use futures::channel::mpsc;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::Selector;
use kube::runtime::reflector::ObjectRef;

pub use dependents::Dependents;
pub use duplicate_stacks::DuplicateStacks;
pub use groups::{StackGroup, Stacks, stacks};
pub use ownership::stack_of;
pub use prerequisites::evaluator::{Evaluator, most_memory};
pub use prerequisites::expression::{ExpressionError, evaluate_stdin};
pub use source_watches::SourceWatches;
pub use stack_cache::StackCache;
pub use watches::{Feeds, controller};
pub use workspace_drift::MutatedWorkspaces;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;
use crate::artifact::{Fetcher, Store};
use crate::controller::stack::act::Next;
use crate::controller::update::{UpdateGroup, Updates};
use crate::runtime::cache_sync::CacheSync;
use crate::runtime::events::Events;
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::scope::Scope;
use crate::runtime::writes::Writer;
use crate::source::flux::Sources;
use crate::source::git::Git;
use crate::source::kinds::GroupKind;
use crate::telemetry::metrics::Metrics;

/// How many steps one reconcile takes at most before it lets others have their turn.
const STEPS: usize = 8;

/// What a Stack's reconcile works with.
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
    fn updates_of(&self, namespace: &str, stack: &str) -> Vec<Arc<Update>> {
        self.updates.in_group(&UpdateGroup::stack(namespace, stack))
    }

    /// Wakes a Workspace. A full queue is no loss: it looks again by itself.
    fn artifact_arrived(&self, namespace: &str, workspace: &str) {
        let reference = ObjectRef::new(workspace).within(namespace);
        if self.wake_workspace.clone().try_send(reference).is_err() {
            tracing::debug!(namespace, workspace, "the workspace could not be woken");
        }
    }
}

/// Brings a Stack forward: observe, decide, act; status is part of each act.
pub async fn reconcile(stack: Arc<Stack>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.caches.wait().await?;
    context.metrics.stacks(context.stacks.store().len());
    // The cache may lag behind our own last write; the run's bookkeeping must not.
    let namespace = stack.namespace().unwrap_or_default();
    let Some(live) = context.reader.get_opt::<Stack>(&namespace, &stack.name_any()).await? else {
        return Ok(Outcome::Settled);
    };
    let mut stack = Box::new(live);
    for _ in 0..STEPS {
        let observed = Box::pin(observe::observe(*stack, &context)).await?;
        let now = Timestamp::now();
        let action = decide::decide(&observed, now);
        tracing::debug!(action = action.name(), "decided");
        match Box::pin(act::act(&observed, action, &context, now)).await? {
            Next::Again(next) => stack = next,
            Next::Rest(None) => return Ok(Outcome::Settled),
            Next::Rest(Some(after)) => return Ok(Outcome::After(after)),
        }
    }
    Ok(Outcome::After(std::time::Duration::from_secs(1)))
}
