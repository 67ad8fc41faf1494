//! Creates the objects that version 2.9 of the Pulumi Kubernetes Operator leaves in a cluster. The objects in
//! `tests/operator` are the templates. Each test sets the names and the source of the objects.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Resource, ResourceExt};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::names::{OPERATOR_FIELD_MANAGER, STACK_FINALIZER};
use pulumi_controller::api::pulumi::Stack;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::scene::Scene;
use super::wait::api_call;

/// Name of the template Stack in `tests/operator`.
const EXAMPLE: &str = "from-flux";
/// UID of this Stack.
const STACK_UID: &str = "bc54d342-bd77-4dd1-8153-8b2b2db9d1df";
/// UID of this Stack's Workspace.
const WORKSPACE_UID: &str = "610ed602-09f1-4dcc-bd38-d53cc025fd45";

/// Script that replaces the operator's agent in the StatefulSet's containers. The script runs until SIGTERM.
const AGENT: &str = "printf '#!/bin/sh\\ntrap \"exit 0\" TERM\\nsleep 3600 &\\nwait\\n' > /share/agent && cp /share/agent /share/tini && \
                     chmod +x /share/agent /share/tini && mkdir -p /share/workspace";

/// Objects that the operator creates for one Stack.
pub struct OperatorObjects {
    /// Stack as the API server returned it on creation.
    pub stack: Stack,
    pub workspace: Option<Workspace>,
    pub update: Update,
}

/// State of the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Ended,
    /// The run is complete, and the operator has deleted the Workspace.
    Reclaimed,
    /// The operator has stopped during the run.
    Open,
}

impl Scene {
    /// Creates a Stack with its Workspace, Update and pod. The operator's last run has applied this revision.
    pub async fn create_operator_objects(&self, stack: Stack, revision: &str) -> OperatorObjects {
        self.create_objects(stack, revision, Run::Ended).await
    }

    /// Creates a Stack without a Workspace and a pod. The operator's last run has applied this revision.
    pub async fn create_operator_objects_without_workspace(&self, stack: Stack, revision: &str) -> OperatorObjects {
        self.create_objects(stack, revision, Run::Reclaimed).await
    }

    /// Creates a Stack with an open run for another revision. The operator's last completed run has applied this
    /// revision.
    pub async fn create_operator_objects_with_open_run(&self, stack: Stack, revision: &str) -> OperatorObjects {
        self.create_objects(stack, revision, Run::Open).await
    }

    async fn create_objects(&self, stack: Stack, revision: &str, run: Run) -> OperatorObjects {
        let name = stack.name_any();
        let mut written = serde_json::to_value(&stack).expect("a Stack is JSON");
        written["metadata"]["finalizers"] = json!([STACK_FINALIZER]);
        // The operator removes this default value, and a GitOps tool sets the value again. The controller must keep the
        // value.
        written["spec"]["refresh"] = json!(false);
        let stack: Stack = self.create(written).await;
        let uid = stack.uid().expect("object UID");
        let example = |text: &str| example(text, &name, &self.namespace, &[(STACK_UID, &uid)]);

        let mut left = example(include_str!("../../operator/stacks.yaml"));
        let last = &mut left["status"]["lastUpdate"];
        last["generation"] = json!(stack.metadata.generation);
        last["lastAttemptedCommit"] = json!(revision);
        last["lastSuccessfulCommit"] = json!(revision);
        left["status"]["observedGeneration"] = json!(stack.metadata.generation);
        if run == Run::Open {
            let update = format!("{name}-1a1fd55f571");
            left["status"]["currentUpdate"] =
                json!({"commit": "main@sha1:next", "generation": stack.metadata.generation, "name": update});
        }

        let workspace = match run {
            Run::Reclaimed => None,
            Run::Ended | Run::Open => Some(self.create_workspace(&example).await),
        };
        let owner = workspace.as_ref().and_then(Workspace::uid).unwrap_or_else(|| WORKSPACE_UID.to_owned());
        let update = match run {
            Run::Ended | Run::Reclaimed => example(include_str!("../../operator/updates.yaml")),
            Run::Open => example(include_str!("../../operator/update-running.yaml")),
        };
        let update = self.create_with_status::<Update>(with_workspace_uid(update, &owner)).await;
        let stack = self.write_status::<Stack>(&name, &left).await;
        OperatorObjects { stack, workspace, update }
    }

    async fn create_workspace(&self, example: &impl Fn(&str) -> Value) -> Workspace {
        let mut expected = example(include_str!("../../operator/workspaces.yaml"));
        expected["spec"]["image"] = json!(self.pulumi_image());
        let workspace: Workspace = self.create_with_status(expected).await;
        let owner = workspace.uid().expect("object UID");
        let service = with_workspace_uid(example(include_str!("../../operator/services.yaml")), &owner);
        self.create_with_status::<Service>(service).await;
        let stateful_set = with_workspace_uid(example(include_str!("../../operator/statefulsets.yaml")), &owner);
        self.create_with_status::<StatefulSet>(self.with_placeholder_agent(stateful_set)).await;
        workspace
    }

