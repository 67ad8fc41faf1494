//! References to sources, Pulumi stacks, and values in Secrets and ConfigMaps.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Reference to a Program in the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ProgramReference {
    /// Name of the Program.
    pub name: String,
}

/// Reference to a Flux source, and the Pulumi project's directory in its artifact.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FluxSource {
    /// Reference to the source object. Example: `{kind: GitRepository, name: web}`.
    pub source_ref: SourceReference,

    /// Directory of the Pulumi project, relative to the root of the artifact. Default: the root of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
}

/// Reference to an object of any kind with the field `status.artifact`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SourceReference {
    /// API group and version of the source, such as `source.toolkit.fluxcd.io/v1`. The controller uses only the group,
    /// and reads the source in the version that the API server prefers. Required, except for the Flux kinds
    /// `GitRepository`, `OCIRepository`, `Bucket` and `ExternalArtifact`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub api_version: Option<String>,

    /// Kind of the source: `GitRepository`, `OCIRepository`, `Bucket`, `ExternalArtifact`, or another kind of the group
    /// in `apiVersion`.
    #[schemars(length(min = 1, max = bounds::WORD))]
    pub kind: String,

    /// Name of the source.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub name: String,

    /// Namespace of the source. Default: the namespace of the Stack. Another namespace requires the controller flag
    /// `--no-cross-namespace-refs=false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAMESPACE))]
    pub namespace: Option<String>,
}

/// Literal value, or reference to a value in a Secret or ConfigMap.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRef {
    /// Type of the value: `Literal`, `Secret` or `ConfigMap`. The types `Env` and `FS` refer to the controller's
    /// environment variables and files, and are not supported. A Stack that uses one of these two types is `Stalled`.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["Literal", "Secret", "ConfigMap", "Env", "FS"]))]
    pub kind: String,

    /// Key of the Secret that contains the value. Required for the type `Secret`. Example: `{name: aws, key: region}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretSelector>,

    /// Key of the ConfigMap that contains the value. Required for the type `ConfigMap`.
    /// Example: `{name: web, key: region}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapSelector>,

    /// Value in plain text. Required for the type `Literal`. Example: `{value: eu-central-1}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub literal: Option<LiteralRef>,

    /// Controller environment variable, for the type `Env`. Not supported. The controller reports the use of
    /// this field as an error in the conditions of the Stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<EnvironmentSelector>,

    /// Controller file, for the type `FS`. Not supported. The controller reports the use of this field as an
    /// error in the conditions of the Stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FileSelector>,
}

/// Environment variable of the controller. Not supported.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct EnvironmentSelector {
    /// Name of the variable.
    #[schemars(length(max = bounds::KEY))]
    pub name: String,
}

/// File of the controller. Not supported.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct FileSelector {
    /// Path of the file.
    #[schemars(length(max = bounds::PATH))]
    pub path: String,
}

/// Reference to a configuration value in a ConfigMap in the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ConfigReference {
    /// Name of the ConfigMap.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Key in the ConfigMap.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
    /// Whether to parse the value as JSON. If `false`, the value is a string. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<bool>,
}

/// Reference to a key of a ConfigMap in the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ConfigMapSelector {
    /// Name of the ConfigMap.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Key in the ConfigMap.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
}

/// Reference to a key of a Secret in the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct SecretSelector {
    /// Namespace of the Secret, which must be the Stack's namespace. Default: the namespace of the Stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAMESPACE))]
    pub namespace: Option<String>,
    /// Name of the Secret.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
}

/// Value in plain text.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct LiteralRef {
    /// Value in plain text.
    pub value: String,
}

/// Selection of a tag in a Git repository.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct GitReference {
    /// Range of semantic versions, such as `>=1.2.0 <2.0.0` or `1.x`. The controller selects the tag with the highest
    /// version in the range. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semver: Option<String>,
}

/// Credentials of a Git repository. Exactly one field must be set. Each value has the type `Literal`, or the type
/// `Secret` with a Secret in the Stack's namespace. The Secret can also contain trusted SSH host keys in `known_hosts`
/// and trusted CA certificates in `ca.crt`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitAuth {
    /// Personal access token, for HTTP and HTTPS URLs. Default: none.
    /// Example: `{type: Secret, secret: {name: git, key: token}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<ResourceRef>,
    /// Private key and passphrase, for SSH URLs. Default: none.
    /// Example: `{sshPrivateKey: {type: Secret, secret: {name: git, key: identity}}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_auth: Option<SshAuth>,
    /// User name and password, for HTTP and HTTPS URLs. Default: none.
    /// Example: `{password: {type: Secret, secret: {name: git, key: password}}, userName: …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
    /// Credentials of a GitHub App installation, for HTTP and HTTPS URLs. Default: none.
    /// Example: `{privateKey: {type: Secret, secret: {name: git, key: app}}, appID: …, installationID: …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub github_app: Option<GitHubAppAuth>,
}

