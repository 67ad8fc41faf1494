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

use futures::Stream;
use futures::channel::mpsc;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{Controller, WatchStreamExt};

use crate::api::auto::{Update, Workspace};
use crate::api::names;
use crate::controller::update::act::{Next, act};
use crate::controller::update::context::Context;
use crate::controller::update::decide::decide;
use crate::controller::update::observe::observe;
use crate::controller::update::queue::{UpdateGroup, Updates};
use crate::runtime::controller::Start;
use crate::runtime::index::IndexWriter;
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::tolerant_watcher::watcher;
use crate::runtime::watch;

/// Maximum number of steps per reconciliation. The limit prevents one Update from delaying other Updates.
const STEPS: usize = 6;

/// Streams of Updates that the controller must reconcile.
pub struct Feeds<G> {
    /// Updates whose attached task reports a change.
    pub requeues: mpsc::Receiver<ObjectRef<Update>>,
    /// Updates whose run can start because a run slot is free.
    pub slots: G,
}

impl<G> std::fmt::Debug for Feeds<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

/// Runs the controller until it is stopped.
pub async fn controller(
    start: Start<IndexWriter<Update, UpdateGroup>>,
    feeds: Feeds<impl Stream<Item = ObjectRef<Update>> + Send + 'static>,
    context: Arc<Context>,
) {
    let updates = context.updates.clone();
    let scope = start.scope.clone();
    let ended = watcher::<Update>(scope.api(start.client.clone()), scope.own_kinds());
    let workspaces = watcher::<Workspace>(scope.api(start.client.clone()), scope.own_kinds());
    let siblings = updates.clone();
    let triggers = |controller: Controller<Update>| {
        controller
            .watches_stream(ended.touched_objects(), move |update: Update| {
                // Only a completed Update that still has its finalizer requeues the waiting Updates. Without this
                // condition, each Update that was completed before the controller started would requeue other
                // Updates.
                match update.is_complete() && update.finalizers().iter().any(|f| f == names::UPDATE_FINALIZER) {
                    true => waiting(&siblings, update.namespace(), &update.spec.workspace_name),
                    false => Vec::new(),
                }
            })
            .watches_stream(workspaces.touched_objects(), move |workspace: Workspace| {
                waiting(&updates, workspace.namespace(), &workspace.name_any())
            })
            .reconcile_on(feeds.requeues)
            .reconcile_on(feeds.slots)
    };
    start.run(watch::strip_update, |_| (), triggers, reconcile, context).await;
}

/// Returns the open Updates of a Workspace.
fn waiting(updates: &Updates, namespace: Option<String>, workspace: &str) -> Vec<ObjectRef<Update>> {
    let of_workspace = updates.in_group(&UpdateGroup::workspace(&namespace.unwrap_or_default(), workspace));
    of_workspace.iter().filter(|u| !u.is_complete()).map(|u| ObjectRef::from_obj(u.as_ref())).collect()
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

/// Reconciles an Update in steps until no action is due.
pub async fn reconcile(update: Arc<Update>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.adopt_open_runs();
    if is_released(&update) {
        context.forget(&update);
        return Ok(Outcome::Settled);
    }
    // The reconciliation needs the current run binding, but the cache may not contain the controller's last write
    // yet. The controller therefore reads the Update from the API server.
    let namespace = update.namespace().unwrap_or_default();
    let Some(live) = context.reader.get_opt::<Update>(&namespace, &update.name_any()).await? else {
        context.forget(&update);
        return Ok(Outcome::Settled);
    };
    if let Some(trace) = context.traces.trace_id(&live) {
        tracing::Span::current().record("trace_id", tracing::field::display(trace));
    }
    let live = context.writer.take_over(&live).await?.unwrap_or(live);
    let mut update = Box::new(live);
    for _ in 0..STEPS {
        let now = Timestamp::now();
        let observed = Box::pin(observe(*update, &context, now)).await?;
        let action = decide(&observed, now);
        tracing::debug!(action = action.name(), "decided");
        match act(&observed, action, &context, now).await? {
            Next::Again(next) => update = next,
            Next::Done(None) => return Ok(Outcome::Settled),
            Next::Done(Some(after)) => return Ok(Outcome::After(after)),
        }
    }
    Ok(Outcome::After(Duration::from_secs(1)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::auto::{RunBinding, UpdateSpec, UpdateStatus};
    use crate::api::conditions::{self, COMPLETE, ConditionUpdate, Status};

    #[test]
    fn only_a_released_update_is_not_read_again() {
        let mut released = Update::new("app-1", UpdateSpec::default());
        let status = UpdateStatus { run: Some(RunBinding::default()), ..UpdateStatus::default() };
        let complete = ConditionUpdate { kind: COMPLETE, status: Status::True, reason: "Updated", message: "" };
        released.metadata.finalizers = Some(vec![names::STACK_FINALIZER.to_owned()]);
        let status = released.status.insert(status);
        conditions::set(&mut status.conditions, &complete, 1, Timestamp::UNIX_EPOCH);
        let changed = |change: fn(&mut Update)| {
            let mut update = released.clone();
            change(&mut update);
            update
        };
        let rows = [
            ("released", changed(|_| ()), true),
            ("open", changed(|update| update.status.as_mut().unwrap().conditions.clear()), false),
            ("not started", changed(|update| update.status.as_mut().unwrap().run = None), false),
            (
                "being deleted",
                changed(|update| update.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))),
                false,
            ),
            ("with a TTL", changed(|update| update.spec.ttl_after_completed = Some("1h".to_owned())), false),
            (
                "not released",
                changed(|update| update.metadata.finalizers.as_mut().unwrap().push(names::UPDATE_FINALIZER.to_owned())),
                false,
            ),
        ];
        for (name, update, expected) in rows {
            assert_eq!(is_released(&update), expected, "{name}");
        }
    }
}
