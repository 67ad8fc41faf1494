//! The Git source of a Stack.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::pulumi::ResourceRef;

/// Selection of a Git reference.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct GitReference {
    /// Range of semantic versions, such as `>=1.2.0 <2.0.0` or `1.x`. The controller selects the highest tag in the range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semver: Option<String>,
}

/// Credentials of a Git repository. Exactly one field must be set. Each value is of the type `Literal`, or is in a Secret in the namespace
/// of the Stack. The keys `known_hosts` and `ca.crt` of such a Secret contain the trusted SSH host keys and CA certificates.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitAuth {
    /// Personal access token, for HTTP and HTTPS URLs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<ResourceRef>,
    /// SSH key, for SSH URLs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_auth: Option<SshAuth>,
    /// User name and password, for HTTP and HTTPS URLs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
    /// Credentials of a GitHub App installation, for HTTP and HTTPS URLs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub github_app: Option<GitHubAppAuth>,
}

/// SSH key.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SshAuth {
    /// Private key in the OpenSSH or PEM format.
    pub ssh_private_key: ResourceRef,
    /// Passphrase of the private key. Default: no passphrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<ResourceRef>,
}

/// User name and password.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BasicAuth {
    /// User name.
    pub user_name: ResourceRef,
    /// Password.
    pub password: ResourceRef,
}

/// Credentials of a GitHub App installation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitHubAppAuth {
    /// App ID or client ID of the GitHub App.
    #[serde(rename = "appID")]
    pub app_id: ResourceRef,
    /// Installation ID of the GitHub App.
    #[serde(rename = "installationID")]
    pub installation_id: ResourceRef,
    /// Private key of the GitHub App in the PEM format, PKCS#1 or PKCS#8.
    pub private_key: ResourceRef,
    /// URL of the GitHub API. Default: `https://api.github.com` for repositories on github.com, otherwise `https://HOST/api/v3`.
    #[serde(default, rename = "baseURL", skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
}
