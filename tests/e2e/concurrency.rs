//! Tests the limits on concurrent runs, in the Stack spec and in a namespace annotation.

use pulumi_controller::api::conditions::RECONCILING;
use pulumi_controller::api::names::{ANNOTATION_CANCEL, ANNOTATION_MAX_CONCURRENT_RUNS, ANNOTATION_RUN_WEIGHT};
use pulumi_controller::api::pulumi::{BoundConcurrencyGroup, ConcurrencyGroup, Stack};
use serde_json::json;

use crate::harness::{Program, StackHandle, WaitLimit, condition, kubectl, run};
use crate::runs_parts::{running_update, slow};

fn quick() -> Program {
    Program::new("concurrency").step("step", json!({"value": "one"}))
}

fn in_group(mut stack: Stack) -> Stack {
    stack.spec.concurrency_group = Some(ConcurrencyGroup { name: "state".to_owned(), limit: None });
    stack
}

/// Waits until the Stack's run is queued with a message that contains this text, and returns the message.
async fn until_queued(stack: &StackHandle<'_>, text: &str) -> String {
    let message = |stack: &Stack| condition(stack, RECONCILING).map(|found| found.message.clone()).unwrap_or_default();
    let queued = stack.until("to be queued", WaitLimit::Run, |stack| message(stack).contains(text)).await;
    message(&queued)
}

#[test]
fn the_stacks_of_a_concurrency_group_run_one_after_another() {
    run("concurrency-group", async |scene| {
        let (slow_source, source) = (scene.source("slow").await, scene.source("app").await);
        slow_source.push(&slow("concurrency-group", 120).files()).await;
        let commit = source.push(&quick().files()).await;
        let first = scene.start(in_group(scene.stack("first", &slow_source))).await;
        first.log.wait_for("create", "slow", "begin").await;
        let run = running_update(scene, &first).await.status.and_then(|status| status.run).expect("the run is bound");
        let bound = BoundConcurrencyGroup { name: "state".to_owned(), limit: 1, shared: None };
        assert_eq!(run.concurrency_group, Some(bound));

        let second = scene.start(in_group(scene.stack("second", &source))).await;
        until_queued(&second, "waiting for concurrency group state: 1 of 1 runs open").await;
        let other = scene.start(scene.stack("other", &source)).await;
        other.until_applied(&commit).await;
        assert!(second.log.operations().await.is_empty(), "the other Stack does not wait for the group");

        first.annotate(ANNOTATION_CANCEL, "now").await;
        second.until_applied(&commit).await;
    });
}

#[test]
fn an_annotation_of_the_namespace_limits_its_concurrent_runs() {
    run("namespace-limit", async |scene| {
        for annotation in [format!("{ANNOTATION_MAX_CONCURRENT_RUNS}=1"), format!("{ANNOTATION_RUN_WEIGHT}=many")] {
            kubectl(&["annotate", "namespace", &scene.namespace, "--overwrite", &annotation], "").await;
        }
        let (slow_source, source) = (scene.source("slow").await, scene.source("app").await);
        slow_source.push(&slow("namespace-limit", 300).files()).await;
        let commit = source.push(&quick().files()).await;
        let first = scene.start(scene.stack("first", &slow_source)).await;
        first.log.wait_for("create", "slow", "begin").await;
        let second = scene.start(scene.stack("second", &source)).await;
        let invalid = format!("ignoring the annotation {ANNOTATION_RUN_WEIGHT} of namespace {}", scene.namespace);
        let message = until_queued(&second, &invalid).await;
        assert!(message.contains(ANNOTATION_MAX_CONCURRENT_RUNS), "{message}");

        // When the namespace changes, the controller requeues the queued Update. Otherwise, the controller would retry
        // the Update only every five minutes.
        let removed = format!("{ANNOTATION_MAX_CONCURRENT_RUNS}-");
        kubectl(&["annotate", "namespace", &scene.namespace, &removed], "").await;
        second.until_applied(&commit).await;
        first.annotate(ANNOTATION_CANCEL, "now").await;
    });
}
