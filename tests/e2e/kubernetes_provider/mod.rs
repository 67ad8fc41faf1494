//! Tests programs that deploy to the cluster of the controller with Pulumi's Kubernetes provider. Each test starts from
//! the manifests of an example, and the suite `kubernetes` of `tests/run` runs these tests. The provider is in
//! the image that `tests/cluster/cluster kubernetes-provider` builds.

mod drift;
mod namespaces;
mod permissions;
mod stacks;
mod timeouts;

use std::path::Path;

use pulumi_controller::api::conditions::READY;
use pulumi_controller::api::pulumi::{Program as ProgramObject, Stack};
use serde_json::{Value, json};

use crate::examples::kubernetes_provider::prepare;
use crate::harness::{Scene, StackHandle, WaitLimit, condition, is_done, kubectl};

/// Applies all manifests of an example in the scene's namespace. Returns a handle for the Stack of the example, which
/// has the Pulumi stack `dev`.
async fn deploy<'a>(scene: &'a Scene, example: &str, stack: &str) -> StackHandle<'a> {
    let project = prepare(scene, example).await;
    apply_folder(scene, project.example()).await;
    StackHandle::of(scene, stack, "dev")
}

async fn apply_folder(scene: &Scene, folder: &Path) {
    let folder = folder.display().to_string();
    kubectl(&["--namespace", &scene.namespace, "apply", "--kustomize", &folder], "").await;
}

/// Deploys the web server of the example `kubernetes-yaml`, and waits until the Stack is Ready.
async fn deploy_web(scene: &Scene) -> StackHandle<'_> {
    let web = deploy(scene, "kubernetes-yaml", "web").await;
    web.until_revision_within(WaitLimit::Long, "1").await;
    web
}

/// Reads a field of an object with a JSONPath expression. Returns an empty string if the object does not exist.
async fn read(scene: &Scene, object: &str, path: &str) -> String {
    let path = format!("jsonpath={path}");
    let arguments = ["--namespace", &scene.namespace, "get", object, "--ignore-not-found", "--output", &path];
    kubectl(&arguments, "").await
}

/// Applies a merge patch to an object, as a user with all permissions.
async fn change(scene: &Scene, object: &str, patch: Value) {
    let patch = patch.to_string();
    kubectl(&["--namespace", &scene.namespace, "patch", object, "--type", "merge", "--patch", &patch], "").await;
}

/// Changes the program, and returns the new revision of its source.
async fn change_program(scene: &Scene, name: &str, patch: Value) -> String {
    let program = scene.patch::<ProgramObject>(name, json!({"program": patch})).await;
    program.metadata.generation.expect("a generation").to_string()
}

/// Waits until the message of the condition `Ready` contains this text, and returns the message.
async fn until_message(stack: &StackHandle<'_>, limit: WaitLimit, text: &str) -> String {
    let contains = |stack: &Stack| condition(stack, READY).is_some_and(|ready| ready.message.contains(text));
    let stack = stack.until(&format!("to report {text:?}"), limit, contains).await;
    condition(&stack, READY).map(|ready| ready.message.clone()).unwrap_or_default()
}

/// Waits until the Stack is Ready and has no open run.
async fn until_done(stack: &StackHandle<'_>) -> Stack {
    stack.until("to be Ready", WaitLimit::Long, is_done).await
}
