//! Installs the controller with an Argo CD Application, and applies and deletes Stacks with another Application.
//! `docs/guides/argo-cd.md` describes both procedures.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use pulumi_controller::api::names::ANNOTATION_REQUESTED_AT;
use pulumi_controller::api::pulumi::{Program as ProgramObject, Stack};
use serde_json::{Value, json};

use super::application::{self, Application, objects};
use super::fleet::{documents, file};
use super::{IMAGE, Installer, check, delete_definitions, manifest_files, project_path, until_removed};
use crate::examples;
use crate::harness::{
    Commit, Controller, Program, Scene, Source, StackHandle, WaitLimit, client, in_scene, is_done, kubectl, once,
    run_alone, run_with_cleanup,
};

struct ArgoCd<'a> {
    repository: Source<'a>,
    /// Commit that contains this project's manifests.
    commit: Commit,
    application: Application,
}

impl<'a> ArgoCd<'a> {
    async fn new(scene: &'a Scene) -> ArgoCd<'a> {
        let repository = scene.source("manifests").await;
        let commit = repository.push_without_notification(&manifest_files(&project_path(""))).await;
        ArgoCd { repository, commit, application: Application::new(&scene.client, "pulumi-controller") }
    }
}

impl Installer for ArgoCd<'_> {
    async fn apply(&self, image: &str) {
        let annotations = json!({"argocd.argoproj.io/sync-options": "Prune=false,Delete=false"});
        let patch = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "all", "annotations": annotations},
        });
        let kustomize = json!({
            "images": [format!("localhost/pulumi-controller={image}")],
            "patches": [{"target": {"kind": "CustomResourceDefinition"}, "patch": patch.to_string()}],
        });
        let path = "kustomize/overlays/flux-system";
        self.application.apply(spec(&self.repository, path, super::NAMESPACE, &json!({"kustomize": kustomize}))).await;
    }

    async fn remove(&self) {
        self.application.delete().await;
        self.application.until_gone().await;
    }
}

/// Returns the spec of an Application that automatically applies the manifests from a repository directory.
fn spec(repository: &Source<'_>, path: &str, namespace: &str, options: &Value) -> Value {
    let mut source = json!({"repoURL": repository.url(), "targetRevision": "main", "path": path});
    for (name, value) in options.as_object().into_iter().flatten() {
        source[name] = value.clone();
    }
    // With few retries, a sync operation for a previous commit ends soon.
    let retry = json!({"limit": 1, "backoff": {"duration": "1s", "factor": 1, "maxDuration": "1s"}});
    json!({
        "project": "default",
        "source": source,
        "destination": {"server": "https://kubernetes.default.svc", "namespace": namespace},
        "syncPolicy": {"automated": {"prune": true, "selfHeal": true}, "retry": retry},
    })
}

#[test]
fn argo_cd_installs_upgrades_and_removes_the_controller() {
    run_alone(async || {
        in_scene("argo-manifests", async |scene| check("argo-cd", &ArgoCd::new(scene).await).await).await;
    });
}

#[test]
fn argo_cd_applies_and_deletes_stacks_in_waves() {
    run_alone(async || {
        delete_definitions().await;
        in_scene("argo-manifests", async |scene| {
            let installer = ArgoCd::new(scene).await;
            let test = async || {
                installer.apply(IMAGE).await;
                installer.application.until_healthy(&installer.commit).await;
                Controller::new(&scene.client).until_available().await;
                add_health_checks().await;
                in_scene("argo-waves", async |scene| check_waves(scene).await).await;
                in_scene("argo-example", async |scene| examples::run_argo_cd(scene).await).await;
            };
            run_with_cleanup(test, async || {
                installer.remove().await;
                until_removed(&client().await).await;
            })
            .await;
        })
        .await;
    });
}

async fn add_health_checks() {
    let path = project_path("config/argocd/argocd-cm.yaml").display().to_string();
    kubectl(&["--namespace", application::NAMESPACE, "patch", "configmap", "argocd-cm", "--patch-file", &path], "")
        .await;
}

