//! `pulumi.com/v1alpha1` StackReceiver: a webhook that starts Stack runs. The spec has the fields of a Flux
//! Receiver.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::api::{bounds, names, schema};

/// Secret key that contains the token, as in Flux.
const TOKEN: &str = "token";

/// Specification of a webhook that starts Stack runs.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "pulumi.com",
    version = "v1alpha1",
    kind = "StackReceiver",
    namespaced,
    status = "StackReceiverStatus",
    category = "pulumi",
    doc = "StackReceiver is a webhook that starts runs of Stacks.",
    validation = (
        "!has(self.spec.events) || self.spec.type in ['github', 'gitlab']",
        "events requires the type github or gitlab"
    ),
    validation = (
        "(self.spec.type == 'generic-oidc') == has(self.spec.oidcProviders)",
        "the type generic-oidc requires oidcProviders, and no other type supports oidcProviders"
    ),
    validation = (
        "(self.spec.type == 'generic-oidc') != has(self.spec.secretRef)",
        "secretRef is required, except for the type generic-oidc, which does not support secretRef"
    ),
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.summary"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StackReceiverSpec {
    /// Sender of the webhook, which determines how requests are authenticated: `github` (also for Gitea and Forgejo),
    /// `gitlab`, `generic-hmac`, `generic-oidc` or `generic`. For `generic`, only the path authenticates a request, so
    /// keep the path secret.
    #[serde(rename = "type")]
    pub kind: ReceiverType,

    /// Types of events that start runs, such as `push` for GitHub or `Push Hook` for GitLab. Not case-sensitive. Only
    /// for `github` and `gitlab`. Default: all events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 64), inner(length(max = bounds::WORD)))]
    pub events: Vec<String>,

    /// Interval at which the controller reads the Secret and updates the path, as a duration such as `10m`. Minimum:
    /// `10s`. Default: `10m`.
    #[serde(default = "default_interval")]
    #[schemars(schema_with = "schema::duration")]
    pub interval: String,

    /// Reference to the Secret with the token, in the StackReceiver's namespace. The Secret must have the key
    /// `token`. Required for all types except `generic-oidc`, which does not support the field.
    /// Example: `{name: webhook-token}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<TokenReference>,

    /// OIDC issuers whose tokens authenticate requests. Only for `generic-oidc`, which requires the field. Default:
    /// none. Example: `[{issuerURL: "https://token.actions.githubusercontent.com", audience: pulumi-production,
    /// claims: {repository: acme/web, ref: refs/heads/main}}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["issuerURL"]))]
    #[schemars(length(min = 1, max = bounds::OIDC_PROVIDERS))]
    pub oidc_providers: Vec<OidcProvider>,

    /// Stacks in the StackReceiver's namespace. A valid request starts a run of each of these Stacks.
    /// Example: `[{name: web}, {matchLabels: {team: blue}}]`.
    #[schemars(length(min = 1, max = 64))]
    pub resources: Vec<ReceiverResource>,

    /// Whether the StackReceiver is suspended. The controller rejects all requests to a suspended StackReceiver and
    /// does not change the path. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

fn default_interval() -> String {
    "10m".to_owned()
}

/// Sender of a webhook.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiverType {
    /// The header `X-Hub-Signature-256` authenticates a request, and the header `X-GitHub-Event` contains the event.
    Github,
    /// The token in the header `X-Gitlab-Token` authenticates a request, and the header `X-Gitlab-Event` contains the
    /// event.
    Gitlab,
    /// Only the path authenticates a request.
    Generic,
    /// The header `X-Signature` authenticates a request.
    GenericHmac,
    /// The OIDC token in the header `Authorization` authenticates a request.
    GenericOidc,
}

/// OIDC issuer, and the tokens of this issuer that authenticate requests.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "['iss', 'aud', 'azp', 'exp', 'nbf', 'iat', 'jti'].all(claim, !(claim in self.claims))",
    "message": "claims must identify the caller; iss, aud, azp, exp, nbf, iat and jti do not"
}]))]
pub struct OidcProvider {
    /// URL of the issuer, with the scheme `https`. The claim `iss` of a token must be equal to this URL.
    /// Example: `https://token.actions.githubusercontent.com`.
    #[serde(rename = "issuerURL")]
    #[schemars(length(max = bounds::ISSUER_URL), regex(pattern = r"^https://[^/?#@\s]+(/[^?#@\s]*)?$"))]
    pub issuer_url: String,

    /// Audience that the claim `aud` of a token must contain. Use a different audience for each cluster, so that the
    /// token for one cluster is not valid in another cluster. Example: `pulumi-production`.
    #[schemars(length(min = 1, max = bounds::AUDIENCE))]
    pub audience: String,

    /// Claims that a token must contain, with their exact values. The claims must identify the caller, because many
    /// issuers, such as the issuer of GitHub Actions, issue tokens for everybody. For a boolean or a number, use its JSON
    /// form, such as `"true"`. Example: `{repository: acme/web, ref: refs/heads/main}`.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16))]
    pub claims: BTreeMap<String, String>,
}

/// Reference to a Secret.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct TokenReference {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// Selection of one Stack by name, or of all Stacks with the given labels.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.name) && self.name != '*') != has(self.matchLabels)",
    "message": "must set either name or matchLabels; with matchLabels, name must be absent or \"*\""
}]))]
pub struct ReceiverResource {
    /// Kind of the objects, which must be `Stack`. Default: `Stack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Stack"]))]
    pub kind: Option<String>,

    /// Name of the Stack to run. If `matchLabels` is set, the name must be absent or `*`. Default: selection by
    /// `matchLabels`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,

