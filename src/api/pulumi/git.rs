//! What a Stack says of a Git repository that the controller follows itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::pulumi::ResourceRef;

/// What is followed in a Git repository.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct GitReference {
    /// The highest tag of this range of semantic versions, such as `>=1.2.0 <2.0.0` or `1.x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semver: Option<String>,
}

/// What a Git repository is read with: one of these. Values are in Secrets of the Stack's namespace. `known_hosts` and `ca.crt` in such
/// a Secret say which SSH host keys and which certificate authorities are trusted.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitAuth {
    /// A personal access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<ResourceRef>,
    /// An SSH key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_auth: Option<SshAuth>,
    /// A user name and a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
    /// An installation of a GitHub App.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub github_app: Option<GitHubAppAuth>,
}

/// An SSH key.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SshAuth {
    /// The private key, in the form of OpenSSH or PEM.
    pub ssh_private_key: ResourceRef,
    /// Its passphrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<ResourceRef>,
}

/// A user name and a password.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BasicAuth {
    /// The user name.
    pub user_name: ResourceRef,
    /// The password.
    pub password: ResourceRef,
}

/// An installation of a GitHub App.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitHubAppAuth {
    /// The App's id, or its client id.
    #[serde(rename = "appID")]
    pub app_id: ResourceRef,
    /// The installation's id.
    #[serde(rename = "installationID")]
    pub installation_id: ResourceRef,
    /// The App's private key, as PEM: PKCS#1 as GitHub gives it, or PKCS#8.
    pub private_key: ResourceRef,
    /// URL of GitHub's API. Default: `https://api.github.com` for repositories on github.com, else `https://HOST/api/v3`.
    #[serde(default, rename = "baseURL", skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
}
