//! Tests failing programs, and the recovery of their Stacks.

use pulumi_controller::api::conditions::{READY, RECONCILING, stack_reason};
use serde_json::json;

use crate::harness::{File, Program, WaitLimit, condition, has_condition, run};

#[test]
fn a_failing_program_is_reported_until_the_next_good_commit() {
    run("failing", async |scene| {
        let source = scene.source("app").await;
        let program = |failing: &str| Program::new("failing").step("step", json!({"failOn": failing}));
        let bad = source.push(&program("create").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;

        let stack = main
            .until("to report that its update failed", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
                    && has_condition(stack, RECONCILING, "True", stack_reason::RETRYING_AFTER_FAILURE)
            })
            .await;
        let message = condition(&stack, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("creating step: the input failOn is create"), "{message}");
        let first = stack.status.and_then(|status| status.last_update).expect("a run has ended");
        assert_eq!((first.state.as_deref(), first.failures), (Some("failed"), 1));
        assert_eq!(first.last_attempted_commit, Some(bad.revision()));

        let stack = main
            .until("to have retried", WaitLimit::Run, |stack| {
                stack
                    .status
                    .as_ref()
                    .and_then(|status| status.last_update.as_ref())
                    .is_some_and(|last| last.failures == 2)
            })
            .await;
        let second = stack.status.and_then(|status| status.last_update).expect("a run has ended");
        let wait = second.last_resync_time.expect("a time").0.duration_since(first.last_resync_time.expect("a time").0);
        assert!(wait.as_secs() >= 10, "the second run ended {wait} after the first, expected a delay of 10 s");

        let good = source.push(&program("").files()).await;
        let status = main.until_applied(&good).await.status.expect("a status");
        assert_eq!(status.last_update.map(|last| last.failures), Some(0));
        let expected =
            ["begin", "failed", "begin", "failed", "begin", "done"].map(|phase| format!("create step {phase}"));
        assert_eq!(main.log.operations().await, expected);
    });
}

#[test]
fn an_unreadable_project_file_reports_the_reason() {
    run("unreadable", async |scene| {
        let source = scene.source("app").await;
        let broken = File { path: "Pulumi.yaml".to_owned(), content: "name: [unreadable\nruntime: yaml\n".to_owned() };
        source.push(&[broken]).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until("to report the invalid file", WaitLimit::Run, |stack| {
            condition(stack, READY)
                .is_some_and(|ready| ready.status == "False" && ready.message.contains("Pulumi.yaml"))
        })
        .await;

        let good = source.push(&Program::new("unreadable").output("text", json!("hello")).files()).await;
        main.until_applied(&good).await;
    });
}

#[test]
fn a_repository_without_a_project_reports_the_missing_file() {
    run("no-project", async |scene| {
        let source = scene.source("app").await;
        source.push(&[File { path: "README.md".to_owned(), content: "nothing else\n".to_owned() }]).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until("to report that there is no project", WaitLimit::Run, |stack| {
            condition(stack, READY)
                .is_some_and(|ready| ready.status == "False" && ready.message.contains("Pulumi.yaml"))
        })
        .await;
    });
}
