//! `auto.pulumi.com/v1alpha1` Update: one run of the Pulumi CLI in a Workspace.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::{ArtifactReference, PlanReference, PreviewOf, SourceMetadata, UpdateStatus};
use crate::api::pulumi::{ConcurrencyGroup, PulumiStack};
use crate::api::{bounds, conditions, names, schema};
use crate::artifact::Digest;

/// Pulumi stack that another Stack has applied.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::bounded_pulumi_stack)]
pub struct AppliedByOther {
    /// Name of the Stack.
    pub owner: String,
    #[serde(flatten)]
    pub stack: PulumiStack,
}

/// Specification of a Pulumi CLI run in a Workspace.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[kube(
    group = "auto.pulumi.com",
    version = "v1alpha1",
    kind = "Update",
    namespaced,
    status = "UpdateStatus",
    category = "pulumi",
    doc = "Update is one run of Pulumi in a Workspace.",
    validation = (
        "!has(oldSelf.status) || !has(oldSelf.status.run) || has(oldSelf.status.endTime) || self.spec == oldSelf.spec",
        "spec is immutable while the run is open; cancel the run and create another Update"
    ),
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
    /// Name of the Workspace that executes the run, in the Update's namespace. Required.
    // An Update that another controller created can lack this field. If the field were required, such an Update would
    // break the Update watch.
    #[serde(default)]
    #[schemars(!default)]
    #[schemars(length(max = bounds::NAME))]
    pub workspace_name: String,

    /// Name of the Pulumi stack: `stack`, `org/stack` or `org/project/stack`. Required.
    #[serde(default)]
    #[schemars(!default)]
    #[schemars(length(max = bounds::STACK))]
    pub stack_name: String,

    /// Pulumi command of the run: `up`, `destroy`, `preview` or `refresh`. Required.
    #[serde(rename = "type", default = "UpdateKind::unknown")]
    #[schemars(!default)]
    pub kind: UpdateKind,

    /// Artifact that the run uses. Default: the artifact that is in the pod when the run starts. The controller records
    /// the artifact in `status.run`.
    /// Example: `{digest: "sha256:…", revision: "main@sha1:…"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// Git metadata of the artifact, for the backend's update history. A Stack sets this field. Default: no
    /// metadata. Example: `{repositoryURL: "https://github.com/acme/web", head: 1a2b…, headName: refs/heads/main}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Box<SourceMetadata>>,

    /// Retention period of the Update after its run has completed, as a duration such as `24h`. Default: the controller
    /// keeps the five newest completed Updates of each Stack, and all Updates that users created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::short_duration")]
    pub ttl_after_completed: Option<String>,

    /// Message of the run in the backend's update history (`--message`). Default: no message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::MESSAGE))]
    pub message: Option<String>,

    /// Whether an `up`, `preview` or `destroy` first refreshes the state (`--refresh`). Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,

    /// Whether an `up` fails if the resources have drifted from the state. Such an `up` changes no resources. Default:
    /// `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_refresh_changes: Option<bool>,

    /// URNs of the resources that the run processes (`--target`). In a URN, `*` matches any characters except `:`, and
    /// `**` matches any characters. Default: all resources.
    /// Example: `["urn:pulumi:dev::web::aws:s3/bucket:Bucket::*"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::URN)))]
    pub target: Vec<String>,

    /// Whether an `up`, `preview` or `destroy` also processes the resources that depend on `target`
    /// (`--target-dependents`). Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_dependents: Option<bool>,

    /// URNs of the resources that an `up` or `preview` replaces (`--replace`). Default: no resources.
    /// Example: `["urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::URN)))]
    pub replace: Vec<String>,

    /// Maximum number of concurrent resource operations (`--parallel`). Default: the CLI default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::PARALLEL))]
    pub parallel: Option<u32>,

    /// Whether an `up`, `preview` or `refresh` fails if it finds changes (`--expect-no-changes`). Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_changes: Option<bool>,

    /// Whether an `up` or `destroy` continues after a resource operation fails (`--continue-on-error`). Default:
    /// `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_on_error: Option<bool>,

    /// Whether a `destroy` also removes the Pulumi stack from the backend (`--remove`). Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<bool>,

    /// Whether a `destroy` or `refresh`, or the refresh before another operation, runs the program (`--run-program`), for
    /// example to configure providers. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_program: Option<bool>,

    /// Operation whose changes a `preview` reports: `up`, `destroy` or `refresh`. Default: `up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_of: Option<PreviewOf>,

    /// Whether a `preview` of an `up` or `destroy` saves its plan in the Secret `<name>-plan`. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_plan: Option<bool>,

    /// Plan that an `up` or `destroy` must follow. A run that deviates from the plan fails with the reason
    /// `PlanViolated`. Default: no plan. Example: `{updateName: web-1, fileDigest: "sha256:…"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<PlanReference>>,

    /// Expected digest of the Workspace's policy packs and their configuration. If the digest differs when the
    /// run starts, the run fails with the reason `RunRefused`. A Stack with policy packs sets this field. Default: no
    /// check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_packs_digest: Option<Digest>,

    /// Pulumi stack that contains the applied resources. A run in this Pulumi stack fails with the reason
    /// `StackNotFound` if the backend does not have it. A `destroy` also fails with this reason if the workspace's
    /// Pulumi stack has another name, project or backend. An absent part matches any value. If `stackName` contains no
    /// organization, the run uses the organization in this field. A Stack sets this field to its
    /// `status.appliedStack`. Default: no restriction. Example: `{name: dev, project: web}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::bounded_pulumi_stack)]
    pub applied_stack: Option<PulumiStack>,

    /// Whether an `up` or `preview` creates the Pulumi stack in `appliedStack` if the backend does not have it.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_stack: Option<bool>,

    /// Pulumi stacks that other Stacks in the namespace have applied. A run in one of these Pulumi stacks fails with the
    /// reason `DuplicateStack`, unless it is also the Pulumi stack in `appliedStack`. A Stack sets this field. Default: no
    /// restriction. Example: `[{owner: web, name: dev, project: web, backend: "s3://state"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::APPLIED_BY_OTHERS))]
    pub applied_by_others: Vec<AppliedByOther>,

    /// Priority of the run among its namespace's queued runs. Runs with a higher priority start first. Ten minutes of
    /// waiting are equivalent to one priority level. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i32>,

    /// Whether the run has no new inputs, because it is a drift check or a periodic run. In the namespace's
    /// queue, such a run has the same position as a run that became due one day later. A Stack sets this field.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<bool>,

    /// Group of runs that use the same cloud account or state backend. The number of concurrent runs in a group is
    /// limited. A Stack sets this field to its `spec.concurrencyGroup`. Default: no group. Example: `{name: aws-prod,
    /// limit: 2}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_group: Option<ConcurrencyGroup>,

    /// Time at which the run became due. Among a namespace's queued runs with equal priority, the run with the earliest
    /// time starts first. A Stack sets this field to its `status.pendingSince`. Default: the creation time of this
    /// object, or the start time of the Workspace's previous run, whichever is later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<Time>,

    /// Maximum duration of the run, such as `1h30m`. The agent gracefully cancels a longer run. The controller flag
    /// `--max-run-timeout` is the upper limit. With `0s`, only this flag limits the run. Default: the controller flag
    /// `--default-run-timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::short_duration")]
    pub timeout: Option<String>,

    /// Maximum time of the run without progress or output, as a duration such as `10m`. After this time, the agent
    /// gracefully cancels the run. If the field is absent or `0s`, the run has no idle timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::short_duration")]
    pub idle_timeout: Option<String>,

    /// Policy for a lock that belongs to an earlier run of this controller that has provably ended: `Automatic` or
    /// `Manual`. Default: `Automatic`.
    #[serde(default)]
    pub lock_recovery: LockRecovery,

    /// Policy for the pending creates of an interrupted run: `Stop`, `Keep` or `Clear`. Default: the run does not check
    /// the state for pending creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
}

