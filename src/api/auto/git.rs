//! What a Workspace says of a Git repository.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::SecretKeySelector;

/// A Git repository that the controller follows itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitRepository {
    /// URL of the repository: `https://…`, `http://…`, `ssh://…` or `git@host:path`.
    #[serde(default)]
    pub url: String,
    /// A branch or a tag, by its short or its full name, or the whole hash of a commit. Default: what the server says is `HEAD`.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The directory of the Pulumi project in the repository. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// `false` fetches the whole history, for servers that cannot send one commit alone. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shallow: Option<bool>,
    /// What it is read with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<GitRepositoryAuth>,
}

/// What a Git repository is read with: `sshPrivateKey` and perhaps its `password`, or `token`, or `username` and `password`, or
/// `githubApp`. All are in Secrets of the Workspace's namespace, with `known_hosts` and `ca.crt` beside them where they are needed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitRepositoryAuth {
    /// The private key, in the form of OpenSSH or PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_private_key: Option<SecretKeySelector>,
    /// The user's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<SecretKeySelector>,
    /// The user's password, or the passphrase of `sshPrivateKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretKeySelector>,
    /// A personal access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretKeySelector>,
    /// An installation of a GitHub App.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub github_app: Option<GitHubAppKeys>,
}

/// An installation of a GitHub App.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitHubAppKeys {
    /// The App's id, or its client id.
    #[serde(rename = "appID")]
    pub app_id: SecretKeySelector,
    /// The installation's id.
    #[serde(rename = "installationID")]
    pub installation_id: SecretKeySelector,
    /// The App's private key, as PEM.
    pub private_key: SecretKeySelector,
}
