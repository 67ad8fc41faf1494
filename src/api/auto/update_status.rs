//! Status of an Update: the run's result, progress and binding.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::{ArtifactReference, RunHistory, UpdatePlan};
use crate::api::pulumi::{BoundConcurrencyGroup, PolicyViolations};
use crate::api::{bounds, schema};

/// Observed state of an Update.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStatus {
    /// Last observed generation of the object. `-1` before the first reconciliation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the Update: `Progressing`, `Failed` and `Complete`.
    /// Example: `[{type: Complete, status: "True", reason: Succeeded}]`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Abbreviated revision of `spec.artifact`, for `kubectl get`: at most 24 characters, with a shortened digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_revision: Option<String>,

    /// Phase of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<UpdatePhase>,

    /// Progress of the run. After the run has ended, `progress.summary` contains a summary of the changes.
    /// Example: `{summary: "3 done, creating aws:s3:Bucket logs", stepsDone: 3}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<RunProgress>,

    /// Time at which the run started. Absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// Time at which the run ended. Absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,

    /// Duration of the run, such as `1m3s`. Absent until the run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,

    /// Cause of a failure, or information about a successful run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// URL of the update in Pulumi Cloud. The controller sets the URL when Pulumi Cloud accepts the update, and keeps
    /// it if the run fails. Absent for other backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,

    /// Pulumi project of the run. Absent if unknown. Example: `{name: web, runtime: nodejs}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_info: Option<RunProject>,

    /// URL of the state backend, without credentials. Absent if neither the environment nor the project file sets the
    /// backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,

    /// Keyed hash of the configuration values from Secrets and ConfigMaps that the run used. A Workspace with the same
    /// values has the same hash in `status.configInputs`. Absent if the configuration contains no such values, or if
    /// the agent does not report the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_inputs: Option<String>,

    /// Environment variables that the run ignored, because they would set flags of the Pulumi CLI. At most 20 entries.
    /// Example: `[PULUMI_OPTION_PARALLEL]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::IGNORED_VARIABLES), inner(length(max = bounds::WORD)))]
    pub ignored_variables: Vec<String>,

    /// Name of the Secret with the Pulumi stack outputs. Absent if there are no outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<String>,

    /// Whether outputs are unknown, or the controller failed to store them. `message` contains the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_unavailable: Option<bool>,

    /// Whether the state of the Pulumi stack in `spec.appliedStack` contained no resources before the run, so that the
    /// run created resources again. Absent if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_was_empty: Option<bool>,

    /// Minimum time before the next attempt in seconds. Set if a server limits the number of requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<i64>,

    /// Number of resources by Pulumi engine operation, such as `create`, `update`, `replace`, `delete` and `same`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::OPERATIONS))]
    pub changes: BTreeMap<String, i64>,

    /// Changes that a preview reports, and the saved plan. Absent for other runs.
    /// Example: `{fileDigest: "sha256:…", resourceCount: 3}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<UpdatePlan>,

    /// Policy violations that the run reported. Absent if there were none.
    /// Example: `{mandatory: 1, advisory: 0}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_violations: Option<PolicyViolations>,

    /// Last lines of the CLI output, truncated and without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_output: Option<String>,

    /// Reference to the run in the history. Absent if the history is disabled. Example:
    /// `{url: "s3://runs/apps/web/…"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<RunHistory>,

    /// URNs of the pending creates that prevented the start of this run. At most 100 entries.
    /// Example: `["urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PENDING_CREATES), inner(length(max = bounds::URN)))]
    pub pending_creates: Vec<String>,

    /// Pod and inputs of the run. The controller sets this field before the run starts.
    /// Example: `{podUID: 5d1c…, nodeName: node-1}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunBinding>,

    /// Whether the run was interrupted. The state can then contain pending operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<bool>,

    /// Evidence that all processes of the run have exited. Absent if the run did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_evidence: Option<TerminationEvidence>,

    /// Value of the annotation `pulumi.com/resolve` with which a user resolved the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_resolve: Option<String>,
}

