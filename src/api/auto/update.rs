//! `auto.pulumi.com/v1alpha1` Update: one run of the Pulumi CLI in a Workspace.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::ArtifactReference;
use crate::api::pulumi::PulumiStack;
use crate::api::{bounds, conditions, schema};

/// Specification of one run of the Pulumi CLI in a Workspace.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[kube(
    group = "auto.pulumi.com",
    version = "v1alpha1",
    kind = "Update",
    namespaced,
    status = "UpdateStatus",
    category = "pulumi",
    doc = "Update is one run of Pulumi in a Workspace.",
    printcolumn = r#"{"name":"Workspace","type":"string","jsonPath":".spec.workspaceName","priority":10}"#,
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Progress","type":"string","jsonPath":".status.progress.summary"}"#,
    printcolumn = r#"{"name":"Duration","type":"string","jsonPath":".status.duration","priority":10}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".status.shortRevision"}"#,
    printcolumn = r#"{"name":"Progressing","type":"string","jsonPath":".status.conditions[?(@.type==\"Progressing\")].status","priority":10}"#,
    printcolumn = r#"{"name":"Failed","type":"string","jsonPath":".status.conditions[?(@.type==\"Failed\")].status","priority":10}"#,
    printcolumn = r#"{"name":"Complete","type":"string","jsonPath":".status.conditions[?(@.type==\"Complete\")].status","priority":10}"#,
    printcolumn = r#"{"name":"Start Time","type":"date","jsonPath":".status.startTime","priority":10}"#,
    printcolumn = r#"{"name":"End Time","type":"date","jsonPath":".status.endTime","priority":10}"#,
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".status.permalink","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct UpdateSpec {
    /// Name of the Workspace of the run, in the namespace of the Update. Required.
    // Objects of other controllers can lack this field, and one object that cannot be parsed would break the watch of all objects.
    #[serde(default)]
    #[schemars(!default)]
    pub workspace_name: String,

    /// Name of the Pulumi stack: `stack`, `org/stack` or `org/project/stack`. Required.
    #[serde(default)]
    #[schemars(!default)]
    pub stack_name: String,

    /// Pulumi command of the run: `up`, `destroy`, `preview` or `refresh`. Required.
    #[serde(rename = "type", default = "UpdateKind::unknown")]
    #[schemars(!default)]
    pub kind: UpdateKind,

    /// Artifact of the run. The run never uses another artifact. Default: the artifact that is in the pod when the run starts, which is
    /// recorded in `status.run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// Time after the end of the run at which the controller deletes this object, as a duration such as `24h`. Default: a Stack keeps its
    /// five newest Updates, and other Updates are kept until a user deletes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub ttl_after_completed: Option<String>,

    /// Message of the update in the history of the backend (`--message`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Whether to refresh the state first (`--refresh`), for `up`, `preview` and `destroy`. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,

    /// Whether an `up` fails without a change if a refresh would find drift. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_refresh_changes: Option<bool>,

    /// URNs of the only resources that the run processes (`--target`). In a URN, `*` matches a part of a name, and `**` matches any number
    /// of parts. Default: all resources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::URN)))]
    pub target: Vec<String>,

    /// Whether the run also processes resources that depend on those in `target` (`--target-dependents`), for `up`, `preview` and
    /// `destroy`. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_dependents: Option<bool>,

    /// URNs of the resources to replace (`--replace`), for `up` and `preview`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::URN)))]
    pub replace: Vec<String>,

    /// Maximum number of parallel resource operations (`--parallel`). Default: the default of the CLI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub parallel: Option<u32>,

    /// Whether the run fails if it changes anything (`--expect-no-changes`), for `up`, `preview` and `refresh`. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_changes: Option<bool>,

    /// Whether to continue when a resource operation fails (`--continue-on-error`), for `up` and `destroy`. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_on_error: Option<bool>,

    /// Whether a `destroy` also removes the Pulumi stack from the backend (`--remove`). Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<bool>,

    /// Whether to run the program (`--run-program`), for `destroy` and `refresh`, so that the program can configure its providers. Default:
    /// `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_program: Option<bool>,

    /// Only Pulumi stack that a destroy is allowed to delete. If the name, the project or the backend of the run differs, the destroy fails
    /// with the reason `StackNotFound`. Absent fields are not compared. A Stack sets this field to its `status.appliedStack`. Default: no
    /// comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_stack: Option<PulumiStack>,

    /// Priority of the run among the queued runs of its namespace. Runs with a higher priority start first. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i32>,

    /// Time since which the run has been pending. Among the queued runs of a namespace with equal priority, the run with the oldest time
    /// starts first. A Stack sets this field to its `status.pendingSince`. Default: the creation time of this object or, if later, the last
    /// start time of a run in the same Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<Time>,

    /// Maximum duration of the run, such as `1h30m`. A run that takes longer is canceled gracefully. `0s` disables this limit. Default: the
    /// flag `--default-run-timeout` of the controller. The flag `--max-run-timeout` is the upper limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Option<String>,

    /// Maximum time without progress and output, as a duration such as `10m`. A run that exceeds it is canceled gracefully. By default, or
    /// with `0s`, there is no idle timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub idle_timeout: Option<String>,

    /// Whether the run removes the lock of an earlier run of the controller that is proven to have ended. Default: `Automatic`.
    #[serde(default)]
    pub lock_recovery: LockRecovery,

    /// Handling of resources that an interrupted run was creating. If absent, the run does not check the state for such resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
}

