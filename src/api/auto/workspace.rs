//! `auto.pulumi.com/v1alpha1` Workspace: a pod that contains a Pulumi program and runs the Pulumi CLI.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::auto::{GitRepository, PooledPod, WorkspaceIdle, WorkspaceSleep};
use crate::api::pulumi::PulumiCloudOidc;
use crate::api::{bounds, conditions, names, schema};
use crate::artifact::Digest;

/// Specification of a pod that contains a Pulumi program and runs the Pulumi CLI.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[kube(
    group = "auto.pulumi.com",
    version = "v1alpha1",
    kind = "Workspace",
    namespaced,
    status = "WorkspaceStatus",
    derive = "PartialEq",
    category = "pulumi",
    doc = "Workspace is a pod that contains an unpacked source and runs Pulumi.",
    printcolumn = r#"{"name":"Image","type":"string","jsonPath":".spec.image","priority":10}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.summary"}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".status.shortRevision"}"#,
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".status.address","priority":10}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSpec {
    /// Name of the pod's ServiceAccount, in the Workspace's namespace. Default: the controller flag
    /// `--default-service-account`, or else `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAME))]
    pub service_account_name: Option<String>,

    /// Image of the `pulumi` container, with the Pulumi CLI and the program's language runtime. Default: the controller
    /// flag `--default-workspace-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub image: Option<String>,

    /// Pull policy of the image: `Always`, `IfNotPresent` or `Never`. Default: the policy that Kubernetes derives from
    /// the image tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
    pub image_pull_policy: Option<String>,

    /// Environment variables of the `pulumi` container. When a run starts, the agent reads the current values from
    /// Secrets and ConfigMaps. Default: none. Example: `[{name: AWS_REGION, value: eu-central-1}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::environment")]
    pub env: Vec<Value>,

    /// Secrets and ConfigMaps whose keys become environment variables of the `pulumi` container. When a run starts, the
    /// agent reads the current values. `env` takes precedence. Default: none. Example: `[{secretRef: {name: aws}}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::environment_sources")]
    pub env_from: Vec<Value>,

    /// Login to Pulumi Cloud with the pod's ServiceAccount token, instead of a stored access token. Requires
    /// Pulumi Cloud as the backend. Mutually exclusive with `PULUMI_ACCESS_TOKEN` in `env`. Default: none.
    /// Example: `{organization: acme}`.
    #[serde(default, rename = "pulumiCloudOIDC", skip_serializing_if = "Option::is_none")]
    pub pulumi_cloud_oidc: Option<Box<PulumiCloudOidc>>,

    /// Verbosity of the internal Pulumi CLI and plugin logs, from 0 to 11. These logs are part of the pod
    /// log. Default: 0, which disables these logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 11))]
    pub pulumi_log_level: Option<u32>,

    /// Resources of the `pulumi` container, as ResourceRequirements (core/v1). Default: a memory request of 16Mi, no
    /// CPU request and no limits. Example: `{limits: {memory: 1Gi}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub resources: Option<Value>,

    /// Strategic merge patch for the generated pod template. Default: none. Example:
    /// `{spec: {nodeSelector: {kubernetes.io/arch: amd64}}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub pod_template: Option<Value>,

    /// Strategic merge patch for the pod's Service. Only `metadata.labels` and `metadata.annotations` are allowed.
    /// Default: none. Example: `{metadata: {labels: {team: blue}}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub service_template: Option<Value>,

    /// Security profile of the pod: `restricted` or `baseline`. With `restricted`, the pod meets the Pod Security
    /// Standard `restricted` and runs as user 1000. With `baseline`, the pod runs as the image's user, which can be
    /// root. Default: `restricted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub security_profile: Option<String>,

    /// Whether the controller protects the pod from evictions during a run, with a PodDisruptionBudget and with annotations
    /// for the Cluster Autoscaler and Karpenter. Default: the controller flag `--eviction-protection`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_protection: Option<bool>,

    /// Artifact that is the source of the Workspace. A Stack sets this field in its Workspace. A Workspace has at most
    /// one source. Without a source, init containers in `podTemplate` must provide the project in `/share/workspace`.
    /// Default: none. Example: `{digest: "sha256:…", revision: "main@sha1:…", dir: program}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// Git repository that is the source of the Workspace. The controller polls the repository and delivers new commits
    /// to the existing pod. Default: none. Example: `{url: "https://git.example.com/web.git", ref: main}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<Box<GitRepository>>,

    /// Archive on an HTTP server that is the source of the Workspace. Default: none.
    /// Example: `{url: "http://source-controller.flux-system/web.tar.gz", digest: "sha256:…"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux: Option<FluxArtifact>,

    /// Directory in the image that is the source of the Workspace. Default: none. Example: `{dir: /app}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalDirectory>,

    /// Name and runtime of a project without a program. The generated project is the source of the Workspace, and is
    /// useful only for `refresh` and `destroy`. Default: none. Example: `{name: web, runtime: nodejs}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_info: Option<ProjectInfo>,

    /// Pulumi stacks in the Workspace and their configuration. Default: none.
    /// Example: `[{name: dev, config: [{key: "aws:region", value: eu-central-1}]}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[schemars(length(max = bounds::REFERENCES))]
    pub stacks: Vec<WorkspaceStack>,

    /// Policy packs that each `up` and each `preview` enforces. A Stack sets this field in its Workspace. Default:
    /// none. Example: `[{name: house, artifact: {digest: "sha256:…"}}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::WORKSPACE_POLICY_PACKS))]
    pub policy_packs: Vec<WorkspacePolicyPack>,

    /// Settings for an idle Workspace: when the controller removes the pod, and which data the Workspace keeps.
    /// Default: the controller flags `--default-workspace-idle-after` and `--default-workspace-idle-keep`.
    /// Example: `{after: 30m}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<WorkspaceIdle>,
}