async fn check_waves(scene: &Scene) {
    let repository = scene.source("apps").await;
    let application = Application::new(&scene.client, &scene.namespace);
    let mut stack = scene.stack_on_program("main", "app");
    stack.spec.destroy_on_finalize = Some(true);
    // Name of the ConfigMap in the first sync wave. Both the run and the destroy require the ConfigMap.
    stack.spec.envs = vec!["settings".to_owned()];

    let mut invalid = program();
    invalid["program"]["resources"]["step"]["get"] = json!({"id": "some-id"});
    push(&repository, invalid, &stack).await;
    application.apply(spec(&repository, "apps", &scene.namespace, &Value::Null)).await;
    let degraded =
        |status: &Value| status["health"]["status"] == "Degraded" && status["operationState"]["phase"] == "Failed";
    application.until("to fail because of the Program", degraded).await;
    assert!(scene.list::<Stack>().await.is_empty(), "the Stack of the next wave is not applied");

    let commit = push(&repository, program(), &stack).await;
    application.refresh().await;
    application.until_healthy(&commit).await;
    let main = scene.stack_handle("main", &stack);
    main.until_revision("2").await;
    check_synchronization(&application, &main).await;
    check_deletion(scene, &application, &main).await;
}

fn program() -> Value {
    // The destroy takes long enough for the test to observe the objects during the destroy.
    Program::new("app").step("step", json!({"value": "one", "seconds": 10, "steps": 10})).object("app")
}

/// Pushes the objects, with one sync wave for each kind.
async fn push(repository: &Source<'_>, program: Value, stack: &Stack) -> Commit {
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"GREETING": "hello"},
    });
    let mut objects = vec![settings, program, serde_json::to_value(stack).expect("a Stack is JSON")];
    for (wave, object) in objects.iter_mut().enumerate() {
        object["metadata"]["annotations"] = json!({"argocd.argoproj.io/sync-wave": wave.to_string()});
    }
    repository.push_without_notification(&[file("apps/objects.yaml".to_owned(), documents(&objects))]).await
}

/// Checks that no object is out of sync after a run, and that Argo CD keeps the annotation that requests a run.
async fn check_synchronization(application: &Application, main: &StackHandle<'_>) {
    let before = main.updates().await.len();
    main.annotate(ANNOTATION_REQUESTED_AT, "requested").await;
    main.until("to have handled the request", WaitLimit::Run, |stack| {
        let handled = stack.status.as_ref().and_then(|status| status.last_handled_reconcile_at.as_deref());
        handled == Some("requested") && is_done(stack)
    })
    .await;
    assert_eq!(main.updates().await.len(), before + 1, "the request starts a run");
    application.refresh().await;
    let expected = [("ConfigMap", "Synced"), ("Program", "Synced"), ("Stack", "Synced")];
    let status = application
        .until("to be healthy after the run", |status| {
            status["health"]["status"] == "Healthy" && status["sync"]["status"] == "Synced"
        })
        .await;
    let mut found = objects(&status);
    found.sort_unstable();
    assert_eq!(found, expected, "the objects of the Application: {status:#}");
    assert_eq!(main.get().await.annotations().get(ANNOTATION_REQUESTED_AT).map(String::as_str), Some("requested"));
}

/// Checks that deleting the Application destroys the resources while the objects in the other sync waves still exist.
async fn check_deletion(scene: &Scene, application: &Application, main: &StackHandle<'_>) {
    application.delete().await;
    main.log.wait_for("delete", "step", "begin").await;
    assert!(application.exists().await, "the Application waits for the destroy");
    assert_eq!(scene.list::<ProgramObject>().await.len(), 1, "the Program remains until the Stack is deleted");
    assert!(has_settings(scene).await, "the ConfigMap remains until the Stack is deleted");
    application.until_gone().await;
    assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
    assert!(scene.list::<Stack>().await.is_empty() && scene.list::<ProgramObject>().await.is_empty());
    assert!(!has_settings(scene).await, "the ConfigMap is deleted");
}

async fn has_settings(scene: &Scene) -> bool {
    scene.list::<ConfigMap>().await.iter().any(|object| object.name_any() == "settings")
}
