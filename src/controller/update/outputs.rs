//! Stores the outputs of an Update in a Secret, in the format of the Pulumi Kubernetes Operator. A run does not fail
//! if the controller cannot write the Secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::auto::Update;
use crate::api::names;
use crate::api::output_keys::keys;
use crate::controller::update::context::Context;
use crate::controller::update::outcome::RunOutcome;
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::writes::{Created, WriteError};

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

/// Builds the Secret, which contains the JSON value of each output under a separate key, except unknown values. An
/// annotation lists the keys of secret outputs, also of those with an unknown value.
fn secret(update: &Update, outcome: &RunOutcome) -> Secret {
    let keys = keys(outcome.outputs.iter().map(|output| output.name.as_str()));
    let outputs = || keys.iter().zip(&outcome.outputs);
    let known = outputs().filter(|(_, output)| !output.value.is_empty());
    let data: serde_json::Map<String, Value> =
        known.map(|(key, output)| (key.clone(), json!(STANDARD.encode(&output.value)))).collect();
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
            outputs: vec![
                output("url", "\"http://x\"", false),
                output("my token!", "\"hidden\"", true),
                output("unknown", "", true),
            ],
            outputs_unavailable: true,
            ..proto::Result::default()
        };
        let made = secret(&update(), &RunOutcome::of(&result));
        assert_eq!((made.name_any().as_str(), made.immutable), ("app-1-stack-outputs", Some(true)));
        assert_eq!(
            made.annotations().get("pulumi.com/secrets").map(String::as_str),
            Some("[\"my_token_\",\"unknown\"]")
        );
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