impl WorkspaceSpec {
    /// Returns the digest of the policy packs and their configuration, or `None` if there are no policy packs.
    pub fn policy_packs_digest(&self) -> Option<Digest> {
        let packs = Some(&self.policy_packs).filter(|packs| !packs.is_empty())?;
        serde_json::to_vec(packs).ok().map(|packs| Digest::of(&packs))
    }
}

/// Policy pack and its configuration.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspacePolicyPack {
    /// Unique name of the policy pack in the Workspace.
    #[schemars(length(min = 1, max = bounds::PATH))]
    pub name: String,
    /// Artifact that contains the policy pack. Example: `{digest: "sha256:…", dir: policies}`.
    #[schemars(transform = schema::without_defaults)]
    pub artifact: ArtifactReference,
    /// Content of the configuration file for the Pulumi CLI: configuration by policy, or the format with exceptions.
    /// Default: none. Example: `{allowed-regions: {regions: [eu-central-1]}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub config: BTreeMap<String, Value>,
}

/// Artifact digest, and the Pulumi project's directory in the artifact.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactReference {
    /// Digest of the archive, in the form `algorithm:hex`.
    pub digest: Digest,
    /// Revision of the source, such as `main@sha1:…`. Default: empty.
    #[serde(default)]
    #[schemars(length(max = bounds::REVISION))]
    pub revision: String,
    /// Directory of the Pulumi project, relative to the root of the archive. Default: the root of the archive.
    #[serde(default)]
    #[schemars(length(max = bounds::PATH))]
    pub dir: String,
}

/// Archive (`.tar.gz`) on an HTTP server, such as the server of source-controller.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FluxArtifact {
    /// URL of the archive. The host must be a Service in the controller's namespace, or an entry of the flag
    /// `--artifact-hosts`. Required.
    #[serde(default)]
    #[schemars(length(max = bounds::PATH))]
    pub url: String,
    /// Digest of the archive, in the form `algorithm:hex`. The controller rejects an archive with another digest.
    /// Required.
    #[serde(default)]
    #[schemars(length(max = bounds::WORD))]
    pub digest: String,
    /// Directory of the Pulumi project, relative to the root of the archive. Default: the root of the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub dir: Option<String>,
}

