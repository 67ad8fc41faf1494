//! Runs with each backend.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::conditions::{READY, RECONCILING, stack_reason, update_reason};
use pulumi_controller::api::names::workspace_pod;
use serde_json::json;

use super::backend::Backend;
use crate::harness::{Program, Scene, StackHandle, WaitLimit, condition, has_condition, once};
use crate::runs_parts::{failure, in_pod, progress, read, until_update};

/// Duration of a slow operation in seconds. The tests interfere with the run during this operation.
const SLOW: u32 = 60;

fn program(project: &str, value: &str, seconds: u32) -> Program {
    Program::new(project).step("step", json!({"value": value, "seconds": seconds, "steps": seconds.max(1)}))
}

/// Checks two pushes, a failing program, the corrected program, and a destroy.
pub async fn push_to_destroy(scene: &Scene, backend: Backend) {
    let state = backend.prepare(scene).await;
    let source = scene.source("app").await;
    let project = "push-to-destroy";
    let first = source.push(&program(project, "one", 0).files()).await;
    let main = scene.start(state.stack("main", &source)).await;
    main.until_applied(&first).await;

    let second = source.push(&program(project, "two", 0).files()).await;
    main.until_applied(&second).await;
    assert_eq!(main.log.operations().await, once(&["create step", "update step"]));

    let failing = Program::new(project).step("step", json!({"value": "three", "failOn": "update"}));
    source.push(&failing.files()).await;
    let failed = main
        .until("to report that its update failed", WaitLimit::Run, |stack| {
            has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
                && has_condition(stack, RECONCILING, "True", stack_reason::RETRYING_AFTER_FAILURE)
        })
        .await;
    let message = condition(&failed, READY).map(|ready| ready.message.clone()).unwrap_or_default();
    assert!(message.contains("updating step: the input failOn is update"), "{message}");

    let fourth = source.push(&program(project, "four", 0).files()).await;
    main.until_applied(&fourth).await;
    state.destroy(&main).await;
    let mut operations = main.log.operations().await;
    // Ignores the number of failed retries, because this number depends on the time until the next push.
    operations.retain(|operation| operation != "update step failed");
    operations.dedup();
    let expected = [once(&["create step", "update step"]), once(&["update step"]), once(&["delete step"])].concat();
    assert_eq!(operations, expected, "the destroyed resource is in the state");
}

/// Checks a run while another CLI holds the lock.
pub async fn foreign_lock(scene: &Scene, backend: Backend) {
    let state = backend.prepare(scene).await;
    let source = scene.source("app").await;
    let project = "foreign-lock";
    let first = source.push(&program(project, "one", 0).files()).await;
    let main = scene.start(state.stack("main", &source)).await;
    let stack = main.until_applied(&first).await.spec.stack;
    let foreign = program(project, "foreign", SLOW).files();
    let command = format!("pulumi up --yes --skip-preview --stack {stack}");
    state.start_cli("laptop", &foreign, &command).await;
    main.log.wait_for("update", "step", "begin").await;

    let second = source.push(&program(project, "two", 0).files()).await;
    let locked = main
        .until("to report the holder of the lock", WaitLimit::Run, |stack| {
            has_condition(stack, READY, "False", stack_reason::UPDATE_CONFLICT)
                && has_condition(stack, RECONCILING, "True", stack_reason::UPDATE_CONFLICT)
        })
        .await;
    let message = condition(&locked, READY).map(|ready| ready.message.clone()).unwrap_or_default();
    assert!(message.contains("@laptop (pid ") && message.contains(" since "), "{message}");

    state.until_cli_succeeded("laptop").await;
    let applied = main.until_applied_within(WaitLimit::Long, &second).await;
    assert_eq!(applied.status.and_then(|status| status.last_update).map(|last| last.failures), Some(0));
    assert_eq!(main.log.operations().await, once(&["create step", "update step", "update step"]));
    state.destroy(&main).await;
}

/// Kills the CLI during a run, and checks that the Stack recovers although the killed CLI's lock remains.
pub async fn killed_run(scene: &Scene, backend: Backend) {
    let state = backend.prepare(scene).await;
    let source = scene.source("app").await;
    let project = "killed-run";
    let first = source.push(&program(project, "one", 0).files()).await;
    let main = scene.start(state.stack("main", &source)).await;
    main.until_applied(&first).await;
    let second = source.push(&program(project, "two", 15).files()).await;
    main.log.wait_for("update", "step", "begin").await;
    let killed = kill_open_run(scene, &main).await;

    let applied = main.until_applied_within(WaitLimit::Long, &second).await;
    assert_eq!(applied.status.and_then(|status| status.last_update).map(|last| last.failures), Some(0));
    let killed = read(scene, &killed).await;
    let interrupted = killed.status.as_ref().and_then(|status| status.interrupted);
    assert_eq!((failure(&killed), interrupted), (Some(update_reason::ABORTED), Some(true)));
    let log = main.pod_log("pulumi").await;
    assert!(log.contains("removed the lock of a run that has ended"), "the agent removed no lock: {log}");
    let mut operations = main.log.operations().await;
    // The provider can report a cancellation after the CLI has exited, so this event is optional.
    operations.retain(|operation| operation != "update step cancelled");
    let expected =
        ["create step begin", "create step done", "update step begin", "update step begin", "update step done"];
    assert_eq!(operations, expected);
    assert_eq!(main.updates().await.len(), 3, "the run is retried once");
    state.destroy(&main).await;
}

/// Kills the CLI of the open run with SIGKILL, and returns the name of the Update.
async fn kill_open_run(scene: &Scene, main: &StackHandle<'_>) -> String {
    let open = main.get().await.status.and_then(|status| status.current_update).expect("an open run").name;
    let update =
        until_update(scene, &open, "to report its process", WaitLimit::Run, |update| progress(update).pid.is_some())
            .await;
    let pid = progress(&update).pid.expect("the value is set");
    in_pod(scene, &main.name, &format!("kill -9 {pid}")).await;
    open
}

/// Checks a run in a new pod.
pub async fn replaced_pod(scene: &Scene, backend: Backend) {
    let state = backend.prepare(scene).await;
    let source = scene.source("app").await;
    let project = "replaced-pod";
    let first = source.push(&program(project, "one", 0).files()).await;
    let main = scene.start(state.stack("main", &source)).await;
    main.until_applied(&first).await;
    let pod = main.pod().await.uid();
    scene.delete::<Pod>(&workspace_pod("main")).await;
    let second = source.push(&program(project, "two", 0).files()).await;
    main.until_applied_within(WaitLimit::Long, &second).await;
    assert_ne!(main.pod().await.uid(), pod);
    assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    state.destroy(&main).await;
}