/// Removal of the lock of an earlier run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum LockRecovery {
    /// Remove the lock if it is the only one, and belongs to a run of the controller that is proven to have ended.
    #[default]
    Automatic,
    /// Never remove locks. A user removes them.
    Manual,
}

/// Handling of resources that an interrupted run was creating. It is unknown whether these resources exist.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum PendingCreates {
    /// Do not run if the state contains such resources.
    Stop,
    /// Run, and leave these resources in the state.
    Keep,
    /// Remove these resources from the state, then run.
    Clear,
}

impl Update {
    /// Returns whether the status contains the result of the run.
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::COMPLETE))
    }

    /// Returns whether the Pulumi Kubernetes Operator has started this run and the run has not ended. Unlike the operator, this controller
    /// records `status.run` before a run starts.
    pub fn is_started_by_operator(&self) -> bool {
        let is_started = |status: &UpdateStatus| {
            status.run.is_none() && conditions::is_true(&status.conditions, conditions::PROGRESSING)
        };
        !self.is_complete() && self.status.as_ref().is_some_and(is_started)
    }

    /// Returns the artifact of the started run, or else the artifact in the spec. `None` if the run uses the artifact in the pod at its
    /// start.
    pub fn artifact(&self) -> Option<&ArtifactReference> {
        let started = self.status.as_ref().and_then(|status| status.run.as_ref()?.artifact.as_ref());
        started.or(self.spec.artifact.as_ref())
    }
}

/// Pulumi command of an Update.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum UpdateKind {
    /// `pulumi up`
    #[default]
    Up,
    /// `pulumi destroy`
    Destroy,
    /// `pulumi preview`, which shows the changes of an `up`
    Preview,
    /// `pulumi refresh`
    Refresh,
    /// Absent or unknown value of an object that was stored before this schema.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl UpdateKind {
    fn unknown() -> Self {
        UpdateKind::Unknown
    }

    pub fn as_str(self) -> &'static str {
        match self {
            UpdateKind::Unknown => "unknown",
            UpdateKind::Up => "up",
            UpdateKind::Destroy => "destroy",
            UpdateKind::Preview => "preview",
            UpdateKind::Refresh => "refresh",
        }
    }
}

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

    /// Progress of the run. After the end of the run, it contains the changes.
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
    /// Workspace. Absent if there are none, or if the agent does not report it.
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

    /// URNs of the resources that an interrupted run was creating, and that prevented the start of this run.
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

/// Pulumi project of a run. If the source is missing, a destroy uses its name.
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
    /// Number of resources that the Pulumi engine has started to process, at most 10000. It grows while the program registers resources.
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
    /// A user confirmed the end without evidence.
    User,
}

/// Pod, agent process and inputs of a run. The controller writes them before it starts the run. After a restart, the controller attaches to
/// this run and never starts the run again in another pod.
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
    /// Referenced Secrets and ConfigMaps without keys, such as `ConfigMap/defaults`. Their directories in the pod may be empty when the run
    /// starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCED_OBJECTS), inner(length(max = bounds::WORD)))]
    pub empty_references: Vec<String>,
}
