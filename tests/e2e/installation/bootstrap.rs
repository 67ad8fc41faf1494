//! Installs the controller through a fleet repository with the layout that `flux bootstrap` creates.

use kube::ResourceExt;
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::conditions::{STALLED, stack_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use super::fleet::{Fleet, condition, documents, file, ready};
use super::{
    IMAGE, NEXT_IMAGE, definitions, delete_definitions, deployment, program, until_removed, upgrade_during_run,
};
use crate::harness::{
    Controller, File, Poll, Scene, Source, StackHandle, WaitLimit, has_condition, in_scene, is_done, run_alone,
    wait_until,
};

#[test]
fn a_fleet_repository_installs_upgrades_and_removes_the_controller() {
    run_alone(async || {
        delete_definitions().await;
        in_scene("bootstrap", async |scene| {
            let mut fleet = Fleet::new(scene).await;
            let source = scene.source("app").await;
            install(scene, &mut fleet).await;
            let main = deploy_stack(scene, &mut fleet, &source).await;
            upgrade_during_run(scene, &source, &main, async || {
                fleet.image = Some(NEXT_IMAGE.to_owned());
                fleet.roll_out().await;
            })
            .await;
            remove(scene, &mut fleet).await;
            fleet.end().await;
        })
        .await;
    });
}

async fn install(scene: &Scene, fleet: &mut Fleet<'_>) {
    fleet.image = Some(IMAGE.to_owned());
    fleet.push().await;
    fleet.bootstrap().await;
    fleet.roll_out().await;
    Controller::new(&scene.client).until_available().await;
    for definition in definitions(&scene.client).await {
        let prune = definition.annotations().get("kustomize.toolkit.fluxcd.io/prune").cloned();
        assert_eq!(prune.as_deref(), Some("disabled"), "{}", definition.name_any());
    }
    let deployment = deployment(&scene.client).await.expect("the controller is installed");
    let labels = deployment.labels().clone();
    assert_eq!(labels.get("app.kubernetes.io/part-of").map(String::as_str), Some("pulumi-controller"));
}

/// Adds a second Kustomization, which applies a source and a Stack and checks their health.
async fn deploy_stack<'a>(scene: &'a Scene, fleet: &mut Fleet<'_>, source: &Source<'_>) -> StackHandle<'a> {
    let commit = source.push_without_notification(&program("one", 10).files()).await;
    let stack = scene.stack("main", source);
    let app = |stack: &Stack| vec![app(scene, source, stack)];
    fleet.apps = Some(app(&stack));
    fleet.roll_out().await;
    let is_working = |status: &Value| condition(status, "Reconciling").is_some_and(|c| c["status"] == "True");
    fleet.until_kustomization("apps", WaitLimit::Run, "to wait for the run", is_working).await;
    let main = scene.stack_handle("main", &stack);
    main.log.wait_for("create", "step", "begin").await;
    let status = fleet.until_kustomization("apps", WaitLimit::Reaction, "to report its health", |_| true).await;
    assert_ne!(ready(&status), Some("True"), "the run continues: {:#}", status["conditions"]);
    fleet.until_kustomization("apps", WaitLimit::Run, "to be healthy", |status| ready(status) == Some("True")).await;
    assert!(is_done(&main.get().await));
    main.until_applied(&commit).await;

    let mut invalid = stack.clone();
    invalid.spec.depends_on = vec![serde_json::from_value(json!({"name": "main"})).expect("a reference")];
    fleet.apps = Some(app(&invalid));
    fleet.roll_out().await;
    main.until("to be stalled", WaitLimit::Run, |stack| {
        has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID)
    })
    .await;
    let failed = |status: &Value| {
        condition(status, "Ready").is_some_and(|c| c["status"] == "False" && c["reason"] == "HealthCheckFailed")
    };
    let status = fleet.until_kustomization("apps", WaitLimit::Run, "to be unhealthy", failed).await;
    let message = condition(&status, "Ready").map(|c| c["message"].to_string()).unwrap_or_default();
    assert!(message.contains("Stack/") && message.contains("Failed"), "{message}");

    fleet.apps = Some(app(&stack));
    fleet.roll_out().await;
    fleet
        .until_kustomization("apps", WaitLimit::Run, "to be healthy again", |status| ready(status) == Some("True"))
        .await;
    main
}

async fn remove(scene: &Scene, fleet: &mut Fleet<'_>) {
    fleet.apps = None;
    fleet.roll_out().await;
    fleet.until_gone("apps").await;
    wait_until("all objects of the apps to be deleted", WaitLimit::Run, async || {
        let (stacks, workspaces) = (scene.list::<Stack>().await, scene.list::<Workspace>().await);
        match stacks.is_empty() && workspaces.is_empty() {
            true => Poll::Found(()),
            false => Poll::NotYet(format!("{} Stacks, {} Workspaces", stacks.len(), workspaces.len())),
        }
    })
    .await;

    fleet.image = None;
    fleet.roll_out().await;
    until_removed(&scene.client).await;
    assert_eq!(definitions(&scene.client).await.len(), 6, "the CustomResourceDefinitions remain");
}

/// Returns the repository file that contains the Stack and its source.
fn app(scene: &Scene, source: &Source<'_>, stack: &Stack) -> File {
    let mut stack = serde_json::to_value(stack).expect("a Stack is JSON");
    stack["metadata"]["namespace"] = json!(scene.namespace);
    let repository = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
        "metadata": {"name": source.name, "namespace": scene.namespace},
        "spec": {"url": source.url(), "interval": "1h", "timeout": "30s", "ref": {"branch": "main"}},
    });
    file("apps/app.yaml".to_owned(), documents(&[repository, stack]))
}
