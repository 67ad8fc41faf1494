//! Watches and reconcile loop (observe, decide, act) of the Stack controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{Stream, StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use crate::api::auto::{Update, UpdatePhase, Workspace};
use crate::api::conditions;
use crate::api::pulumi::{Approval, PolicyPack, Stack, StackSpec, StackStatus};
use crate::controller::stack::act::act;
use crate::controller::stack::context::Context;
use crate::controller::stack::decide::decide;
use crate::controller::stack::dependents::StackGroup;
use crate::controller::stack::observe::observe;
use crate::controller::stack::policy_packs::{self, ClusterPack};
use crate::controller::stack::step::Next;
use crate::controller::stack::{deletion, expiry, identity, ownership, polling, prerequisites, run_events};
use crate::runtime::backoff::ObjectKey;
use crate::runtime::controller::Start;
use crate::runtime::index::{IndexWriter, StoreWriter};
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::tolerant_watcher::watcher;
use crate::runtime::triggers::mapped;
use crate::runtime::watch::{after_list, only_changes, strip_metadata};
use crate::runtime::work_queue::Urgency;

/// Maximum number of steps per reconciliation. After the last step, the controller requeues the Stack, so that one
/// Stack does not delay other Stacks.
const STEPS: usize = 8;

/// Reconciles a Stack in steps. Each step observes the state, decides on an action, and performs the action.
pub async fn reconcile(stack: Arc<Stack>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.caches.wait().await?;
    context.metrics.set_stack_count(context.stacks.store().len());
    // The controller reads the Stack from the API server, because the cache may lack the controller's last write. If
    // the recorded run were outdated, the controller could start a run twice.
    let namespace = stack.namespace().unwrap_or_default();
    let Some(live) = context.reader.get_opt::<Stack>(&namespace, &stack.name_any()).await? else {
        return Ok(Outcome::Settled);
    };
    let mut stack = Box::new(live);
    for _ in 0..STEPS {
        let observed = Box::pin(observe(*stack, &context)).await?;
        let now = Timestamp::now();
        let action = decide(&observed, now);
        tracing::debug!(action = action.name(), "decided");
        let until_expiry = expiry::next_change(&observed.stack, now).map(SignedDuration::unsigned_abs);
        let until_poll = polling::interval(&observed, &action, context.namespaces.is_watched(), now);
        match Box::pin(act(&observed, action, &context, now)).await? {
            Next::Again(next) => stack = next,
            Next::Rest(after) => {
                let after = after.into_iter().chain(until_expiry).chain(until_poll).min();
                return Ok(after.map_or(Outcome::Settled, Outcome::After));
            }
        }
    }
    Ok(Outcome::After(std::time::Duration::from_secs(1)))
}

/// Streams of Stacks to requeue, and the writer of the Approval cache.
pub struct Feeds<W, D> {
    /// Writer of the Approval cache.
    pub approvals: IndexWriter<Approval, ObjectKey>,
    /// Stacks whose sources have changed.
    pub requeued: W,
    /// Stacks whose dependencies or dependents have changed.
    pub dependents: D,
}

impl<W, D> std::fmt::Debug for Feeds<W, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

/// Runs the controller until it shuts down.
pub async fn controller(
    start: Start<IndexWriter<Stack, StackGroup>>,
    feeds: Feeds<
        impl Stream<Item = ObjectRef<Stack>> + Send + 'static,
        impl Stream<Item = ObjectRef<Stack>> + Send + 'static,
    >,
    context: Arc<Context>,
) {
    let duplicates = context.duplicates.clone();
    let destroy_limit = context.destroy_limit.clone();
    let cluster_policy_packs = context.cluster_policy_packs.clone();
    let (recorded, destroys) = (duplicates.clone(), destroy_limit.clone());
    let record = move |stack: &mut Stack| {
        recorded.record(stack);
        destroys.record(stack, deletion::has_to_destroy(stack));
        strip_unused_fields(stack, &cluster_policy_packs);
    };
    let dependents = context.dependents.clone();
    let source_watches = context.source_watches.clone();
    let events = context.events.clone();
    let seen = move |event: &Event<Stack>| {
        dependents.handle(event);
        if let Event::Delete(deleted) = event {
            run_events::left_by_removed_finalizer(deleted).into_iter().for_each(|event| events.publish(event));
        }
        if matches!(event, Event::InitDone) {
            for gone in duplicates.missing(|key| dependents.cached(key).is_some()) {
                duplicates.forget(&gone);
                destroy_limit.end(&gone);
            }
            source_watches.promote_one_stack_per_source();
        }
    };
    let scope = start.scope.clone();
    let first_lists = start.runner.first_lists().clone();
    context.source_watches.set_runner(start.runner.clone());
    let updates = watcher::<Update>(scope.api(start.client.clone()), scope.other_kinds());
    let workspaces = watcher::<Workspace>(scope.api(start.client.clone()), scope.other_kinds());
    let approvals = watcher::<Approval>(scope.api(start.client.clone()), scope.other_kinds());
    let (updates, workspaces) = (first_lists.track(updates), first_lists.track(workspaces));
    let (listed, interrupted) = (context.first_workspaces.clone(), context.first_workspaces.clone());
    let workspaces = workspaces.inspect_ok(move |event| listed.handle(event)).inspect_err(move |_| interrupted.end());
    let mut known_approvals = feeds.approvals;
    let approvals =
        first_lists.track(approvals).modify(strip_metadata).inspect_ok(move |event| known_approvals.apply(event));
    let approvals = after_list(approvals);
    let triggers = vec![
        mapped(only_changes(updates, update_state, owner), |(stack, update): (_, Option<Update>)| {
            Some(stack).filter(|_| !update.is_some_and(|update| is_untouched(&update)))
        }),
        mapped(only_changes(workspaces, workspace_state, stack_of_workspace), |(stack, _)| Some(stack)),
        mapped(only_changes(approvals, approval_state, stack_of_approval), |(stack, _)| Some(stack)),
        feeds.requeued.boxed(),
        feeds.dependents.boxed(),
    ];
    start.run(record, seen, |_| Urgency::Normal, triggers, reconcile, context).await;
}

