//! `pulumi.com/v1` Stack: a Pulumi stack, its source and its settings.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::auto::LockRecovery;
use crate::api::pulumi::{
    ApprovalPolicy, ConcurrencyGroup, ConfigReference, DriftPolicy, FluxSource, GitAuth, GitReference, OutputObject,
    PolicyPack, ProgramReference, PulumiCloudOidc, ResourceRef, RunSchedule, StackStatus,
};
use crate::api::{bounds, conditions, schema};

/// Specification of a Pulumi stack that the controller keeps up to date with its source.
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
    validation = (
        "!has(self.spec.approval) || dyn(self.spec.approval) == null || !has(self.spec.approval.excludeAuthor) || self.spec.approval.excludeAuthor != true || !has(self.spec.fluxSource) && !has(self.spec.programRef)",
        "approval.excludeAuthor requires projectRepo: fluxSource and programRef do not report the author of a commit"
    ),
    printcolumn = r#"{"name":"Stack","type":"string","jsonPath":".spec.stack","priority":10}"#,
    printcolumn = r#"{"name":"Last Update","type":"string","jsonPath":".status.lastUpdate.state","priority":10}"#,
    printcolumn = r#"{"name":"Last Commit","type":"string","jsonPath":".status.lastUpdate.lastAttemptedCommit","priority":10}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reconciling","type":"string","jsonPath":".status.conditions[?(@.type==\"Reconciling\")].reason","priority":10}"#,
    printcolumn = r#"{"name":"Stalled","type":"string","jsonPath":".status.conditions[?(@.type==\"Stalled\")].reason","priority":10}"#,
    printcolumn = r#"{"name":"Permalink","type":"string","jsonPath":".status.lastUpdate.permalink","priority":10}"#,
    printcolumn = r#"{"name":"Suspended","type":"boolean","jsonPath":".spec.suspend","priority":10}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".status.shortRevision"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.summary"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "![has(self.ttl) && dyn(self.ttl) != null, has(self.expiresAt) && dyn(self.expiresAt) != null].exists(set, set) \
                 || has(self.destroyOnFinalize) && dyn(self.destroyOnFinalize) != null",
        "message": StackSpec::EXPIRY_WITHOUT_CHOICE,
    },
    {
        "rule": "!(has(self.removeStack) && self.removeStack == true) \
                 || has(self.destroyOnFinalize) && self.destroyOnFinalize in [true, false]",
        "message": "removeStack requires destroyOnFinalize: only a destroy removes the Pulumi stack",
    },
    {
        "rule": "!has(self.initOnCreate) || !has(self.useLocalStackOnly) \
                 || ![true, false].exists(v, self.initOnCreate == v && self.useLocalStackOnly == v)",
        "message": "initOnCreate and useLocalStackOnly contradict each other: remove initOnCreate",
    },
]))]
pub struct StackSpec {
    /// Name of the Pulumi stack: `stack`, `org/stack` or `org/project/stack`.
    #[schemars(length(min = 1))]
    pub stack: String,

    /// Flux source of the program. A Stack must have exactly one source: `fluxSource`, `programRef` or `projectRepo`.
    /// Default: none. Example: `{sourceRef: {kind: GitRepository, name: web}, dir: program}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux_source: Option<FluxSource>,

    /// URL of a Git repository that the controller polls and fetches: `https://…`, `http://…`, `ssh://user@host/…` or
    /// `user@host:path`, without a password. Requires one of `branch`, `commit` and `gitRef`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_repo: Option<String>,

    /// Branch or tag in `projectRepo`, as a short or full name, such as `main`, `refs/heads/main` or `refs/tags/v1`.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,

    /// Full hash of a commit in `projectRepo`. The controller fetches the commit only once. The field also accepts a
    /// branch or a tag, in the same format as `branch`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,

    /// Selection of a `projectRepo` tag by its version. Default: none. Example: `{semver: 1.x}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<GitReference>,

    /// Pulumi project directory in `projectRepo`. Default: the root of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_dir: Option<String>,

