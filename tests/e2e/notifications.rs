//! Flux's own notification-controller takes our events, and brings them to where an Alert leads.

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::conditions::{READY, stack_reason};
use serde_json::{Value, json};

use crate::harness::{Call, Patience, Program, Scene, run, says};

fn program(value: &str, failing: &str) -> Program {
    Program::new("alerts").step("step", json!({"value": value, "failOn": failing}))
}

/// An Alert on all Stacks of the scene, and where it leads.
async fn alert(scene: &Scene, name: &str, provider: Value) {
    let provider = json!({"metadata": {"name": name}, "spec": provider});
    scene.create_notification("Provider", provider).await;
    let sources = json!([{"kind": "Stack", "name": "*"}]);
    let spec = json!({"providerRef": {"name": name}, "eventSeverity": "info", "eventSources": sources});
    scene.create_notification("Alert", json!({"metadata": {"name": name}, "spec": spec})).await;
}

fn is_event(call: &Call, reason: &str, revision: &str) -> bool {
    call.path.ends_with("/alert") && call.body["reason"] == reason && call.body["metadata"]["revision"] == revision
}

fn message(call: &Call) -> &str {
    call.body["message"].as_str().unwrap_or_default()
}

#[test]
fn n3_an_alert_tells_of_start_success_failure_and_recovery_once_each() {
    run("alert", async |scene| {
        alert(scene, "chat", json!({"type": "generic", "address": scene.hook("alert")})).await;
        let source = scene.source("app").await;
        let first = source.push(&program("one", "").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;
        let revision = first.revision();
        let of = |reason: &'static str, revision: &str| {
            let revision = revision.to_owned();
            move |call: &Call| is_event(call, reason, &revision)
        };
        let start = scene.until_called("the start", of("StackUpdateDetected", &revision)).await;
        assert_eq!(start.body["severity"], "info");
        assert_eq!(start.body["involvedObject"]["kind"], "Stack");
        assert_eq!(start.body["involvedObject"]["name"], "main");
        assert_eq!(start.body["involvedObject"]["namespace"], json!(scene.namespace));
        let success = scene.until_called("the success", of("ProcessingCompleted", &revision)).await;
        assert!(message(&success).contains("2 created"), "what it did is summed up: {}", message(&success));

        let bad = source.push(&program("two", "update").files()).await;
        main.until("to have failed", Patience::Run, |stack| says(stack, READY, "False", stack_reason::UPDATE_FAILED))
            .await;
        main.until("to have tried again", Patience::Run, |stack| {
            stack.status.as_ref().and_then(|s| s.last_update.as_ref()).is_some_and(|last| last.failures > 0)
        })
        .await;
        let failure = scene.until_called("the failure", of("StackUpdateFailure", &bad.revision())).await;
        assert_eq!(failure.body["severity"], "error");
        assert!(message(&failure).contains("its input failOn is update"), "the cause: {}", message(&failure));

        let good = source.push(&program("three", "").files()).await;
        main.until_applied(&good).await;
        scene.until_called("the recovery", of("ProcessingCompleted", &good.revision())).await;

        let calls = scene.calls().await;
        let times = |reason: &str, revision: &str| calls.iter().filter(|call| is_event(call, reason, revision)).count();
        assert_eq!(times("StackUpdateFailure", &bad.revision()), 1, "the same is not told again: {calls:#?}");
        for commit in [&first, &good] {
            assert_eq!(times("ProcessingCompleted", &commit.revision()), 1, "{calls:#?}");
            assert_eq!(times("StackCreated", &commit.revision()), 1, "{calls:#?}");
        }
    });
}

#[test]
fn e3_each_commit_gets_the_status_of_its_run() {
    run("commit-status", async |scene| {
        scene.create::<Secret>(json!({"metadata": {"name": "token"}, "stringData": {"token": "t"}})).await;
        let provider = json!({"type": "github", "address": scene.git_host("app"), "secretRef": {"name": "token"}});
        alert(scene, "commits", provider).await;
        let source = scene.source("app").await;
        let good = source.push(&program("one", "").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&good).await;
        let bad = source.push(&program("two", "update").files()).await;
        main.until("to have failed", Patience::Run, |stack| says(stack, READY, "False", stack_reason::UPDATE_FAILED))
            .await;

        for (commit, state) in [(&good, "success"), (&bad, "failure")] {
            let path = format!("/api/v3/repos/{}/app/statuses/{}", scene.namespace, commit.sha);
            let status = scene
                .until_called(state, |call| call.method == "POST" && call.path == path && call.body["state"] == state)
                .await;
            let context = &status.body["context"];
            assert!(context.as_str().is_some_and(|context| context.starts_with("stack/main/")), "{context}");
        }
    });
}
