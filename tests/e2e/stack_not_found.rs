//! Tests runs of Pulumi stacks that the backend does not contain, and Stacks whose spec changes to another Pulumi stack.

use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{ORPHANED, READY, STALLED, orphaned_reason, stack_reason};
use pulumi_controller::api::names::{
    ANNOTATION_ACKNOWLEDGE, ANNOTATION_REQUESTED_AT, ANNOTATION_RESOLVE, STACK_FINALIZER, workspace_pod,
};
use pulumi_controller::api::pulumi::{ResourceRef, SecretSelector, Stack};
use serde_json::json;

use crate::harness::{
    Poll, Program, ProviderLog, Scene, StackHandle, WaitLimit, condition, has_condition, once, run, wait_until,
};
use crate::runs_parts::{in_pod, slow};

fn is_not_found(stack: &Stack) -> bool {
    has_condition(stack, STALLED, "True", stack_reason::STACK_NOT_FOUND)
        && has_condition(stack, READY, "False", stack_reason::STACK_NOT_FOUND)
}

fn last_update(stack: &Stack) -> String {
    stack.status.as_ref().and_then(|status| status.last_update.as_ref()?.name.clone()).expect("a run has ended")
}

fn stalled_message(stack: &Stack) -> String {
    condition(stack, STALLED).map(|stalled| stalled.message.clone()).unwrap_or_default()
}

/// Returns the messages of the Warning events about orphaned resources.
async fn orphaned(stack: &StackHandle<'_>) -> Vec<String> {
    let is_warning = |event: &Event| event.reason.as_deref() == Some("ResourcesOrphaned");
    stack.events().await.into_iter().filter(is_warning).filter_map(|event| event.message).collect()
}

#[test]
fn a_run_without_its_state_creates_the_resources_again_only_after_a_user_decision() {
    run("lost-state", async |scene| {
        let source = scene.source("app").await;
        let program = |value: &str| Program::new("lost-state").step("step", json!({"value": value})).files();
        let first = source.push(&program("one")).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let name = stack.spec.stack.clone();
        let main = scene.start(stack).await;
        let applied = main.until_applied(&first).await;
        assert_eq!(applied.status.and_then(|status| status.state_confirmed), Some(true));

        let remove = format!("pulumi stack rm --force --yes --preserve-config --stack {name}");
        in_pod(scene, "main", &format!("pulumi stack export --stack {name} --file /tmp/state.json && {remove}")).await;
        main.annotate(ANNOTATION_REQUESTED_AT, "lost").await;
        let lost = main.until("to report that the state is missing", WaitLimit::Run, is_not_found).await;
        let message = stalled_message(&lost);
        for word in [name.as_str(), "project lost-state", "s3://", "emptied", "=create", "=abandon"] {
            assert!(message.contains(word), "{word} is missing in {message}");
        }
        let import = format!(
            "pulumi stack init --no-select {name} && pulumi stack import --stack {name} --file /tmp/state.json"
        );
        in_pod(scene, "main", &import).await;
        main.annotate(ANNOTATION_REQUESTED_AT, "restored").await;
        main.until("to run with the restored state", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            has_condition(stack, READY, "True", stack_reason::PROCESSING_COMPLETED)
                && last.is_some_and(|last| last.inputs.requested_at.as_deref() == Some("restored"))
        })
        .await;
        assert_eq!(main.log.operations().await, once(&["create step"]));

        in_pod(scene, "main", &remove).await;
        let second = source.push(&program("two")).await;
        let lost = main.until("to report that the state is missing", WaitLimit::Run, is_not_found).await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "a new commit creates nothing");
        main.annotate(ANNOTATION_RESOLVE, &format!("{}=create", last_update(&lost))).await;
        main.until_applied(&second).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "create step", "delete step"]));
    });
}

