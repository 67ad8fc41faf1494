//! Tests for the requeue after each reconciliation result.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::runtime::controller::Action;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::api::auto::Workspace;
use crate::api::pulumi::Stack;
use crate::runtime::backoff::{Backoff, DEFAULT_MIN_RETRY_DELAY};
use crate::runtime::reconcile::{Outcome, ReconcileError, ReconcileRunner, Urgency};
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
        (Ok(Outcome::Settled), Action::await_change(), "success"),
        (Ok(Outcome::After(SOON)), Action::requeue(SOON), "requeue_after"),
        (Err(ReconcileError::stalled("invalid spec")), Action::await_change(), "error"),
        (Err(ReconcileError::waiting("the pod", SOON)), Action::requeue(SOON), "requeue_after"),
        (Err(ReconcileError::transient("connection refused")), Action::requeue(DEFAULT_MIN_RETRY_DELAY), "error"),
        (Err(refused(403).into()), Action::requeue(DEFAULT_MIN_RETRY_DELAY), "error"),
        (Err(refused(409).into()), Action::requeue(DEFAULT_MIN_RETRY_DELAY), "requeue_after"),
    ];
    for (end, expected, result) in cases {
        let (runner, metrics) = runner();
        let name = format!("{end:?}");
        assert_eq!(runner.run(&workspace("web"), Urgency::Normal, async { end }).await, Ok(expected), "{name}");
        let line = format!("controller_runtime_reconcile_total{{controller=\"workspace\",result=\"{result}\"}} 1");
        let text = metrics.encode().unwrap();
        assert!(text.contains(&line), "{name}: no {line} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_reconciliations_do_not_block_other_namespaces() {
    let end = CancellationToken::new();
    let runner = Arc::new(runner().0.with_slots(4, 3, end.clone()));
    let in_namespace = |namespace: &str, name: &str| {
        let mut workspace = workspace(name);
        workspace.metadata.namespace = Some(namespace.to_owned());
        workspace
    };
    let begun = Arc::new(AtomicUsize::new(0));
    let hanging: Vec<_> = (0..20)
        .map(|number| {
            let (runner, begun) = (runner.clone(), begun.clone());
            let object = in_namespace("hostile", &number.to_string());
            tokio::spawn(async move {
                let hangs = async {
                    begun.fetch_add(1, Ordering::SeqCst);
                    std::future::pending::<Result<Outcome, ReconcileError>>().await
                };
                runner.run(&object, Urgency::Normal, hangs).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(begun.load(Ordering::SeqCst), 3, "the namespace limit applies");
    for number in 0..10 {
        let object = in_namespace("apps", &number.to_string());
        let honest = runner.run(&object, Urgency::Normal, async { Ok(Outcome::Settled) });
        let done = tokio::time::timeout(Duration::from_secs(1), honest).await.expect("a slot is free");
        assert_eq!(done, Ok(Action::await_change()));
    }
    end.cancel();
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(begun.load(Ordering::SeqCst), 3, "no reconciliation starts after shutdown");
    for hanging in hanging {
        assert!(hanging.await.expect("no panic").is_ok(), "waiting and running reconciliations have ended");
    }
}

#[tokio::test(start_paused = true)]
async fn promoted_objects_precede_the_first_reconciliations_of_their_namespace() {
    let runner = Arc::new(runner().0.with_slots(1, 1, CancellationToken::new()));
    let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
    let reconcile = |name: &'static str| {
        let (runner, done) = (runner.clone(), done.clone());
        tokio::spawn(async move {
            let work = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                done.send(name).unwrap();
                Ok(Outcome::Settled)
            };
            runner.run(&workspace(name), Urgency::Normal, work).await.unwrap();
        })
    };
    let mut tasks = vec![reconcile("known")];
    tokio::time::sleep(Duration::from_millis(1)).await;
    runner.promote(&workspace("promoted-before"));
    for name in ["first", "second", "promoted-before", "promoted-later"] {
        tasks.push(reconcile(name));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    runner.promote(&workspace("promoted-later"));
    tokio::time::sleep(Duration::from_millis(1001)).await;
    tasks.push(reconcile("known"));
    futures::future::join_all(tasks).await;
    drop(done);
    let mut names = Vec::new();
    while let Ok(name) = order.try_recv() {
        names.push(name);
    }
    assert_eq!(names, ["known", "promoted-before", "promoted-later", "known", "first", "second"]);
    assert_eq!(runner.promoted(), Vec::<String>::new(), "all first reconciliations have started");
}

#[tokio::test(start_paused = true)]
async fn urgent_reconciliations_do_not_wait_for_queued_objects() {
    let runner = Arc::new(runner().0.with_slots(1, 1, CancellationToken::new()));
    let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
    let reconcile = |name: &'static str, urgency: Urgency| {
        let (runner, done) = (runner.clone(), done.clone());
        tokio::spawn(async move {
            let work = async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                done.send(name).unwrap();
                Ok(Outcome::Settled)
            };
            runner.run(&workspace(name), urgency, work).await.unwrap();
        })
    };
    runner.run(&workspace("granted"), Urgency::Queued, async { Ok(Outcome::Settled) }).await.unwrap();
    let mut tasks = Vec::new();
    for (name, urgency) in [
        ("queued-1", Urgency::Queued),
        ("queued-2", Urgency::Queued),
        ("granted", Urgency::Queued),
        ("open", Urgency::Urgent),
    ] {
        tasks.push(reconcile(name, urgency));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    runner.expedite(&workspace("granted"));
    runner.expedite(&workspace("unknown"));
    assert_eq!(runner.promoted(), ["granted", "queued-2"], "an unknown object is not recorded");
    futures::future::join_all(tasks).await;
    drop(done);
    let mut names = Vec::new();
    while let Ok(name) = order.try_recv() {
        names.push(name);
    }
    assert_eq!(names, ["queued-1", "open", "queued-2", "granted"], "two reconciliations at a time");
}

#[tokio::test]
async fn an_object_deleted_during_its_reconciliation_leaves_no_state() {
    let (runner, metrics) = runner();
    let (gone, received) = std::sync::mpsc::channel();
    let runner = runner.on_deleted(move |(namespace, name)| gone.send(format!("{namespace}/{name}")).unwrap());
    let going = workspace("going");
    let work = async {
        runner.forget(&going);
        Ok(Outcome::Settled)
    };
    runner.run(&going, Urgency::Normal, work).await.unwrap();
    runner.run(&workspace("staying"), Urgency::Normal, async { Ok(Outcome::Settled) }).await.unwrap();
    let text = metrics.encode().unwrap();
    assert!(!text.contains("name=\"going\"") && text.contains("name=\"staying\""), "{text}");
    let names: Vec<String> = received.try_iter().collect();
    assert_eq!(
        names,
        ["apps/going", "apps/going"],
        "metrics are removed at the deletion and after the last reconciliation"
    );
}

#[tokio::test]
async fn stalled_errors_are_terminal_and_the_backoff_is_configurable() {
    let (runner, metrics) = runner();
    let (shortest, longest) = (Duration::from_secs(2), Duration::from_secs(3));
    let runner = runner.with_backoff(Backoff::between(shortest, longest));
    let fail = async || {
        runner
            .run(&workspace("web"), Urgency::Normal, async { Err(ReconcileError::transient("connection refused")) })
            .await
    };
    assert_eq!(fail().await, Ok(Action::requeue(shortest)));
    assert_eq!(fail().await, Ok(Action::requeue(longest)));
    runner
        .run(&workspace("web"), Urgency::Normal, async { Err(ReconcileError::stalled("invalid spec")) })
        .await
        .unwrap();
    let text = metrics.encode().unwrap();
    let line = "controller_runtime_terminal_reconcile_errors_total{controller=\"workspace\"} 1";
    assert!(text.contains(line), "no {line} in\n{text}");
}

#[tokio::test]
async fn a_panic_is_counted_and_backed_off_and_affects_no_other_object() {
    let (runner, metrics) = runner();
    let panicking = async || runner.run(&workspace("web"), Urgency::Normal, async { panic!("test panic") }).await;
    assert_eq!(panicking().await, Ok(Action::requeue(DEFAULT_MIN_RETRY_DELAY)));
    assert_eq!(panicking().await, Ok(Action::requeue(DEFAULT_MIN_RETRY_DELAY * 2)));
    let other = runner
        .run(&workspace("other"), Urgency::Normal, async { Err(ReconcileError::transient("connection refused")) })
        .await;
    assert_eq!(other, Ok(Action::requeue(DEFAULT_MIN_RETRY_DELAY)));
    let text = metrics.encode().unwrap();
    assert!(text.contains("controller_runtime_reconcile_panics_total{controller=\"workspace\"} 2"), "{text}");
    assert!(text.contains("controller_runtime_active_workers{controller=\"workspace\"} 0"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_reconciliation_times_out() {
    let (runner, _) = runner();
    let action = runner.run(&workspace("web"), Urgency::Normal, std::future::pending()).await;
    assert_eq!(action, Ok(Action::requeue(DEFAULT_MIN_RETRY_DELAY)));
}

#[tokio::test]
async fn a_successful_reconciliation_resets_the_backoff() {
    let (runner, _) = runner();
    let fail = async || {
        runner
            .run(&workspace("web"), Urgency::Normal, async { Err(ReconcileError::transient("connection refused")) })
            .await
    };
    fail().await.unwrap();
    assert_eq!(fail().await, Ok(Action::requeue(DEFAULT_MIN_RETRY_DELAY * 2)));
    runner.run(&workspace("web"), Urgency::Normal, async { Ok(Outcome::Settled) }).await.unwrap();
    assert_eq!(fail().await, Ok(Action::requeue(DEFAULT_MIN_RETRY_DELAY)));
}

#[tokio::test]
async fn a_deleted_object_leaves_no_metrics_or_backoff() {
    let (runner, metrics) = runner();
    for name in ["one", "two", "three"] {
        runner
            .run(&workspace(name), Urgency::Normal, async { Err(ReconcileError::transient("connection refused")) })
            .await
            .unwrap();
    }
    runner.forget(&workspace("one"));
    runner.retain(|namespace, name| (namespace, name) == ("apps", "three"));
    let text = metrics.encode().unwrap();
    let known = |name: &str| text.contains(&format!("name=\"{name}\""));
    assert_eq!([known("one"), known("two"), known("three")], [false, false, true]);
    let again = runner
        .run(&workspace("two"), Urgency::Normal, async { Err(ReconcileError::transient("connection refused")) })
        .await;
    assert_eq!(again, Ok(Action::requeue(DEFAULT_MIN_RETRY_DELAY)));
}