/// Returns the fields of an Update that affect the Stack's status. For an open Update, these fields are the start times
/// of the run and of a cancellation, the step, the resource counts and, while the run waits, the reason and message of
/// `Progressing`. For a completed or deleted Update, the only field is the resource version.
fn update_state(update: &Update) -> String {
    if update.is_complete() || update.metadata.deletion_timestamp.is_some() {
        return format!("{:?}", update.metadata.resource_version);
    }
    let Some(status) = &update.status else { return String::new() };
    let progressing = conditions::find(&status.conditions, conditions::PROGRESSING);
    let waits = progressing.filter(|condition| condition.status != "True");
    let waits = waits.map(|condition| (&condition.reason, &condition.message));
    let is_canceling = status.phase == Some(UpdatePhase::Canceling);
    let progress = status.progress.as_ref();
    let progress =
        progress.map_or((&None, 0, 0), |progress| (&progress.step, progress.resources_done, progress.resources_total));
    let has_begun = status.run.is_some() || update.is_started_by_operator();
    format!("{:?}", (waits, has_begun, is_canceling, progress))
}

/// Returns whether the Update has no conditions and is not being deleted. The watch events of such an Update require no
/// reconciliation.
fn is_untouched(update: &Update) -> bool {
    let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.is_empty() && update.metadata.deletion_timestamp.is_none()
}

/// Returns the fields of a Workspace that the Stack controller reads.
fn workspace_state(workspace: &Workspace) -> String {
    let metadata = &workspace.metadata;
    format!("{:?}", (metadata.generation, &metadata.annotations, &metadata.deletion_timestamp, &workspace.status))
}

/// Returns the state of an Approval, which changes with each write.
fn approval_state(approval: &Approval) -> Option<String> {
    approval.metadata.resource_version.clone()
}

/// Keeps only the source references and the dependencies of a Stack, and the fields that its dependents read.
/// Adds the sources of the cluster-wide policy packs, so that a change to such a source requeues the Stack.
fn strip_unused_fields(stack: &mut Stack, cluster: &[ClusterPack]) {
    let must_be_destroyed = stack.metadata.deletion_timestamp.is_some() && deletion::may_have_to_destroy(stack);
    let open = stack.status.as_ref().and_then(|status| status.current_update.clone()).filter(|_| must_be_destroyed);
    let of_open = open.as_ref().and_then(|run| run.pulumi_stack.clone());
    let applied_stack = must_be_destroyed.then(|| identity::recorded(stack).or(of_open)).flatten();
    let StackSpec { flux_source, program_ref, prerequisites, depends_on, policy_packs, preview, .. } =
        std::mem::take(&mut stack.spec);
    let without_config = |pack: PolicyPack| PolicyPack { config: BTreeMap::new(), ..pack };
    let policy_packs = policy_packs.into_iter().map(without_config).chain(policy_packs::in_spec(cluster)).collect();
    stack.spec = StackSpec {
        flux_source,
        program_ref,
        prerequisites,
        depends_on,
        policy_packs,
        preview,
        ..StackSpec::default()
    };
    stack.status = stack.status.take().map(|status| StackStatus {
        applied_stack,
        current_update: open,
        ..prerequisites::part_of_status(status)
    });
}

/// Returns the Stack that owns an object.
fn owner<K: Resource>(object: &K) -> Option<ObjectRef<Stack>> {
    Some(ObjectRef::new(&ownership::stack_of(object)?).within(&object.namespace()?))
}

/// Returns the Stack that owns a Workspace. A Workspace without an owner blocks the Stack that has the same name.
fn stack_of_workspace(workspace: &Workspace) -> Option<ObjectRef<Stack>> {
    owner(workspace).or_else(|| Some(ObjectRef::new(&workspace.name_any()).within(&workspace.namespace()?)))
}

/// Returns the Stack whose plan an Approval approves or rejects.
fn stack_of_approval(approval: &Approval) -> Option<ObjectRef<Stack>> {
    Some(ObjectRef::new(&approval.spec.stack_ref.name).within(&approval.namespace()?))
}

#[cfg(test)]
mod tests;
