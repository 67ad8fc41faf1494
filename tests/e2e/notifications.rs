//! Tests the events about a Stack, which the Flux notification-controller sends to an Alert's Provider.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Secret};
use kube::ResourceExt;
use pulumi_controller::api::conditions::{READY, stack_reason};
use pulumi_controller::api::pulumi::SourceArtifact;
use serde_json::{Value, json};

use crate::harness::{Call, Program, Scene, WaitLimit, has_condition, is_done, run};

fn program(value: &str, failing: &str) -> Program {
    Program::new("alerts").step("step", json!({"value": value, "failOn": failing}))
}

/// Creates a Provider, and an Alert that sends the events about all Stacks in the scene to this Provider.
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
fn an_alert_reports_start_success_failure_and_recovery_once_each() {
    run("alert", async |scene| {
        alert(scene, "chat", json!({"type": "generic", "address": scene.hook_url("alert")})).await;
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
        assert!(message(&success).contains("2 created"), "the message contains the summary: {}", message(&success));

        let bad = source.push(&program("two", "update").files()).await;
        main.until("to have failed", WaitLimit::Run, |stack| {
            has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
        })
        .await;
        main.until("to have retried", WaitLimit::Run, |stack| {
            stack.status.as_ref().and_then(|s| s.last_update.as_ref()).is_some_and(|last| last.failures > 1)
        })
        .await;
        let failure = scene.until_called("the failure", of("StackUpdateFailure", &bad.revision())).await;
        assert_eq!(failure.body["severity"], "error");
        assert!(message(&failure).contains("the input failOn is update"), "the cause: {}", message(&failure));

        let good = source.push(&program("three", "").files()).await;
        main.until_applied(&good).await;
        scene.until_called("the recovery", of("ProcessingCompleted", &good.revision())).await;

        let calls = scene.calls().await;
        let times = |reason: &str, revision: &str| calls.iter().filter(|call| is_event(call, reason, revision)).count();
        assert_eq!(times("StackUpdateFailure", &bad.revision()), 1, "a repeated failure sends no event: {calls:#?}");
        for commit in [&first, &good] {
            assert_eq!(times("ProcessingCompleted", &commit.revision()), 1, "{calls:#?}");
            assert_eq!(times("StackCreated", &commit.revision()), 1, "{calls:#?}");
        }
    });
}

#[test]
fn each_commit_gets_the_commit_status_of_its_run() {
    run("commit-status", async |scene| {
        scene.create::<Secret>(json!({"metadata": {"name": "token"}, "stringData": {"token": "t"}})).await;
        let provider = json!({"type": "github", "address": scene.git_host("app"), "secretRef": {"name": "token"}});
        alert(scene, "commits", provider).await;
        let source = scene.source("app").await;
        let good = source.push(&program("one", "").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&good).await;
        let bad = source.push(&program("two", "update").files()).await;
        main.until("to have failed", WaitLimit::Run, |stack| {
            has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
        })
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

#[test]
fn a_preview_summary_is_posted_as_a_pull_request_comment() {
    run("pull-request", async |scene| {
        scene.create::<Secret>(json!({"metadata": {"name": "token"}, "stringData": {"token": "t"}})).await;
        let kind = "githubpullrequestcomment";
        let provider = json!({"type": kind, "address": scene.git_host("app"), "secretRef": {"name": "token"}});
        alert(scene, "comments", provider).await;
        let source = scene.source("app").await;
        source.push(&program("one", "").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.preview = Some(true);
        stack.annotations_mut().insert("event.toolkit.fluxcd.io/change_request".to_owned(), "7".to_owned());
        let main = scene.start(stack).await;
        main.until("to be previewed", WaitLimit::Run, is_done).await;

        let path = format!("/api/v3/repos/{}/app/issues/7/comments", scene.namespace);
        let is_match = |call: &Call| {
            let comment = call.body["body"].as_str().unwrap_or_default();
            call.method == "POST" && call.path == path && comment.contains("Preview: 2 to create\n- create ")
        };
        scene.until_called("the comment", is_match).await;
    });
}

#[test]
fn every_event_after_the_first_run_contains_a_revision() {
    run("revisions", async |scene| {
        let producer = scene.source("producer").await;
        let good = producer.artifact_of(&producer.push(&program("one", "").files()).await).await;
        let source = scene.flux_object("ExternalArtifact", "externalartifacts", "app");
        source.create(json!({})).await;
        source.publish(&good).await;
        let main = scene.start(scene.stack_on_kind("main", None, &source)).await;
        main.until_revision(&good.revision).await;
        main.until_event("ProcessingCompleted").await;
        let gone = SourceArtifact {
            url: good.url.replace(".tar.gz", "-gone.tar.gz"),
            revision: format!("main@sha1:{}", "0".repeat(40)),
            digest: format!("sha256:{}", "0".repeat(64)),
            ..good.clone()
        };
        source.publish(&gone).await;
        main.until_event("SourceUnavailable").await;
        main.change(json!({"spec": {"fluxSource": {"dir": "../outside"}}})).await;
        main.until_event("StackConfigInvalid").await;
        main.change(json!({"spec": {"fluxSource": {"dir": null, "sourceRef": {"namespace": "default"}}}})).await;
        let reported = main.until_event("AccessDenied").await;

        let named: BTreeSet<_> = reported.iter().map(|event| (event.reason.clone(), revision(event))).collect();
        let of = |reason: &str, revision: &str| (Some(reason.to_owned()), Some(revision.to_owned()));
        let run_reasons = ["StackCreated", "ProcessingCompleted", "StackConfigInvalid", "AccessDenied"];
        let mut expected: BTreeSet<_> = run_reasons.iter().map(|reason| of(reason, &good.revision)).collect();
        expected.insert(of("SourceUnavailable", &gone.revision));
        assert_eq!(named, expected);
    });
}

fn revision(event: &Event) -> Option<String> {
    event.annotations().get("pulumi.com/revision").cloned()
}
