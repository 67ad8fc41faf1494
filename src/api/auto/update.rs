//! `auto.pulumi.com/v1alpha1` Update: one run of the Pulumi CLI in a Workspace.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::{ArtifactReference, UpdateStatus};
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

    /// Whether an `up` checks for drift first, and fails before it changes any resource if it finds drift. Default: `false`.
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

    /// Pulumi stack to which a destroy is restricted. If the name, the project or the backend of the Pulumi stack to destroy differs from
    /// this field, the destroy fails with the reason `StackNotFound` and deletes nothing. Absent fields are not compared. A Stack sets this
    /// field to its `status.appliedStack`. Default: no comparison.
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

    /// Maximum time for which the run can have neither progress nor output, as a duration such as `10m`. A run that exceeds this time is
    /// canceled gracefully. By default, or with `0s`, there is no idle timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub idle_timeout: Option<String>,

    /// Handling of a lock of an earlier run of the controller that is proven to have ended. Default: `Automatic`.
    #[serde(default)]
    pub lock_recovery: LockRecovery,

    /// Handling of resources that an interrupted run was creating. Default: the run does not check the state for such resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_creates: Option<PendingCreates>,
}

/// Handling of the lock that an earlier, ended run has left.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum LockRecovery {
    /// Remove the lock if the Pulumi stack has no other lock.
    #[default]
    Automatic,
    /// Do not remove locks.
    Manual,
}

/// Handling of resources that an interrupted run was creating. It is unknown whether these resources exist.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum PendingCreates {
    /// Do not run if the state contains a record of such resources.
    Stop,
    /// Run, and leave the record of these resources in the state.
    Keep,
    /// Remove the record of these resources from the state, then run.
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

    /// Returns the artifact of the started run, or else the artifact in the spec. `None` if the run will use the artifact that is in the
    /// pod when the run starts.
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