/// Pulumi project of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct RunProject {
    /// Name of the project.
    pub name: String,
    /// Runtime of the project, such as `nodejs`.
    pub runtime: String,
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum UpdatePhase {
    /// The run waits for a requirement, such as a ready Workspace or a free run slot.
    Waiting,
    /// The controller has requested the run. The Pulumi CLI has not started yet.
    Starting,
    /// The Pulumi CLI is running.
    Running,
    /// The agent cancels the run.
    Canceling,
    /// The controller does not know whether the run has ended.
    OutcomeUnknown,
    /// The run succeeded.
    Succeeded,
    /// The run failed, or it did not start. `message` contains the cause.
    Failed,
}

/// Progress of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// Progress on one line, such as `3 done, creating aws:s3:Bucket logs`. After the run has ended, this field
    /// contains a summary of the changes, such as `2 create, 5 same`.
    #[serde(default)]
    pub summary: String,
    /// Number of successful resource operations, except operations without changes.
    #[serde(default)]
    pub steps_done: i64,
    /// Number of resources, except the stack resource, that the run has created, updated, deleted or found unchanged.
    #[serde(default)]
    pub resources_done: i64,
    /// Number of resources that the Pulumi engine has started to process, at most 10000. The number increases while the
    /// program registers resources.
    #[serde(default)]
    pub resources_total: i64,
    /// Number of resource operations in progress.
    #[serde(default)]
    pub in_work: i64,
    /// Type of the oldest operation in progress, such as `create`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Resource type of the oldest operation in progress.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Resource name of the oldest operation in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Start time of the oldest operation in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// What the Pulumi CLI is doing while the engine is not running, such as `creating the stack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Time of the last progress or output. Set only after half of `idleTimeout` has passed without progress or output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// Process ID of the Pulumi CLI in the pod. A lock of this run contains this ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i64>,
    /// URL of the update in Pulumi Cloud, which the controller writes to `status.permalink`.
    #[serde(skip)]
    pub permalink: Option<String>,
}

/// Evidence that all processes of a run have exited.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum TerminationEvidence {
    /// The agent observed that the Pulumi CLI and all its child processes have exited.
    Agent,
    /// The kubelet reported that the agent's container has terminated.
    Container,
    /// The Node object no longer exists.
    NodeGone,
    /// The node has the taint `node.kubernetes.io/out-of-service`.
    NodeOutOfService,
    /// A user confirmed that the run has ended. The controller has no other evidence.
    User,
}

/// Pod, agent process and inputs of a run. The controller records the binding before it starts the run. A restarted
/// controller uses the binding to attach to the run, and never starts the run in another pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunBinding {
    /// UID of the pod that executes the run.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// ID of the agent process in the pod. The ID changes when the container restarts.
    #[serde(rename = "agentStartID")]
    pub agent_start_id: String,
    /// Digest of the Pulumi stack settings for this run.
    pub settings_digest: String,
    /// Artifact that the run uses. Example: `{digest: "sha256:…", revision: "main@sha1:…"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,
    /// Host name of the pod. A lock of this run contains this name. Empty if other processes on the node have the same
    /// host name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = bounds::NAME))]
    pub host: String,
    /// Name of the node on which the pod runs. Empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = bounds::NAME))]
    pub node_name: String,
    /// ID of the agent's container, as in the pod status.
    #[serde(default, rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Referenced Secrets and ConfigMaps that are empty, such as `ConfigMap/defaults`. The agent starts the run
    /// although the mounts of these objects contain no files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCED_OBJECTS), inner(length(max = bounds::WORD)))]
    pub empty_references: Vec<String>,
    /// Concurrency group of the run. Absent for a run without a group. Example: `{name: aws-prod, limit: 2}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_group: Option<BoundConcurrencyGroup>,
    /// Timeout of the run, such as `3h0m0s`. A later change of `spec.timeout` or of a controller flag does not change
    /// it. `0s` means that the run has no timeout. Absent if an earlier version of the controller recorded the binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::short_duration")]
    pub timeout: Option<String>,
}
