//! Tests for the deletion of a Stack and for the creation of an Update with a fake API server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::api::auto::UpdateKind;
use crate::controller::stack::stacks;
use crate::controller::test_parts::TestParts;
use crate::controller::update::updates;
use crate::runtime::fake_api::{FakeResponse, RecordedRequest, client};
use crate::runtime::run_limiter::Full;

const STATUS: &str = "/apis/pulumi.com/v1/namespaces/apps/stacks/app/status";

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// Returns a deleted Stack that reports success, and its Workspace. The Workspace was deleted before this number of
/// seconds.
fn observed(deleted_before: Option<i64>) -> Observed {
    let deleted = deleted_before.map(|seconds| Time(now() - jiff::SignedDuration::from_secs(seconds)));
    let condition = |status: &str, message: &str| {
        json!({"type": "Ready", "status": status, "reason": "Test", "message": message,
            "lastTransitionTime": "2026-01-01T11:00:00Z", "observedGeneration": 1})
    };
    let stack: Stack = serde_json::from_value(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack",
        "metadata": {"namespace": "apps", "name": "app", "uid": "uid", "generation": 1,
            "deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": [names::STACK_FINALIZER]},
        "spec": {"stack": "dev"},
        "status": {"observedGeneration": 1, "conditions": [condition("True", "up to date")]},
    }))
    .unwrap();
    let workspace: Workspace = serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
        "metadata": {"namespace": "apps", "name": "app", "uid": "uid-1", "deletionTimestamp": deleted,
            "annotations": {"pulumi.com/desired-hash": "a"}, "finalizers": [names::WORKSPACE_FINALIZER]},
        "spec": {},
        "status": {"conditions": [condition("False", "waiting for run app-1 to end")]},
    }))
    .unwrap();
    Observed { workspace: Some(workspace), ..Observed::of(stack) }
}

/// Removes the finalizer of the Stack. Returns the requeue interval and the requests.
async fn remove(observed: &Observed) -> (Option<Duration>, Vec<RecordedRequest>) {
    let stack = serde_json::to_value(&observed.stack).unwrap();
    let (client, log) = client(move |request| match request.method.as_str() {
        "DELETE" => FakeResponse::Json(200, json!({"kind": "Status", "status": "Success"})),
        _ => FakeResponse::Json(200, stack.clone()),
    });
    let parts = TestParts::new(client);
    let context = Context::of(&parts, stacks().0, updates().0);
    match Box::pin(act(observed, Action::RemoveFinalizer, &context, now())).await {
        Ok(Next::Rest(after)) => (after, log.all()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stack_reports_what_delays_its_deletion() {
    let (after, requests) = remove(&observed(None)).await;
    assert_eq!(after, Some(DELETION_RETRY));
    assert_eq!(requests.iter().map(|request| request.method.as_str()).collect::<Vec<_>>(), ["DELETE"]);
    let (after, requests) = remove(&observed(Some(3))).await;
    assert_eq!((after, requests.len()), (Some(DELETION_RETRY), 0), "a usual deletion causes no status write");
    let (after, requests) = remove(&observed(Some(60))).await;
    assert_eq!(after, Some(DELETION_RETRY));
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((request.method.as_str(), request.path.as_str()), ("PATCH", STATUS));
    let conditions = request.body.pointer("/status/conditions").and_then(Value::as_array).expect("conditions");
    let messages: Vec<_> = conditions.iter().map(|condition| condition["message"].as_str().unwrap()).collect();
    let expected = "waiting for the deletion of Workspace app: waiting for run app-1 to end";
    assert_eq!(messages, [expected, expected], "the conditions Ready and Reconciling");
}

/// Creates the Update of a recorded run. `wait` is the reason for a wait in the record. Returns the requeue interval.
async fn interval_after_creation(wait: Option<&SlotWait>) -> Option<Duration> {
    let (client, _log) = client(|request| FakeResponse::Json(201, request.body.clone()));
    let parts = TestParts::new(client);
    let context = Context::of(&parts, stacks().0, updates().0);
    let stack = observed(None).stack;
    let current = CurrentUpdate { name: "app-1".to_owned(), kind: UpdateKind::Up, ..CurrentUpdate::default() };
    let update = build_update::update(&stack, &current).unwrap();
    match Box::pin(create_update(&stack, &update, (&current, wait), &context, now())).await {
        Ok(Next::Rest(after)) => after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stack_soon_reports_a_wait_that_the_record_of_its_run_does_not_contain() {
    let wait = SlotWait { reason: Full::All { limit: 1 }, estimate: None };
    assert_eq!(Box::pin(interval_after_creation(Some(&wait))).await, Some(WATCHED_RETRY));
    assert_eq!(Box::pin(interval_after_creation(None)).await, Some(FIRST_START_CHECK));
}
