//! Helpers for Workspaces and Updates that a test creates without a Stack.

use kube::ResourceExt;
use pulumi_controller::api::auto::{Update, UpdatePhase, Workspace};
use pulumi_controller::api::conditions::{self, READY, STALLED};
use serde_json::{Value, json};

use crate::harness::{Environment, Poll, STATE_SECRET, Scene, WaitLimit, wait_until};
use crate::runs_parts::until_update;

/// Creates a Workspace with the settings that the test cluster requires. `fields` replace fields in the spec.
pub async fn workspace(scene: &Scene, name: &str, fields: Value) -> Workspace {
    let environment = Environment::get();
    let secret = |key: &str| json!({"name": key, "valueFrom": {"secretKeyRef": {"name": STATE_SECRET, "key": key}}});
    let mut spec = json!({
        "image": environment.pulumi_image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
        "env": [
            {"name": "PULUMI_BACKEND_URL", "value": environment.s3_backend_url},
            {"name": "PROVIDER_LOG_URL", "value": environment.provider_log_url_in_cluster},
            secret("AWS_ACCESS_KEY_ID"), secret("AWS_SECRET_ACCESS_KEY"), secret("PULUMI_CONFIG_PASSPHRASE"),
        ],
    });
    for (field, value) in fields.as_object().expect("an object") {
        spec[field] = value.clone();
    }
    let kind = json!({"apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace"});
    scene
        .create(
            json!({"apiVersion": kind["apiVersion"], "kind": kind["kind"], "metadata": {"name": name}, "spec": spec}),
        )
        .await
}

/// Returns the name of the Pulumi stack that all Updates in a scene use.
pub fn stack_name(scene: &Scene) -> String {
    format!("by-hand-{}", scene.id)
}

/// Creates an Update for the scene's Pulumi stack. `fields` replace fields in the spec.
pub async fn update(scene: &Scene, name: &str, workspace: &str, kind: &str, fields: Value) -> Update {
    let mut spec = json!({"workspaceName": workspace, "stackName": stack_name(scene), "type": kind});
    for (field, value) in fields.as_object().expect("an object") {
        spec[field] = value.clone();
    }
    let object = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "metadata": {"name": name}, "spec": spec,
    });
    scene.create(object).await
}

/// Waits until an Update has succeeded.
pub async fn until_succeeded(scene: &Scene, name: &str) -> Update {
    until_update(scene, name, "to have succeeded", WaitLimit::Run, |update| {
        phase(update) == Some(UpdatePhase::Succeeded)
    })
    .await
}

pub fn phase(update: &Update) -> Option<UpdatePhase> {
    update.status.as_ref().and_then(|status| status.phase)
}

/// Creates an Update, and waits until the Update has succeeded.
pub async fn run_update(scene: &Scene, name: &str, workspace: &str, kind: &str, fields: Value) -> Update {
    update(scene, name, workspace, kind, fields).await;
    until_succeeded(scene, name).await
}

/// Waits until a Workspace matches `predicate`.
pub async fn until_workspace(
    scene: &Scene,
    name: &str,
    what: &str,
    wait_limit: WaitLimit,
    predicate: impl Fn(&Workspace) -> bool,
) -> Workspace {
    wait_until(format!("the Workspace {name} {what}"), wait_limit, async || {
        match scene.api::<Workspace>().get(name).await {
            Ok(workspace) if predicate(&workspace) => Poll::Found(workspace),
            Ok(workspace) => {
                Poll::NotYet(format!("generation {:?}: {:?}", workspace.metadata.generation, workspace.status))
            }
            Err(error) => Poll::NotYet(error.to_string()),
        }
    })
    .await
}

/// Waits until a Workspace is Ready and has installed the source in its current spec.
pub async fn until_ready(scene: &Scene, name: &str) -> Workspace {
    let is_ready = |workspace: &Workspace| condition_is(workspace, READY, "True", &[]);
    until_workspace(scene, name, "to be ready", WaitLimit::Long, is_ready).await
}

/// Waits until a Workspace is stalled with a message that contains all `words`.
pub async fn until_stalled(scene: &Scene, name: &str, words: &[&str]) -> Workspace {
    let what = format!("to be stalled with {words:?}");
    let is_stalled = |workspace: &Workspace| condition_is(workspace, STALLED, "True", words);
    until_workspace(scene, name, &what, WaitLimit::Run, is_stalled).await
}

/// Returns whether the status is current and contains this condition. The condition message must contain all `words`.
pub fn condition_is(workspace: &Workspace, kind: &str, status: &str, words: &[&str]) -> bool {
    let Some(found) = &workspace.status else { return false };
    found.observed_generation == workspace.metadata.generation
        && conditions::find(&found.conditions, kind).is_some_and(|condition| {
            condition.status == status && words.iter().all(|word| condition.message.contains(word))
        })
}

/// Reads an Update's output from the outputs Secret.
pub async fn output(scene: &Scene, update: &Update, key: &str) -> Value {
    use k8s_openapi::api::core::v1::Secret;
    let name = update.status.as_ref().and_then(|status| status.outputs.clone());
    let name = name.unwrap_or_else(|| panic!("the Update {} has no outputs: {:?}", update.name_any(), update.status));
    let secret = crate::harness::api_call(format!("reading the Secret {name}"), scene.api::<Secret>().get(&name)).await;
    let bytes = secret.data.unwrap_or_default().remove(key).unwrap_or_else(|| panic!("{name} has no key {key}"));
    serde_json::from_slice(&bytes.0).unwrap_or_else(|error| panic!("{key} in {name} is not valid JSON: {error}"))
}

/// Returns an init container that runs a script in the Pulumi image.
pub fn init_container(scene: &Scene, name: &str, script: &str, mounts: Value) -> Value {
    json!({
        "name": name,
        "image": scene.pulumi_image(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    })
}
