//! `auto.pulumi.com/v1alpha1` Workspace: a pod in which Pulumi runs, with a source in place.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::schema;

/// A pod in which Pulumi runs, with a source in place.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[kube(
    group = "auto.pulumi.com",
    version = "v1alpha1",
    kind = "Workspace",
    namespaced,
    status = "WorkspaceStatus",
    derive = "PartialEq",
    category = "pulumi",
    doc = "Workspace is a pod in which Pulumi runs, with a source in place.",
    printcolumn = r#"{"name":"Image","type":"string","jsonPath":".spec.image"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".status.artifact.revision"}"#,
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".status.address","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSpec {
    /// The pod's ServiceAccount. Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,

    /// The image that holds the Pulumi CLI and the program's language runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
    pub image_pull_policy: Option<String>,

    /// Environment variables of the `pulumi` container. A value from a Secret reaches each run as it is then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::environment")]
    pub env: Vec<Value>,

    /// Resources of the `pulumi` container. Default: requests of 100m CPU and 64Mi memory, no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub resources: Option<Value>,

    /// Merged over the generated pod template, as `kubectl patch --type=strategic` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub pod_template: Option<Value>,

    /// The source that shall be in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// The Pulumi stacks of this workspace with their configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stacks: Vec<WorkspaceStack>,
}

/// An artifact by its content, and the directory of the project in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactReference {
    /// `algorithm:hex` of the archive's bytes.
    pub digest: String,
    /// The source's revision, such as `main@sha1:…`.
    #[serde(default)]
    pub revision: String,
    /// The directory of the Pulumi project in the archive; empty for its root.
    #[serde(default)]
    pub dir: String,
}

/// A Pulumi stack and its configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStack {
    /// The stack's name as the Pulumi CLI takes it.
    pub name: String,
    /// The stack's configuration; it replaces what the source's own settings file says for the same keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    pub config: Vec<ConfigItem>,
}

/// One value of a stack's configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigItem {
    /// The key; one without a namespace belongs to the project.
    pub key: String,
    /// The value: any JSON but null.
    #[schemars(schema_with = "schema::any_value")]
    pub value: Value,
}

/// What the controller saw and did.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStatus {
    /// The generation whose spec was read last; -1 before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`, `Reconciling` and `Stalled`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Where the agent answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,

    /// Version of the Pulumi CLI in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi_version: Option<String>,

    /// The source that is in place in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// UID of the pod in which it is.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,

    /// Which start of the agent in that pod.
    #[serde(default, rename = "agentStartID", skip_serializing_if = "Option::is_none")]
    pub agent_start_id: Option<String>,
}