#[test]
fn a_stack_destroys_the_resources_of_a_first_run_whose_update_was_removed_by_force() {
    run("lost-update", async |scene| {
        let source = scene.source("app").await;
        source.push(&slow("lost-update", 12).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.log.wait_for("create", "slow", "begin").await;
        main.delete().await;
        let update = main.updates().await.first().expect("the run has an Update").name_any();
        scene.delete::<Update>(&update).await;
        scene.patch::<Update>(&update, json!({"metadata": {"finalizers": null}})).await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create slow", "delete slow"]));
    });
}

#[test]
fn a_destroy_against_another_backend_waits_for_a_user_decision() {
    run("not-found", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("not-found").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        let url = stack.spec.backend.take().expect("the test environment sets a backend");
        scene.create::<Secret>(json!({"metadata": {"name": "backend"}, "stringData": {"url": url}})).await;
        let secret = Some(SecretSelector { namespace: None, name: "backend".to_owned(), key: "url".to_owned() });
        let reference = ResourceRef { kind: "Secret".to_owned(), secret, ..ResourceRef::default() };
        stack.spec.env_refs.insert("PULUMI_BACKEND_URL".to_owned(), reference);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        let applied = main.until_applied(&commit).await.status.and_then(|status| status.applied_stack);
        let applied = applied.and_then(|applied| applied.backend).expect("the agent reports the backend");
        let (bucket, query) = url.split_once('?').expect("the URL names the endpoint");
        assert!(applied.starts_with(bucket) && !applied.contains("s3ForcePathStyle"), "{applied}");

        let moved = format!("{bucket}/elsewhere?{query}");
        set_backend(scene, &moved).await;
        main.delete().await;
        let kept = main.until("to report that its Pulumi stack is not found", WaitLimit::Run, is_not_found).await;
        let (message, name) = (stalled_message(&kept), kept.spec.stack.clone());
        for word in [name.as_str(), "project not-found", &format!("{bucket}/elsewhere"), &applied, "=abandon"] {
            assert!(message.contains(word), "{word} is missing in {message}");
        }
        assert!(kept.finalizers().iter().any(|finalizer| finalizer == STACK_FINALIZER), "the finalizer is kept");
        assert_eq!(main.log.operations().await, once(&["create step"]), "no resource is destroyed");

        main.annotate(ANNOTATION_RESOLVE, &format!("{}=clear", last_update(&kept))).await;
        main.until("to reject the annotation", WaitLimit::Reaction, |stack| {
            is_not_found(stack) && stalled_message(stack).contains("there is no state to clear")
        })
        .await;

        set_backend(scene, &url).await;
        main.annotate(ANNOTATION_RESOLVE, &format!("{}=retry", last_update(&kept))).await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
    });
}

/// Changes the Secret with the backend URL. A new pod mounts the new content, and a running pod receives the new
/// content within two minutes.
async fn set_backend(scene: &Scene, url: &str) {
    scene.patch::<Secret>("backend", json!({"stringData": {"url": url}})).await;
    let pod = workspace_pod("main");
    let before = scene.list::<Pod>().await.into_iter().find(|found| found.name_any() == pod).and_then(|pod| pod.uid());
    scene.delete::<Pod>(&pod).await;
    wait_until("another pod", WaitLimit::Run, async || {
        let pods = scene.list::<Pod>().await;
        match pods.iter().find(|found| found.name_any() == pod && found.uid() != before) {
            Some(_) => Poll::Found(()),
            None => Poll::NotYet(format!("{:?}", pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>())),
        }
    })
    .await;
}

#[test]
fn resolving_with_abandon_deletes_the_stack_and_keeps_resources() {
    run("abandon", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("abandon").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let name = stack.spec.stack.clone();
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;

        main.change(json!({"spec": {"stack": format!("{name}-renamed"), "suspend": true}})).await;
        main.delete().await;
        main.change(json!({"spec": {"suspend": false}})).await;
        let kept = main.until("to report that its Pulumi stack is not found", WaitLimit::Run, is_not_found).await;
        let message = stalled_message(&kept);
        assert!(message.contains(&format!("stack {name}-renamed of project abandon")), "{message}");
        assert!(message.contains(&format!("this Stack last updated stack {name} of project abandon")), "{message}");
        main.annotate(ANNOTATION_RESOLVE, &format!("{}=abandon", last_update(&kept))).await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "the resources remain");
    });
}

