//! Reports why a Stack waits, in the Stack's conditions and, when the reason changes, in an event.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::auto::Workspace;
use crate::api::conditions::{self, stack_reason};
use crate::api::names;
use crate::api::pulumi::Stack;
use crate::controller::stack::context::Context;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::prerequisites::Stale;
use crate::controller::stack::restrictions::Held;
use crate::controller::stack::run_events::{self, with_last_revision};
use crate::controller::stack::status::State;
use crate::controller::stack::step::{Next, next_step, requeue};
use crate::controller::stack::{approval, expiry, old_updates};
use crate::runtime::events::{Event, EventKind};
use crate::runtime::failpoint;
use crate::runtime::reconcile::ReconcileError;

/// Requeue interval for a Stack whose schedule permits no run within the period that the controller searches.
const ENDLESS_SCHEDULE_RETRY: Duration = Duration::from_secs(24 * 60 * 60);

/// Reports that the controller does not allow a reference to an object in another namespace.
pub async fn deny(stack: &Stack, denied: &str, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let message = format!("{denied}; reference an object in the namespace of the Stack");
    let event = Event::new(stack, EventKind::Warning, stack_reason::ACCESS_DENIED, message.as_str());
    context.events.publish(with_last_revision(stack, event));
    requeue(stack, &State::Denied(message), None, context, now).await
}

