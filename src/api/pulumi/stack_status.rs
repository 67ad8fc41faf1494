//! What the controller says of a Stack.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::auto::{PendingCreates, RunProject, UpdateKind};
use crate::api::pulumi::{PulumiStack, Snapshot};
use crate::api::{bounds, schema};

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

    /// The value of `reconcile.fluxcd.io/forceAt` that was read last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_force_at: Option<String>,

    /// The value of `reconcile.fluxcd.io/resetAt` that was read last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reset_at: Option<String>,

    /// The value of `pulumi.com/resolve` that was acted on last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_resolve: Option<String>,

    /// Since when a run has been due that has not ended yet. It is the position of the Stack in the queue for run slots: a newer
    /// revision of the source does not change it. Absent while no run is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<Time>,

    /// The value of `pulumi.com/cancel` that was handled last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_cancel: Option<String>,

    /// `Ready`, `Reconciling` and `Stalled`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// What `kubectl get` prints of `lastAppliedRevision`: with a short digest, at most 24 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_revision: Option<String>,

    /// What `kubectl get` prints of the message of `Ready`: its first line with short digests, at most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

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

    /// The revision that the artifact of that run was made from, where its source says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_origin_revision: Option<String>,

    /// What was run of late, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::HISTORY))]
    pub history: Vec<Snapshot>,

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

    /// The project of the last run: when the source is gone, the stack is destroyed with its name and the state alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_info: Option<RunProject>,

    /// The Pulumi stack in which this Stack may have resources: that of the last `up` that succeeded, or that failed after it may have
    /// changed something. Absent before the first one, and after a destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_stack: Option<PulumiStack>,
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
    /// Value of `reconcile.fluxcd.io/forceAt` that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force_at: Option<String>,
    /// Value of `reconcile.fluxcd.io/resetAt` that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_at: Option<String>,
    /// Revision of the source that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Revision that its artifact was made from, where the source says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_revision: Option<String>,
    /// Digest of the artifact that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Equal for artifacts of one revision with the same files, if the source's kind tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_id: Option<String>,
    /// A digest of the files that `spec.paths` matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths_digest: Option<String>,
    /// Directory of the project in the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// What the Workspace's status said of the values behind the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_inputs: Option<String>,
    /// What it said of each Secret and ConfigMap that the pod mounts; of one that has changed without being watched, what it had said before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::MOUNTED_INPUTS))]
    pub mounted_inputs: BTreeMap<String, String>,
    /// `up`, `preview` or `destroy`.
    #[serde(default, rename = "type")]
    pub kind: UpdateKind,
    /// Why it was started.
    #[serde(default)]
    pub message: String,
    /// What it does about creations that were cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
    /// The Pulumi stack that it works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi_stack: Option<PulumiStack>,
}

/// The last run that ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LastUpdate {
    /// Name of the Update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `up`, `preview` or `destroy`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `succeeded` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The reason of a failure, such as `UpdateFailed` or `UpdateConflict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether a user has canceled it. It is not retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canceled_by_user: Option<bool>,
    /// Why it failed, or what is to be known of it though it succeeded.
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
    /// Value of `reconcile.fluxcd.io/forceAt` that it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force_at: Option<String>,
    /// Value of `reconcile.fluxcd.io/resetAt` that it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_at: Option<String>,
    /// Revision that it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_commit: Option<String>,
    /// Revision of the last run that succeeded and was not a preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_successful_commit: Option<String>,
    /// Digest of the artifact that it ran, or of another one with the same content that has replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Equal for artifacts of one revision with the same files, if the source's kind tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_id: Option<String>,
    /// A digest of the files that `spec.paths` matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths_digest: Option<String>,
    /// What the Workspace's status said of the values behind the configuration before it. Another word there is a reason to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_inputs: Option<String>,
    /// Keyed hash of the configuration values from Secrets and ConfigMaps that the run has read, if these changed between the
    /// request for the run and its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_config_inputs: Option<String>,
    /// The same as `configInputs` for each Secret and ConfigMap that the pod mounts: another word for one that is watched is a reason to run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::MOUNTED_INPUTS))]
    pub mounted_inputs: BTreeMap<String, String>,
    /// Link to the update in Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,
    /// How many resources it has created, updated, replaced, deleted or left the same; of a preview, how many it would.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::OPERATIONS))]
    pub changes: BTreeMap<String, i64>,
    /// When the result was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_resync_time: Option<Time>,
    /// Failures in a row since an input has changed, the last run included; 0 after a success.
    #[serde(default)]
    pub failures: i64,
    /// Runs in a row that were cut off, or ended with their pod.
    #[serde(default)]
    pub interruptions: i64,
    /// Runs in a row that found the same lock of another update. The pause before the next run grows with it.
    #[serde(default)]
    pub conflicts: i64,
    /// Whether a destroy that was cut off may have removed the stack from the backend. Then the next destroy succeeds if it does not find the
    /// stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack_may_be_removed: Option<bool>,
    /// What the next run does about creations that were cut off; nothing once a run has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
    /// The Pulumi stack that it worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi_stack: Option<PulumiStack>,
}