/// Pulumi project in the image of the `pulumi` container.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct LocalDirectory {
    /// Directory of the Pulumi project, relative to the root of the image. Required.
    #[serde(default)]
    #[schemars(length(max = bounds::PATH))]
    pub dir: String,
}

/// Name and runtime of a Pulumi project.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ProjectInfo {
    /// Name of the project.
    #[schemars(length(max = bounds::WORD))]
    pub name: String,
    /// Runtime of the project, such as `nodejs`.
    #[schemars(length(max = bounds::WORD))]
    pub runtime: String,
}

/// Pulumi stack and its configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStack {
    /// Name of the Pulumi stack: `stack`, `org/stack` or `org/project/stack`.
    #[schemars(length(max = bounds::STACK))]
    pub name: String,
    /// Whether an `up` or `preview` creates the Pulumi stack if the backend does not contain it. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<bool>,
    /// Secrets provider of the Pulumi stack: `passphrase`, `awskms://…`, `azurekeyvault://…`, `gcpkms://…` or
    /// `hashivault://…`. The next update changes the secrets provider of an existing Pulumi stack, unless the source
    /// contains an encrypted settings file. Default: for a new Pulumi stack, the secrets provider in the settings file of
    /// the source, or the backend's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub secrets_provider: Option<String>,
    /// Configuration values, which override the same keys in the source's settings file. Default:
    /// none. Example: `[{key: "aws:region", value: eu-central-1}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    #[schemars(length(max = bounds::WORKSPACE_CONFIG))]
    pub config: Vec<ConfigItem>,
    /// Pulumi ESC environments that the Pulumi stack imports after the environments in the source's settings file.
    /// Default: none. Example: `[org/production]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::WORKSPACE_ENVIRONMENTS), inner(length(max = bounds::ENVIRONMENT)))]
    pub environment: Vec<String>,
}

/// Configuration value of a Pulumi stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigItem {
    /// Configuration key. A key without a namespace belongs to the project's namespace.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
    /// Any JSON value except null. Exactly one of `value` and `valueFrom` must be set. Default: none. Example:
    /// `[8080, 8443]`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "schema::any_value")]
    pub value: Value,
    /// Reference to the value. Default: none. Example: `{secretKeyRef: {name: web, key: password}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ConfigValueFrom>,
    /// Whether the key is a path into an object or a list, such as `names[0]` or `web.port`. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<bool>,
    /// Whether the value is a secret. The CLI encrypts a secret in the settings file, and logs do not contain the
    /// secret. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
}

/// Reference to a configuration value. Exactly one of `env`, `path`, `secretKeyRef` and `configMapKeyRef` must be set.
/// The agent reads the value when a run starts.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigValueFrom {
    /// Name of an environment variable for the run. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::KEY))]
    pub env: Option<String>,
    /// Path of a file in the `pulumi` container that contains the value. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub path: Option<String>,
    /// Reference to a key of a Secret in the Workspace's namespace. Default: none.
    /// Example: `{name: web, key: password}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    /// Reference to a key of a ConfigMap in the Workspace's namespace. Default: none.
    /// Example: `{name: web, key: zones}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
    /// Whether to parse the value as JSON. If `false`, the value is a string. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<bool>,
}