impl GitAuth {
    /// Returns whether no field is set.
    pub fn is_empty(&self) -> bool {
        *self == GitAuth::default()
    }

    /// Returns the references to values, with the paths of their fields.
    pub fn references(&self) -> Vec<(&'static str, &ResourceRef)> {
        let (ssh, basic, app) = (self.ssh_auth.as_ref(), self.basic_auth.as_ref(), self.github_app.as_ref());
        let references = [
            ("accessToken", self.access_token.as_ref()),
            ("sshAuth.sshPrivateKey", ssh.map(|ssh| &ssh.ssh_private_key)),
            ("sshAuth.password", ssh.and_then(|ssh| ssh.password.as_ref())),
            ("basicAuth.userName", basic.map(|basic| &basic.user_name)),
            ("basicAuth.password", basic.map(|basic| &basic.password)),
            ("githubApp.appID", app.map(|app| &app.app_id)),
            ("githubApp.installationID", app.map(|app| &app.installation_id)),
            ("githubApp.privateKey", app.map(|app| &app.private_key)),
        ];
        references.into_iter().filter_map(|(field, reference)| Some((field, reference?))).collect()
    }
}

/// SSH private key and its passphrase.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SshAuth {
    /// Private key in the OpenSSH or PEM format. Example: `{type: Secret, secret: {name: git, key: identity}}`.
    pub ssh_private_key: ResourceRef,
    /// Passphrase of the private key. Default: no passphrase.
    /// Example: `{type: Secret, secret: {name: git, key: password}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<ResourceRef>,
}

/// User name and password.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BasicAuth {
    /// User name of the account. Example: `{type: Literal, literal: {value: git}}`.
    pub user_name: ResourceRef,
    /// Password or access token for the account. Example: `{type: Secret, secret: {name: git, key: password}}`.
    pub password: ResourceRef,
}

/// Credentials of a GitHub App installation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitHubAppAuth {
    /// App ID or client ID of the GitHub App. Example: `{type: Literal, literal: {value: "12"}}`.
    #[serde(rename = "appID")]
    pub app_id: ResourceRef,
    /// Installation ID of the GitHub App. Example: `{type: Literal, literal: {value: "34"}}`.
    #[serde(rename = "installationID")]
    pub installation_id: ResourceRef,
    /// Private key of the GitHub App in the PEM format (PKCS#1 or PKCS#8).
    /// Example: `{type: Secret, secret: {name: git, key: app}}`.
    pub private_key: ResourceRef,
    /// URL of the GitHub API. Default: `https://api.github.com` for repositories on github.com, otherwise
    /// `https://HOST/api/v3`.
    #[serde(default, rename = "baseURL", skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
}

/// Identity of a Pulumi stack in a state backend.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct PulumiStack {
    /// Name of the Pulumi stack, as in `spec.stack`. In Pulumi Cloud, the name in a status includes the organization
    /// after a run has completed.
    #[schemars(length(max = bounds::PATH))]
    pub name: String,
    /// Name of the Pulumi project. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub project: Option<String>,
    /// URL of the state backend, without credentials. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub backend: Option<String>,
}

impl fmt::Display for PulumiStack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "stack {}", self.name)?;
        if let Some(project) = &self.project {
            write!(formatter, " of project {project}")?;
        }
        match &self.backend {
            Some(backend) => write!(formatter, " in backend {backend}"),
            None => write!(formatter, " in the default backend of the workspace"),
        }
    }
}

/// Pulumi stack that a Stack has left with resources.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OrphanedStack {
    /// Identifier of the entry for the annotation `pulumi.com/acknowledge`.
    #[schemars(length(max = bounds::WORD))]
    pub id: String,
    #[serde(flatten)]
    pub pulumi_stack: PulumiStack,
    /// Time at which a run first used another Pulumi stack, or found the empty state.
    pub since: Time,
    /// Whether the Stack still manages the Pulumi stack, but its state has lost the earlier resources. Absent if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lost: Option<bool>,
}

/// Fields that the controller reads from `status.artifact` of a source.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SourceArtifact {
    pub url: String,
    pub revision: String,
    #[serde(default)]
    pub digest: String,
    /// Size of the archive in bytes, as reported by the source.
    #[serde(default)]
    pub size: Option<i64>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}
