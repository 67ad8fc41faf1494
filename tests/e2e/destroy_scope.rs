//! Tests that the destroy run of a deleted Stack deletes all resources in its own Pulumi stack, and no resources in
//! other Pulumi stacks.

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::conditions::{READY, stack_reason};
use pulumi_controller::api::pulumi::{ResourceRef, SecretSelector, Stack};
use serde_json::json;

use crate::harness::{Program, Scene, WaitLimit, has_condition, once, run};
use crate::runs_parts::{in_pod, slow};

/// Moves the backend URL from the spec to a Secret that only the agent reads.
async fn with_backend_in_secret(scene: &Scene, mut stack: Stack) -> Stack {
    let url = stack.spec.backend.take().expect("the test environment sets a backend");
    scene.create::<Secret>(json!({"metadata": {"name": "backend"}, "stringData": {"url": url}})).await;
    let secret = Some(SecretSelector { namespace: None, name: "backend".to_owned(), key: "url".to_owned() });
    let reference = ResourceRef { kind: "Secret".to_owned(), secret, ..ResourceRef::default() };
    stack.spec.env_refs.insert("PULUMI_BACKEND_URL".to_owned(), reference);
    stack
}

#[test]
fn a_stack_that_never_applied_does_not_destroy_another_stacks_resources() {
    run("scope-failed", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("scope").step("step", json!({"value": "one"})).files()).await;
        let owner = scene.start(scene.stack("owner", &source)).await;
        owner.until_applied(&commit).await;

        let mut stack = with_backend_in_secret(scene, scene.stack("other", &source)).await;
        stack.spec.stack.clone_from(&owner.get().await.spec.stack);
        stack.spec.destroy_on_finalize = Some(true);
        let other = scene.start(stack).await;
        let has_conflict = |stack: &Stack| has_condition(stack, READY, "False", stack_reason::UPDATE_CONFLICT);
        other.until("to report the conflict", WaitLimit::Run, has_conflict).await;
        other.delete().await;
        other.until_gone().await;
        assert_eq!(owner.log.operations().await, once(&["create step"]), "the resources of the other Stack remain");
    });
}

#[test]
fn a_stack_renamed_during_its_destroy_is_not_destroyed_twice() {
    run("scope-renamed", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("scope-renamed", 10).files()).await;
        let owner = scene.start(scene.stack("owner", &source)).await;
        owner.until_applied(&commit).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;

        main.delete().await;
        main.log.wait_for("delete", "slow", "begin").await;
        main.change(json!({"spec": {"stack": owner.get().await.spec.stack}})).await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create slow", "delete slow"]));
        assert_eq!(owner.log.operations().await, once(&["create slow"]), "the resources of the other Stack remain");
    });
}

#[test]
fn a_destroy_ignores_the_targets_of_the_update_template() {
    run("scope-targets", async |scene| {
        let source = scene.source("app").await;
        let program =
            Program::new("scope-targets").step("a", json!({"value": "one"})).step("b", json!({"value": "one"}));
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;

        let target = json!({"spec": {"target": ["**::a"]}});
        main.change(json!({"spec": {"suspend": true, "updateTemplate": target}})).await;
        main.delete().await;
        main.change(json!({"spec": {"suspend": false}})).await;
        main.until_gone().await;
        let deleted = main.log.operations().await.into_iter().filter(|operation| operation.contains("delete")).count();
        assert_eq!(deleted, once(&["delete a", "delete b"]).len(), "{:?}", main.log.operations().await);
    });
}

#[test]
fn the_backend_of_an_interrupted_run_is_recorded() {
    run("scope-killed", async |scene| {
        let source = scene.source("app").await;
        source.push(&slow("scope-killed", 300).files()).await;
        let stack = with_backend_in_secret(scene, scene.stack("main", &source)).await;
        let main = scene.start(stack).await;
        main.log.wait_for("create", "slow", "begin").await;
        // The script kills the child processes of PID 1. PID 1 then restarts the agent.
        in_pod(
            scene,
            "main",
            "for p in $(grep -l '^PPid:.1$' /proc/[0-9]*/status); do p=${p%/status}; kill -9 ${p##*/}; done",
        )
        .await;
        let is_recorded = |stack: &Stack| {
            let applied = stack.status.as_ref().and_then(|status| status.applied_stack.as_ref());
            applied.is_some_and(|applied| applied.backend.is_some() && applied.project.is_some())
        };
        main.until("to record the Pulumi stack of the interrupted run", WaitLimit::Run, is_recorded).await;
        main.change(json!({"spec": {"suspend": true}})).await;
    });
}