/// Observed state of a Workspace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStatus {
    /// Last observed generation of the object. `-1` before the first reconciliation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the Workspace: `Ready`, `Reconciling` and `Stalled`.
    /// Example: `[{type: Ready, status: "True", reason: Succeeded}]`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Abbreviated revision of `artifact`, for `kubectl get`: at most 24 characters, with a shortened digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_revision: Option<String>,

    /// Abbreviated message of the condition `Ready`, for `kubectl get`: the first line, with shortened digests and at
    /// most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

    /// Address of the agent: the Service's host name and the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,

    /// Version of the Pulumi CLI in the pod. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi_version: Option<String>,

    /// Artifact that is installed in the pod. Example: `{digest: "sha256:…", revision: "main@sha1:…"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// Name of the Pulumi project in the pod. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_name: Option<String>,

    /// Protocol version of the agent in the pod. The controller starts a run only if the version supports all options
    /// of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_protocol_version: Option<u32>,

    /// UID of the pod that contains the artifact.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,

    /// ID of the agent process in the pod. The ID changes when the container restarts.
    #[serde(default, rename = "agentStartID", skip_serializing_if = "Option::is_none")]
    pub agent_start_id: Option<String>,

    /// Keyed hash of the configuration values from the Secrets and ConfigMaps that the pod mounts. The hash changes
    /// when the kubelet has mounted a changed value, and does not reveal the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_inputs: Option<String>,

    /// Keyed hash of each Secret and ConfigMap that the pod mounts, by object, such as `Secret/aws`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::MOUNTED_INPUTS))]
    pub mounted_inputs: BTreeMap<String, String>,

    /// State of a sleeping Workspace. The pod does not exist, and the fields `artifact`, `pulumiVersion`,
    /// `projectName`, `agentProtocolVersion`, `configInputs` and `mountedInputs` describe the previous pod. Absent if
    /// the Workspace is not sleeping. Example: `{since: "2026-01-01T12:00:00Z", inputVersions: {Secret/aws: "7"}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<WorkspaceSleep>,

    /// Pod that the Workspace has taken from a pool. While the field is set, the StatefulSet has no replicas. Absent if
    /// the StatefulSet creates the pod. Example: `{name: pulumi-pool-4be1d0a2c7-kzqvnt, uid: …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooled_pod: Option<PooledPod>,

    /// Last handled value of the annotation `reconcile.fluxcd.io/requestedAt`, which wakes up a sleeping Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}

impl WorkspaceStatus {
    /// Returns whether the Workspace is sleeping or is about to sleep. If `podUID` is set, the Workspace is not
    /// sleeping, even if `sleep` is set: an older controller version that does not support `sleep` creates the pod
    /// without removing `sleep`.
    pub fn is_asleep(&self) -> bool {
        self.sleep.is_some() && self.pod_uid.is_none()
    }
}

impl Workspace {
    /// Returns whether the Workspace is sleeping or is about to sleep.
    pub fn is_asleep(&self) -> bool {
        self.status.as_ref().is_some_and(WorkspaceStatus::is_asleep)
    }

    /// Returns the condition `Ready` if it describes the current spec. If the Workspace controller fails repeatedly, only
    /// the condition contains the current generation.
    pub fn current_ready(&self) -> Option<&Condition> {
        let status = self.status.as_ref()?;
        let generation = self.metadata.generation;
        let is_processed = status.observed_generation == generation;
        conditions::find(&status.conditions, conditions::READY)
            .filter(|ready| ready.observed_generation == generation && (is_processed || ready.status != "True"))
    }

    /// Returns the pod that the Workspace has taken from a pool.
    pub fn pooled_pod(&self) -> Option<&PooledPod> {
        self.status.as_ref()?.pooled_pod.as_ref()
    }

    /// Returns the name of the pod.
    pub fn pod_name(&self) -> String {
        let workspace = self.metadata.name.as_deref().unwrap_or_default();
        self.pooled_pod().map_or_else(|| names::workspace_pod(workspace), |pod| pod.name.clone())
    }

    /// Returns the server name in the agent's certificate.
    pub fn server_name(&self) -> String {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let workspace = self.metadata.name.as_deref().unwrap_or_default();
        let of_pod = |pod: &PooledPod| names::pool_pod_server_name(&pod.name, namespace);
        self.pooled_pod().map_or_else(|| names::workspace_server_name(workspace, namespace), of_pod)
    }
}

/// Reference to a key of a Secret or ConfigMap.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct KeyReference {
    /// Name of the object.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Key in the object.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
}
