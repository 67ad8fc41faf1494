//! Tests annotations that request a run.

use pulumi_controller::api::names::{
    ANNOTATION_FORCE_AT, ANNOTATION_RECONCILIATION_REQUEST, ANNOTATION_REFRESH, ANNOTATION_REQUESTED_AT,
    ANNOTATION_RESET_AT,
};
use pulumi_controller::api::pulumi::{Stack, StackStatus};
use serde_json::json;

use crate::harness::{Program, StackHandle, WaitLimit, is_done, once, run};

#[test]
fn reconciliation_request_and_requested_at_each_start_one_run() {
    run("requests", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("requests").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;

        main.annotate(ANNOTATION_RECONCILIATION_REQUEST, "please").await;
        let stack = main.until("to have run for the request", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            is_done(stack) && last.is_some_and(|update| update.inputs.reconcile_request.as_deref() == Some("please"))
        });
        assert_eq!(stack.await.status.expect("a status").observed_reconcile_request.as_deref(), Some("please"));
        assert_eq!(main.updates().await.len(), 2);

        main.annotate(ANNOTATION_REQUESTED_AT, "2026-01-01T00:00:00Z").await;
        let stack = main.until("to have run for the Flux request", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            is_done(stack)
                && last.is_some_and(|update| update.inputs.requested_at.as_deref() == Some("2026-01-01T00:00:00Z"))
        });
        assert_eq!(
            stack.await.status.expect("a status").last_handled_reconcile_at.as_deref(),
            Some("2026-01-01T00:00:00Z")
        );

        let witness = scene.start(scene.stack("witness", &source)).await;
        witness.until_applied(&commit).await;
        assert_eq!(main.updates().await.len(), 3, "each request ran the stack once");
        assert_eq!(main.log.operations().await, once(&["create step"]), "the later runs change nothing");
    });
}

/// Like the Flux CLI, sets this annotation and the annotation `reconcile.fluxcd.io/requestedAt` in one write.
async fn annotate_with_request(stack: &StackHandle<'_>, annotation: &str, value: &str) {
    let annotations = json!({ANNOTATION_REQUESTED_AT: value, annotation: value});
    stack.change(json!({"metadata": {"annotations": annotations}})).await;
}

fn status(stack: &Stack) -> StackStatus {
    stack.status.clone().unwrap_or_default()
}

#[test]
fn force_at_starts_one_run_and_only_if_it_matches_the_request() {
    run("force", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("force").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;

        annotate_with_request(&main, ANNOTATION_FORCE_AT, "first").await;
        let stack = main.until("to have run for the forced request", WaitLimit::Run, |stack| {
            is_done(stack)
                && status(stack).last_update.is_some_and(|last| last.inputs.force_at.as_deref() == Some("first"))
        });
        let handled = status(&stack.await);
        assert_eq!(handled.last_handled_force_at.as_deref(), Some("first"));
        assert_eq!(handled.last_handled_reconcile_at.as_deref(), Some("first"));

        main.annotate(ANNOTATION_FORCE_AT, "alone").await;
        let is_echoed =
            |stack: &Stack| is_done(stack) && status(stack).last_handled_force_at.as_deref() == Some("alone");
        main.until("to have handled a forced request without a request", WaitLimit::Reaction, is_echoed).await;
        let witness = scene.start(scene.stack("witness", &source)).await;
        witness.until_applied(&commit).await;
        let messages: Vec<String> = main.updates().await.into_iter().filter_map(|update| update.spec.message).collect();
        assert_eq!(messages, ["Initial stack update", "Forced at: \"first\""]);
    });
}

#[test]
fn a_request_with_a_refresh_refreshes_the_state_once() {
    run("refresh-once", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("refresh-once").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;

        let has_run_for = |request: &'static str| {
            move |stack: &Stack| {
                let last = status(stack).last_update;
                is_done(stack) && last.is_some_and(|last| last.inputs.requested_at.as_deref() == Some(request))
            }
        };
        annotate_with_request(&main, ANNOTATION_REFRESH, "first").await;
        let stack = main.until("to have run with a refresh", WaitLimit::Run, has_run_for("first")).await;
        assert_eq!(status(&stack).last_handled_refresh_at.as_deref(), Some("first"));
        main.annotate(ANNOTATION_REQUESTED_AT, "second").await;
        main.until("to have run without a refresh", WaitLimit::Run, has_run_for("second")).await;
        let refreshes: Vec<Option<bool>> = main.updates().await.into_iter().map(|update| update.spec.refresh).collect();
        assert_eq!(refreshes, [None, Some(true), None]);
    });
}

#[test]
fn a_request_reruns_a_failed_stack_and_a_reset_clears_its_failures() {
    run("reset", async |scene| {
        let source = scene.source("app").await;
        source.push(&Program::new("reset").step("step", json!({"failOn": "create"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let failed = |attempts: i64, failures: i64| {
            move |stack: &Stack| {
                let status = status(stack);
                let last = status.last_update.filter(|last| last.state.as_deref() == Some("failed"));
                status.current_update.is_none()
                    && status.attempts == Some(attempts)
                    && last.is_some_and(|last| last.failures == failures)
            }
        };
        main.until("to have failed twice", WaitLimit::Run, failed(2, 2)).await;
        // The next automatic retry would start only after half a minute.
        annotate_with_request(&main, ANNOTATION_RESET_AT, "again").await;
        let stack = main.until("to have failed again", WaitLimit::Run, failed(3, 1)).await;
        assert_eq!(status(&stack).last_handled_reset_at.as_deref(), Some("again"));
        assert_eq!(status(&stack).last_handled_reconcile_at.as_deref(), Some("again"));
        let outcomes: Vec<(String, i64)> = status(&stack)
            .history
            .into_iter()
            .map(|snapshot| (snapshot.last_reconciled_status, snapshot.total_reconciliations))
            .collect();
        assert_eq!(outcomes, [("UpdateFailed".to_owned(), 3)]);
        main.change(json!({"spec": {"suspend": true}})).await;
    });
}

#[test]
fn a_request_to_a_suspended_stack_starts_a_run_only_after_resume() {
    run("asleep", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("asleep").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        main.change(json!({"spec": {"suspend": true}})).await;
        main.annotate(ANNOTATION_REQUESTED_AT, "asleep").await;
        main.until("to have handled the request", WaitLimit::Reaction, |stack| {
            status(stack).last_handled_reconcile_at.as_deref() == Some("asleep")
        })
        .await;
        let witness = scene.start(scene.stack("witness", &source)).await;
        witness.until_applied(&commit).await;
        assert_eq!(main.updates().await.len(), 1, "the suspended Stack does not run");

        main.change(json!({"spec": {"suspend": false}})).await;
        main.until("to have run for the request", WaitLimit::Run, |stack| {
            is_done(stack)
                && status(stack).last_update.is_some_and(|last| last.inputs.requested_at.as_deref() == Some("asleep"))
        })
        .await;
        assert_eq!(main.updates().await.len(), 2, "one run for the spec and the request");
    });
}
