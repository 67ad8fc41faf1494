//! The metadata by which the objects of a Workspace are found and compared.

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::names::{LABEL_COMPONENT, LABEL_WORKSPACE_NAME, workspace_object};

/// Hash of a StatefulSet as we rendered it: the same hash on the live object means that there is nothing to apply.
pub(super) const ANNOTATION_RENDERED: &str = "auto.pulumi.com/rendered-hash";

/// The labels by which everything of a Workspace is found.
pub(super) fn labels(name: &str) -> Value {
    json!({LABEL_COMPONENT: "workspace", LABEL_WORKSPACE_NAME: name})
}

/// The metadata of an object of a Workspace.
pub(super) fn metadata(name: &str, namespace: &str) -> Value {
    json!({"name": workspace_object(name), "namespace": namespace, "labels": labels(name)})
}

/// Whether an object has the label of the Workspace of this name.
pub(super) fn is_ours<K: Resource>(object: &K, name: &str) -> bool {
    object.labels().get(LABEL_WORKSPACE_NAME).map(String::as_str) == Some(name)
}
