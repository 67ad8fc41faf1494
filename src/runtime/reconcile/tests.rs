//! Tests for the requeue after each reconciliation result.

use std::time::Duration;

use serde_json::json;

use crate::api::auto::Workspace;
use crate::api::pulumi::Stack;
use crate::runtime::backoff::{Backoff, DEFAULT_MIN_RETRY_DELAY};
use crate::runtime::reconcile::{Outcome, ReconcileError, ReconcileRunner};
use crate::runtime::writes::{AttemptedWrite, WriteError};
use crate::telemetry::metrics::Metrics;

const SOON: Duration = Duration::from_secs(7);

fn workspace(name: &str) -> Workspace {
    serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
        "metadata": { "name": name, "namespace": "apps" }, "spec": {},
    }))
    .unwrap()
}

fn runner() -> (ReconcileRunner, Metrics) {
    let metrics = Metrics::default();
    // The tests use the kind Stack, because individual Workspaces have no metrics.
    (ReconcileRunner::new::<Stack>("workspace", Duration::from_secs(60), metrics.clone()), metrics)
}

fn refused(code: u16) -> WriteError {
    let attempt = AttemptedWrite { verb: "apply", kind: "Secret".into(), namespace: "apps".into(), name: "a".into() };
    WriteError::Refused { attempt: Box::new(attempt), code, reason: "Reason".into(), message: "message".into() }
}

#[tokio::test]
async fn the_result_of_a_reconciliation_determines_the_next_reconciliation() {
    let cases = [
        (Ok(Outcome::Settled), Outcome::Settled, "success"),
        (Ok(Outcome::After(SOON)), Outcome::After(SOON), "requeue_after"),
        (Err(ReconcileError::stalled("invalid spec")), Outcome::Settled, "error"),
        (Err(ReconcileError::waiting("the pod", SOON)), Outcome::After(SOON), "requeue_after"),
        (Err(ReconcileError::transient("connection refused")), Outcome::After(DEFAULT_MIN_RETRY_DELAY), "error"),
        (Err(refused(403).into()), Outcome::After(DEFAULT_MIN_RETRY_DELAY), "error"),
        (Err(refused(409).into()), Outcome::After(DEFAULT_MIN_RETRY_DELAY), "requeue_after"),
    ];
    for (end, expected, result) in cases {
        let (runner, metrics) = runner();
        let name = format!("{end:?}");
        assert_eq!(runner.run(&workspace("web"), async { end }).await.outcome, expected, "{name}");
        let line = format!("controller_runtime_reconcile_total{{controller=\"workspace\",result=\"{result}\"}} 1");
        let text = metrics.encode().unwrap();
        assert!(text.contains(&line), "{name}: no {line} in\n{text}");
    }
}

#[tokio::test]
async fn stalled_errors_are_terminal_and_the_backoff_is_configurable() {
    let (runner, metrics) = runner();
    let (shortest, longest) = (Duration::from_secs(2), Duration::from_secs(3));
    let runner = runner.with_backoff(Backoff::between(shortest, longest));
    let refused = async || Err(ReconcileError::transient("connection refused"));
    let fail = async || runner.run(&workspace("web"), refused()).await.outcome;
    assert_eq!(fail().await, Outcome::After(shortest));
    assert_eq!(fail().await, Outcome::After(longest));
    runner.run(&workspace("web"), async { Err(ReconcileError::stalled("invalid spec")) }).await;
    let text = metrics.encode().unwrap();
    let line = "controller_runtime_terminal_reconcile_errors_total{controller=\"workspace\"} 1";
    assert!(text.contains(line), "no {line} in\n{text}");
}

#[tokio::test]
async fn a_panic_is_counted_and_backed_off_and_affects_no_other_object() {
    let (runner, metrics) = runner();
    let panicking = async || runner.run(&workspace("web"), async { panic!("test panic") }).await.outcome;
    assert_eq!(panicking().await, Outcome::After(DEFAULT_MIN_RETRY_DELAY));
    assert_eq!(panicking().await, Outcome::After(DEFAULT_MIN_RETRY_DELAY * 2));
    let other = runner.run(&workspace("other"), async { Err(ReconcileError::transient("connection refused")) }).await;
    assert_eq!(other.outcome, Outcome::After(DEFAULT_MIN_RETRY_DELAY));
    let text = metrics.encode().unwrap();
    assert!(text.contains("controller_runtime_reconcile_panics_total{controller=\"workspace\"} 2"), "{text}");
    assert!(text.contains("controller_runtime_active_workers{controller=\"workspace\"} 0"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_reconciliation_times_out() {
    let (runner, _) = runner();
    let action = runner.run(&workspace("web"), std::future::pending()).await;
    assert_eq!(action.outcome, Outcome::After(DEFAULT_MIN_RETRY_DELAY));
}

#[tokio::test]
async fn a_successful_reconciliation_resets_the_backoff() {
    let (runner, _) = runner();
    let refused = async || Err(ReconcileError::transient("connection refused"));
    let fail = async || runner.run(&workspace("web"), refused()).await.outcome;
    fail().await;
    assert_eq!(fail().await, Outcome::After(DEFAULT_MIN_RETRY_DELAY * 2));
    runner.run(&workspace("web"), async { Ok(Outcome::Settled) }).await;
    assert_eq!(fail().await, Outcome::After(DEFAULT_MIN_RETRY_DELAY));
}

#[tokio::test]
async fn a_deleted_object_leaves_no_metrics_or_backoff() {
    let (runner, metrics) = runner();
    for name in ["one", "two", "three"] {
        runner.begin(&workspace(name));
        runner.run(&workspace(name), async { Err(ReconcileError::transient("connection refused")) }).await;
    }
    runner.forget(&workspace("one"));
    runner.retain(|namespace, name| (namespace, name) == ("apps", "three"));
    let text = metrics.encode().unwrap();
    let known = |name: &str| text.contains(&format!("name=\"{name}\""));
    assert_eq!([known("one"), known("two"), known("three")], [false, false, true]);
    let again = runner.run(&workspace("two"), async { Err(ReconcileError::transient("connection refused")) }).await;
    assert_eq!(again.outcome, Outcome::After(DEFAULT_MIN_RETRY_DELAY));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_reported_after_the_third_consecutive_failure() {
    let (runner, _) = runner();
    let fail = async || runner.run(&workspace("web"), async { Err(refused(500).into()) }).await.repeated_error;
    let error = Some("failed to apply Secret apps/a: message (Reason, 500)".to_owned());
    assert_eq!([fail().await, fail().await, fail().await, fail().await], [None, None, error.clone(), error]);
    let conflict = runner.run(&workspace("web"), async { Err(refused(409).into()) }).await;
    assert!(conflict.repeated_error.is_some_and(|error| error.contains("409")), "a conflict can also repeat");
    let hanging = runner.run(&workspace("web"), std::future::pending()).await;
    assert_eq!(hanging.repeated_error.as_deref(), Some("the reconciliation timed out after 60 s"));
    let panicked = runner.run(&workspace("web"), async { panic!("test panic") }).await;
    assert_eq!(panicked.repeated_error.as_deref(), Some("the reconciliation panicked: test panic"));
    let ended = runner.run(&workspace("web"), async { Ok(Outcome::Settled) }).await;
    assert_eq!(ended.repeated_error, None);
    assert_eq!(fail().await, None, "a success resets the count");
}
