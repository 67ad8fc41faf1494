//! Metadata that identifies the objects of a Workspace and marks their content.

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::names::{LABEL_COMPONENT, LABEL_WORKSPACE_NAME, workspace_object};

/// Hash of a StatefulSet as rendered. If the live object has the same hash, there is nothing to apply.
pub(super) const ANNOTATION_RENDERED: &str = "auto.pulumi.com/rendered-hash";

/// Returns the labels that select all objects of a Workspace.
pub(super) fn labels(name: &str) -> Value {
    json!({LABEL_COMPONENT: "workspace", LABEL_WORKSPACE_NAME: name})
}

/// Returns the metadata of an object of a Workspace.
pub(super) fn metadata(name: &str, namespace: &str) -> Value {
    json!({"name": workspace_object(name), "namespace": namespace, "labels": labels(name)})
}

/// Returns whether an object has the label of the Workspace with this name.
pub(super) fn is_ours<K: Resource>(object: &K, name: &str) -> bool {
    object.labels().get(LABEL_WORKSPACE_NAME).map(String::as_str) == Some(name)
}
