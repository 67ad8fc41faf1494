//! Tests Pulumi Cloud errors: rejected tokens, rate limits and outages.

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::conditions::{READY, RECONCILING, stack_reason, update_reason};
use pulumi_controller::api::names::ANNOTATION_REQUESTED_AT;
use serde_json::json;

use super::{cloud_with_token, last_update};
use crate::harness::{Program, TOKEN_SECRET, WaitLimit, condition, has_condition, is_done, run};
use crate::runs_parts::until_ended_with_reason;

/// The kubelet syncs a mounted Secret within two minutes.
#[test]
fn a_rejected_token_is_reported_once_and_a_new_token_starts_a_run() {
    run("cloud-token", async |scene| {
        let (cloud, token) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("cloud-token").output("a", json!("b")).files()).await;
        let main = scene.start(scene.stack_in_cloud("main", &source, &cloud, "cloud-token")).await;
        main.until_applied(&commit).await;
        cloud.revoke(&token).await;
        main.annotate(ANNOTATION_REQUESTED_AT, "now").await;
        until_ended_with_reason(&main, update_reason::INVALID_ACCESS_TOKEN).await;
        let rejected = main.get().await;
        let message = condition(&rejected, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(has_condition(&rejected, READY, "False", stack_reason::UPDATE_FAILED), "{rejected:?}");
        assert!(message.contains("access token") && !message.contains(&token), "{message}");
        let retry = condition(&rejected, RECONCILING).map(|condition| condition.message.clone()).unwrap_or_default();
        let runs = main.updates().await.len();

        let token = cloud.token(&cloud.alice).await;
        scene.patch::<Secret>(TOKEN_SECRET, json!({"stringData": {"accessToken": token}})).await;
        let done = main
            .until("to run with the new token", WaitLimit::Long, |stack| {
                is_done(stack) && last_update(stack).state.as_deref() == Some("succeeded")
            })
            .await;
        assert_eq!(main.updates().await.len(), runs + 1, "no retry with the rejected token ({retry}): {done:?}");
        let events = main.events().await;
        let failures = events.iter().filter(|event| event.reason.as_deref() == Some("StackUpdateFailure"));
        assert_eq!(failures.map(|event| event.count.unwrap_or(1)).sum::<i32>(), 1, "{events:?}");
    });
}

#[test]
fn a_rate_limit_of_pulumi_cloud_is_waited_out() {
    wait_out("cloud-rate", 429, "rate-limit");
}

#[test]
fn an_outage_of_pulumi_cloud_is_waited_out() {
    wait_out("cloud-outage", 503, "503");
}

/// Tests a Stack while Pulumi Cloud responds with an error status. The Stack must report the unavailable backend, and
/// must run after the errors stop.
fn wait_out(name: &str, status: u16, word: &str) {
    run(name, async |scene| {
        let (cloud, _) = cloud_with_token(scene).await;
        cloud.add_fault(json!({"path": "/api/stacks/.*", "status": status, "retryAfter": "1"})).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new(name).output("a", json!("b")).files()).await;
        let main = scene.start(scene.stack_in_cloud("main", &source, &cloud, name)).await;
        until_ended_with_reason(&main, update_reason::BACKEND_UNAVAILABLE).await;
        let unavailable = main.get().await;
        let message = condition(&unavailable, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("the state backend is unavailable") && message.contains(word), "{message}");
        cloud.remove_faults().await;
        main.until_applied_within(WaitLimit::Long, &commit).await;
    });
}

#[test]
fn a_missing_permission_is_reported_with_advice() {
    run("cloud-forbidden", async |scene| {
        let (cloud, _) = cloud_with_token(scene).await;
        cloud.add_fault(json!({"path": "/api/stacks/.*", "status": 403})).await;
        let source = scene.source("app").await;
        source.push(&Program::new("cloud-forbidden").output("a", json!("b")).files()).await;
        let main = scene.start(scene.stack_in_cloud("main", &source, &cloud, "cloud-forbidden")).await;
        let failed = main
            .until("to report the missing permission", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
            })
            .await;
        let message = condition(&failed, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("lacks a permission"), "{message}");
    });
}