    /// Whether to fetch only the selected commit of `projectRepo`, without its history. Set this field to `false` if
    /// the Git server cannot deliver a single commit. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shallow: Option<bool>,

    /// Credentials for `projectRepo`, which take precedence over `gitAuthSecret`. Default: the credentials in
    /// `gitAuthSecret`, or else no credentials.
    /// Example: `{accessToken: {type: Secret, secret: {name: git, key: token}}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_auth: Option<Box<GitAuth>>,

    /// Name of a Secret with the credentials for `projectRepo` in these keys: `sshPrivateKey` or `identity` (with a
    /// passphrase in `password`, if the key has one), or `accessToken`, or `bearerToken`, or both `username` and
    /// `password`, or the keys of a GitHub App as in Flux. The Secret can also contain trusted SSH host keys in
    /// `known_hosts` and trusted CA certificates in `ca.crt`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_auth_secret: Option<String>,

    /// File patterns for `projectRepo`, in the `.gitignore` format: `/apps/web/` matches a directory, and `*.ts`
    /// matches files in all directories. A new commit starts a run only if it changes a matching file. Default: all
    /// files. Example: `[/apps/web/, "*.ts"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES), inner(length(max = bounds::PATH)))]
    pub paths: Vec<String>,

    /// Reference to a Program in the Stack's namespace. Each change to the Program starts a run. Default: none.
    /// Example: `{name: web}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_ref: Option<ProgramReference>,

    /// URL of the state backend (`PULUMI_BACKEND_URL`). Default: the backend in the environment or in the project file,
    /// or else Pulumi Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,

    /// Login to Pulumi Cloud with the pod's ServiceAccount token, instead of a stored access token.
    /// Requires Pulumi Cloud as the backend. Mutually exclusive with `accessTokenSecret` and with `PULUMI_ACCESS_TOKEN`
    /// in `envRefs`. Default: none. Example: `{organization: acme}`.
    #[serde(default, rename = "pulumiCloudOIDC", skip_serializing_if = "Option::is_none")]
    pub pulumi_cloud_oidc: Option<Box<PulumiCloudOidc>>,

    /// Name of a Secret that contains the access token for Pulumi Cloud in the key `accessToken`
    /// (`PULUMI_ACCESS_TOKEN`). Deprecated: use `envRefs`. Default: the controller flag
    /// `--default-access-token-secret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token_secret: Option<String>,

    /// Names of ConfigMaps whose keys become environment variables of the Pulumi CLI. Deprecated: use `envRefs`.
    /// Default: none. Example: `[proxy]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES), inner(length(max = bounds::NAME)))]
    pub envs: Vec<String>,

    /// Names of Secrets whose keys become environment variables of the Pulumi CLI. Deprecated: use `envRefs`. Default:
    /// none. Example: `[aws]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES), inner(length(max = bounds::NAME)))]
    pub env_secrets: Vec<String>,

    /// Environment variables of the Pulumi CLI, by name. These variables take precedence over `envs`, `envSecrets`,
    /// `accessTokenSecret` and `backend`. Default: none.
    /// Example: `{AWS_REGION: {type: Literal, literal: {value: eu-central-1}}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub env_refs: BTreeMap<String, ResourceRef>,

    /// Configuration of the Pulumi stack by key. The values are strings, numbers, booleans, objects or lists. A key is
    /// literal unless `pathKeys` contains it. A key without a namespace belongs to the project's namespace. After you
    /// remove a key, the next run no longer uses its value. Default: none. Example: `{"aws:region": eu-central-1,
    /// replicas: 3}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any_or_null")]
    pub config: BTreeMap<String, Value>,

    /// Configuration values in ConfigMaps, by key. Default: none.
    /// Example: `{zones: {name: web, key: zones, json: true}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub config_ref: BTreeMap<String, ConfigReference>,

    /// Secret configuration values in plain text, by key. Deprecated: use `secretsRef`. Default: none.
    /// Example: `{password: example}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub secrets: BTreeMap<String, String>,

