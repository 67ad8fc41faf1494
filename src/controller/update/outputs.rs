//! Stores the outputs of an Update in a Secret, in the format of the Pulumi Kubernetes Operator. A run does not fail
//! if the controller cannot write the Secret.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::auto::Update;
use crate::api::names;
use crate::artifact::Digest;
use crate::controller::update::context::Context;
use crate::controller::update::outcome::RunOutcome;
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::writes::{Created, WriteError};

/// Maximum length of a key in a Secret.
const MAX_KEY: usize = 253;
/// Length of the hash in a key, in characters.
const HASH_LENGTH: usize = 10;

/// Result of the attempt to store the outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The outputs are stored in the Secret, or there are no outputs.
    Yes,
    /// The outputs are not stored yet for the given reason. The controller retries the write.
    NotYet(String),
    /// The outputs are not stored for the given reason. The controller does not retry the write.
    No(String),
}

/// Stores the outputs of a completed run in a Secret. `may_retry` specifies whether a later attempt is possible.
pub(super) async fn store(
    update: &Update,
    outcome: &RunOutcome,
    context: &Context,
    may_retry: bool,
) -> Result<Stored, ReconcileError> {
    let name = names::outputs_secret(&update.name_any());
    if outcome.outputs.is_empty() || context.stored_secrets.contains(update, &name) {
        return Ok(Stored::Yes);
    }
    let is_ours = |created: &Created<Secret>| match created {
        Created::New(_) => true,
        Created::Existing(found) => is_of(found, update),
    };
    match context.writer.create(&secret(update, outcome)).await {
        Ok(created) if is_ours(&created) => {
            context.stored_secrets.insert(update, name);
            Ok(Stored::Yes)
        }
        Ok(_) => Ok(Stored::No(format!("Secret {name} exists but does not belong to this run; delete the Secret"))),
        Err(error) => refused(error, may_retry),
    }
}

/// Returns the result of a failed write, or an error if the reconciler must retry the write with backoff. A retry of a
/// forbidden write can succeed, for example after a change to a quota or a policy.
pub(super) fn refused(error: WriteError, may_retry: bool) -> Result<Stored, ReconcileError> {
    match error {
        error if error.is_content_rejected() || error.is_namespace_terminating() => Ok(Stored::No(error.to_string())),
        error if error.is_forbidden() && may_retry => Ok(Stored::NotYet(error.to_string())),
        error if error.is_forbidden() => Ok(Stored::No(error.to_string())),
        error => Err(error.into()),
    }
}

/// Returns whether a Secret contains the outputs of the Update.
pub fn is_of(secret: &Secret, update: &Update) -> bool {
    let is_its = |uid: &String| Some(uid) == update.metadata.uid.as_ref();
    secret.owner_references().iter().any(|owner| owner.kind == Update::kind(&()) && is_its(&owner.uid))
}

/// Builds the Secret, which contains the JSON value of each output under a separate key. An annotation lists the keys
/// of secret outputs.
fn secret(update: &Update, outcome: &RunOutcome) -> Secret {
    let keys = keys(outcome.outputs.iter().map(|output| output.name.as_str()));
    let outputs = || keys.iter().zip(&outcome.outputs);
    let data: serde_json::Map<String, Value> =
        outputs().map(|(key, output)| (key.clone(), json!(STANDARD.encode(&output.value)))).collect();
    let secret_keys: Vec<&String> = outputs().filter(|(_, output)| output.secret).map(|(key, _)| key).collect();
    let annotations = json!({names::ANNOTATION_SECRETS: json!(secret_keys).to_string()});
    owned_secret(update, &names::outputs_secret(&update.name_any()), &annotations, &Value::Object(data))
}

/// Builds an immutable Secret. The garbage collector deletes the Secret together with the Update.
pub(super) fn owned_secret(update: &Update, name: &str, annotations: &Value, data: &Value) -> Secret {
    let secret = json!({
        "metadata": {
            "name": name,
            "namespace": update.namespace(),
            "labels": {names::LABEL_COMPONENT: "update", names::LABEL_UPDATE_NAME: update.name_any()},
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": Update::api_version(&()),
                "kind": Update::kind(&()),
                "name": update.name_any(),
                "uid": update.uid(),
            }],
        },
        "immutable": true,
        "data": data,
    });
    serde_json::from_value(secret).unwrap_or_default()
}

/// Returns the key of the output with the given name in a Secret. `contains` returns whether the Secret has a key.
pub fn stored_key(name: &str, contains: impl Fn(&str) -> bool) -> String {
    let key = key(name);
    let distinct = distinct_key(&key, name);
    if key != name && contains(&distinct) { distinct } else { key }
}

/// Returns the key under which the Secret contains the output with the given name, unless another output already has this
/// key. Each key is valid in a Secret, because one invalid key would prevent the controller from storing all outputs.
fn key(name: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let key: String = name.chars().map(valid).collect();
    let key = match key.strip_prefix('.') {
        Some(rest) if rest.is_empty() || rest.starts_with('.') => format!("_{rest}"),
        _ if key.is_empty() => "_".to_owned(),
        _ => key,
    };
    if key.len() > MAX_KEY { distinct_key(&key, name) } else { key }
}

