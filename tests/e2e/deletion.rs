//! Tests the deletion of Stacks.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::api::{DeleteParams, PropagationPolicy};
use kube::{Api, ResourceExt};
use pulumi_controller::api::auto::{Update, UpdateKind, Workspace};
use pulumi_controller::api::conditions::{READY, RECONCILING, STALLED, stack_reason};
use pulumi_controller::api::names::STACK_FINALIZER;
use pulumi_controller::api::pulumi::{DependencyReference, PrerequisiteReference, Stack};
use serde_json::json;

use crate::harness::{
    GitRepository, Poll, Program, STATE_SECRET, Scene, StackHandle, WaitLimit, api_call, condition, once, run,
    wait_until,
};

#[test]
fn deleting_a_stack_with_destroy_on_finalize_destroys_its_resources() {
    run("destroy", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("destroy").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
        until_objects_are_deleted(scene).await;
        main.until_event("StackDestroyed").await;
    });
}

#[test]
fn deleting_a_stack_without_destroy_on_finalize_keeps_resources() {
    run("leave", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("leave").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        main.delete().await;
        main.until_gone().await;
        until_objects_are_deleted(scene).await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "no resource is destroyed");
    });
}

#[test]
fn a_stack_that_never_ran_is_deleted_immediately() {
    run("never-ran", async |scene| {
        let mut stack = scene.stack_on("main", "not-there");
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until("to report that its source does not exist", WaitLimit::Reaction, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.reason == stack_reason::SOURCE_UNAVAILABLE)
        })
        .await;
        main.delete().await;
        main.until_gone().await;
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn a_stack_deleted_during_a_run_is_destroyed_after_the_run() {
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
            main.log.operations().await,
            once(&["create slow", "delete slow"]),
            "the run completes and its resources are deleted"
        );
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn a_failed_destroy_keeps_the_stack_and_reports_the_reason() {
    run("failed-destroy", async |scene| {
        let source = scene.source("app").await;
        let commit =
            source.push(&Program::new("failed-destroy").step("step", json!({"failOn": "delete"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        main.delete().await;
        main.until("to report why it cannot be destroyed", WaitLimit::Run, |stack| {
            condition(stack, READY)
                .is_some_and(|ready| ready.status == "False" && ready.message.contains("failOn is delete"))
        })
        .await;
        let failed = main.log.events("&operation=delete&phase=failed").await;
        assert!(
            !failed.is_empty() && failed.iter().all(|event| event.error.contains("failOn is delete")),
            "{failed:?}"
        );

        // The user disables `destroyOnFinalize` to keep the resources.
        main.change(json!({"spec": {"destroyOnFinalize": false}})).await;
        main.until_gone().await;
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn a_failed_destroy_backs_off_until_destroy_on_finalize_is_disabled() {
    run("destroy-again", async |scene| {
        let source = scene.source("app").await;
        let program = |fail: &str| Program::new("destroy-again").step("step", json!({"failOn": fail}));
        let commit = source.push(&program("delete").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        main.delete().await;
        let stack = main
            .until("to have failed twice", WaitLimit::Run, |stack| {
                let last = stack.status.as_ref().and_then(|status| status.last_update.clone()).unwrap_or_default();
                last.kind.as_deref() == Some("destroy") && last.failures == 2
            })
            .await;
        assert!(stack.finalizers().iter().any(|finalizer| finalizer == STACK_FINALIZER), "the finalizer is kept");
        let retry = condition(&stack, RECONCILING).expect("Reconciling condition").message.clone();
        assert!(retry.contains("2 destroy failure(s); next retry at 20"), "{retry}");
        // A destroy does not run the program, so a push cannot fix the failure. The user therefore disables
        // `destroyOnFinalize`.
        main.change(json!({"spec": {"destroyOnFinalize": false}})).await;
        main.until_gone().await;
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn a_stack_with_a_deleted_source_is_destroyed_with_the_copy_in_its_pod() {
    run("source-gone", async |scene| {
        let main = applied(scene, "source-gone").await;
        scene.delete::<GitRepository>("app").await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn a_stack_without_source_and_workspace_is_destroyed_from_its_state() {
    run("state-alone", async |scene| {
        let main = applied(scene, "state-alone").await;
        let known = main.get().await.status.and_then(|status| status.project_info).expect("the project is known");
        assert_eq!((known.name.as_str(), known.runtime.as_str()), ("state-alone", "yaml"));
        scene.delete::<GitRepository>("app").await;
        scene.delete::<Workspace>("main").await;
        scene.until_gone::<Workspace>("main", WaitLimit::Run).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
        let runs = scene.timeline.states_of::<Update>();
        let destroy = runs.iter().find(|update| update.spec.kind == UpdateKind::Destroy).expect("the destroy Update");
        let source = destroy.spec.artifact.as_ref().map(|artifact| artifact.revision.as_str());
        assert_eq!(source, Some("state-alone"));
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn foreground_deletion_destroys_resources_before_it_deletes_objects() {
    run("foreground", async |scene| {
        let main = applied(scene, "foreground").await;
        delete_as(scene, "main", &DeleteParams::foreground()).await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn foreground_deletion_during_a_run_destroys_resources_after_the_run() {
    run("foreground-run", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("foreground-run").step("slow", json!({"seconds": 6, "steps": 6}));
        source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.log.wait_for("create", "slow", "begin").await;
        delete_as(scene, "main", &DeleteParams::foreground()).await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create slow", "delete slow"]), "the run is not interrupted");
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn orphan_deletion_destroys_resources_and_leaves_no_owned_objects() {
    run("orphan", async |scene| {
        let main = applied(scene, "orphan").await;
        let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
        delete_as(scene, "main", &orphan).await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn a_deleted_suspended_stack_is_destroyed_when_it_is_resumed() {
    run("delete-suspended", async |scene| {
        let main = applied(scene, "delete-suspended").await;
        main.change(json!({"spec": {"suspend": true}})).await;
        main.delete().await;
        main.until("to report the pending destroy", WaitLimit::Reaction, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.message.contains("to destroy the resources"))
        })
        .await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "no destroy has started");
        main.change(json!({"spec": {"suspend": false}})).await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn the_pulumi_stack_is_removed_from_the_backend_only_on_request() {
    run("remove-stack", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("remove-stack").step("step", json!({"value": "one"})).files()).await;
        let rows = [("kept", None, true), ("removed", Some(true), false)];
        for (name, remove_stack, is_there) in rows {
            let mut stack = scene.stack(name, &source);
            stack.spec.destroy_on_finalize = Some(true);
            stack.spec.remove_stack = remove_stack;
            let first = scene.start(stack).await;
            first.until_applied(&commit).await;
            first.delete().await;
            first.until_gone().await;
            assert_eq!(first.log.operations().await, once(&["create step", "delete step"]), "{name}");

            // The run of a Stack with `useLocalStackOnly` succeeds only if the Pulumi stack still exists.
            let mut stack = scene.stack(name, &source);
            stack.spec.use_local_stack_only = Some(true);
            let second = scene.start(stack).await;
            match is_there {
                true => drop(second.until_applied(&commit).await),
                false => drop(
                    second
                        .until("to find no stack in the backend", WaitLimit::Run, |stack| {
                            condition(stack, READY)
                                .is_some_and(|ready| ready.message.contains("not found in the backend"))
                        })
                        .await,
                ),
            }
        }
    });
}

#[test]
fn deletion_waits_only_for_dependents_that_are_also_being_deleted() {
    run("delete-order", async |scene| {
        let source = scene.source("app").await;
        let step = |seconds: u32| json!({"value": "one", "seconds": seconds, "steps": seconds});
        let commit = source.push(&Program::new("delete-order").step("step", step(3)).files()).await;
        let mut base = scene.stack("base", &source);
        base.spec.destroy_on_finalize = Some(true);
        let base = scene.start(base).await;
        base.until_applied(&commit).await;
        let needs_base = || vec![DependencyReference { name: "base".to_owned(), namespace: None, ready_expr: None }];
        let mut top = scene.stack("top", &source);
        top.spec.destroy_on_finalize = Some(true);
        top.spec.depends_on = needs_base();
        let top = scene.start(top).await;
        top.until_applied(&commit).await;
        let mut stays = scene.stack("stays", &source);
        stays.spec.prerequisites = vec![PrerequisiteReference { name: "base".to_owned(), requirement: None }];
        let stays = scene.start(stays).await;
        stays.until_applied(&commit).await;

        base.delete().await;
        top.delete().await;
        base.until("to wait for its dependents", WaitLimit::Reaction, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.message.contains("waiting for dependent Stacks: top"))
        })
        .await;
        assert_eq!(
            base.log.operations().await,
            once(&["create step"]),
            "the base is not destroyed before its dependent"
        );
        top.until_gone().await;
        base.until_gone().await;
        assert_eq!(base.log.operations().await, once(&["create step", "delete step"]));
        assert_eq!(stays.log.operations().await, once(&["create step"]), "the Stack was not deleted");
        assert!(stays.get().await.metadata.deletion_timestamp.is_none());
    });
}

#[test]
fn a_stack_in_a_terminating_namespace_stalls_and_is_kept() {
    run("terminating", async |_| {
        let scene = Scene::new("terminating-too").await;
        let main = applied(&scene, "terminating").await;
        let namespaces: Api<Namespace> = Api::all(scene.client.clone());
        let action = format!("deleting the namespace {}", scene.namespace);
        api_call(action, namespaces.delete(&scene.namespace, &DeleteParams::default())).await;
        let stack = main
            .until("to report that its namespace is terminating", WaitLimit::Run, |stack| {
                condition(stack, STALLED).is_some_and(|stalled| stalled.reason == stack_reason::NAMESPACE_TERMINATING)
            })
            .await;
        assert!(stack.finalizers().iter().any(|finalizer| finalizer == STACK_FINALIZER), "the finalizer is kept");
        assert_eq!(main.log.operations().await, once(&["create step"]), "no run can start");
        let text = condition(&stack, STALLED).expect("Stalled condition").message.clone();
        assert!(text.contains("remove the finalizer") || text.contains("terminating namespace"), "{text}");

        // The user disables `destroyOnFinalize` to keep the resources.
        main.change(json!({"spec": {"destroyOnFinalize": false}})).await;
        wait_until("the namespace to be deleted", WaitLimit::Run, async || {
            match namespaces.get_opt(&scene.namespace).await {
                Ok(None) => Poll::Found(()),
                Ok(Some(namespace)) => Poll::NotYet(format!("{:?}", namespace.status)),
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await;
    });
}

#[test]
fn a_foreign_workspace_of_the_same_name_is_not_changed_or_deleted() {
    run("foreign-workspace", async |scene| {
        let source = scene.source("app").await;
        source.push(&Program::new("foreign").step("step", json!({"value": "one"})).files()).await;
        scene.create::<Workspace>(json!({"metadata": {"name": "main"}, "spec": {"image": scene.pulumi_image()}})).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until("to report the name conflict", WaitLimit::Reaction, |stack| {
            condition(stack, STALLED).is_some_and(|stalled| stalled.message.contains("is not owned by this Stack"))
        })
        .await;
        main.delete().await;
        main.until_gone().await;
        let workspace = main.workspace().await;
        assert!(workspace.metadata.deletion_timestamp.is_none() && workspace.spec.artifact.is_none());
        scene.delete::<Workspace>("main").await;
        scene.until_gone::<Workspace>("main", WaitLimit::Run).await;
    });
}

/// Creates a Stack with `destroyOnFinalize` and waits until its resource exists.
async fn applied<'a>(scene: &'a Scene, project: &str) -> StackHandle<'a> {
    let source = scene.source("app").await;
    let commit = source.push(&Program::new(project).step("step", json!({"value": "one"})).files()).await;
    let mut stack = scene.stack("main", &source);
    stack.spec.destroy_on_finalize = Some(true);
    let main = scene.start(stack).await;
    main.until_applied(&commit).await;
    main
}

async fn delete_as(scene: &Scene, name: &str, how: &DeleteParams) {
    api_call(format!("deleting the Stack {name}"), scene.api::<Stack>().delete(name, how)).await;
}

async fn until_objects_are_deleted(scene: &Scene) {
    wait_until("all objects of the Stack to be deleted", WaitLimit::Reaction, async || {
        let mut left = Vec::new();
        left.extend(scene.list::<Workspace>().await.iter().map(|o| format!("Workspace {}", o.name_any())));
        left.extend(scene.list::<Update>().await.iter().map(|o| format!("Update {}", o.name_any())));
        left.extend(scene.list::<StatefulSet>().await.iter().map(|o| format!("StatefulSet {}", o.name_any())));
        left.extend(scene.list::<Service>().await.iter().map(|o| format!("Service {}", o.name_any())));
        left.extend(scene.list::<Pod>().await.iter().map(|o| format!("Pod {}", o.name_any())));
        let secrets = scene.list::<Secret>().await;
        left.extend(secrets.iter().map(|o| o.name_any()).filter(|n| n != STATE_SECRET).map(|n| format!("Secret {n}")));
        if left.is_empty() { Poll::Found(()) } else { Poll::NotYet(left.join(", ")) }
    })
    .await;
}