    /// Secret configuration values, by key. The CLI encrypts the values in the settings of the Pulumi stack. Logs,
    /// conditions and outputs do not contain the values. Default: none.
    /// Example: `{password: {type: Secret, secret: {name: web, key: password}}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub secrets_ref: BTreeMap<String, ResourceRef>,

    /// Keys of `config`, `configRef`, `secrets` and `secretsRef` that are paths into objects and lists, such as
    /// `web.password` or `names[0]`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::KEY)))]
    pub path_keys: Vec<String>,

    /// Pulumi ESC environments that the Pulumi stack imports. Requires Pulumi Cloud as the state backend. Default:
    /// none. Example: `[org/production]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES), inner(length(max = bounds::ENVIRONMENT)))]
    pub environment: Vec<String>,

    /// Name of the workspace pod's ServiceAccount, in the Stack's namespace. Default: the controller flag
    /// `--default-service-account`, or else `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,

    /// Whether the controller runs `pulumi destroy` before it deletes the Stack. Required with `ttl` or `expiresAt`.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_on_finalize: Option<bool>,

    /// Whether the destroy also removes the Pulumi stack from the backend, with its history and configuration. Requires
    /// `destroyOnFinalize`, because the controller removes a Pulumi stack only after it has destroyed the resources.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_stack: Option<bool>,

    /// Whether each update and each preview first refreshes the state (`--refresh`). Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,

    /// Whether an update fails if its refresh finds drift. Such an update changes no resources. Requires `refresh`.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_refresh_changes: Option<bool>,

    /// Whether to run `pulumi preview` instead of `pulumi up`. If `true`, deleting the Stack destroys no resources.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<bool>,

    /// Whether the Pulumi stack must exist in the backend. If `false` and the Pulumi stack does not exist, the first
    /// run creates it. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_local_stack_only: Option<bool>,

    /// Older field with the opposite meaning: `initOnCreate: false` is equivalent to `useLocalStackOnly: true`.
    /// Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_on_create: Option<bool>,

    /// Secrets provider of the Pulumi stack: `passphrase`, `awskms://…`, `azurekeyvault://…`, `gcpkms://…` or
    /// `hashivault://…`. The next update changes the secrets provider of an existing Pulumi stack, unless the source
    /// contains an encrypted settings file. Default: for a new Pulumi stack, the secrets provider in the settings file of
    /// the source, or the backend's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_provider: Option<String>,

    /// URNs of the resources that updates and previews process (`--target`). In a URN, `*` matches any characters
    /// except `:`, and `**` matches any characters. A destroy always processes all resources. Default: all resources.
    /// Example: `["urn:pulumi:dev::web::aws:s3/bucket:Bucket::*"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::URN)))]
    pub targets: Vec<String>,

    /// Whether updates and previews also process the resources that depend on `targets` (`--target-dependents`).
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_dependents: Option<bool>,

    /// Whether the runs that refresh the state, drift checks and a destroy run the program (`--run-program`), so that
    /// providers get the current credentials from the program. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_program: Option<bool>,

    /// Whether the Stack is suspended. A suspended Stack starts no new runs. An open run continues, and the controller
    /// records its result. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// Interval, such as `1h`, between a run's end and the next run, which corrects drift even if no input has changed.
    /// If the field is absent or `0s`, `continueResyncOnCommitMatch` applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub interval: Option<String>,

    /// Whether a run starts after each interval of `resyncFrequencySeconds` even if no input has changed. `interval`
    /// takes precedence. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_resync_on_commit_match: Option<bool>,

    /// Interval of `continueResyncOnCommitMatch` and poll interval for `projectRepo`, in seconds. Minimum: 60.
    /// Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync_frequency_seconds: Option<i64>,

    /// Constant delay between a failed run and its retry, as a duration such as `5m`. If the field is absent or `0s`,
    /// the delay starts at 10 seconds and triples with each failure, up to `retryMaxBackoffDurationSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub retry_interval: Option<String>,

    /// Maximum delay between a failed run and its retry, in seconds. Has no effect if `retryInterval` is set.
    /// Minimum: 10. Default: 86400 (one day).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_max_backoff_duration_seconds: Option<i64>,

