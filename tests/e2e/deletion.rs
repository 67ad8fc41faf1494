//! Stacks that are deleted.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::ResourceExt;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{READY, stack_reason};
use serde_json::json;

use crate::harness::{Look, Patience, Program, STATE_SECRET, Scene, condition, once, run, wait_until};

#[test]
fn deleting_a_stack_with_destroy_on_finalize_destroys() {
    run("destroy", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("destroy").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.sentences().await, once(&["create step", "delete step"]));
        until_nothing_of_ours_is_left(scene).await;
    });
}

#[test]
fn deleting_a_stack_without_it_leaves_its_resources() {
    run("leave", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("leave").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        main.delete().await;
        main.until_gone().await;
        until_nothing_of_ours_is_left(scene).await;
        assert_eq!(main.log.sentences().await, once(&["create step"]), "nothing was destroyed");
    });
}

#[test]
fn a_stack_that_never_ran_goes_away_at_once() {
    run("never-ran", async |scene| {
        let mut stack = scene.stack_on("main", "not-there");
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until("to say that its source is not there", Patience::Reaction, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.reason == stack_reason::SOURCE_UNAVAILABLE)
        })
        .await;
        main.delete().await;
        main.until_gone().await;
        until_nothing_of_ours_is_left(scene).await;
    });
}

#[test]
fn a_stack_deleted_during_a_run_waits_for_it_and_destroys_then() {
    run("delete-in-run", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("delete-in-run").step("slow", json!({"seconds": 6, "steps": 6}));
        source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.log.wait_for("create", "slow", "begin").await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(
            main.log.sentences().await,
            once(&["create slow", "delete slow"]),
            "the run was not cut, and what it made is gone"
        );
        until_nothing_of_ours_is_left(scene).await;
    });
}

#[test]
fn a_failed_destroy_keeps_the_stack_and_says_why() {
    run("failed-destroy", async |scene| {
        let source = scene.source("app").await;
        let commit =
            source.push(&Program::new("failed-destroy").step("step", json!({"failOn": "delete"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        main.delete().await;
        main.until("to say why it cannot be destroyed", Patience::Run, |stack| {
            condition(stack, READY)
                .is_some_and(|ready| ready.status == "False" && ready.message.contains("failOn is delete"))
        })
        .await;
        let failed = main.log.events("&operation=delete&phase=failed").await;
        assert!(
            !failed.is_empty() && failed.iter().all(|event| event.error.contains("failOn is delete")),
            "{failed:?}"
        );

        // A person decides that the resources may stay.
        main.change(json!({"spec": {"destroyOnFinalize": false}})).await;
        main.until_gone().await;
        until_nothing_of_ours_is_left(scene).await;
    });
}

async fn until_nothing_of_ours_is_left(scene: &Scene) {
    wait_until("everything that was made for the Stack to be gone", Patience::Reaction, async || {
        let mut left = Vec::new();
        left.extend(scene.list::<Workspace>().await.iter().map(|o| format!("Workspace {}", o.name_any())));
        left.extend(scene.list::<Update>().await.iter().map(|o| format!("Update {}", o.name_any())));
        left.extend(scene.list::<StatefulSet>().await.iter().map(|o| format!("StatefulSet {}", o.name_any())));
        left.extend(scene.list::<Service>().await.iter().map(|o| format!("Service {}", o.name_any())));
        left.extend(scene.list::<Pod>().await.iter().map(|o| format!("Pod {}", o.name_any())));
        let secrets = scene.list::<Secret>().await;
        left.extend(secrets.iter().map(|o| o.name_any()).filter(|n| n != STATE_SECRET).map(|n| format!("Secret {n}")));
        if left.is_empty() { Look::Found(()) } else { Look::NotYet(left.join(", ")) }
    })
    .await;
}
