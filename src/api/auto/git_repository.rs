//! Git repository that is the source of a Workspace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Git repository that the controller polls and fetches.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitRepository {
    /// URL of the repository: `https://…`, `http://…`, `ssh://…` or `user@host:path`, without a password. Required.
    #[serde(default)]
    #[schemars(length(max = bounds::PATH))]
    pub url: String,
    /// Branch or tag, as a short or full name, or the full hash of a commit. Default: the default branch (`HEAD`) of
    /// the repository.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub reference: Option<String>,
    /// Directory of the Pulumi project in the repository. Default: the root of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub dir: Option<String>,
    /// Whether to fetch only the selected commit, without its history. Set this field to `false` if the Git server
    /// cannot deliver a single commit. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shallow: Option<bool>,
    /// Credentials for the repository. Default: no credentials. Example: `{token: {name: git, key: token}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<GitRepositoryAuth>,
}

/// Credentials of a Git repository: `sshPrivateKey` (with a passphrase in `password`, if the key has one), or `token`,
/// or both `username` and `password`, or `githubApp`. The values are in Secrets in the Workspace's namespace.
/// These Secrets can also contain trusted SSH host keys in `known_hosts` and trusted CA certificates in `ca.crt`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitRepositoryAuth {
    /// Reference to the private key in the OpenSSH or PEM format. Default: none. Example: `{name: git, key: identity}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_private_key: Option<SecretKeySelector>,
    /// Reference to the user name. Default: none. Example: `{name: git, key: username}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<SecretKeySelector>,
    /// Reference to the user's password, or to the passphrase for `sshPrivateKey`. Default: none.
    /// Example: `{name: git, key: password}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretKeySelector>,
    /// Reference to the personal access token. Default: none. Example: `{name: git, key: token}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretKeySelector>,
    /// References to the credentials of a GitHub App installation. Default: none.
    /// Example: `{privateKey: {name: git, key: app}, appID: …, installationID: …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub github_app: Option<GitHubAppKeys>,
}

/// References to the credentials of a GitHub App installation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitHubAppKeys {
    /// Reference to the app ID or client ID of the GitHub App. Example: `{name: git, key: app}`.
    #[serde(rename = "appID")]
    pub app_id: SecretKeySelector,
    /// Reference to the installation ID of the GitHub App. Example: `{name: git, key: installation}`.
    #[serde(rename = "installationID")]
    pub installation_id: SecretKeySelector,
    /// Reference to the private key of the GitHub App in the PEM format. Example: `{name: git, key: key}`.
    pub private_key: SecretKeySelector,
}

/// Reference to a key of a Secret.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct SecretKeySelector {
    /// Name of the Secret.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
    /// Whether to ignore the reference if the Secret or the key does not exist. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}
