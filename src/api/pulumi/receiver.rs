//! `pulumi.com/v1alpha1` StackReceiver: a webhook that runs Stacks. Its fields are those of Flux's Receiver.

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

/// The key of the token in its Secret, as Flux has it.
const TOKEN: &str = "token";

/// A webhook that runs Stacks.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "pulumi.com",
    version = "v1alpha1",
    kind = "StackReceiver",
    namespaced,
    status = "StackReceiverStatus",
    category = "pulumi",
    doc = "StackReceiver is a webhook that runs Stacks.",
    validation = (
        "!has(self.spec.events) || self.spec.type in ['github', 'gitlab']",
        "events are told by github and gitlab only"
    ),
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.summary"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StackReceiverSpec {
    /// Who calls, and with that, how a call proves that it comes from there: `github` (Gitea and Forgejo too), `gitlab`, `generic-hmac`,
    /// or `generic`, which proves nothing but that it knows the path.
    #[serde(rename = "type")]
    pub kind: ReceiverType,

    /// The events that run the Stacks, such as `push` of GitHub or `Push Hook` of GitLab, in upper or lower case. Unset: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 64), inner(length(max = bounds::WORD)))]
    pub events: Vec<String>,

    /// How often the Secret is read for another token, which means another path. At least ten seconds.
    #[serde(default = "default_interval")]
    #[schemars(schema_with = "schema::duration")]
    pub interval: String,

    /// The Secret in the namespace of the StackReceiver whose key `token` is known to the caller.
    pub secret_ref: TokenReference,

    /// The Stacks, all in the namespace of the StackReceiver.
    #[schemars(length(min = 1, max = 64))]
    pub resources: Vec<ReceiverResource>,

    /// Calls are refused, and the path stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

fn default_interval() -> String {
    "10m".to_owned()
}

/// Who calls.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiverType {
    /// Proved by `X-Hub-Signature-256`; the event is in `X-GitHub-Event`.
    Github,
    /// Proved by the token in `X-Gitlab-Token`; the event is in `X-Gitlab-Event`.
    Gitlab,
    /// Proved by nothing but the path.
    Generic,
    /// Proved by `X-Signature`.
    GenericHmac,
}

/// A Secret by its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct TokenReference {
    /// The Secret's name.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// One Stack by its name, or all that carry labels.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.name) && self.name != '*') != has(self.matchLabels)",
    "message": "give a name, or matchLabels, alone or with the name \"*\""
}]))]
pub struct ReceiverResource {
    /// `Stack`, which need not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Stack"]))]
    pub kind: Option<String>,

    /// The Stack's name; `*` with `matchLabels`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,

    /// Labels of the Stacks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = 64))]
    pub match_labels: BTreeMap<String, String>,
}

impl ReceiverResource {
    /// The name, if it means one Stack.
    pub fn one(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| *name != "*")
    }
}

/// What the controller says of a StackReceiver.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StackReceiverStatus {
    /// `Ready`, `Reconciling` and `Stalled`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// What `kubectl get` prints of the message of `Ready`: its first line with short digests, at most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

    /// The value of `reconcile.fluxcd.io/requestedAt` that was read last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,

    /// The generation whose spec was read last; -1 before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The path that is to be called: `/hook/` and a hash of token, name and namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_path: Option<String>,
}

impl StackReceiver {
    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// The path that belongs to a token.
    pub fn path(&self, token: &ReceiverToken) -> String {
        names::webhook_path(token.bytes(), &self.name_any(), &self.namespace().unwrap_or_default())
    }

    /// The token in the Secret that was found.
    pub fn token(&self, secret: Option<Secret>) -> Result<ReceiverToken, NoToken> {
        let name = || format!("{}/{}", self.namespace().unwrap_or_default(), self.spec.secret_ref.name);
        let mut data = secret.ok_or_else(|| NoToken::NoSecret { secret: name() })?.data.unwrap_or_default();
        match data.remove(TOKEN) {
            // With an empty key everybody can sign.
            Some(token) if !token.0.is_empty() => Ok(ReceiverToken(Zeroizing::new(token.0))),
            Some(_) => Err(NoToken::Empty { secret: name() }),
            None => Err(NoToken::NoKey { secret: name() }),
        }
    }
}

/// What a caller has to know. It is never shown.
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

/// Why there is no token.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoToken {
    #[error("there is no Secret {secret}; create it with the key `token`")]
    NoSecret { secret: String },
    #[error("the Secret {secret} has no key `token`; add it")]
    NoKey { secret: String },
    #[error("the key `token` of the Secret {secret} is empty; put a long random text into it")]
    Empty { secret: String },
    /// The API server does not let it be read.
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
    fn a_token_is_neither_empty_nor_shown() {
        let token = receiver().token(secret("token", "s3cret")).expect("there is one");
        assert_eq!((token.bytes(), format!("{token:?}")), (&b"s3cret"[..], "ReceiverToken".to_owned()));
        for (found, wanted) in [
            (None, "there is no Secret apps/hook; create it with the key `token`"),
            (secret("password", "x"), "the Secret apps/hook has no key `token`; add it"),
            (secret("token", ""), "the key `token` of the Secret apps/hook is empty; put a long random text into it"),
        ] {
            assert_eq!(receiver().token(found).expect_err(wanted).to_string(), wanted);
        }
    }

    #[test]
    fn the_path_is_made_of_token_name_and_namespace() {
        // printf '%s' 's3cretpushapps' | sha256sum
        let path = receiver().path(&ReceiverToken::from(&b"s3cret"[..]));
        assert_eq!(path, "/hook/b300258c916a24345dc687d4958ef61d0a8d4694549024a1b33b578328bddd62");
    }

    #[test]
    fn the_fields_are_those_of_flux() {
        let receiver = receiver();
        assert_eq!((receiver.spec.kind, receiver.spec.interval.as_str()), (ReceiverType::GenericHmac, "10m"));
        assert_eq!(receiver.spec.resources[0].one(), Some("web"));
        let all: ReceiverResource =
            serde_json::from_value(json!({"name": "*", "matchLabels": {"a": "b"}})).expect("valid");
        assert_eq!(all.one(), None);
    }
}