/// Event reason, and constructor of the Stack's state.
pub type Stall = (&'static str, fn(String) -> State);

/// The spec of the Stack, or an object to which the spec refers, is invalid.
pub const INVALID: Stall = ("StackConfigInvalid", State::Invalid);
/// Another Stack manages the same Pulumi stack.
pub const CONFLICT: Stall = (run_events::CONFLICT, State::Conflict);
/// The pod cannot start.
pub const WORKSPACE_FAILED: Stall = (stack_reason::WORKSPACE_FAILED, State::WorkspaceFailed);
/// A user rejected the plan.
const PLAN_REJECTED: Stall = (stack_reason::PLAN_REJECTED, State::PlanRejected);
/// The destroy waits until a user confirms it.
pub const DESTROY_UNCONFIRMED: Stall = (stack_reason::DESTROY_UNCONFIRMED, State::DestroyUnconfirmed);

/// Writes the state's conditions. Publishes an event, unless the condition `Stalled` already contains the message.
pub async fn stall(
    stack: &Stack,
    (reason, state): Stall,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stalled = stack.status.as_ref().and_then(|s| conditions::find(&s.conditions, conditions::STALLED));
    if stalled.is_none_or(|stalled| !is_reported(&stalled.message, &message)) {
        let event = Event::new(stack, EventKind::Warning, reason, message.as_str());
        context.events.publish(with_last_revision(stack, event));
    }
    requeue(stack, &state(message), None, context, now).await
}

/// Returns whether the message of a condition contains this cause. A warning in parentheses can follow the cause.
fn is_reported(reported: &str, cause: &str) -> bool {
    reported.strip_prefix(cause).is_some_and(|warning| warning.is_empty() || warning.starts_with(" ("))
}

/// Reports that a pause or a schedule prevents the run. Publishes an event if the message has changed.
pub async fn await_permission(
    observed: &Observed,
    Held { reason, message, until }: Held,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let ready = stack.status.as_ref().and_then(|status| conditions::find(&status.conditions, conditions::READY));
    if ready.is_none_or(|ready| !is_reported(&ready.message, &message)) {
        let event = Event::new(stack, EventKind::Normal, reason, message.as_str());
        context.events.publish(with_last_revision(stack, event));
    }
    // The time at which a schedule permits the next run can be unknown.
    let endless = (reason == stack_reason::OUTSIDE_SCHEDULE).then_some(ENDLESS_SCHEDULE_RETRY);
    let known = until.map(|until| until.duration_since(now).unsigned_abs()).into_iter().chain(endless).min();
    let next = requeue(stack, &State::AwaitingPermission(reason, message), known, context, now).await?;
    old_updates::release_and_delete(next, observed, context).await
}

/// Announces the expiry in a condition and in an event.
pub async fn announce_expiry(
    stack: &Stack,
    message: &str,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let next = next_step(stack, &expiry::announced(stack, message, now), context).await?;
    let event = Event::new(stack, EventKind::Warning, "StackExpiring", message);
    context.events.publish(with_last_revision(stack, event));
    Ok(next)
}

/// Reports a plan that requires an approval. Publishes one event for each plan. The event contains the command that
/// approves the plan.
pub async fn await_approval(
    observed: &Observed,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let status = stack.status.as_ref();
    if let Some(plan) = status.and_then(|status| status.plan.as_deref()) {
        let digest = plan.digest.to_string();
        let reported = status.and_then(|status| conditions::find(&status.conditions, conditions::RECONCILING));
        let is_reported = |condition: &Condition| {
            condition.reason == stack_reason::AWAITING_APPROVAL && condition.message.contains(&digest)
        };
        if !reported.is_some_and(is_reported) {
            let text = approval::approval_required(stack, plan);
            let event = Event::new(stack, EventKind::Warning, "ApprovalRequired", text);
            context.events.publish(run_events::with_revisions(event, plan.revision.as_deref(), None));
        }
    }
    let next = requeue(stack, &State::AwaitingApproval(message), None, context, now).await?;
    old_updates::release_and_delete(next, observed, context).await
}

/// Reports that a user rejected the plan.
pub async fn report_rejection(
    observed: &Observed,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let next = stall(&observed.stack, PLAN_REJECTED, message, context, now).await?;
    old_updates::release_and_delete(next, observed, context).await
}

/// Requests a pod for a sleeping Workspace. Sends no new request until the Workspace controller has handled the last
/// request.
pub async fn wake_workspace(
    observed: &Observed,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let is_pending = |workspace: &Workspace| {
        let request = workspace.annotations().get(names::ANNOTATION_REQUESTED_AT);
        let handled = workspace.status.as_ref().and_then(|status| status.last_handled_reconcile_at.as_ref());
        request.is_some() && request != handled
    };
    if let Some(workspace) = observed.workspace.as_ref().filter(|workspace| !is_pending(workspace)) {
        let request = [(names::ANNOTATION_REQUESTED_AT.to_owned(), Some(now.to_string()))].into();
        context.writer.annotate(workspace, &request).await?;
        failpoint::hit("stack-workspace-requested");
    }
    requeue(&observed.stack, &State::Working(message), None, context, now).await
}

/// Reports the unmet dependencies, and requests the runs of the stale dependencies.
pub async fn wait_for_dependencies(
    stack: &Stack,
    message: String,
    stale: &[Stale],
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let namespace = stack.namespace().unwrap_or_default();
    for Stale { name, request, .. } in stale {
        let Some(other) = context.reader.get_opt::<Stack>(&namespace, name).await? else { continue };
        let request_annotation = [(names::ANNOTATION_RECONCILIATION_REQUEST.to_owned(), Some(request.clone()))].into();
        context.writer.annotate(&other, &request_annotation).await?;
    }
    requeue(stack, &State::PrerequisiteNotSatisfied(message), None, context, now).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::api::auto::Update;
    use crate::controller::stack::stacks;
    use crate::controller::stack::step::WATCHED_RETRY;
    use crate::controller::test_parts::TestParts;
    use crate::controller::update::updates;
    use crate::runtime::fake_api::{FakeResponse, client};

    const POD: &str = "/api/v1/namespaces/apps/pods/app-workspace-0";
    const UPDATE: &str = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/app-1";

    /// Returns a Stack whose last run is complete, and the Update of this run with its finalizers.
    fn observed() -> Observed {
        let stack = json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {"namespace": "apps", "name": "app", "uid": "uid", "generation": 1},
            "spec": {"stack": "dev"},
        });
        let complete = json!({
            "type": "Complete", "status": "True", "reason": "Updated", "message": "",
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        });
        let update: Update = serde_json::from_value(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
            "metadata": {
                "namespace": "apps", "name": "app-1", "uid": "uid-1",
                "finalizers": [names::STACK_FINALIZER, names::UPDATE_FINALIZER],
            },
            "spec": {"workspaceName": "app", "stackName": "dev", "type": "preview"},
            "status": {"conditions": [complete]},
        }))
        .unwrap();
        let stack = serde_json::from_value(stack).unwrap();
        Observed { updates: vec![Arc::new(update)], ..Observed::of(stack) }
    }

    #[tokio::test]
    async fn the_last_update_is_released_while_the_next_run_waits_for_a_user() {
        let now: Timestamp = "2026-01-01T13:00:00Z".parse().unwrap();
        for waits_for in ["an approval", "another plan", "the end of a pause"] {
            for is_marked in [false, true] {
                let observed = observed();
                let stack = serde_json::to_value(&observed.stack).unwrap();
                let mark = json!({ names::ANNOTATION_RUN: "uid-1" });
                let marked_pod = json!({"metadata": {"name": "app-workspace-0", "annotations": mark}});
                let (client, log) = client(move |request| match (request.method.as_str(), request.path.as_str()) {
                    ("GET", POD) if is_marked => FakeResponse::Json(200, marked_pod.clone()),
                    ("PATCH", UPDATE) => FakeResponse::Json(200, json!({"metadata": {"name": "app-1"}})),
                    ("PATCH", _) => FakeResponse::Json(200, stack.clone()),
                    _ => FakeResponse::refusal(404, "NotFound"),
                });
                let parts = TestParts::new(client);
                let context = Context::of(&parts, stacks().0, updates().0);
                let message = waits_for.to_owned();
                let next = match waits_for {
                    "an approval" => await_approval(&observed, message, &context, now).await,
                    "another plan" => report_rejection(&observed, message, &context, now).await,
                    _ => {
                        let held = Held { reason: stack_reason::OUTSIDE_SCHEDULE, message, until: None };
                        await_permission(&observed, held, &context, now).await
                    }
                };
                let requeues_soon = matches!(next, Ok(Next::Rest(Some(after))) if after < WATCHED_RETRY);
                assert_eq!(requeues_soon, is_marked, "{waits_for}: {next:?}");
                let released = log.all().into_iter().filter(|request| request.path == UPDATE);
                let removed: Vec<String> = released.map(|request| request.body.to_string()).collect();
                assert_eq!(removed.len(), usize::from(!is_marked), "{waits_for}: {removed:?}");
                let finalizers = [names::STACK_FINALIZER, names::UPDATE_FINALIZER];
                assert!(removed.iter().all(|body| finalizers.iter().all(|name| body.contains(name))), "{removed:?}");
            }
        }
    }
}
