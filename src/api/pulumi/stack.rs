//! `pulumi.com/v1` Stack: what to run, from which source, with which settings.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::auto::{LockRecovery, PendingCreates, UpdateKind};
use crate::api::schema;

/// A Pulumi stack, kept up to date with its source.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "pulumi.com",
    version = "v1",
    kind = "Stack",
    namespaced,
    status = "StackStatus",
    category = "pulumi",
    doc = "Stack is a Pulumi stack, kept up to date with its source.",
    validation = ("size(self.metadata.name) <= 42", "Stack name must be no more than 42 characters in length."),
    printcolumn = r#"{"name":"Stack","type":"string","jsonPath":".spec.stack","priority":10}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".status.lastAppliedRevision"}"#,
    printcolumn = r#"{"name":"Last Update","type":"string","jsonPath":".status.lastUpdate.state"}"#,
    printcolumn = r#"{"name":"Suspended","type":"boolean","jsonPath":".spec.suspend","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StackSpec {
    /// The stack's name as the Pulumi CLI takes it: `stack`, `org/stack` or `org/project/stack`.
    #[schemars(length(min = 1))]
    pub stack: String,

    /// The Flux source of the program.
    pub flux_source: FluxSource,

    /// URL of the state backend (`PULUMI_BACKEND_URL`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,

    /// Environment variables of the Pulumi CLI, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_refs: BTreeMap<String, ResourceRef>,

    /// The stack's configuration: strings, numbers, booleans, objects and arrays. Keys are literal, never paths; a key
    /// without a namespace belongs to the project. A key that is removed here is gone from the stack's settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub config: BTreeMap<String, Value>,

    /// The ServiceAccount of the workspace pod. Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,

    /// Run `pulumi destroy` before the Stack object goes away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_on_finalize: Option<bool>,

    /// Refresh the state before each update (`--refresh`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,

    /// Start no new run. A run that is open is observed to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// A run that takes longer is ended gracefully, and counts as failed. A duration such as `1h30m`; none, or `0s`, is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Option<String>,

    /// A run without progress and output for this long is reported, then ended gracefully. A duration such as `10m`; none, or
    /// `0s`, is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub idle_timeout: Option<String>,

    /// Whether the lock that an earlier run of this Stack left is removed, once that run is proven dead. Default: `Automatic`.
    #[serde(default)]
    pub lock_recovery: LockRecovery,

    /// Merged over the generated Workspace, as `kubectl patch --type=strategic` does: `metadata` and `spec` with `image`,
    /// `resources`, `podTemplate` and the other fields of a Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub workspace_template: Option<Value>,
}

/// A Flux source and the directory in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FluxSource {
    /// The source object.
    pub source_ref: SourceReference,

    /// The directory of the Pulumi project in the artifact. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
}

/// A reference to a source object in the Stack's namespace: any kind with `status.artifact`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SourceReference {
    /// Group and version, such as `source.toolkit.fluxcd.io/v1`. Only the group counts: the source is read in the version that the
    /// API server prefers. Optional for `GitRepository`, `OCIRepository`, `Bucket` and `ExternalArtifact` of Flux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,

    /// The kind: `GitRepository`, `OCIRepository`, `Bucket`, `ExternalArtifact`, or another one of the group in `apiVersion`.
    #[schemars(length(min = 1))]
    pub kind: String,

    /// The source's name.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// A value given in place or kept in a Secret.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ResourceRef {
    /// `Literal` or `Secret`.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["Literal", "Secret"]))]
    pub kind: String,

    /// The Secret, when `type` is `Secret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretSelector>,

    /// The value, when `type` is `Literal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub literal: Option<LiteralRef>,
}

/// One key of a Secret in the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct SecretSelector {
    /// The namespace; only the Stack's own is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The Secret's name.
    pub name: String,
    /// The key in the Secret.
    pub key: String,
}

/// A value in plain text.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct LiteralRef {
    /// The value.
    pub value: String,
}

/// What the controller saw and did.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StackStatus {
    /// The generation whose spec was read last; -1 before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The value of `pulumi.com/reconciliation-request` that was read last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_reconcile_request: Option<String>,

    /// The value of `reconcile.fluxcd.io/requestedAt` that was read last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,

    /// The value of `pulumi.com/resolve` that was acted on last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_resolve: Option<String>,

    /// `Ready`, `Reconciling` and `Stalled`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Outputs of the last update; a secret output reads `[secret]`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub outputs: BTreeMap<String, Value>,

    /// The revision of the last run that was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_revision: Option<String>,

    /// The revision of the last run that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_revision: Option<String>,

    /// How many runs this Stack has asked for; with the Stack's UID it makes an Update's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i64>,

    /// Whether the Stack was suspended when it was read last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,

    /// The run that is open, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_update: Option<CurrentUpdate>,

    /// The last run that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update: Option<LastUpdate>,
}

/// The run that is open, with the inputs it was started for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CurrentUpdate {
    /// Name of the Update.
    pub name: String,
    /// Generation of the Stack that it runs.
    #[serde(default)]
    pub generation: i64,
    /// Value of `pulumi.com/reconciliation-request` that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile_request: Option<String>,
    /// Value of `reconcile.fluxcd.io/requestedAt` that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<String>,
    /// Revision of the source that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Digest of the artifact that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Directory of the project in the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// `up` or `destroy`.
    #[serde(default, rename = "type")]
    pub kind: UpdateKind,
    /// Why it was started.
    #[serde(default)]
    pub message: String,
    /// What it does about creations that were cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
}

/// The last run that ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LastUpdate {
    /// Name of the Update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `up` or `destroy`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `succeeded` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The reason of a failure, such as `UpdateFailed` or `UpdateConflict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Generation of the Stack that it ran.
    #[serde(default)]
    pub generation: i64,
    /// Value of `pulumi.com/reconciliation-request` that it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile_request: Option<String>,
    /// Value of `reconcile.fluxcd.io/requestedAt` that it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<String>,
    /// Revision that it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_commit: Option<String>,
    /// Revision of the last run that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_successful_commit: Option<String>,
    /// Digest of the artifact that it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Link to the update in Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,
    /// When the result was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_resync_time: Option<Time>,
    /// Failures in a row; the first failure of a generation counts as 0, as in the Pulumi Kubernetes Operator.
    #[serde(default)]
    pub failures: i64,
    /// Runs in a row that were cut off, or ended with their pod.
    #[serde(default)]
    pub interruptions: i64,
    /// What the next run does about creations that were cut off; nothing once a run has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
}
