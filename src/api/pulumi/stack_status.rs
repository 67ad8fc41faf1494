//! Status of a Stack.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::auto::{AppliedByOther, PendingCreates, PreviewOf, RunProject, SourceMetadata, UpdateKind};
use crate::api::pulumi::{
    ApprovedPlan, OrphanedStack, OutputObjectReference, PolicyViolations, PulumiStack, RunRecord, StackDrift, StackPlan,
};
use crate::api::{bounds, schema};
use crate::artifact::Digest;

/// Observed state of a Stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StackStatus {
    /// Last observed generation of the object. `-1` before the first reconciliation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Last handled value of the annotation `pulumi.com/reconciliation-request`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_reconcile_request: Option<String>,

    /// Last handled value of the annotation `reconcile.fluxcd.io/requestedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,

    /// Last handled value of the annotation `reconcile.fluxcd.io/forceAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_force_at: Option<String>,

    /// Last handled value of the annotation `reconcile.fluxcd.io/resetAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reset_at: Option<String>,

    /// Last value of the annotation `pulumi.com/refresh` that a successful run handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_refresh_at: Option<String>,

    /// Last handled value of the annotation `pulumi.com/resolve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_resolve: Option<String>,

    /// Time at which the next run became due. This time determines the position of the run in the queue for run slots.
    /// A newer revision of the source does not change this time. Absent if no run is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<Time>,

    /// Last handled value of the annotation `pulumi.com/cancel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_cancel: Option<String>,

    /// Conditions of the Stack: `Ready`, `Reconciling` and `Stalled`.
    /// Example: `[{type: Ready, status: "True", reason: Succeeded}]`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Abbreviated revision of the last successful `up`, for `kubectl get`: at most 24 characters, with a shortened
    /// digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_revision: Option<String>,

    /// Abbreviated message of the condition `Ready`, for `kubectl get`: the first line, with shortened digests and at
    /// most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

    /// Outputs of the last successful `up`, by name. The value of a secret output is `[secret]`.
    /// Example: `{url: "https://example.com"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub outputs: BTreeMap<String, Value>,

    /// Source revision of the last requested run. Absent if no run was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_revision: Option<String>,

    /// Source revision of the last successful `up`. Absent if no `up` has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_revision: Option<String>,

    /// Revision from which the artifact of the last successful `up` was built. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_origin_revision: Option<String>,

    /// Recent runs, grouped by artifact and result, newest first. At most five entries.
    /// Example: `[{digest: "sha256:…", lastReconciledStatus: Succeeded, totalReconciliations: 2}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::HISTORY))]
    pub history: Vec<Snapshot>,

    /// Last runs, except drift checks, newest first. At most ten entries. Example:
    /// `[{name: web-1, type: up, state: succeeded, historyURL: "s3://runs/apps/web/…"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::RUNS))]
    pub runs: Vec<RunRecord>,

    /// Number of runs that the controller requested for this Stack. The controller derives Update names from this
    /// number and the Stack's UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i64>,

    /// Whether the Stack was suspended at the last reconciliation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,

    /// Open run and its inputs. Absent if no run is open. Example: `{name: web-1, type: up, commit: "main@sha1:…"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_update: Option<Box<CurrentUpdate>>,

    /// Last completed run and its inputs. Absent if no run has ended.
    /// Example: `{name: web-1, type: up, state: succeeded}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update: Option<LastUpdate>,

    /// Plan that waits for an approval or for its execution. Absent if there is no plan.
    /// Example: `{digest: "sha256:…", updateName: web-1, operation: up}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<StackPlan>>,

    /// Result of the last drift check. Absent if no drift check has ended.
    /// Example: `{updateName: web-3, count: 1}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Box<StackDrift>>,

    /// Objects that the controller created for `spec.writeOutputsTo`. Absent if there are none.
    /// Example: `[{kind: Secret, name: database}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub written_outputs: Vec<OutputObjectReference>,

    /// Policy violations of the last run that evaluated policies. Absent if there were none.
    /// Example: `{mandatory: 1, advisory: 0}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_violations: Option<PolicyViolations>,

    /// Pulumi project of the last run. If no source is available, a destroy requires only this project and the Pulumi
    /// state. Example: `{name: web, runtime: nodejs}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_info: Option<RunProject>,

    /// Pulumi stack that can contain resources of this Stack, because an `up` succeeded or may have changed resources.
    /// Absent after a successful destroy.
    /// Example: `{name: dev, project: web, backend: "s3://state"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_stack: Option<PulumiStack>,

    /// Whether a run has reported resources in `appliedStack`. If the backend no longer has this Pulumi stack, the next
    /// run then fails with the reason `StackNotFound`. Absent if unknown, for example after an interrupted first run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_confirmed: Option<bool>,

    /// Pulumi stacks whose resources no Stack manages, because this Stack now uses another Pulumi stack or because the
    /// state has lost the resources. A user acknowledges an entry with the annotation `pulumi.com/acknowledge`. At most ten entries, newest first.
    /// Example: `[{id: 1a2b3c4d, name: dev, project: web}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ORPHANED_STACKS))]
    pub orphaned_stacks: Vec<OrphanedStack>,
}

