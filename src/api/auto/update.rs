//! `auto.pulumi.com/v1alpha1` Update: one run of Pulumi in a Workspace.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::ArtifactReference;
use crate::api::{conditions, schema};

/// One run of Pulumi in a Workspace.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[kube(
    group = "auto.pulumi.com",
    version = "v1alpha1",
    kind = "Update",
    namespaced,
    status = "UpdateStatus",
    category = "pulumi",
    doc = "Update is one run of Pulumi in a Workspace.",
    printcolumn = r#"{"name":"Workspace","type":"string","jsonPath":".spec.workspaceName"}"#,
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type"}"#,
    printcolumn = r#"{"name":"Progressing","type":"string","jsonPath":".status.conditions[?(@.type==\"Progressing\")].status"}"#,
    printcolumn = r#"{"name":"Failed","type":"string","jsonPath":".status.conditions[?(@.type==\"Failed\")].status"}"#,
    printcolumn = r#"{"name":"Complete","type":"string","jsonPath":".status.conditions[?(@.type==\"Complete\")].status"}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".spec.artifact.revision"}"#,
    printcolumn = r#"{"name":"Start Time","type":"date","jsonPath":".status.startTime","priority":10}"#,
    printcolumn = r#"{"name":"End Time","type":"date","jsonPath":".status.endTime","priority":10}"#,
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".status.permalink","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct UpdateSpec {
    /// The Workspace to run in.
    pub workspace_name: String,

    /// The Pulumi stack to run.
    pub stack_name: String,

    /// What to run.
    #[serde(rename = "type")]
    pub kind: UpdateKind,

    /// The artifact that this run is bound to: it runs on this one or not at all.
    pub artifact: ArtifactReference,

    /// Message of the update in the backend's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Refresh the state first (`--refresh`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,
}

impl Update {
    /// Whether the result is in the status.
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::COMPLETE))
    }
}

/// What an Update runs.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum UpdateKind {
    /// `pulumi up`
    #[default]
    Up,
    /// `pulumi destroy`
    Destroy,
}

impl UpdateKind {
    pub fn as_str(self) -> &'static str {
        match self {
            UpdateKind::Up => "up",
            UpdateKind::Destroy => "destroy",
        }
    }
}

/// What the controller saw and did.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStatus {
    /// The generation whose spec was read last; -1 before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Progressing`, `Failed` and `Complete`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// When the run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,

    /// Why it failed, or what it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Link to the update in Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,

    /// Name of the Secret that holds the stack's outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<String>,

    /// How many resources were created, updated, replaced, deleted, or stayed the same.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub changes: BTreeMap<String, i64>,

    /// What the run is bound to, written before it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunBinding>,
}

/// Which pod, which start of its agent, and which inputs a run is bound to. It is written before the run is started:
/// a controller that finds it attaches to the run and never starts a second one elsewhere.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunBinding {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Which start of the agent in that pod.
    #[serde(rename = "agentStartID")]
    pub agent_start_id: String,
    /// Digest of the stack's settings.
    pub settings_digest: String,
}
