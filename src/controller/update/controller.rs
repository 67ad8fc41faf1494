//! Update controller: the watches, and the reconcile loop (observe, decide, act).
//!
//! The controller reconciles an Update in the following cases:
//!
//! - The Update or its Workspace changes.
//! - The preceding Update completes.
//! - The attached task reports a change.
//! - A run slot becomes free.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::auto::{Update, Workspace};
use crate::api::names;
use crate::controller::update::act::{Next, act};
use crate::controller::update::context::Context;
use crate::controller::update::decide::{Action, decide};
use crate::controller::update::observe::{Observed, binding, check_references, observe};
use crate::controller::update::order;
use crate::controller::update::queue::{UpdateGroup, Updates};
use crate::runtime::controller::Start;
use crate::runtime::index::IndexWriter;
use crate::runtime::reads::ReadError;
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::requeue::{Requeue, Requeues};
use crate::runtime::watch;
use crate::runtime::work_queue::Urgency;

/// Maximum number of steps per reconciliation. The limit prevents one Update from delaying other Updates.
const STEPS: usize = 6;

/// Inputs of the Update controller in addition to the Update watch.
pub struct Feeds<G, F> {
    /// Updates that the controller must reconcile immediately, for example because their attached task reports a change.
    pub requeues: Requeues<Update>,
    /// Updates whose run can start because a run slot is free.
    pub slots: G,
    /// Receives each event about an Update after the store contains the change.
    pub on_event: F,
}

impl<G, F> std::fmt::Debug for Feeds<G, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

/// Runs the controller until it is stopped.
pub async fn controller(
    start: Start<IndexWriter<Update, UpdateGroup>>,
    feeds: Feeds<impl Stream<Item = ObjectRef<Update>> + Send + 'static, impl FnMut(&Event<Update>) + Send + 'static>,
    context: Arc<Context>,
) {
    let Feeds { requeues, slots, on_event } = feeds;
    let runner = start.runner.clone();
    let slots = slots.inspect(move |update| {
        runner.expedite_key(&(update.namespace.clone().unwrap_or_default(), update.name.clone()));
    });
    let triggers = vec![requeues.boxed(), slots.boxed()];
    start.run(watch::strip_update, on_event, urgency, triggers, reconcile, context).await;
}

/// Returns the urgency of an Update's reconciliation. Without urgent reconciliations, an open run or a run with a
/// reserved slot would wait for the reconciliations of thousands of queued Updates, and the reservation would expire.
/// Apart from runs that were adopted or whose outcome is unknown, the limits of open runs also limit the number of
/// urgent reconciliations.
fn urgency(update: &Update) -> Urgency {
    let is_open = update.status.as_ref().is_some_and(|status| status.run.is_some());
    match (update.is_complete(), is_open) {
        (true, _) => Urgency::Normal,
        (false, true) => Urgency::Urgent,
        (false, false) => Urgency::Queued,
    }
}

/// Returns a function that requeues the next Update of a Workspace when an Update of the Workspace is completed or
/// deleted. The function receives the events about Updates.
///
/// A user can create thousands of Updates for a Workspace, so the function requeues only the Update directly after the
/// ended Update. If the ended Update was the first, the next Update can start. The message of a waiting Update names
/// the Update directly before it, so no other message becomes outdated. If a later Update takes a position before a
/// waiting Update, for example because both have the same creation time, the message of the waiting Update can name an
/// ended Update until the periodic requeue.
pub fn requeue_after_run(updates: Updates, requeue: Requeue<Update>) -> impl FnMut(&Event<Update>) {
    move |event| {
        let ended = match event {
            Event::Apply(update) if update.is_complete() => update,
            Event::Delete(update) => update,
            // The watch may have missed the end of a run.
            Event::InitDone => {
                let objects = updates.store().state();
                let open = objects.iter().filter(|update| !update.is_complete());
                return open.for_each(|update| requeue.request(ObjectRef::from_obj(update.as_ref())));
            }
            Event::Apply(_) | Event::Init | Event::InitApply(_) => return,
        };
        let workspace = UpdateGroup::workspace(&ended.namespace().unwrap_or_default(), &ended.spec.workspace_name);
        if let Some(next) = order::following(ended, &updates.in_group(&workspace)) {
            requeue.request(ObjectRef::from_obj(next.as_ref()));
        }
    }
}