    /// Labels of the Stacks to select. Default: selection by `name`. Example: `{team: blue}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = 64))]
    pub match_labels: BTreeMap<String, String>,
}

impl ReceiverResource {
    /// Returns the name of the Stack, or `None` if this entry selects Stacks by their labels.
    pub fn stack_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| *name != "*")
    }
}

/// Observed state of a StackReceiver.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StackReceiverStatus {
    /// Conditions of the StackReceiver: `Ready`, `Reconciling` and `Stalled`.
    /// Example: `[{type: Ready, status: "True", reason: Succeeded}]`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Abbreviated message of the condition `Ready`, for `kubectl get`: the first line, with shortened digests and at
    /// most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

    /// Last handled value of the annotation `reconcile.fluxcd.io/requestedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,

    /// Last observed generation of the object. `-1` before the first reconciliation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Path of the webhook: `/hook/` followed by the SHA-256 hash of the token, the name and the namespace. For
    /// `generic-oidc`, the hash does not depend on a token. Absent if no token is available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_path: Option<String>,
}

impl StackReceiver {
    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Returns the webhook path for `token`.
    pub fn path(&self, token: &ReceiverToken) -> String {
        names::webhook_path(token.bytes(), &self.name_any(), &self.namespace().unwrap_or_default())
    }

    /// Returns the webhook path of a StackReceiver of the type `generic-oidc`, which has no token. The path is not
    /// secret.
    pub fn path_without_token(&self) -> String {
        names::webhook_path_without_token(&self.name_any(), &self.namespace().unwrap_or_default())
    }

    /// Returns the name of the Secret with the token. The API server rejects a StackReceiver without `secretRef`, unless
    /// its type is `generic-oidc`.
    pub fn secret_name(&self) -> Result<&str, NoToken> {
        self.spec.secret_ref.as_ref().map(|secret| secret.name.as_str()).ok_or(NoToken::NoReference)
    }

    /// Returns the token in `secret`, or the reason why no token is available.
    pub fn token(&self, secret: Option<Secret>) -> Result<ReceiverToken, NoToken> {
        let secret_name = self.secret_name()?;
        let name = || format!("{}/{secret_name}", self.namespace().unwrap_or_default());
        let mut data = secret.ok_or_else(|| NoToken::NoSecret { secret: name() })?.data.unwrap_or_default();
        match data.remove(TOKEN) {
            // With an empty token, any client could compute a valid signature.
            Some(token) if !token.0.is_empty() => Ok(ReceiverToken(Zeroizing::new(token.0))),
            Some(_) => Err(NoToken::Empty { secret: name() }),
            None => Err(NoToken::NoKey { secret: name() }),
        }
    }
}

/// Token that authenticates requests. The `Debug` output does not contain the token.
#[derive(Clone, PartialEq, Eq)]
pub struct ReceiverToken(Zeroizing<Vec<u8>>);

impl ReceiverToken {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for ReceiverToken {
    fn from(token: &[u8]) -> Self {
        ReceiverToken(Zeroizing::new(token.to_vec()))
    }
}

impl fmt::Debug for ReceiverToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ReceiverToken")
    }
}

/// Reason why no token is available.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoToken {
    #[error("secretRef is not set; reference a Secret with the key `token`")]
    NoReference,
    #[error("Secret {secret} not found; create it with the key `token`")]
    NoSecret { secret: String },
    #[error("Secret {secret} has no key `token`")]
    NoKey { secret: String },
    #[error("key `token` of Secret {secret} is empty; set it to a long random string")]
    Empty { secret: String },
    /// The API server denies access to the Secret.
    #[error("{0}")]
    Unreadable(String),
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    fn receiver() -> StackReceiver {
        let spec = json!({"type": "generic-hmac", "secretRef": {"name": "hook"}, "resources": [{"name": "web"}]});
        serde_json::from_value(json!({"metadata": {"name": "push", "namespace": "apps"}, "spec": spec})).expect("valid")
    }

    fn secret(key: &str, value: &str) -> Option<Secret> {
        let data = BTreeMap::from([(key.to_owned(), ByteString(value.as_bytes().to_vec()))]);
        Some(Secret { data: Some(data), ..Secret::default() })
    }

    #[test]
    fn a_token_is_required_and_never_shown() {
        let token = receiver().token(secret("token", "s3cret")).expect("valid token");
        assert_eq!((token.bytes(), format!("{token:?}")), (&b"s3cret"[..], "ReceiverToken".to_owned()));
        for (found, expected) in [
            (None, "Secret apps/hook not found; create it with the key `token`"),
            (secret("password", "x"), "Secret apps/hook has no key `token`"),
            (secret("token", ""), "key `token` of Secret apps/hook is empty; set it to a long random string"),
        ] {
            assert_eq!(receiver().token(found).expect_err(expected).to_string(), expected);
        }
    }

    #[test]
    fn the_path_is_derived_from_token_name_and_namespace() {
        // printf '%s' 's3cretpushapps' | sha256sum
        let path = receiver().path(&ReceiverToken::from(&b"s3cret"[..]));
        assert_eq!(path, "/hook/b300258c916a24345dc687d4958ef61d0a8d4694549024a1b33b578328bddd62");
    }

    #[test]
    fn the_receiver_fields_match_flux() {
        let receiver = receiver();
        assert_eq!((receiver.spec.kind, receiver.spec.interval.as_str()), (ReceiverType::GenericHmac, "10m"));
        assert_eq!(receiver.spec.resources[0].stack_name(), Some("web"));
        let all: ReceiverResource =
            serde_json::from_value(json!({"name": "*", "matchLabels": {"a": "b"}})).expect("valid");
        assert_eq!(all.stack_name(), None);
    }
}
