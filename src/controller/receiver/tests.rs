//! Tests for the StackReceiver status, and for a reconciliation with a fake API server.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Action, Context, decide, reconcile, status_after};
use crate::api::conditions::{self, READY, RECONCILING, STALLED};
use crate::api::pulumi::{NoToken, ReceiverToken, StackReceiver, StackReceiverStatus};
use crate::runtime::events::Events;
use crate::runtime::fake_api::{FakeResponse, client};
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::Outcome;
use crate::runtime::writes::{Leadership, Writer};
use crate::telemetry::metrics::Metrics;

const SECOND: Duration = Duration::from_secs(1);

fn receiver(spec: Value) -> StackReceiver {
    let mut all = json!({"type": "github", "secretRef": {"name": "hook"}, "resources": [{"name": "web"}]});
    all.as_object_mut().expect("JSON object").extend(spec.as_object().expect("JSON object").clone());
    let metadata = json!({"name": "push", "namespace": "apps", "uid": "u", "generation": 3, "resourceVersion": "7",
        "annotations": {"reconcile.fluxcd.io/requestedAt": "now"}});
    serde_json::from_value(json!({"apiVersion": "pulumi.com/v1alpha1", "kind": "StackReceiver", "metadata": metadata,
        "spec": all}))
    .expect("valid StackReceiver")
}

fn path_of(token: &str) -> Result<String, NoToken> {
    Ok(receiver(json!({})).path(&ReceiverToken::from(token.as_bytes())))
}

fn missing() -> Result<String, NoToken> {
    Err(NoToken::NoSecret { secret: "apps/hook".to_owned() })
}

/// Returns the conditions `Ready`, `Reconciling` and `Stalled`, each as `status/reason`.
fn messages(status: &StackReceiverStatus) -> [Option<String>; 3] {
    [READY, RECONCILING, STALLED].map(|kind| {
        let condition = conditions::find(&status.conditions, kind)?;
        assert_eq!(condition.observed_generation, Some(3), "{condition:?}");
        Some(format!("{}/{}", condition.status, condition.reason))
    })
}

#[test]
fn the_path_depends_on_the_token_and_the_interval_sets_the_requeue() {
    let path = path_of("one").expect("a path");
    for (spec, requeue) in [(json!({}), 600), (json!({"interval": "1h"}), 3600), (json!({"interval": "0s"}), 10)] {
        let action = decide(&receiver(spec.clone()), true, path_of("one"));
        assert_eq!(action, Action::Publish { path: path.clone(), requeue: requeue * SECOND }, "{spec}");
    }
    assert_ne!(path_of("two"), path_of("one"));
}

#[test]
fn the_conditions_of_a_receiver_state_why_it_has_no_path() {
    let some = |text: &str| Some(text.to_owned());
    let steps = [
        (missing(), true, [some("False/TokenNotFound"), some("True/ProgressingWithRetry"), None]),
        (path_of("one"), true, [some("True/Succeeded"), None, None]),
        (path_of("one"), false, [some("False/NotServed"), None, some("True/NotServed")]),
        (path_of("one"), true, [some("True/Succeeded"), None, None]),
        (missing(), true, [some("False/TokenNotFound"), some("True/ProgressingWithRetry"), None]),
    ];
    let mut receiver = receiver(json!({}));
    for (number, (path, is_served, expected)) in steps.into_iter().enumerate() {
        let status = status_after(&receiver, &decide(&receiver, is_served, path.clone()), Timestamp::UNIX_EPOCH);
        assert_eq!(messages(&status), expected, "step {number}");
        assert_eq!(status.webhook_path.is_some(), path.is_ok() && is_served, "step {number}");
        assert_eq!((status.observed_generation, status.last_handled_reconcile_at.as_deref()), (Some(3), Some("now")));
        receiver.status = Some(status);
    }
}

#[test]
fn a_suspended_receiver_keeps_its_conditions_and_its_path() {
    let mut suspended = receiver(json!({"suspend": true}));
    let before = status_after(
        &receiver(json!({})),
        &Action::Publish { path: "/hook/1".to_owned(), requeue: SECOND },
        Timestamp::UNIX_EPOCH,
    );
    suspended.status = Some(StackReceiverStatus { observed_generation: Some(2), ..before.clone() });
    let action = decide(&suspended, true, missing());
    assert_eq!((&action, status_after(&suspended, &action, Timestamp::UNIX_EPOCH)), (&Action::Leave, before));
}

#[tokio::test]
async fn a_rotated_token_changes_the_path_in_the_next_reconciliation() {
    let mut live = receiver(json!({}));
    let mut written = Vec::new();
    for secret in ["b25l", "b25l", "dHdv"] {
        let (stored, token) = (json!(live), secret);
        let (client, log) = client(move |request| match request.path.rsplit('/').next() {
            Some("push") => FakeResponse::Json(200, stored.clone()),
            Some("hook") => FakeResponse::Json(
                200,
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hook"}, "data": {"token": token}}),
            ),
            Some("status") => FakeResponse::Json(200, stored.clone()),
            _ => FakeResponse::refusal(404, "NotFound"),
        });
        let writer = Writer::new(client.clone(), SECOND, Leadership::sole(), Metrics::default());
        let (events, _task) = Events::new(writer.clone(), "test", "test-0", Metrics::default());
        let context = Context { reader: Reader::new(client, SECOND), writer, events, is_served: true };
        let outcome = reconcile(Arc::new(live.clone()), Arc::new(context)).await.expect("successful reconcile");
        assert_eq!(outcome, Outcome::After(600 * SECOND));
        let patches: Vec<Value> =
            log.all().into_iter().filter(|request| request.method == "PATCH").map(|request| request.body).collect();
        if let Some(patch) = patches.last() {
            let mut object = json!(live);
            crate::runtime::fake_api::apply_json_merge_patch(&mut object, &json!({"status": patch["status"]}));
            live = serde_json::from_value(object).expect("valid StackReceiver");
        }
        written.push((patches.len(), live.status.as_ref().and_then(|status| status.webhook_path.clone())));
    }
    let path = |text: &str| Some(receiver(json!({})).path(&ReceiverToken::from(text.as_bytes())));
    assert_eq!(written, [(1, path("one")), (0, path("one")), (1, path("two"))]);
}

#[tokio::test]
async fn the_path_of_a_receiver_without_a_token_requires_no_secret() {
    let providers = json!([{"issuerURL": "https://ci.example.com", "audience": "a", "claims": {"sub": "b"}}]);
    let mut live = receiver(json!({"type": "generic-oidc", "oidcProviders": providers}));
    live.spec.secret_ref = None;
    let stored = json!(live);
    let (client, log) = client(move |_| FakeResponse::Json(200, stored.clone()));
    let writer = Writer::new(client.clone(), SECOND, Leadership::sole(), Metrics::default());
    let (events, _task) = Events::new(writer.clone(), "test", "test-0", Metrics::default());
    let context = Context { reader: Reader::new(client, SECOND), writer, events, is_served: true };
    reconcile(Arc::new(live.clone()), Arc::new(context)).await.expect("successful reconcile");
    let patch = log.all().into_iter().find(|request| request.method == "PATCH").expect("a status").body;
    assert_eq!(patch["status"]["webhookPath"], live.path_without_token());
    assert!(!log.verbs().iter().any(|verb| verb.contains("/secrets/")), "{:?}", log.verbs());
}
