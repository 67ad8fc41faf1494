//! `auto.pulumi.com/v1alpha1` Workspace: a pod in which Pulumi runs, with a source in place.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::auto::{GitRepository, KeyReference};
use crate::api::{bounds, schema};

/// A pod in which Pulumi runs, with a source in place.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[kube(
    group = "auto.pulumi.com",
    version = "v1alpha1",
    kind = "Workspace",
    namespaced,
    status = "WorkspaceStatus",
    derive = "PartialEq",
    category = "pulumi",
    doc = "Workspace is a pod in which Pulumi runs, with a source in place.",
    printcolumn = r#"{"name":"Image","type":"string","jsonPath":".spec.image","priority":10}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.summary"}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".status.shortRevision"}"#,
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".status.address","priority":10}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSpec {
    /// The pod's ServiceAccount. Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,

    /// The image that holds the Pulumi CLI and the program's language runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
    pub image_pull_policy: Option<String>,

    /// Environment variables of the `pulumi` container. A value from a Secret or a ConfigMap reaches each run as it
    /// is then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::environment")]
    pub env: Vec<Value>,

    /// Secrets and ConfigMaps whose keys are all environment variables of the `pulumi` container. Their values reach each run as
    /// they are then. `env` wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::environment_sources")]
    pub env_from: Vec<Value>,

    /// How much the CLI and its plugins log of themselves, into the pod's log; 0 is nothing, 9 is most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 11))]
    pub pulumi_log_level: Option<u32>,

    /// Resources of the `pulumi` container. Default: a memory request of 16Mi, no CPU request and no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub resources: Option<Value>,

    /// Merged over the generated pod template, as `kubectl patch --type=strategic` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub pod_template: Option<Value>,

    /// Labels and annotations of the pod's Service, below `metadata`. Merged in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub service_template: Option<Value>,

    /// `restricted`: the pod meets Pod Security's level of that name and runs as user 1000. `baseline`: it runs as the image's own
    /// user, root as well. Default: `restricted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_profile: Option<String>,

    /// The source that a Stack has resolved. A Workspace has one source; without any, an init container of yours fills
    /// `/share/workspace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// A Git repository as the source. A branch is followed: what is pushed to it comes into the pod that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitRepository>,

    /// An archive as the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux: Option<FluxArtifact>,

    /// A directory of the image as the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalDirectory>,

    /// A project without a program as the source: enough to refresh and to destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_info: Option<ProjectInfo>,

    /// The Pulumi stacks of this workspace with their configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[schemars(length(max = bounds::REFERENCES))]
    pub stacks: Vec<WorkspaceStack>,
}

/// An artifact by its content, and the directory of the project in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactReference {
    /// `algorithm:hex` of the archive's bytes.
    pub digest: String,
    /// The source's revision, such as `main@sha1:…`.
    #[serde(default)]
    pub revision: String,
    /// The directory of the Pulumi project in the archive; empty for its root.
    #[serde(default)]
    pub dir: String,
}

/// An archive (tar, gzip) that a server has, as source-controller serves them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FluxArtifact {
    /// Where the archive is. Only Services in the controller's namespace and the hosts of `--artifact-hosts` are asked.
    #[serde(default)]
    pub url: String,
    /// `algorithm:hex` of the archive's bytes. Nothing else is unpacked.
    #[serde(default)]
    pub digest: String,
    /// The directory of the Pulumi project in the archive; empty for its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
}

/// A Pulumi project that is in the image of the `pulumi` container.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct LocalDirectory {
    /// The directory, from the root of the image.
    #[serde(default)]
    pub dir: String,
}

/// The head of a Pulumi project file.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ProjectInfo {
    /// The project's name.
    pub name: String,
    /// The project's runtime, such as `nodejs`.
    pub runtime: String,
}

/// A Pulumi stack and its configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStack {
    /// The stack's name as the Pulumi CLI takes it.
    #[schemars(length(max = bounds::STACK))]
    pub name: String,
    /// Whether the stack is made where the backend has none. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<bool>,
    /// What encrypts the secrets of a stack that is made (`--secrets-provider`): `passphrase`, `awskms://…`, `azurekeyvault://…`,
    /// `gcpkms://…` or `hashivault://…`. Default: what the backend takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub secrets_provider: Option<String>,
    /// The stack's configuration; it replaces what the source's own settings file says for the same keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    #[schemars(length(max = bounds::WORKSPACE_CONFIG))]
    pub config: Vec<ConfigItem>,
    /// Environments of Pulumi ESC that the stack imports, after those of the source's own settings file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::WORKSPACE_ENVIRONMENTS), inner(length(max = bounds::ENVIRONMENT)))]
    pub environment: Vec<String>,
}

/// One value of a stack's configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigItem {
    /// The key; one without a namespace belongs to the project.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
    /// The value: any JSON but null.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "schema::any_value")]
    pub value: Value,
    /// Where the value is, instead of `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ConfigValueFrom>,
    /// Whether the key is a path into a structure, such as `names[0]` or `web.port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<bool>,
    /// Whether the value is a secret: it is encrypted in the stack's settings file, and not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
}

/// Where a value of the configuration is: one of these. It is read when a run starts.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigValueFrom {
    /// A variable of the run's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::KEY))]
    pub env: Option<String>,
    /// A file in the `pulumi` container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub path: Option<String>,
    /// A key of a Secret in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    /// A key of a ConfigMap in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
    /// Whether what is there is JSON; else it is a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<bool>,
}

/// What the controller saw and did.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStatus {
    /// The generation whose spec was read last; -1 before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`, `Reconciling` and `Stalled`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// What `kubectl get` prints of the revision of `artifact`: with a short digest, at most 24 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_revision: Option<String>,

    /// What `kubectl get` prints of the message of `Ready`: its first line with short digests, at most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

    /// Where the agent answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,

    /// Version of the Pulumi CLI in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi_version: Option<String>,

    /// The source that is in place in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactReference>,

    /// Name of the Pulumi project that is in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_name: Option<String>,

    /// What the agent in the pod understands of what a run is told; each version may add to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_protocol_version: Option<u32>,

    /// UID of the pod in which it is.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,

    /// Which start of the agent in that pod.
    #[serde(default, rename = "agentStartID", skip_serializing_if = "Option::is_none")]
    pub agent_start_id: Option<String>,

    /// Changes when a value in a Secret or a ConfigMap does that the configuration refers to, once the pod has it. It tells
    /// nothing of the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_inputs: Option<String>,

    /// The same for each Secret and each ConfigMap that the pod mounts, such as `Secret/aws`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::MOUNTED_INPUTS))]
    pub mounted_inputs: BTreeMap<String, String>,
}