    /// Whether the controller treats another update's lock as a conflict instead of a failure, and retries the run
    /// after 30 seconds. The delay doubles with each further run that finds the same lock, up to 5 minutes. Default:
    /// `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_on_update_conflict: Option<bool>,

    /// Stacks in the same namespace. A run starts only after the last run of each of these Stacks has succeeded.
    /// Default: none. Example: `[{name: network}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub prerequisites: Vec<PrerequisiteReference>,

    /// Stacks that must be Ready before a run starts. A listed Stack with the same source as this Stack must also have
    /// applied the same revision. Default: none. Example: `[{name: network}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub depends_on: Vec<DependencyReference>,

    /// Policy for the Workspace and its pod after a successful run: `Retain` or `Delete`. Default: `Retain`.
    #[serde(default)]
    pub workspace_reclaim_policy: WorkspaceReclaimPolicy,

    /// Priority of this Stack's runs among its namespace's queued runs. Runs with a higher priority start
    /// first. Ten minutes of waiting are equivalent to one priority level. The priority does not affect runs in
    /// other namespaces. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i32>,

    /// Group of Stacks whose runs use the same cloud account or state backend. The number of concurrent runs in a group
    /// is limited. Default: no group. Example: `{name: aws-prod, limit: 2}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_group: Option<ConcurrencyGroup>,

    /// Maximum duration of a run, such as `1h30m`. The agent gracefully cancels a longer run, and the run fails. The
    /// controller flag `--max-run-timeout` is the upper limit. With `0s`, only the flag limits the run. Default: the
    /// controller flag `--default-run-timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Option<String>,

    /// Maximum time of a run without progress or output, as a duration such as `10m`. After this time, the agent
    /// gracefully cancels the run, and the run fails. If the field is absent or `0s`, runs have no idle timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub idle_timeout: Option<String>,

    /// Policy for a lock of this Stack's earlier run that has provably ended: `Automatic` or `Manual`. Default:
    /// `Automatic`.
    #[serde(default)]
    pub lock_recovery: LockRecovery,

    /// Verbosity of the internal Pulumi CLI and plugin logs, from 0 to 11. These logs are part of the
    /// workspace pod log. Default: 0, which disables these logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 11))]
    pub pulumi_log_level: Option<u32>,

    /// Periodic detection of drift. A drift check starts only if no other run is due, and ends if another run becomes
    /// due. Default: no drift checks. Example: `{interval: 24h, mode: Detect}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Box<DriftPolicy>>,

    /// Windows and freezes for runs that change resources: updates, destroys and drift corrections. An
    /// open run continues when its window closes. The schedule does not affect previews, plans and drift checks. The
    /// namespace annotation `pulumi.com/schedule` also applies. Default: no restriction. Example: `{windows: [{start:
    /// "08:00", end: "17:00", timeZone: Europe/Berlin}]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<RunSchedule>,

    /// Maximum age of the Stack, as a duration such as `72h`. After this time, the controller deletes the Stack. Requires
    /// `destroyOnFinalize`, which determines whether the controller destroys the resources first. The condition
    /// `Expiring` announces the deletion one hour ahead. If the Stack is already older when you set the field, the controller deletes the Stack one hour
    /// later. A suspended Stack does not expire. `0s` has no effect. Default: the Stack does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub ttl: Option<String>,

    /// Time at which the Stack expires, as with `ttl`. If both fields are set, the earlier time applies. Default: the
    /// Stack does not expire. Example: `2026-12-01T12:00:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,

    /// Rules for the approval of planned changes. Has no effect with `preview`. Default: no approval is required.
    /// Example: `{mode: OnRisk, approvers: 2}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalPolicy>,

    /// Policy packs that updates and previews enforce. The controller can add packs to all Stacks. Default: none.
    /// Example: `[{name: house, sourceRef: {kind: OCIRepository, name: policies}}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::POLICY_PACKS))]
    pub policy_packs: Vec<PolicyPack>,