    /// Creates an object with the status and the managed fields of the example.
    async fn create_with_status<K: Kind>(&self, object: Value) -> K {
        let mut new = object.clone();
        let metadata = new["metadata"].as_object_mut().expect("metadata");
        for server_field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
            metadata.remove(server_field);
        }
        let name = metadata["name"].as_str().expect("object name").to_owned();
        self.create::<K>(new).await;
        self.write_status::<K>(&name, &object).await
    }

    async fn write_status<K: Kind>(&self, name: &str, object: &Value) -> K {
        let has_own_status = K::kind(&()) != "StatefulSet" && K::kind(&()) != "Service";
        if let Some(status) = object.get("status").filter(|_| has_own_status) {
            let patch = Patch::Merge(json!({"status": with_current_times(status)}));
            let api = self.api::<K>();
            api_call(format!("writing the status of {name}"), api.patch_status(name, &PatchParams::default(), &patch))
                .await;
        }
        self.patch::<K>(name, json!({"metadata": {"managedFields": object["metadata"]["managedFields"]}})).await
    }

    /// Replaces the operator's images, which the test cluster does not have, and the container commands.
    fn with_placeholder_agent(&self, mut stateful_set: Value) -> Value {
        let pod = &mut stateful_set["spec"]["template"]["spec"];
        for kind in ["initContainers", "containers"] {
            for container in pod[kind].as_array_mut().expect("containers") {
                container["image"] = json!(self.pulumi_image());
                container["imagePullPolicy"] = json!("IfNotPresent");
                match container["name"].as_str() {
                    Some("bootstrap") => {
                        container["command"] = json!(["/bin/sh", "-c"]);
                        container["args"] = json!([AGENT]);
                    }
                    Some("fetch") => {
                        container["command"] = json!(["/bin/true"]);
                        container["args"] = json!([]);
                    }
                    _ => {}
                }
            }
        }
        // The test cluster does not contain the Secrets, the ConfigMaps and the ServiceAccount to which the example
        // refers.
        pod["serviceAccountName"] = json!("default");
        pod["serviceAccount"] = json!("default");
        pod["volumes"] = json!([{"name": "share", "emptyDir": {}}]);
        let main = &mut pod["containers"][0];
        main["volumeMounts"] = json!([{"name": "share", "mountPath": "/share"}]);
        main["envFrom"] = json!([]);
        stateful_set
    }
}

/// Kind of an object that the operator creates.
pub trait Kind:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> Kind for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
}

/// Reads the example object from a file, and replaces the name, the namespace and the UIDs.
fn example(text: &str, name: &str, namespace: &str, uids: &[(&str, &str)]) -> Value {
    let document: Value = serde_saphyr::from_str(text).expect("valid YAML");
    let is_example = |object: &&Value| {
        let found = object["metadata"]["name"].as_str().unwrap_or_default();
        found == EXAMPLE || found.starts_with(&format!("{EXAMPLE}-"))
    };
    let items = document["items"].as_array().cloned().unwrap_or_else(|| vec![document]);
    let object = items.iter().find(is_example).expect("each file contains the example").to_string();
    let mut object = object.replace(EXAMPLE, name);
    for (before, after) in uids {
        object = object.replace(before, after);
    }
    let mut object: Value = serde_json::from_str(&object).expect("valid JSON");
    object["metadata"]["namespace"] = json!(namespace);
    object
}

/// Replaces the example Workspace's UID in the owner references.
fn with_workspace_uid(object: Value, workspace: &str) -> Value {
    serde_json::from_str(&object.to_string().replace(WORKSPACE_UID, workspace)).expect("valid JSON")
}

/// Returns the names of an object's field managers.
pub fn field_managers<K: Resource>(object: &K) -> Vec<String> {
    let entries = object.meta().managed_fields.iter().flatten();
    entries.filter_map(|entry| entry.manager.clone()).collect()
}

/// Returns whether the operator manages any field of an object.
pub fn has_operator_fields<K: Resource>(object: &K) -> bool {
    field_managers(object).iter().any(|manager| manager.starts_with(OPERATOR_FIELD_MANAGER))
}

/// Replaces each timestamp with the current time, because the controller deletes old Updates.
fn with_current_times(value: &Value) -> Value {
    match value {
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => {
            json!(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
        }
        Value::Array(items) => items.iter().map(with_current_times).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), with_current_times(value))).collect(),
        other => other.clone(),
    }
}
