//! The Git source of a Workspace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::SecretKeySelector;

/// A Git repository that the controller polls and fetches.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitRepository {
    /// URL of the repository: `https://…`, `http://…`, `ssh://…` or `user@host:path`, without a password. Required.
    #[serde(default)]
    pub url: String,
    /// Branch or tag, by its short or full name, or full hash of a commit. Default: `HEAD` of the server.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Directory of the Pulumi project in the repository. Default: the root of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Whether to fetch a single commit without its history. Set it to `false` for servers that cannot send a single commit. Default:
    /// `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shallow: Option<bool>,
    /// Credentials for the repository. Default: no credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<GitRepositoryAuth>,
}

/// Credentials of a Git repository: one of `sshPrivateKey` with an optional `password`, `token`, `username` with `password`, and
/// `githubApp`. The values are in Secrets of the namespace of the Workspace. These Secrets can also contain `known_hosts` and `ca.crt`,
/// with the trusted SSH host keys and CA certificates.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitRepositoryAuth {
    /// Private key in the OpenSSH or PEM format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_private_key: Option<SecretKeySelector>,
    /// User name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<SecretKeySelector>,
    /// Password of the user, or passphrase of `sshPrivateKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretKeySelector>,
    /// Personal access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretKeySelector>,
    /// Credentials of a GitHub App installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub github_app: Option<GitHubAppKeys>,
}

/// Credentials of a GitHub App installation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitHubAppKeys {
    /// App ID or client ID of the GitHub App.
    #[serde(rename = "appID")]
    pub app_id: SecretKeySelector,
    /// Installation ID of the GitHub App.
    #[serde(rename = "installationID")]
    pub installation_id: SecretKeySelector,
    /// Private key of the GitHub App in the PEM format.
    pub private_key: SecretKeySelector,
}
