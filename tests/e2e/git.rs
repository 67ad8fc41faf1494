//! Tests Git repositories that the controller polls without Flux.

use kube::Api;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::names::{ANNOTATION_RECONCILIATION_REQUEST, ANNOTATION_REQUESTED_AT};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::{File, Program, WaitLimit, condition, has_condition, is_stalled, once, run};

fn with_text(text: &str) -> Vec<File> {
    Program::new("git").step("step", json!({"value": text})).output("result", json!("${step.value}")).files()
}

#[test]
fn a_push_to_a_polled_repository_starts_a_run_in_the_same_pod() {
    run("git-push", async |scene| {
        let source = scene.source("app").await;
        let first = source.push_without_notification(&with_text("one")).await;
        let main = scene.start(scene.stack_on_repository("main", &source)).await;
        let stack = main.until_applied(&first).await;
        let last = stack.status.and_then(|status| status.last_update).expect("a run has ended");
        assert_eq!(last.last_successful_commit.as_deref(), Some(first.sha.as_str()), "the format of the operator");
        let pod = main.pod_and_restarts().await;

        let second = source.push_without_notification(&with_text("two")).await;
        main.annotate(ANNOTATION_REQUESTED_AT, "a webhook").await;
        let stack = main.until_applied(&second).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"result": "two"}));
        assert_eq!(main.pod_and_restarts().await, pod, "the pod is not replaced");
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
        let installed = main.workspace().await.status.and_then(|status| status.artifact).expect("artifact in status");
        assert_eq!(installed.revision, second.revision());
    });
}

#[test]
fn polling_a_repository_detects_a_push() {
    run("git-poll", async |scene| {
        let source = scene.source("app").await;
        let first = source.push_without_notification(&with_text("one")).await;
        let main = scene.start(scene.stack_on_repository("main", &source)).await;
        main.until_applied(&first).await;
        let second = source.push_without_notification(&with_text("two")).await;
        main.until_applied(&second).await;
    });
}

#[test]
fn the_commit_can_move_forward_and_back_in_the_same_pod() {
    run("git-commit", async |scene| {
        let source = scene.source("app").await;
        let first = source.push_without_notification(&with_text("one")).await;
        let second = source.push_without_notification(&with_text("two")).await;
        let mut stack = scene.stack_on_repository("main", &source);
        stack.spec.branch = None;
        stack.spec.commit = Some(first.sha.clone());
        let main = scene.start(stack).await;
        main.until_revision(&format!("sha1:{}", first.sha)).await;
        let pod = main.pod_and_restarts().await;
        for (commit, text) in [(&second, "two"), (&first, "one"), (&second, "two")] {
            main.change(json!({"spec": {"commit": commit.sha}})).await;
            let stack = main.until_revision(&format!("sha1:{}", commit.sha)).await;
            assert_eq!(json!(stack.status.expect("a status").outputs), json!({"result": text}));
        }
        assert_eq!(main.pod_and_restarts().await, pod, "the pod is not replaced");
        assert_eq!(main.updates().await.len(), 4);
    });
}

#[test]
fn a_commit_outside_repo_paths_changes_only_the_revision() {
    run("git-paths", async |scene| {
        let source = scene.source("app").await;
        let files = |text: &str, note: &str| {
            let program = Program::new("git").step("step", json!({"value": text}));
            vec![program.file("web/Pulumi.yaml"), File { path: "notes.txt".to_owned(), content: note.to_owned() }]
        };
        let first = source.push_without_notification(&files("one", "a")).await;
        let mut stack = scene.stack_on_repository("main", &source);
        stack.spec.repo_dir = Some("web".to_owned());
        stack.spec.paths = vec!["/web/".to_owned()];
        let main = scene.start(stack).await;
        main.until_applied(&first).await;

        let unseen = source.push_without_notification(&files("one", "b")).await;
        main.until_applied(&unseen).await;
        assert_eq!(main.updates().await.len(), 1, "no run has started");
        let touching = source.push_without_notification(&files("two", "b")).await;
        main.annotate(ANNOTATION_RECONCILIATION_REQUEST, "look").await;
        main.until_applied(&touching).await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    });
}

#[test]
fn repository_errors_are_reported_and_the_last_good_state_is_kept() {
    run("git-bad-days", async |scene| {
        let source = scene.source("app").await;
        let first = source.push_without_notification(&with_text("one")).await;
        let main = scene.start(scene.stack_on_repository("main", &source)).await;
        main.until_applied(&first).await;
        let reports = |stack: &Stack, words: &str| {
            is_stalled(stack, stack_reason::SOURCE_UNAVAILABLE)
                && condition(stack, READY).is_some_and(|ready| ready.message.contains(words))
        };
        main.change(json!({"spec": {"branch": "dev"}})).await;
        let stack = main
            .until("to report that the branch is missing", WaitLimit::Reaction, |stack| {
                reports(stack, "no branch or tag dev: existing branches: main")
            })
            .await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"result": "one"}));
        main.change(json!({"spec": {"branch": "main", "gitAuthSecret": "git"}})).await;
        main.until("to report that the Secret is missing", WaitLimit::Reaction, |stack| {
            reports(stack, "git: not found")
        })
        .await;
        main.change(json!({"spec": {"gitAuthSecret": null}})).await;
        main.until_applied(&first).await;
        main.change(json!({"spec": {"commit": first.sha}})).await;
        main.until("to report that two references are set", WaitLimit::Reaction, |stack| {
            has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID)
                && condition(stack, READY).is_some_and(|ready| ready.message.contains("mutually exclusive"))
        })
        .await;
        let stacks: Api<Stack> = scene.api();
        assert!(stacks.get("main").await.is_ok(), "the Stack still exists");
    });
}
