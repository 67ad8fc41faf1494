//! Tests runs that a user cancels.

use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason, update_reason};
use pulumi_controller::api::names::{ANNOTATION_CANCEL, ANNOTATION_REQUESTED_AT};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::{Program, WaitLimit, condition, has_condition, run};
use crate::runs_parts::{failure, progress, running_update, slow, until_update};

fn is_canceled(stack: &Stack) -> bool {
    has_condition(stack, READY, "False", stack_reason::CANCELED)
        && has_condition(stack, STALLED, "True", stack_reason::CANCELED)
}

fn outcomes(stack: &Stack) -> Vec<String> {
    let history = stack.status.as_ref().map(|status| status.history.as_slice()).unwrap_or_default();
    history.iter().map(|run| run.last_reconciled_status.clone()).collect()
}

#[test]
fn the_cancel_annotation_cancels_the_open_run_without_a_retry() {
    run("cancel-annotation", async |scene| {
        let source = scene.source("app").await;
        source.push(&slow("cancel-annotation", 120).files()).await;
        let mut stack = scene.stack("main", &source);
        // With these short intervals, an unexpected retry or periodic run would start while the test waits.
        stack.spec.retry_interval = Some("1s".to_owned());
        stack.spec.interval = Some("2s".to_owned());
        let main = scene.start(stack).await;
        main.log.wait_for("create", "slow", "begin").await;
        let update = running_update(scene, &main).await.name_any();

        main.annotate(ANNOTATION_CANCEL, "main-0123456789a").await;
        main.until("to have handled the name of another run", WaitLimit::Reaction, |stack| {
            stack.status.as_ref().and_then(|status| status.handled_cancel.as_deref()) == Some("main-0123456789a")
        })
        .await;
        assert_eq!(main.log.operations().await, ["create slow begin"], "the run continues");

        main.annotate(ANNOTATION_CANCEL, &update).await;
        let canceled = main.until("to be canceled", WaitLimit::Run, is_canceled).await;
        let status = canceled.status.clone().unwrap_or_default();
        assert_eq!(status.handled_cancel.as_deref(), Some(update.as_str()));
        assert_eq!(status.last_update.and_then(|last| last.name), Some(update.clone()));
        assert_eq!(outcomes(&canceled), ["Canceled"]);
        assert_eq!(
            main.log.operations().await,
            ["create slow begin", "create slow cancelled"],
            "the provider canceled the operation"
        );
        let updates = main.updates().await;
        let recorded: Vec<_> = updates.iter().map(|update| (update.name_any(), failure(update))).collect();
        assert_eq!(recorded, [(update, Some(update_reason::CANCELED))], "the record is kept");

        // An unexpected retry would start before this other Stack's run completes.
        let witness = scene.start(scene.stack_on_program("witness", &program(scene).await)).await;
        witness.until_revision("1").await;
        assert_eq!(main.updates().await.len(), 1);
        let commit = source.push(&slow("cancel-annotation", 1).files()).await;
        main.until_applied(&commit).await;
        main.change(json!({"spec": {"interval": "0s"}})).await;
    });
}

async fn program(scene: &crate::harness::Scene) -> String {
    let object = Program::new("witness").output("result", json!("hello")).object("witness");
    scene.create::<pulumi_controller::api::pulumi::Program>(object).await;
    "witness".to_owned()
}

#[test]
fn a_run_canceled_by_deleting_its_update_is_repeated_on_request() {
    run("cancel-delete", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("cancel-delete", 30).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;
        let update = running_update(scene, &main).await.name_any();
        scene.delete::<Update>(&update).await;
        let canceled = main.until("to be canceled", WaitLimit::Run, is_canceled).await;
        assert_eq!(outcomes(&canceled), ["Canceled"]);
        main.until_event("StackUpdateCanceled").await;
        scene.until_gone::<Update>(&update, WaitLimit::Reaction).await;

        // A cancel request without an open run has no effect, not even on the next run.
        main.annotate(ANNOTATION_CANCEL, "now").await;
        main.until_event("NothingToCancel").await;
        main.annotate(ANNOTATION_REQUESTED_AT, "again").await;
        main.until_applied(&commit).await;
        assert_eq!(main.updates().await.len(), 1);
    });
}

#[test]
fn a_queued_run_can_be_canceled() {
    run("cancel-queued", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("cancel-queued", 15).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let stack = main.until_applied(&commit).await.spec.stack;
        let spec = json!({"workspaceName": "main", "stackName": stack, "type": "up", "replace": ["**slow"]});
        scene.create::<Update>(json!({"metadata": {"name": "ahead"}, "spec": spec})).await;
        let is_running = |update: &Update| progress(update).pid.is_some();
        until_update(scene, "ahead", "to run", WaitLimit::Run, is_running).await;

        main.annotate(ANNOTATION_REQUESTED_AT, "queued").await;
        main.until("to have requested a run", WaitLimit::Reaction, |stack| {
            stack.status.as_ref().is_some_and(|status| status.current_update.is_some())
        })
        .await;
        main.annotate(ANNOTATION_CANCEL, "now").await;
        let canceled = main.until("to be canceled", WaitLimit::Reaction, is_canceled).await;
        let message = condition(&canceled, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert_eq!(message, "the run was canceled before it started");
        until_update(scene, "ahead", "to have ended", WaitLimit::Run, Update::is_complete).await;
        main.annotate(ANNOTATION_REQUESTED_AT, "again").await;
        main.until_applied(&commit).await;
    });
}
