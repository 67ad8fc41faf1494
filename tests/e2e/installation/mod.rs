//! Tests each installation method: installing and using the controller, upgrading it during a run, and removing it
//! without losing a CustomResourceDefinition or a Stack. `tests/run` runs this suite last, on a cluster without the
//! controller.

mod application;
mod argo_cd;
mod bootstrap;
mod fleet;
mod helm;
mod helm_release;
mod kubectl;
mod oci_artifact;
mod pulumi_program;

use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::harness::{
    Controller, File, Poll, Program, Scene, Source, StackHandle, WaitLimit, api_call, client, in_scene, is_done,
    kubectl, once, run_with_cleanup, wait_until,
};

/// Image that the tests install first.
const IMAGE: &str = "localhost/pulumi-controller:dev";
/// The same image under a different tag, which the upgrade installs.
const NEXT_IMAGE: &str = "localhost/pulumi-controller:next";

const NAMESPACE: &str = "flux-system";

/// A tool that installs the controller.
trait Installer {
    /// Installs the controller with this image, or changes the installed controller's image. Does not wait for the
    /// rollout.
    async fn apply(&self, image: &str);

    /// Removes the controller with the documented commands.
    async fn remove(&self);
}

/// Installs the controller, upgrades the controller during a run, removes the controller, and installs the controller
/// again. The Stack must remain, and each revision must run once.
async fn check(name: &str, installer: &impl Installer) {
    delete_definitions().await;
    let test = async || {
        installer.apply(IMAGE).await;
        in_scene(name, async |scene| check_with_stack(scene, installer).await).await;
    };
    run_with_cleanup(test, async || {
        installer.remove().await;
        until_removed(&client().await).await;
    })
    .await;
}

async fn check_with_stack(scene: &Scene, installer: &impl Installer) {
    Controller::new(&scene.client).until_available().await;
    let source = scene.source("app").await;
    let first = source.push(&program("one", 1).files()).await;
    let main = scene.start(scene.stack("main", &source)).await;
    main.until_applied(&first).await;
    upgrade_during_run(scene, &source, &main, async || installer.apply(NEXT_IMAGE).await).await;

    installer.remove().await;
    until_removed(&scene.client).await;
    assert_eq!(definitions(&scene.client).await.len(), 6, "the CustomResourceDefinitions remain");
    let stack = main.get().await;
    assert!(stack.metadata.deletion_timestamp.is_none() && is_done(&stack), "the Stack remains unchanged: {stack:?}");
    let pod = main.pod_and_restarts().await;

    let third = source.push(&program("three", 1).files()).await;
    installer.apply(IMAGE).await;
    main.until_applied(&third).await;
    assert_eq!(main.log.operations().await, once(&["create step", "update step", "update step"]));
    assert_eq!(main.pod_and_restarts().await, pod, "the new installation uses the existing pod");
}

/// Changes the controller image during a run. The run must succeed, and the controller must not repeat the run.
async fn upgrade_during_run(scene: &Scene, source: &Source<'_>, main: &StackHandle<'_>, upgrade: impl AsyncFnOnce()) {
    let before = main.updates().await.len();
    let pod = main.pod_and_restarts().await;
    let commit = source.push(&program("two", 40).files()).await;
    main.log.wait_for("update", "step", "begin").await;
    upgrade().await;
    wait_until("the Deployment to have the next image", WaitLimit::Reaction, async || {
        let deployment = deployment(&scene.client).await.expect("the controller is installed");
        let image = deployment.spec.and_then(|spec| spec.template.spec).and_then(|pod| pod.containers[0].image.clone());
        if image.as_deref() == Some(NEXT_IMAGE) { Poll::Found(()) } else { Poll::NotYet(format!("{image:?}")) }
    })
    .await;
    Controller::new(&scene.client).until_available().await;
    assert!(!is_done(&main.get().await), "the run continues during the upgrade");
    main.until_applied(&commit).await;
    assert_eq!(main.updates().await.len(), before + 1);
    assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    assert_eq!(main.pod_and_restarts().await, pod, "the pod is not replaced during the run");
}

fn program(value: &str, seconds: u32) -> Program {
    Program::new("installation").step("step", json!({"value": value, "seconds": seconds, "steps": seconds}))
}

/// Waits until the controller's Deployment and pods are deleted.
async fn until_removed(client: &Client) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let parameters = ListParams::default().labels("app.kubernetes.io/part-of=pulumi-controller");
    wait_until("the controller to be deleted", WaitLimit::Run, async || {
        let deployment = deployment(client).await;
        let pods = api_call("listing the controller's pods", pods.list(&parameters)).await.items;
        let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        match deployment.is_none() && names.is_empty() {
            true => Poll::Found(()),
            false => Poll::NotYet(format!("Deployment exists: {}, pods: {names:?}", deployment.is_some())),
        }
    })
    .await;
}

async fn deployment(client: &Client) -> Option<Deployment> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    api_call("reading the controller's Deployment", deployments.get_opt("pulumi-controller")).await
}

async fn definitions(client: &Client) -> Vec<CustomResourceDefinition> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let all = api_call("listing definitions", definitions.list(&ListParams::default())).await.items;
    all.into_iter().filter(|definition| definition.spec.group.ends_with("pulumi.com")).collect()
}

/// Deletes the CustomResourceDefinitions that the previous test has left. No objects of these kinds exist at this time.
async fn delete_definitions() {
    let folder = project_path("config/crd");
    kubectl(&["delete", "--kustomize", &folder.display().to_string(), "--ignore-not-found"], "").await;
}

fn project_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns all files from `config` and `kustomize` below a directory, with paths relative to this directory.
fn manifest_files(root: &Path) -> Vec<File> {
    ["config", "kustomize"].iter().flat_map(|folder| read_all(root, &root.join(folder))).collect()
}

fn read_all(root: &Path, folder: &Path) -> Vec<File> {
    let mut files = Vec::new();
    for entry in
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("listing {}: {error}", folder.display())).flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            files.extend(read_all(root, &path));
            continue;
        }
        let name = path.strip_prefix(root).expect("a path below the root").display().to_string();
        let content =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
        files.push(File { path: name, content });
    }
    files
}