/// Inputs of a run. If an input changes after the last run, a new run starts. The source revision is also an input.
/// This type does not contain the revision, because `currentUpdate` and `lastUpdate` have different names for the
/// revision, as in the Pulumi Kubernetes Operator.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunInputs {
    /// Stack generation when the controller requested the run.
    #[serde(default)]
    pub generation: i64,
    /// Digest of the spec fields that affect the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_spec_digest: Option<Digest>,
    /// Value of the annotation `pulumi.com/reconciliation-request` that the run handles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile_request: Option<String>,
    /// Value of the annotation `reconcile.fluxcd.io/requestedAt` that the run handles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<String>,
    /// Value of the annotation `reconcile.fluxcd.io/forceAt` that the run handles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force_at: Option<String>,
    /// Value of the annotation `reconcile.fluxcd.io/resetAt` that the run handles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_at: Option<String>,
    /// Value of the annotation `pulumi.com/refresh` that the run handles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_at: Option<String>,
    /// Digest of the artifact. If the source later publishes another artifact with the same content, the controller
    /// updates this digest in `lastUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Identifier of the artifact content. Artifacts of one revision with the same files have the same
    /// identifier. Absent if the source kind does not support such an identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_id: Option<String>,
    /// Digest of the files that match `spec.paths`. If this field is set, changes to other files do not start a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths_digest: Option<String>,
    /// Keyed hash of the configuration values from Secrets and ConfigMaps when the controller requested the run. Absent
    /// if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_inputs: Option<String>,
    /// Keyed hash of each Secret and ConfigMap that the workspace pod mounts, by object. An object that the controller
    /// does not watch keeps the hash of the previous run, so a change to the object starts no run.
    /// Example: `{Secret/aws: 3f2a…}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::MOUNTED_INPUTS))]
    pub mounted_inputs: BTreeMap<String, String>,
    /// Hash of each policy pack and its configuration, by name. Example: `{house: 3f2a…}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::WORKSPACE_POLICY_PACKS))]
    pub policy_inputs: BTreeMap<String, String>,
    /// Hash of the desired Workspace of the run (annotation `pulumi.com/desired-hash`). If no run is due, but the
    /// Workspace has another hash, the controller restores the Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_hash: Option<String>,
}

/// Open run of a Stack and its inputs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CurrentUpdate {
    /// Name of the Update.
    pub name: String,
    /// Digest of the Update's spec. The controller ignores an Update with another digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<Digest>,
    /// Digest of the spec before the controller added the check for pending creates. Another process can have created
    /// the Update with this spec, so the controller accepts it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_spec_digest: Option<Digest>,
    #[serde(flatten)]
    pub inputs: RunInputs,
    /// Revision of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Revision of the source from which the artifact was built. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_revision: Option<String>,
    /// Git metadata of the source. Absent if unknown.
    /// Example: `{repositoryURL: "https://github.com/acme/web", headName: refs/heads/main}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceMetadata>,
    /// Directory of the Pulumi project in the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Pulumi command: `up`, `preview` or `destroy`.
    #[serde(default, rename = "type")]
    pub kind: UpdateKind,
    /// Reason for the run.
    #[serde(default)]
    pub message: String,
    /// Whether the run creates the Pulumi stack in `appliedStack` if the backend does not have it. Absent if the run
    /// must not create this Pulumi stack, or if the Stack has no `appliedStack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_stack: Option<bool>,
    /// Pulumi stacks that other Stacks in the namespace have applied, and in which the run does not start. Example:
    /// `[{owner: web, name: dev}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::applied_by_others")]
    pub applied_by_others: Vec<AppliedByOther>,
    /// Policy for the pending creates of an interrupted run: `Stop`, `Keep` or `Clear`. Absent if the run does not
    /// check the state for pending creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
    /// Whether the run is a preview that saves its plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_plan: Option<bool>,
    /// Operation whose changes a preview reports: `up` or `destroy` for a plan, and `refresh` or `up` for a drift
    /// check. Absent for other runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_of: Option<PreviewOf>,
    /// Whether the API server rejected the Update, so that the run has not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<bool>,
    /// Whether the run refreshes the state to correct drift, even if `spec.refresh` is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,
    /// Whether the run has no new inputs, because it is a drift check or a periodic run. Absent for other runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<bool>,
    /// Approved plan that the run executes. Absent for a run without a plan.
    /// Example: `{digest: "sha256:…", updateName: web-1}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<ApprovedPlan>,
    /// Digest of the policy packs that the run enforces. Absent for a run without policy packs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_packs_digest: Option<Digest>,
    /// Pulumi stack of the run. A part is absent if it is unknown before the run. Example: `{name: dev, project: web}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi_stack: Option<PulumiStack>,
}

