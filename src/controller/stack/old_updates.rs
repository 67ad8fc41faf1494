//! Removes the finalizers from completed Updates, and deletes old Updates.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::api::auto::{Update, Workspace};
use crate::api::names;
use crate::api::pulumi::Stack;
use crate::controller::stack::context::Context;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::step::Next;
use crate::controller::update::{interrupted_run, is_marked_for};
use crate::runtime::reads::ReadError;
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::writes::WriteError;

/// Maximum number of completed Updates that a Stack keeps.
const MAX_UPDATES: usize = 5;
/// Maximum number of completed Updates that keep their finalizers while one run follows another.
const MAX_HELD: usize = 5;
/// Retry interval if an Update keeps its finalizers. No watch event reports when the Update controller removes the mark
/// from the pod.
const HELD_RETRY: Duration = Duration::from_secs(2);

/// Removes the finalizers from completed Updates whose results are in the status. Deletes all completed Updates except
/// the newest ones. In `observed`, the Stack must have no open run. `next` is the result of the reconciliation step so
/// far. If the finalizers of an Update are still necessary, the returned result requeues the Stack earlier.
pub async fn release_and_delete(next: Next, observed: &Observed, context: &Context) -> Result<Next, ReconcileError> {
    let held: Vec<_> = observed.updates.iter().filter(|u| has_finalizer(u, names::STACK_FINALIZER)).collect();
    let pod = match held.iter().any(|u| has_finalizer(u, names::UPDATE_FINALIZER)) {
        true => read_pod(observed, context).await?,
        false => None,
    };
    for update in held.iter().filter(|u| is_releasable(u, pod.as_ref())) {
        let finalizers = [names::UPDATE_FINALIZER, names::STACK_FINALIZER];
        match context.writer.remove_finalizers(update.as_ref(), &finalizers).await {
            // The cached Update is outdated. Its newer version causes a watch event that requeues the Stack, so the
            // next reconciliation retries the write.
            Err(error) if error.is_conflict() => {}
            other => other?,
        }
    }
    let mut complete: Vec<_> = observed.updates.iter().filter(|u| u.is_complete()).collect();
    complete.sort_by_key(|u| std::cmp::Reverse((u.creation_timestamp(), u.name_any())));
    // If an Update sets `ttlAfterCompleted`, the Update controller deletes it after this time.
    let is_ours = |update: &&&Arc<Update>| update.spec.ttl_after_completed.is_none();
    let older = complete.iter().filter(is_ours).skip(MAX_UPDATES).filter(|u| u.metadata.deletion_timestamp.is_none());
    let plan = observed.stack.status.as_ref().and_then(|status| status.plan.as_ref());
    let has_plan = |update: &Update| plan.is_some_and(|plan| plan.update_name == update.name_any());
    for update in older.filter(|u| !may_hold_a_lock(&observed.stack, u) && !has_plan(u)) {
        delete(update, context).await?;
    }
    let retry = held.iter().any(|u| may_have_ended(u) && !is_releasable(u, pod.as_ref())).then_some(HELD_RETRY);
    Ok(match next {
        Next::Rest(after) => Next::Rest(after.into_iter().chain(retry).min()),
        again @ Next::Again(_) => again,
    })
}

/// Does the same as [`release_and_delete`] after the start of a run, but only if many completed Updates have kept their
/// finalizers. Normally, a Stack waits between two runs, and its Updates are released during this time. If one run
/// follows another without a wait, the Updates would otherwise accumulate. `observed` is the state before the start.
pub async fn release_and_delete_if_many(
    next: Next,
    observed: &Observed,
    context: &Context,
) -> Result<Next, ReconcileError> {
    let is_held = |update: &&Arc<Update>| update.is_complete() && has_finalizer(update, names::STACK_FINALIZER);
    match observed.updates.iter().filter(is_held).count() > MAX_HELD {
        true => release_and_delete(next, observed, context).await,
        false => Ok(next),
    }
}

/// Returns whether the finalizers of an Update are no longer necessary. If the pod is marked for the run, the Update
/// controller must remove the mark first. After a crash, the next process finds such an Update by its finalizer. The
/// caller has recorded the results of all its runs, so a cached Update with an open run is outdated.
fn is_releasable(update: &Update, pod: Option<&Pod>) -> bool {
    update.is_complete() && !pod.is_some_and(|pod| is_marked_for(pod, update))
}

/// Returns whether the Update has ended, or can have ended since the cache received it. A crash before the binding can
/// leave a mark for an Update that then ends without a run, for example because a user cancels it.
fn may_have_ended(update: &Update) -> bool {
    let has_run = update.status.as_ref().is_some_and(|status| status.run.is_some());
    has_run || update.is_complete() || update.metadata.deletion_timestamp.is_some()
}