/// Policy for a lock that belongs to a completed run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum LockRecovery {
    /// Remove the lock if the Pulumi stack has no other lock.
    #[default]
    Automatic,
    /// Do not remove locks.
    Manual,
}

/// Policy for the pending creates of an interrupted run: `Stop`, `Keep` or `Clear`. A pending create is a resource that
/// the run was creating. The resource may or may not exist. Default: the run does not check the state for pending
/// creates.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum PendingCreates {
    /// Do not start the run if the state contains pending creates.
    Stop,
    /// Start the run, and keep the pending creates in the state.
    Keep,
    /// Remove the pending creates from the state, then start the run.
    Clear,
}

impl Update {
    /// Returns whether the run has completed and the status contains its result.
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::COMPLETE))
    }

    /// Returns whether the Pulumi Kubernetes Operator started this run, and the run is still open. An Update with a run
    /// that the operator started has no `status.run`, because only this controller sets the field.
    pub fn is_started_by_operator(&self) -> bool {
        let is_started = |status: &UpdateStatus| {
            status.run.is_none() && conditions::is_true(&status.conditions, conditions::PROGRESSING)
        };
        !self.is_complete() && self.status.as_ref().is_some_and(is_started)
    }

    /// Returns the artifact of a started run, or else the artifact from the spec. Returns `None` if the run has not
    /// started and the spec contains no artifact.
    pub fn artifact(&self) -> Option<&ArtifactReference> {
        let started = self.status.as_ref().and_then(|status| status.run.as_ref()?.artifact.as_ref());
        started.or(self.spec.artifact.as_ref())
    }

    /// Returns the name of the run's pod. For a run without a binding, the function returns the name of the pod that
    /// the StatefulSet creates.
    pub fn pod_name(&self) -> String {
        let host = self.status.as_ref().and_then(|status| Some(status.run.as_ref()?.host.as_str()));
        names::run_pod(&self.spec.workspace_name, host.unwrap_or_default())
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
    /// `pulumi preview`, which shows the changes that an `up` would make
    Preview,
    /// `pulumi refresh`
    Refresh,
    /// Absent or unknown value in an object that a client created with an older schema.
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
