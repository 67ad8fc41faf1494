//! Tests the controller in a fleet repository: installation, use, upgrade during a run, and removal. `tests/run` runs this
//! suite last, on a cluster without the controller.

mod fleet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::conditions::{STALLED, stack_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::harness::{
    Controller, File, Poll, Program, Scene, Source, StackHandle, WaitLimit, api_call, has_condition, in_scene, is_done,
    once, run_alone, wait_until,
};
use fleet::{Fleet, condition, documents, file, ready};

/// The image that the tests install, with two tags.
const IMAGE: &str = "localhost/pulumi-controller:dev";
const NEXT_IMAGE: &str = "localhost/pulumi-controller:next";

#[test]
fn a_fleet_repository_installs_upgrades_and_removes_the_controller() {
    run_alone(async || {
        in_scene("bootstrap", async |scene| {
            let mut fleet = Fleet::new(scene).await;
            let source = scene.source("app").await;
            install(scene, &mut fleet).await;
            let main = deploy_stack(scene, &mut fleet, &source).await;
            upgrade_during_run(scene, &mut fleet, &source, &main).await;
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
    for definition in definitions(scene).await {
        let prune = definition.annotations().get("kustomize.toolkit.fluxcd.io/prune").cloned();
        assert_eq!(prune.as_deref(), Some("disabled"), "{}", definition.name_any());
    }
    let deployment = deployment(scene).await.expect("the controller is installed");
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

/// Changes the image of the controller during a run. The run must succeed and must not be repeated.
async fn upgrade_during_run(scene: &Scene, fleet: &mut Fleet<'_>, source: &Source<'_>, main: &StackHandle<'_>) {
    let before = main.updates().await.len();
    let pod = main.pod_and_restarts().await;
    let commit = source.push(&program("two", 40).files()).await;
    main.log.wait_for("update", "step", "begin").await;
    fleet.image = Some(NEXT_IMAGE.to_owned());
    fleet.roll_out().await;
    Controller::new(&scene.client).until_available().await;
    let deployment = deployment(scene).await.expect("the controller is installed");
    let image = deployment.spec.and_then(|spec| spec.template.spec).and_then(|pod| pod.containers[0].image.clone());
    assert_eq!(image.as_deref(), Some(NEXT_IMAGE));
    assert!(!is_done(&main.get().await), "the run continues during the upgrade");
    main.until_applied(&commit).await;
    assert_eq!(main.updates().await.len(), before + 1);
    assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    assert_eq!(main.pod_and_restarts().await, pod, "the pod is not replaced during the run");
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
    wait_until("the controller to be deleted", WaitLimit::Reaction, async || match deployment(scene).await {
        None => Poll::Found(()),
        Some(_) => Poll::NotYet("object exists".to_owned()),
    })
    .await;
    assert_eq!(definitions(scene).await.len(), 5, "the CustomResourceDefinitions remain");
}

fn program(value: &str, seconds: u32) -> Program {
    Program::new("bootstrap").step("step", json!({"value": value, "seconds": seconds, "steps": seconds}))
}

/// Returns the file of the repository with the Stack and its source.
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

async fn deployment(scene: &Scene) -> Option<Deployment> {
    let deployments: Api<Deployment> = Api::namespaced(scene.client.clone(), "flux-system");
    api_call("reading the controller's Deployment", deployments.get_opt("pulumi-controller")).await
}

async fn definitions(scene: &Scene) -> Vec<CustomResourceDefinition> {
    let definitions: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    let all = api_call("listing definitions", definitions.list(&ListParams::default())).await.items;
    all.into_iter().filter(|definition| definition.spec.group.ends_with("pulumi.com")).collect()
}