/// Returns a different key for each output. If the names of several outputs have the same key, one of these outputs has
/// this key, and the keys of the others end with a hash.
fn keys<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let mut used: HashSet<String> = names.clone().filter(|name| key(name) == *name).map(str::to_owned).collect();
    let unused = |name: &str| {
        let key = key(name);
        if key == name || used.insert(key.clone()) { key } else { distinct_key(&key, name) }
    };
    names.map(unused).collect()
}

/// Returns the key with a hash of the name.
fn distinct_key(key: &str, name: &str) -> String {
    let digest = Digest::of(name.as_bytes()).to_string();
    let hash = digest.rsplit(':').next().unwrap_or_default();
    let start = |text: &str, length: usize| text.chars().take(length).collect::<String>();
    format!("{}-{}", start(key, MAX_KEY - HASH_LENGTH - 1), start(hash, HASH_LENGTH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::UpdateSpec;
    use crate::rpc::proto;
    use crate::runtime::writes::AttemptedWrite;

    fn update() -> Update {
        let mut update = Update::new("app-1", UpdateSpec::default());
        update.metadata.namespace = Some("apps".to_owned());
        update.metadata.uid = Some("uid-1".to_owned());
        update
    }

    #[test]
    fn outputs_are_stored_in_the_pko_format() {
        let output =
            |name: &str, value: &str, secret| proto::Output { name: name.to_owned(), value: value.to_owned(), secret };
        let result = proto::Result {
            outputs: vec![output("url", "\"http://x\"", false), output("my token!", "\"hidden\"", true)],
            ..proto::Result::default()
        };
        let made = secret(&update(), &RunOutcome::of(&result));
        assert_eq!((made.name_any().as_str(), made.immutable), ("app-1-stack-outputs", Some(true)));
        assert_eq!(made.annotations().get("pulumi.com/secrets").map(String::as_str), Some("[\"my_token_\"]"));
        assert_eq!(made.labels().get("auto.pulumi.com/update-name").map(String::as_str), Some("app-1"));
        let data = made.data.clone().unwrap_or_default();
        let values: Vec<_> = data.iter().map(|(key, value)| (key.as_str(), value.0.as_slice())).collect();
        assert_eq!(values, [("my_token_", b"\"hidden\"".as_slice()), ("url", b"\"http://x\"".as_slice())]);
        assert!(is_of(&made, &update()));
        let mut another = update();
        another.metadata.uid = Some("uid-2".to_owned());
        assert!(!is_of(&made, &another));
    }

    #[test]
    fn each_output_has_a_valid_key_of_its_own() {
        let rows = [
            ("url", "url"),
            ("my token!", "my_token_"),
            (".", "_"),
            ("..", "_."),
            ("..x", "_.x"),
            (".x", ".x"),
            ("", "_"),
            ("../../x", "_._.._x"),
        ];
        for (name, expected) in rows {
            assert_eq!(key(name), expected, "{name}");
        }
        let long = key(&"a".repeat(300));
        assert_eq!(long.len(), MAX_KEY);
        assert_ne!(long, key(&"a".repeat(301)));
        let names = ["a/b", "a b", "a_b"];
        let found = keys(names.into_iter());
        assert_eq!(found[2], "a_b", "the output with exactly this name");
        assert!(found[..2].iter().all(|key| key.starts_with("a_b-")), "{found:?}");
        for (name, key) in names.iter().zip(&found) {
            assert_eq!(&stored_key(name, |stored| found.iter().any(|key| key == stored)), key, "{name}");
        }
        assert_eq!(HashSet::<String>::from_iter(found).len(), 3);
    }

    #[test]
    fn creating_a_forbidden_outputs_secret_is_retried_while_retries_are_possible() {
        let refusal = |code, reason: &str, message: &str| WriteError::Refused {
            attempt: Box::new(AttemptedWrite {
                verb: "create",
                kind: "Secret".to_owned(),
                namespace: "apps".to_owned(),
                name: "app-1-stack-outputs".to_owned(),
            }),
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let kept =
            |code, reason: &str, message: &str, may_retry| match refused(refusal(code, reason, message), may_retry) {
                Ok(Stored::Yes) => "kept",
                Ok(Stored::NotYet(_)) => "not yet",
                Ok(Stored::No(_)) => "not kept",
                Err(_) => "error",
            };
        let rows = [
            (403, "Forbidden", "no", true, "not yet"),
            (403, "Forbidden", "no", false, "not kept"),
            (403, "NamespaceTerminating", "no", true, "not kept"),
            (422, "Invalid", "no", true, "not kept"),
            (413, "RequestEntityTooLarge", "no", true, "not kept"),
            (500, "InternalError", "etcdserver: request is too large", true, "not kept"),
            (500, "InternalError", "no", false, "error"),
            (429, "TooManyRequests", "no", false, "error"),
        ];
        for (code, reason, message, may_retry, expected) in rows {
            let found = kept(code, reason, message, may_retry);
            assert_eq!(found, expected, "{code} {reason}: {message}, retries: {may_retry}");
        }
    }
}