    /// Secrets and ConfigMaps to which the controller writes the outputs after each successful update. Kubernetes
    /// deletes the objects with the Stack. Default: none.
    /// Example: `[{kind: Secret, name: database, keys: [url, password]}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::OUTPUT_OBJECTS))]
    pub write_outputs_to: Vec<OutputObject>,

    /// Strategic merge patch for each run's Update, with `metadata` and `spec`. The `spec` contains fields of an
    /// Update, such as `ttlAfterCompleted`, `parallel` and `continueOnError`. Default: none. Example:
    /// `{spec: {ttlAfterCompleted: 24h}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub update_template: Option<Value>,

    /// Strategic merge patch for this Stack's Workspace, with `metadata` and `spec`. The `spec` contains fields of
    /// a Workspace, such as `image`, `resources` and `podTemplate`. Default: none. Example:
    /// `{spec: {resources: {limits: {memory: 1Gi}}}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub workspace_template: Option<Value>,
}

impl StackSpec {
    /// Message about a Stack that expires, but does not specify what happens to its resources.
    pub const EXPIRY_WITHOUT_CHOICE: &str = "spec.ttl and spec.expiresAt require spec.destroyOnFinalize: set it to true to destroy the resources of the \
         expired Stack, or to false to keep them";

    /// Returns the backend URL without leading and trailing white space, such as the newline of a YAML block. Returns
    /// `None` if the field is empty.
    pub fn backend_url(&self) -> Option<&str> {
        self.backend.as_deref().map(str::trim).filter(|url| !url.is_empty())
    }

    /// Returns the names of the set fields that select a Git repository as the source.
    pub fn git_fields(&self) -> impl Iterator<Item = &'static str> {
        let fields = [
            ("projectRepo", self.project_repo.is_some()),
            ("branch", self.branch.is_some()),
            ("commit", self.commit.is_some()),
            ("gitRef", self.git_ref.is_some()),
            ("repoDir", self.repo_dir.is_some()),
            ("gitAuth", self.git_auth.is_some()),
            ("gitAuthSecret", self.git_auth_secret.is_some()),
            ("paths", !self.paths.is_empty()),
        ];
        fields.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field)
    }
}

impl Stack {
    /// Returns the value of the annotation `pulumi.com/confirm-destroy` that confirms the destroy of this Stack. The
    /// value contains the UID and the deletion time, so it confirms no other destroy, and cannot be set in advance.
    /// Returns `None` if the Stack is not being deleted.
    pub fn destroy_confirmation(&self) -> Option<String> {
        let deleted = self.metadata.deletion_timestamp.as_ref()?;
        Some(format!("{}/{}", self.metadata.uid.as_deref().unwrap_or_default(), conditions::time(deleted.0)))
    }
}

/// Reference to a Stack whose last run must have succeeded.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct PrerequisiteReference {
    /// Name of the referenced Stack.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Additional requirement for the last run. Default: no requirement. Example: `{succeededWithinDuration: 1h}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirement: Option<Requirement>,
}

/// Additional requirement for the last run of a prerequisite.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// Maximum age of the last successful run, as a duration such as `1h`. If the run is older, the controller requests
    /// a new run of the referenced Stack and waits for that run. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub succeeded_within_duration: Option<String>,
}

/// Reference to a Stack that must be Ready.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DependencyReference {
    /// Name of the referenced Stack.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub name: String,
    /// Namespace of the referenced Stack. Default: the namespace of the Stack that contains the reference. Another
    /// namespace requires the controller flag `--no-cross-namespace-refs=false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAMESPACE))]
    pub namespace: Option<String>,
    /// CEL expression that replaces the built-in readiness check and must evaluate to `true`, such as
    /// `dep.status.outputs.size() > 0`. The variable `self` is the Stack that contains the reference, and the
    /// variable `dep` is the referenced Stack. Default: the built-in check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub ready_expr: Option<String>,
}

/// Policy for the Workspace after a successful run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum WorkspaceReclaimPolicy {
    /// Keep the Workspace. The next run uses the same pod.
    #[default]
    Retain,
    /// Delete the Workspace with its pod and the installed dependencies. The next run creates a new Workspace.
    Delete,
}