#[test]
fn a_destroy_of_a_different_existing_stack_deletes_nothing() {
    run("another", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("another").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let before = stack.spec.stack.clone();
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        let applied = format!("{before}-renamed");
        main.change(json!({"spec": {"stack": applied}})).await;
        main.until_applied(&commit).await;

        main.change(json!({"spec": {"stack": before, "suspend": true}})).await;
        main.delete().await;
        main.change(json!({"spec": {"suspend": false}})).await;
        let kept = main.until("to report that the stack is not the applied stack", WaitLimit::Run, is_not_found).await;
        let message = stalled_message(&kept);
        assert!(message.contains(&format!("stack {before} of project another")), "{message}");
        assert!(message.contains("is not the stack that manages the resources"), "{message}");
        assert!(message.contains(&format!("this Stack last updated stack {applied} of project another")), "{message}");

        main.change(json!({"spec": {"stack": applied}})).await;
        main.annotate(ANNOTATION_RESOLVE, &format!("{}=retry", last_update(&kept))).await;
        main.until_gone().await;
        assert_eq!(ProviderLog::of(&before).operations().await, once(&["create step"]), "the other stack is unchanged");
        assert_eq!(ProviderLog::of(&applied).operations().await, once(&["create step", "delete step"]));
    });
}

#[test]
fn a_never_applied_stack_is_deleted_without_its_pulumi_stack() {
    run("never-applied", async |scene| {
        let source = scene.source("app").await;
        source.push(&Program::new("never-applied").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.use_local_stack_only = Some(true);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until("to have failed", WaitLimit::Run, |stack| {
            has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
        })
        .await;
        main.delete().await;
        main.until_gone().await;
        assert!(main.log.operations().await.is_empty());
    });
}

#[test]
fn changing_the_pulumi_stack_warns_once_about_remaining_resources() {
    run("renamed", async |scene| {
        let source = scene.source("app").await;
        let program = |project: &str| Program::new(project).step("step", json!({"value": "one"}));
        let commit = source.push(&program("renamed").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let name = stack.spec.stack.clone();
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        assert_eq!(orphaned(&main).await, [""; 0]);

        let renamed = format!("{name}-renamed");
        main.change(json!({"spec": {"stack": renamed}})).await;
        main.until_applied(&commit).await;
        let warnings = until_warned(&main, 1).await;
        assert!(
            warnings[0].contains(&format!("now manages stack {renamed} "))
                && warnings[0].contains(&format!("its resources in stack {name} of project renamed in backend s3://")),
            "{warnings:?}"
        );
        let listed = main.get().await.status.map(|status| status.orphaned_stacks).unwrap_or_default();
        let names: Vec<&str> = listed.iter().map(|orphaned| orphaned.pulumi_stack.name.as_str()).collect();
        assert_eq!(names, [name.as_str()]);
        main.until("to report the orphaned resources", WaitLimit::Reaction, |stack| {
            has_condition(stack, ORPHANED, "True", orphaned_reason::ACKNOWLEDGMENT_REQUIRED)
        })
        .await;
        main.annotate(ANNOTATION_ACKNOWLEDGE, &listed[0].id).await;
        main.until("to handle the acknowledgment", WaitLimit::Reaction, |stack| {
            condition(stack, ORPHANED).is_none()
                && stack.status.as_ref().is_some_and(|status| status.orphaned_stacks.is_empty())
        })
        .await;
        main.annotate(ANNOTATION_REQUESTED_AT, "again").await;
        main.until("to have run again", WaitLimit::Run, |stack| {
            stack.status.as_ref().and_then(|status| status.attempts) == Some(3) && condition(stack, STALLED).is_none()
        })
        .await;

        let commit = source.push(&program("other-project").files()).await;
        main.until_applied(&commit).await;
        let warnings = until_warned(&main, 2).await;
        assert!(warnings.iter().any(|warning| warning.contains("of project other-project")), "{warnings:?}");
        for stack in [name, renamed] {
            let log = ProviderLog::of(&stack);
            assert!(log.operations().await.iter().all(|operation| !operation.starts_with("delete")), "{stack}");
        }
    });
}

async fn until_warned(stack: &StackHandle<'_>, expected: usize) -> Vec<String> {
    wait_until(format!("{expected} warnings that resources remain"), WaitLimit::Reaction, async || {
        let warnings = orphaned(stack).await;
        if warnings.len() == expected { Poll::Found(warnings) } else { Poll::NotYet(format!("{warnings:?}")) }
    })
    .await
}