/// Last completed run of a Stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LastUpdate {
    /// Name of the Update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Pulumi command: `up`, `preview` or `destroy`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Result: `succeeded` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Failure reason, such as `UpdateFailed` or `UpdateConflict`. Absent after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether a user canceled the run. The controller does not retry a canceled run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canceled_by_user: Option<bool>,
    /// Cause of the failure, or a warning about a successful run. Absent after a success without a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Minimum time before the retry of this run in seconds. Set if a server limits the number of requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<i64>,
    #[serde(flatten)]
    pub inputs: RunInputs,
    /// Source revision of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempted_commit: Option<String>,
    /// Source revision of the last successful `up` or destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_successful_commit: Option<String>,
    /// Git metadata of this run's source. Absent if unknown.
    /// Example: `{repositoryURL: "https://github.com/acme/web", headName: refs/heads/main}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Box<SourceMetadata>>,
    /// Keyed hash of the configuration values that the run read from Secrets and ConfigMaps. Set only if a value
    /// changed between the request and the start of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_config_inputs: Option<String>,
    /// Environment variables that the run ignored, because they would set flags of the Pulumi CLI. At most 20 entries.
    /// Example: `[PULUMI_OPTION_PARALLEL]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::IGNORED_VARIABLES), inner(length(max = bounds::WORD)))]
    pub ignored_variables: Vec<String>,
    /// URL of the update in Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,
    /// Number of resources by Pulumi engine operation, such as `create`, `update`, `replace`, `delete` and `same`. A
    /// preview reports the planned operations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::OPERATIONS))]
    pub changes: BTreeMap<String, i64>,
    /// Time at which the controller recorded the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_resync_time: Option<Time>,
    /// Number of consecutive failures with the current inputs, including this run, or 0 after a success.
    #[serde(default)]
    pub failures: i64,
    /// Number of consecutive runs that were interrupted or whose pod ended during the run.
    #[serde(default)]
    pub interruptions: i64,
    /// Number of consecutive runs that found the same lock, which belongs to another update. The delay before the retry
    /// increases with this number.
    #[serde(default)]
    pub conflicts: i64,
    /// Whether an interrupted destroy may have removed the Pulumi stack from the backend. The next destroy then
    /// succeeds even if the Pulumi stack does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack_may_be_removed: Option<bool>,
    /// The next run's policy for the pending creates of an interrupted run. Absent after a successful run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
    /// Approved plan that the run executed. Absent for a run without a plan.
    /// Example: `{digest: "sha256:…", updateName: web-1, approvedBy: [alice]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<ApprovedPlan>>,
    /// Pulumi stack of the run. Example: `{name: dev, project: web}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi_stack: Option<PulumiStack>,
}

/// Runs with the same artifact and the same result.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Digest of the artifact.
    pub digest: Digest,
    /// Time at which the first run ended.
    pub first_reconciled: Time,
    /// Time at which the last run ended.
    pub last_reconciled: Time,
    /// Duration of the last run, such as `1m3s`.
    #[schemars(length(max = bounds::WORD))]
    pub last_reconciled_duration: String,
    /// Result of the runs: the reason of the condition `Ready` after each run.
    #[schemars(length(max = bounds::WORD))]
    pub last_reconciled_status: String,
    /// Number of the artifact's runs with this result.
    pub total_reconciliations: i64,
    /// Name of the last run's Update. `status.runs` contains the run's URL in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAME))]
    pub last_run: Option<String>,
    /// Metadata of the artifact: `revision`, and `originRevision` if the source reports an origin revision. Example:
    /// `{revision: "main@sha1:…"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::CONDITIONS))]
    pub metadata: BTreeMap<String, String>,
}