fn has_finalizer(update: &Update, finalizer: &str) -> bool {
    update.finalizers().iter().any(|name| name == finalizer)
}

/// Reads the pod of the Workspace. If the Workspace does not exist, reads the pod of its StatefulSet.
async fn read_pod(observed: &Observed, context: &Context) -> Result<Option<Pod>, ReadError> {
    let stack = &observed.stack;
    let of_stateful_set = || names::workspace_pod(&stack.name_any());
    let name = observed.workspace.as_ref().map_or_else(of_stateful_set, Workspace::pod_name);
    context.reader.get_opt::<Pod>(&stack.namespace().unwrap_or_default(), &name).await
}

/// Returns whether the run may have left a lock that only this Update identifies. The controller keeps such an Update
/// until a run succeeds.
fn may_hold_a_lock(stack: &Stack, update: &Update) -> bool {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    last.is_some_and(|last| last.pending_creates.is_some()) && interrupted_run(update).is_some()
}

/// Deletes an Update.
pub async fn delete(update: &Update, context: &Context) -> Result<(), WriteError> {
    let namespace = update.namespace().unwrap_or_default();
    context.writer.delete::<Update>(&namespace, &update.name_any(), update.uid().as_deref()).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::stack::stacks;
    use crate::controller::test_parts::TestParts;
    use crate::controller::update::updates;
    use crate::runtime::fake_api::{FakeResponse, client};

    /// Returns the Update with this number. `complete` is the status of its condition `Complete`.
    fn update(number: usize, complete: &str) -> Update {
        serde_json::from_value(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
            "metadata": {
                "namespace": "apps", "name": format!("app-{number}"), "uid": format!("uid-{number}"),
                "creationTimestamp": format!("2026-01-01T12:00:{number:02}Z"),
                "finalizers": [names::UPDATE_FINALIZER, names::STACK_FINALIZER],
            },
            "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
            "status": {"conditions": [{
                "type": "Complete", "status": complete, "reason": "Updated", "message": "",
                "lastTransitionTime": "2026-01-01T12:00:00Z",
            }]},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn the_start_of_a_run_deletes_old_updates_only_if_many_are_held() {
        let stack: Stack = serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {"namespace": "apps", "name": "app", "uid": "uid"}, "spec": {"stack": "dev"},
        }))
        .unwrap();
        let path = |number: usize| format!("/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/app-{number}");
        // Columns: the number of completed Updates with finalizers, and the numbers of the deleted Updates.
        for (held, expected) in [(0, vec![]), (5, vec![]), (6, vec![0]), (8, vec![2, 1, 0])] {
            let (client, log) = client(|request| match request.method.as_str() {
                "PATCH" => FakeResponse::Json(200, json!({"metadata": {"name": "app-0"}})),
                "DELETE" => FakeResponse::Json(200, json!({"kind": "Status", "status": "Success"})),
                _ => FakeResponse::refusal(404, "NotFound"),
            });
            let parts = TestParts::new(client);
            let context = Context::of(&parts, stacks().0, updates().0);
            let complete = (0..held).map(|number| update(number, "True"));
            let all = complete.chain([update(held, "False")]).map(Arc::new).collect();
            let observed = Observed { updates: all, ..Observed::of(stack.clone()) };
            release_and_delete_if_many(Next::Rest(None), &observed, &context).await.unwrap();
            let paths = |method: &str| -> Vec<String> {
                log.all().into_iter().filter(|request| request.method == method).map(|request| request.path).collect()
            };
            let (reads, released) = if expected.is_empty() { (0, 0) } else { (1, held) };
            assert_eq!((paths("GET").len(), paths("PATCH").len()), (reads, released), "{held}");
            assert_eq!(paths("DELETE"), expected.into_iter().map(path).collect::<Vec<_>>(), "{held}");
        }
    }

    #[test]
    fn an_update_is_released_when_its_pod_is_no_longer_marked() {
        let pod = |run: &str| -> Pod {
            let annotations = json!({ names::ANNOTATION_RUN: run });
            serde_json::from_value(json!({"metadata": {"name": "app-workspace-0", "annotations": annotations}}))
                .unwrap()
        };
        let rows = [
            ("no pod", "True", None, true),
            ("idle pod", "True", Some(Pod::default()), true),
            ("pod of another run", "True", Some(pod("uid-2")), true),
            ("marked pod", "True", Some(pod("uid-1")), false),
            ("open run", "False", Some(Pod::default()), false),
        ];
        for (name, complete, pod, expected) in rows {
            assert_eq!(is_releasable(&update(1, complete), pod.as_ref()), expected, "{name}");
        }
        assert!(may_have_ended(&update(1, "True")), "the Update ended without a run");
        assert!(!may_have_ended(&update(1, "False")), "the Update is queued");
    }
}
