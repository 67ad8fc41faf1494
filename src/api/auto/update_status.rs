//! Status of an Update: result, progress and binding of the run.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::ArtifactReference;
use crate::api::{bounds, schema};

/// Observed state of an Update.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStatus {
    /// Last observed generation. `-1` before the first reconciliation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions `Progressing`, `Failed` and `Complete`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Revision of `spec.artifact` for `kubectl get`, with a short digest, at most 24 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_revision: Option<String>,

    /// Phase of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<UpdatePhase>,

    /// Progress of the run. After the end of the run, it summarizes the changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<RunProgress>,

    /// Time at which the run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// Time at which the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,

    /// Duration of the run, such as `1m3s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,

    /// Cause of a failure, or a note about a successful run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Link to the update in Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,

    /// Pulumi project of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_info: Option<RunProject>,

    /// URL of the state backend, without credentials. Absent if neither the environment nor the project file specifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,

    /// Keyed hash of the configuration values from Secrets and ConfigMaps that the run used, comparable with `status.configInputs` of the
    /// Workspace. Absent if there are no such values, or if the agent does not report the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_inputs: Option<String>,

    /// Name of the Secret with the outputs of the Pulumi stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<String>,

    /// Whether the values of the outputs were not stored. `message` contains the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_unavailable: Option<bool>,

    /// Number of resources by operation of the Pulumi engine, such as `create`, `update`, `replace`, `delete` and `same`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::OPERATIONS))]
    pub changes: BTreeMap<String, i64>,

    /// Last lines of the output of the CLI, truncated and without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_output: Option<String>,

    /// URNs of the resources that an interrupted run was creating and that prevented the start of this run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PENDING_CREATES), inner(length(max = bounds::URN)))]
    pub pending_creates: Vec<String>,

    /// Pod and inputs of the run. The controller records them before the run starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunBinding>,

    /// Whether the run was interrupted. The state can then contain pending operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<bool>,

    /// Evidence that all processes of the run have ended. Absent if the run never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_evidence: Option<TerminationEvidence>,

    /// Value of the annotation `pulumi.com/resolve` that completed the Update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_resolve: Option<String>,
}

/// Pulumi project of a run. A destroy without a source uses the name of this project.
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
    /// The run cannot start yet.
    Waiting,
    /// The controller has requested the run, and the Pulumi CLI has not started yet.
    Starting,
    /// The Pulumi CLI is running.
    Running,
    /// The run is being canceled.
    Canceling,
    /// The controller cannot determine whether the run has ended.
    OutcomeUnknown,
    /// The run succeeded.
    Succeeded,
    /// The run failed or did not start. `message` contains the cause.
    Failed,
}

/// Progress of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// Progress in one line, such as `3 done, creating aws:s3:Bucket logs`. After the end of the run, it contains the changes.
    #[serde(default)]
    pub summary: String,
    /// Number of completed resource operations, without unchanged resources.
    #[serde(default)]
    pub steps_done: i64,
    /// Number of resources that the run has created, updated, deleted or found unchanged, without the stack itself.
    #[serde(default)]
    pub resources_done: i64,
    /// Number of resources that the Pulumi engine has started to process, at most 10000. The number increases while the program registers
    /// resources.
    #[serde(default)]
    pub resources_total: i64,
    /// Number of resource operations in progress.
    #[serde(default)]
    pub in_work: i64,
    /// Name of the oldest operation in progress, as reported by the Pulumi engine.
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
    /// Time of the last progress or output. Set only with `idleTimeout`, after half of this timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// Process ID of the Pulumi CLI in the pod, as in a lock of the Pulumi stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i64>,
}

/// Evidence that all processes of a run have ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum TerminationEvidence {
    /// The agent observed the end of the Pulumi CLI and of all its child processes.
    Agent,
    /// The kubelet reported the end of the container.
    Container,
    /// The Node object does not exist.
    NodeGone,
    /// The node has the taint `node.kubernetes.io/out-of-service`.
    NodeOutOfService,
    /// There is no evidence: a user confirmed that the run has ended.
    User,
}

/// Pod, agent process and inputs of a run. The controller writes them before it starts the run. After a restart, the controller attaches to
/// this run, and never starts it again in another pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunBinding {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// ID of the agent process in the pod. It changes when the container restarts.
    #[serde(rename = "agentStartID")]
    pub agent_start_id: String,
    /// Digest of the settings of the Pulumi stack.
    pub settings_digest: String,
    /// Artifact of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,
    /// Host name of the pod, as in a lock of the Pulumi stack. Empty if other processes on the node have the same host name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Name of the node of the pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// ID of the container of the agent process, as reported by the kubelet.
    #[serde(default, rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Referenced Secrets and ConfigMaps that contain no keys, such as `ConfigMap/defaults`. Their directories in the pod may be empty when the run
    /// starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCED_OBJECTS), inner(length(max = bounds::WORD)))]
    pub empty_references: Vec<String>,
}
