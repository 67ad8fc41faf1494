//! `auto.pulumi.com/v1alpha1` Update: one run of Pulumi in a Workspace.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::ArtifactReference;
use crate::api::pulumi::PulumiStack;
use crate::api::{bounds, conditions, schema};

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
    /// The Workspace to run in.
    // Objects of another controller may lack it, and what cannot be read stops the watch of all.
    #[serde(default)]
    #[schemars(!default)]
    pub workspace_name: String,

    /// The Pulumi stack to run.
    #[serde(default)]
    #[schemars(!default)]
    pub stack_name: String,

    /// What to run.
    #[serde(rename = "type", default = "UpdateKind::unknown")]
    #[schemars(!default)]
    pub kind: UpdateKind,

    /// The artifact that this run is bound to: it runs on this one or not at all. Default: whatever is in place when its turn
    /// comes; `status.run` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// Delete this object so long after the run has ended. A duration such as `24h`. Unset: of a Stack's runs the newest five are
    /// kept, others for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub ttl_after_completed: Option<String>,

    /// Message of the update in the backend's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Refresh the state first (`up`, `preview`, `destroy`: `--refresh`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,

    /// End before anything is changed when a refresh would find changes (`up`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_refresh_changes: Option<bool>,

    /// Work only on the resources with these URNs (`--target`). In a URN `*` stands for a part of a name, `**` for any number of
    /// parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::URN)))]
    pub target: Vec<String>,

    /// Work on resources that depend on those in `target` as well (`up`, `preview`, `destroy`: `--target-dependents`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_dependents: Option<bool>,

    /// Replace the resources with these URNs (`up`, `preview`: `--replace`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::URN)))]
    pub replace: Vec<String>,

    /// How many resources are worked on at once (`--parallel`). Default: what the CLI does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub parallel: Option<u32>,

    /// Fail when something changes (`up`, `preview`, `refresh`: `--expect-no-changes`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_changes: Option<bool>,

    /// Go on after a resource has failed (`up`, `destroy`: `--continue-on-error`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_on_error: Option<bool>,

    /// Remove the stack from the backend once it is destroyed (`destroy`: `--remove`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<bool>,

    /// Run the program for the credentials and settings that it gives to its providers (`destroy`, `refresh`:
    /// `--run-program`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_program: Option<bool>,

    /// Pulumi stack that a destroy may work on. A destroy fails with reason `StackNotFound` if the name, the project or the backend of the
    /// run is another one; what is absent here is not compared. A Stack sets it to its `status.appliedStack`. Default: no comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_stack: Option<PulumiStack>,

    /// Priority of the run among the queued runs of its namespace: a higher one starts first. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i32>,

    /// Since when the run has been pending. Of the queued runs of a namespace with the same priority the one that has been pending
    /// longest starts first. A Stack sets it to its `status.pendingSince`. Default: since the creation of this object or, if that
    /// is later, since the last start of a run in the same Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<Time>,

    /// Maximum duration of the run, such as `1h30m`; a run that takes longer is canceled gracefully. `0s` is no limit of its
    /// own. Default: the controller's `--default-run-timeout`. Upper limit: its `--max-run-timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Option<String>,

    /// A run without progress and output for this long is reported, then ended gracefully. A duration such as `10m`; none, or
    /// `0s`, is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub idle_timeout: Option<String>,

    /// Whether the lock that an earlier run of ours left is removed, once that run is proven dead.
    #[serde(default)]
    pub lock_recovery: LockRecovery,

    /// What to do about resources that an earlier run was creating when it was cut off. Without it the state is not read for
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
}

/// Whether a lock that a dead run left is removed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum LockRecovery {
    /// If it is exactly the lock of a run of ours that is proven dead, and the only one.
    #[default]
    Automatic,
    /// Never: a person does it.
    Manual,
}

/// What to do about resources that an earlier run was creating when it was cut off: nobody knows whether they exist.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum PendingCreates {
    /// Run nothing if the state names any.
    Stop,
    /// Run all the same.
    Keep,
    /// Take them out of the state, then run.
    Clear,
}

