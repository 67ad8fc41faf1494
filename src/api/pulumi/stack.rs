//! `pulumi.com/v1` Stack: what to run, from which source, with which settings.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::auto::LockRecovery;
use crate::api::pulumi::{
    ConfigReference, FluxSource, GitAuth, GitReference, ProgramReference, ResourceRef, StackStatus,
};
use crate::api::{bounds, schema};

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
    printcolumn = r#"{"name":"Last Update","type":"string","jsonPath":".status.lastUpdate.state","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Last Commit","type":"string","jsonPath":".status.lastUpdate.lastAttemptedCommit","priority":10}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reconciling","type":"string","jsonPath":".status.conditions[?(@.type==\"Reconciling\")].reason","priority":10}"#,
    printcolumn = r#"{"name":"Stalled","type":"string","jsonPath":".status.conditions[?(@.type==\"Stalled\")].reason","priority":10}"#,
    printcolumn = r#"{"name":"Permalink","type":"string","jsonPath":".status.lastUpdate.permalink","priority":10}"#,
    printcolumn = r#"{"name":"Suspended","type":"boolean","jsonPath":".spec.suspend"}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".status.shortRevision"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.summary"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StackSpec {
    /// The stack's name as the Pulumi CLI takes it: `stack`, `org/stack` or `org/project/stack`.
    #[schemars(length(min = 1))]
    pub stack: String,

    /// The Flux source of the program. A Stack has one source: this, `programRef` or `projectRepo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux_source: Option<FluxSource>,

    /// URL of a Git repository that the controller follows itself: `https://…`, `http://…`, `ssh://…` or `git@host:path`. It takes one
    /// of `branch`, `commit` and `gitRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_repo: Option<String>,

    /// The branch that is followed, or a tag, by its short or its full name (`main`, `refs/heads/main`, `refs/tags/v1`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,

    /// The whole hash of a commit, which is never asked for again, or the name of a reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,

    /// Other ways to say what is followed in `projectRepo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<GitReference>,

    /// The directory of the Pulumi project in `projectRepo`. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_dir: Option<String>,

    /// `false` fetches the whole history of `projectRepo`, for servers that cannot send one commit alone. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shallow: Option<bool>,

    /// What `projectRepo` is read with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_auth: Option<GitAuth>,

    /// A Secret with what `projectRepo` is read with: `sshPrivateKey` and perhaps its `password`, or `accessToken`, or `username` and
    /// `password`; with `known_hosts` and `ca.crt` beside them where they are needed. `gitAuth` wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_auth_secret: Option<String>,

    /// Only commits of `projectRepo` that change a file that one of these matches start a run. Patterns are those of `.gitignore`:
    /// `/apps/web/` is a directory, `*.ts` is a file anywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES), inner(length(max = bounds::PATH)))]
    pub paths: Vec<String>,

    /// The Program that the Stack runs, in its own namespace. A change of it runs the Stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_ref: Option<ProgramReference>,

    /// URL of the state backend (`PULUMI_BACKEND_URL`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,

    /// A Secret whose key `accessToken` is the token for Pulumi Cloud (`PULUMI_ACCESS_TOKEN`). Deprecated: use `envRefs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token_secret: Option<String>,

    /// ConfigMaps whose keys are all environment variables of the Pulumi CLI. Deprecated: use `envRefs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES), inner(length(max = bounds::NAME)))]
    pub envs: Vec<String>,

    /// Secrets whose keys are all environment variables of the Pulumi CLI. Deprecated: use `envRefs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES), inner(length(max = bounds::NAME)))]
    pub env_secrets: Vec<String>,

    /// Environment variables of the Pulumi CLI, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub env_refs: BTreeMap<String, ResourceRef>,

    /// The stack's configuration: strings, numbers, booleans, objects and arrays. Keys are literal, never paths; a key
    /// without a namespace belongs to the project. A key that is removed here is gone from the stack's settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub config: BTreeMap<String, Value>,

    /// Configuration from ConfigMaps, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub config_ref: BTreeMap<String, ConfigReference>,

    /// Secret configuration in plain text. Deprecated: use `secretsRef`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub secrets: BTreeMap<String, String>,

    /// Secret configuration, by key: encrypted in the stack's settings, and not shown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub secrets_ref: BTreeMap<String, ResourceRef>,

    /// Those keys of `config`, `configRef`, `secrets` and `secretsRef` that are paths into structures, such as `web.password` or
    /// `names[0]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::KEY)))]
    pub path_keys: Vec<String>,

    /// Environments of Pulumi ESC that the stack imports. They take Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES), inner(length(max = bounds::ENVIRONMENT)))]
    pub environment: Vec<String>,

    /// The ServiceAccount of the workspace pod. Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,

    /// Run `pulumi destroy` before the Stack object goes away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_on_finalize: Option<bool>,

    /// Remove the stack itself from the backend, with its history and its settings there, once it is destroyed in the end. It
    /// takes `destroyOnFinalize`: a stack that still has resources is never removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_stack: Option<bool>,

    /// Refresh the state before each update (`--refresh`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,

    /// Fail before anything is changed when a refresh would find changes: something else works on what this stack has made. It
    /// takes `refresh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_refresh_changes: Option<bool>,

    /// Only say what an update would do (`pulumi preview`): nothing is changed, and nothing destroyed in the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<bool>,

    /// The stack has to be in the backend: none is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_local_stack_only: Option<bool>,

    /// The older word for it: `false` is `useLocalStackOnly: true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_on_create: Option<bool>,

    /// What encrypts the secrets of the stack when it is made: `passphrase`, `awskms://…`, `azurekeyvault://…`, `gcpkms://…` or
    /// `hashivault://…`. Default: what the backend takes. A stack that is there keeps its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_provider: Option<String>,

    /// Work only on the resources with these URNs (`--target`); a destroy works on all. In a URN `*` stands for a part of a name,
    /// `**` for any number of parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::URN)))]
    pub targets: Vec<String>,

    /// Work on resources that depend on those in `targets` as well (`--target-dependents`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_dependents: Option<bool>,

    /// Run the program in a destroy (`--run-program`): it may give its providers what they need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_program: Option<bool>,

    /// Start no new run. A run that is open is observed to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// Run again so long after the last run, though nothing has changed: what has drifted is set right. A duration such as `1h`;
    /// `0s` is never. Unset: as `continueResyncOnCommitMatch` says. Failures before do not end it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub interval: Option<String>,

    /// Run again every `resyncFrequencySeconds`, though nothing has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_resync_on_commit_match: Option<bool>,

    /// How often, in seconds; less than 60 is 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync_frequency_seconds: Option<i64>,

    /// The wait after a failed run before it is retried. A duration such as `5m`. Unset, or `0s`: 10 seconds, then each time three times as
    /// long, up to `retryMaxBackoffDurationSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub retry_interval: Option<String>,

    /// The longest wait after a failure without `retryInterval`, in seconds. Default: 86400, a day. The first wait is 10 seconds in any
    /// case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_max_backoff_duration_seconds: Option<i64>,

    /// Whether a lock of another update is waited for, without counting as a failure. Default: true. If not, it is a failure like
    /// any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_on_update_conflict: Option<bool>,

    /// Stacks of the same namespace whose last run has to have succeeded before this one runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub prerequisites: Vec<PrerequisiteReference>,

    /// Stacks that have to be Ready before this one runs, and to have applied the same revision if they have the same source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub depends_on: Vec<DependencyReference>,

    /// What becomes of the Workspace, and with it the pod, once a run has succeeded. Default: `Retain`.
    #[serde(default)]
    pub workspace_reclaim_policy: WorkspaceReclaimPolicy,

    /// Priority of the runs of this Stack among the queued runs of its namespace: a higher one starts first. It never delays runs
    /// of other namespaces. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i32>,

    /// Maximum duration of a run, such as `1h30m`; a run that takes longer is canceled gracefully, and counts as failed. `0s` is no
    /// limit of its own. Default: the controller's `--default-run-timeout`. Upper limit: its `--max-run-timeout`.
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

    /// How much the CLI and its plugins log of themselves, into the pod's log; 0 is nothing, 11 is most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 11))]
    pub pulumi_log_level: Option<u32>,

    /// Merged over the generated Update of each run, as `kubectl patch --type=strategic` does it: `metadata` and `spec` with
    /// `ttlAfterCompleted`, `parallel`, `continueOnError` and the other options of an Update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub update_template: Option<Value>,

    /// Merged over the generated Workspace, as `kubectl patch --type=strategic` does: `metadata` and `spec` with `image`,
    /// `resources`, `podTemplate` and the other fields of a Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub workspace_template: Option<Value>,
}

/// A Stack whose last run has to have succeeded.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct PrerequisiteReference {
    /// The Stack's name.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// What more is asked of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirement: Option<Requirement>,
}

/// What is asked of a prerequisite.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// How long ago it may have succeeded; it is asked to run again when that was longer ago. A duration such as `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub succeeded_within_duration: Option<String>,
}

/// A Stack that has to be Ready.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DependencyReference {
    /// The Stack's name.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub name: String,
    /// Its namespace. Default: the Stack's own. Another one is refused unless the controller runs with `--no-cross-namespace-refs=false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAMESPACE))]
    pub namespace: Option<String>,
    /// A CEL expression that takes the place of the built-in check: `self` is this Stack, `dep` the other one, and it has to be `true`.
    /// Such as `dep.status.outputs.size() > 0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub ready_expr: Option<String>,
}

/// What becomes of a Workspace once a run has succeeded.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum WorkspaceReclaimPolicy {
    /// It stays: the next run starts in the pod that is there.
    #[default]
    Retain,
    /// It is deleted, with its pod and what was installed there; the next run makes another one.
    Delete,
}
