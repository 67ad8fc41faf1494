//! Requests for a run by annotation.

use pulumi_controller::api::names::{ANNOTATION_RECONCILIATION_REQUEST, ANNOTATION_REQUESTED_AT};
use serde_json::json;

use crate::harness::{Patience, Program, is_done, once, run};

#[test]
fn a_reconciliation_request_and_a_requested_at_each_run_the_stack_once() {
    run("requests", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("requests").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;

        main.annotate(ANNOTATION_RECONCILIATION_REQUEST, "please").await;
        let stack = main.until("to have run for the request", Patience::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            is_done(stack) && last.is_some_and(|update| update.reconcile_request.as_deref() == Some("please"))
        });
        assert_eq!(stack.await.status.expect("a status").observed_reconcile_request.as_deref(), Some("please"));
        assert_eq!(main.updates().await.len(), 2);

        main.annotate(ANNOTATION_REQUESTED_AT, "2026-01-01T00:00:00Z").await;
        let stack = main.until("to have run for the request of Flux's kind", Patience::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            is_done(stack) && last.is_some_and(|update| update.requested_at.as_deref() == Some("2026-01-01T00:00:00Z"))
        });
        assert_eq!(
            stack.await.status.expect("a status").last_handled_reconcile_at.as_deref(),
            Some("2026-01-01T00:00:00Z")
        );

        let witness = scene.start(scene.stack("witness", &source)).await;
        witness.until_applied(&commit).await;
        assert_eq!(main.updates().await.len(), 3, "each request ran the stack once");
        assert_eq!(main.log.sentences().await, once(&["create step"]), "and there was nothing to change");
    });
}
