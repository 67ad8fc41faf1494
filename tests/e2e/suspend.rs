//! Tests suspended Stacks.

use pulumi_controller::api::conditions::{READY, RECONCILING};
use serde_json::json;

use crate::harness::{Program, WaitLimit, condition, once, run};

#[test]
fn a_suspended_stack_starts_no_run_until_it_is_resumed() {
    run("suspend", async |scene| {
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("suspend").step("step", json!({"value": text}));
        let first = source.push(&with_text("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;

        main.change(json!({"spec": {"suspend": true}})).await;
        main.until("to be suspended", WaitLimit::Reaction, |stack| {
            stack.status.as_ref().and_then(|status| status.observed_generation) == stack.metadata.generation
        })
        .await;
        let second = source.push(&with_text("two").files()).await;
        // The run of another Stack with the same source proves that the controller has observed the commit.
        let witness = scene.start(scene.stack("witness", &source)).await;
        witness.until_applied(&second).await;

        let stack = main.get().await;
        assert_eq!(
            condition(&stack, READY).map(|ready| ready.status.as_str()),
            Some("True"),
            "the conditions remain as before the suspension"
        );
        assert_eq!(condition(&stack, RECONCILING), None, "no Reconciling condition");
        assert_eq!(stack.status.and_then(|status| status.last_applied_revision), Some(first.revision()));
        assert_eq!(main.updates().await.len(), 1);
        assert_eq!(main.log.operations().await, once(&["create step"]));

        main.change(json!({"spec": {"suspend": false}})).await;
        main.until_applied(&second).await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    });
}

#[test]
fn suspending_a_stack_still_records_the_result_of_its_open_run() {
    run("suspend-open", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("suspend-open").step("slow", json!({"seconds": 5, "steps": 5}));
        let commit = source.push(&program.files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;
        main.change(json!({"spec": {"suspend": true}})).await;
        main.until("to have recorded the run", WaitLimit::Run, |stack| {
            let status = stack.status.clone().unwrap_or_default();
            status.last_applied_revision == Some(commit.revision()) && status.current_update.is_none()
        })
        .await;
        assert_eq!(main.log.operations().await, once(&["create slow"]));
        assert_eq!(main.updates().await.len(), 1);
    });
}