/// Returns a function that requeues the first Updates of a Workspace when the Workspace changes. The function receives
/// the events about Workspaces. A user can create thousands of Updates for a Workspace, so the function does not requeue
/// the Updates that only wait for other Updates.
pub fn requeue_of_workspace(updates: Updates, requeue: Requeue<Update>) -> impl FnMut(&Event<Workspace>) {
    move |event| {
        let changed: Vec<(Option<String>, String)> = match event {
            Event::Apply(workspace) | Event::Delete(workspace) => vec![(workspace.namespace(), workspace.name_any())],
            // The watch may have missed changes and deletions.
            Event::InitDone => {
                let of_each = updates.one_per_group(|group| matches!(group, UpdateGroup::Workspace(_)));
                of_each.iter().map(|update| (update.namespace(), update.spec.workspace_name.clone())).collect()
            }
            Event::Init | Event::InitApply(_) => return,
        };
        for (namespace, name) in changed {
            let of_workspace = updates.in_group(&UpdateGroup::workspace(&namespace.unwrap_or_default(), &name));
            order::first(&of_workspace).for_each(|update| requeue.request(ObjectRef::from_obj(update.as_ref())));
        }
    }
}

/// Returns whether the cached Update needs no further action, because its run is complete and its result is released.
/// Such an Update never needs another action, so the reconciliation does not read it from the API server. After a
/// restart, the controller reconciles several completed Updates for each Stack. An Update without a binding is not
/// released, because the controller may have to take it over from the Pulumi Kubernetes Operator.
fn is_released(update: &Update) -> bool {
    let has_binding = update.status.as_ref().is_some_and(|status| status.run.is_some());
    has_binding
        && update.is_complete()
        && update.metadata.deletion_timestamp.is_none()
        && update.spec.ttl_after_completed.is_none()
        && !update.finalizers().iter().any(|f| f == names::UPDATE_FINALIZER)
}

/// Reconciles an Update. If the reconciliation of a run fails after the deadline of the run, the run loses its slot. A
/// tenant can make each reconciliation fail, for example with so many labels that the controller cannot parse the
/// Update, the Workspace or the pod. The controller then cannot enforce the deadline. A run whose agent is unreachable
/// for a long time also loses its slot.
pub async fn reconcile(update: Arc<Update>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.adopt_open_runs().await;
    if is_released(&update) {
        context.forget(&update);
        return Ok(Outcome::Settled);
    }
    let result = Box::pin(reconcile_live(&update, &context)).await;
    let (uid, now) = (update.uid().unwrap_or_default(), Timestamp::now());
    if result.is_err() {
        // The cached Update may not contain the binding, because the watch skips Updates that cannot be parsed.
        context.attachments.release_expired_slot(&uid, now);
    }
    context.attachments.release_silent_slot(&uid, now);
    result
}

/// Reconciles an Update in steps until no action is due. `update` is the cached Update.
async fn reconcile_live(update: &Update, context: &Context) -> Result<Outcome, ReconcileError> {
    // The reconciliation needs the current run binding, but the cache may not contain the controller's last write
    // yet. The controller therefore reads the Update from the API server.
    let namespace = update.namespace().unwrap_or_default();
    let Some(live) = context.reader.get_opt::<Update>(&namespace, &update.name_any()).await? else {
        context.forget(update);
        return Ok(Outcome::Settled);
    };
    if binding(&live).is_none() {
        // Only a bound run holds a slot. An earlier attempt kept the slot if it is unknown whether the API server
        // accepted the write of the binding.
        context.attachments.detach(&live.uid().unwrap_or_default());
    }
    if let Some(trace) = context.traces.trace_id(&live) {
        tracing::Span::current().record("trace_id", tracing::field::display(trace));
    }
    let live = context.writer.take_over(&live).await?.unwrap_or(live);
    let mut update = Box::new(live);
    for _ in 0..STEPS {
        let now = Timestamp::now();
        let (observed, action) = Box::pin(next_action(*update, context, now)).await?;
        tracing::debug!(action = action.name(), "decided");
        match act(&observed, action, context, now).await? {
            Next::Again(next) => update = next,
            Next::Done(None) => return Ok(Outcome::Settled),
            Next::Done(Some(after)) => return Ok(Outcome::After(after)),
        }
    }
    Ok(Outcome::After(Duration::from_secs(1)))
}

/// Reads the state and selects the next action. Checks the referenced Secrets and ConfigMaps only if nothing else
/// prevents the start of the run, because the check reads each object.
async fn next_action(update: Update, context: &Context, now: Timestamp) -> Result<(Observed, Action), ReadError> {
    let mut observed = Box::pin(observe(update, context, now)).await?;
    let mut action = decide(&observed, now);
    if observed.references.is_none() && matches!(action, Action::AwaitReferences(_)) {
        observed.references = check_references(&observed, context).await?;
        action = decide(&observed, now);
    }
    Ok((observed, action))
}

#[cfg(test)]
mod tests;