impl Update {
    /// Whether the result is in the status.
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::COMPLETE))
    }

    /// Whether the Pulumi Kubernetes Operator has started its run, which has not ended: we write down what a run is bound to
    /// before it starts.
    pub fn is_started_by_operator(&self) -> bool {
        let is_started = |status: &UpdateStatus| {
            status.run.is_none() && conditions::is_true(&status.conditions, conditions::PROGRESSING)
        };
        !self.is_complete() && self.status.as_ref().is_some_and(is_started)
    }

    /// The artifact that it runs on: what it was started with, else what it asks for. None while it takes whatever comes.
    pub fn artifact(&self) -> Option<&ArtifactReference> {
        let started = self.status.as_ref().and_then(|status| status.run.as_ref()?.artifact.as_ref());
        started.or(self.spec.artifact.as_ref())
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
    /// `pulumi preview`: what `up` would change
    Preview,
    /// `pulumi refresh`
    Refresh,
    /// None, or another word, in an object that was stored before this schema.
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

    /// What `kubectl get` prints of the revision of `spec.artifact`: with a short digest, at most 24 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_revision: Option<String>,

    /// Where the run is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<UpdatePhase>,

    /// How far the run is; once it has ended, what it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<RunProgress>,

    /// When the run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,

    /// How long it took, such as `1m3s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,

    /// Why it failed, or what it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Link to the update in Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permalink: Option<String>,

    /// The project that was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_info: Option<RunProject>,

    /// URL of the state backend, without credentials. Absent if neither the environment nor the project file names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,

    /// Keyed hash of the configuration values from Secrets and ConfigMaps that the run has read, comparable with
    /// `status.configInputs` of the Workspace. Absent if there are none, or the agent does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_inputs: Option<String>,

    /// Name of the Secret that holds the stack's outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<String>,

    /// Whether the values of the outputs are not kept; `message` says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_unavailable: Option<bool>,

    /// How many resources were created, updated, replaced, deleted, or stayed the same.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::OPERATIONS))]
    pub changes: BTreeMap<String, i64>,

    /// The last lines that the CLI printed, bounded, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_output: Option<String>,

    /// URNs of the resources that an earlier run was creating when it was cut off. Nothing has run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PENDING_CREATES), inner(length(max = bounds::URN)))]
    pub pending_creates: Vec<String>,

    /// What the run is bound to, written before it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunBinding>,

    /// Whether the run was cut off: the state may name operations that were under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<bool>,

    /// By what it is known that nothing of the run is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_evidence: Option<TerminationEvidence>,

    /// The value of `pulumi.com/resolve` that ended the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_resolve: Option<String>,
}

/// The project that was run: its name is what a stack can be destroyed by when the source is gone.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct RunProject {
    /// The project's name.
    pub name: String,
    /// The project's runtime, such as `nodejs`.
    pub runtime: String,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum UpdatePhase {
    /// It cannot start yet.
    Waiting,
    /// It is announced, and its process is not known yet.
    Starting,
    /// Its process is known.
    Running,
    /// It was asked to end.
    Canceling,
    /// Nobody knows whether it still goes on.
    OutcomeUnknown,
    /// It has ended, and did what it should.
    Succeeded,
    /// It has ended, or never began; `message` says why.
    Failed,
}

/// How far a run is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// All of it in one line, such as `3 done, creating aws:s3:Bucket logs`; once the run has ended, its changes.
    #[serde(default)]
    pub summary: String,
    /// How many resources have been worked on; those that stayed the same do not count.
    #[serde(default)]
    pub steps_done: i64,
    /// How many resources have been created, updated, deleted or found unchanged so far, the stack itself not counted.
    #[serde(default)]
    pub resources_done: i64,
    /// How many resources the engine has begun with so far, 10000 at most: the program registers more of them while it runs.
    #[serde(default)]
    pub resources_total: i64,
    /// How many resources are being worked on.
    #[serde(default)]
    pub in_work: i64,
    /// The engine's word for what is being done to the resource that has been worked on longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// That resource's type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// That resource's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Since when it is being worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Since when nothing was seen or heard of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// Process id of the CLI in the pod, as a lock of the stack names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i64>,
}

/// By what it is known that nothing of a run is left.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum TerminationEvidence {
    /// The agent has seen the end of the CLI and of all that it started.
    Agent,
    /// The kubelet has seen the end of the container.
    Container,
    /// The Node object is gone.
    NodeGone,
    /// The node is tainted `node.kubernetes.io/out-of-service`.
    NodeOutOfService,
    /// Nothing proves it: a person has decided so.
    User,
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
    /// The artifact that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,
    /// The pod's name as a lock of the stack names it; empty where it is not the pod's alone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The node that the pod is on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The container of that start of the agent, as the kubelet names it.
    #[serde(default, rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Referenced Secrets and ConfigMaps, such as `ConfigMap/defaults`, that exist and have no keys: their directories in
    /// the pod may be empty when the run starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCED_OBJECTS), inner(length(max = bounds::WORD)))]
    pub empty_references: Vec<String>,
}
