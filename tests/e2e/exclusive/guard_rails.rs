//! Tests a controller with the `--pause` flag, and a controller with the `--max-destroys` flag.

use kube::ResourceExt;
use pulumi_controller::api::conditions::{READY, RECONCILING, STALLED, stack_reason};
use pulumi_controller::api::names::ANNOTATION_CONFIRM_DESTROY;
use serde_json::json;

use crate::harness::{
    Controller, Program, Scene, StackHandle, WaitLimit, client, condition, has_condition, in_scene, kubectl, once,
    run_alone, run_program, run_with_cleanup, try_kubectl,
};

#[test]
fn a_paused_controller_starts_no_run() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let before = controller.arguments().await;
        let test = async || {
            controller.start_with(&[before.as_slice(), &["--pause".to_owned()]].concat(), 1).await;
            in_scene("flag-pause", async |scene| {
                let source = scene.source("app").await;
                let commit = source.push(&Program::new("flag-pause").step("step", json!({})).files()).await;
                let main = scene.start(scene.stack("main", &source)).await;
                main.until("to be paused", WaitLimit::Run, |stack| {
                    has_condition(stack, RECONCILING, "True", stack_reason::PAUSED)
                })
                .await;
                assert!(main.log.operations().await.is_empty());
                controller.start_with(&before, 1).await;
                main.until_applied(&commit).await;
            })
            .await;
        };
        run_with_cleanup(test, async || controller.start_with(&before, 1).await).await;
    });
}

#[test]
fn too_many_destroys_wait_for_a_confirmation_also_after_a_restart() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let before = controller.arguments().await;
        let test = async || {
            controller.start_with(&[before.as_slice(), &["--max-destroys=1".to_owned()]].concat(), 1).await;
            in_scene("max-destroys", async |scene| confirm_destroys(scene, &controller).await).await;
        };
        run_with_cleanup(test, async || controller.start_with(&before, 1).await).await;
    });
}

async fn confirm_destroys(scene: &Scene, controller: &Controller) {
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("max-destroys").step("step", json!({})).files()).await;
    let mut stacks = Vec::new();
    for name in ["one", "two", "three"] {
        let mut stack = scene.stack(name, &source);
        stack.spec.destroy_on_finalize = Some(true);
        // A value that does not name the deletion confirms nothing.
        stack.metadata.annotations = Some([(ANNOTATION_CONFIRM_DESTROY.to_owned(), "true".to_owned())].into());
        stacks.push(scene.start(stack).await);
    }
    for stack in &stacks {
        stack.until_applied(&commit).await;
    }
    kubectl(&["--namespace", &scene.namespace, "delete", "stacks", "--all", "--wait=false"], "").await;
    // The test checks only the second and the third Stack, because the controller can start to destroy the first Stack
    // before it observes that the other Stacks are deleted.
    let waiting = async |stack: &StackHandle<'_>| {
        stack
            .until("to wait for a confirmation", WaitLimit::Run, |stack| {
                has_condition(stack, STALLED, "True", stack_reason::DESTROY_UNCONFIRMED)
            })
            .await
    };
    let [_, second, third] = stacks.as_slice() else { panic!("three Stacks") };
    waiting(third).await;
    waiting(second).await;
    controller.kill().await;
    controller.until_available().await;
    let message = condition(&waiting(third).await, READY).expect("Ready condition").message.clone();
    assert_eq!(third.log.operations().await, once(&["create step"]), "{message}");
    assert!(message.contains("\"true\" of the annotation does not confirm this destroy"), "{message}");
    let (_, command) = message.split_once("run: ").expect("a command");
    let (command, _) = command.split_once(". To keep").expect("another option");
    run_program("sh", &["-c", command], "").await;
    third.until_gone().await;
    assert_eq!(third.log.operations().await, once(&["create step", "delete step"]));
    assert_eq!(second.get().await.name_any(), "two", "another destroy still waits");
    second.change(json!({"spec": {"destroyOnFinalize": false}})).await;
    second.until_gone().await;
    assert_eq!(second.log.operations().await, once(&["create step"]));
    // Ignores an error, because the first Stack may no longer exist.
    let namespace = ["--namespace", scene.namespace.as_str()];
    let keep = ["patch", "stack", "one", "--type=merge", "--patch", r#"{"spec":{"destroyOnFinalize":false}}"#];
    drop(try_kubectl(&[namespace.as_slice(), &keep].concat(), "").await);
    stacks[0].until_gone().await;
}
