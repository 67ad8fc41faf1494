//! Tests drift checks.

use pulumi_controller::api::conditions::{DRIFTED, OUTPUTS_WRITTEN, drift_reason, outputs_reason};
use pulumi_controller::api::pulumi::{LiteralRef, ResourceRef, Stack};
use serde_json::{Value, json};

use crate::harness::{Commit, Program, Scene, StackHandle, WaitLimit, condition, has_condition, once, run};

/// Runs a Stack with a resource that drifts, and waits until a drift check reports the drift. Returns the Stack, the
/// applied commit and the Stack's state after the drift check.
async fn until_drifted<'a>(scene: &'a Scene, drift: Value) -> (StackHandle<'a>, Commit, Stack) {
    let source = scene.source("app").await;
    let program = Program::new("drift").step("step", json!({"value": "one"}));
    let first = source.push(&program.files()).await;
    let mut stack = scene.stack("main", &source);
    stack.spec.drift = serde_json::from_value(drift).expect("drift settings");
    // Because of the variable `PROVIDER_GONE`, the provider reports that the resource `step` does not exist.
    let literal = Some(LiteralRef { value: "step".to_owned() });
    let gone = ResourceRef { kind: "Literal".to_owned(), literal, ..ResourceRef::default() };
    stack.spec.env_refs.insert("PROVIDER_GONE".to_owned(), gone);
    let main = scene.start(stack).await;
    main.until_applied(&first).await;
    let drifted = main
        .until("to report drift", WaitLimit::Run, |stack| {
            has_condition(stack, DRIFTED, "True", drift_reason::DRIFT_DETECTED)
        })
        .await;
    (main, first, drifted)
}

#[test]
fn a_drift_check_reports_drift_and_a_correction_reverts_it() {
    run("drift-check", async |scene| {
        let (main, first, drifted) = until_drifted(scene, json!({"interval": "1m"})).await;
        let message = condition(&drifted, DRIFTED).expect("Drifted condition").message.clone();
        assert!(message.starts_with("1 resource(s) differ from the state: delete urn:pulumi:"), "{message}");
        let status = drifted.status.clone().expect("a status");
        let drift = status.drift.expect("a result");
        assert_eq!((drift.count, drift.resources.len(), drift.message), (1, 1, None));
        assert_eq!(status.last_update.and_then(|last| last.kind).as_deref(), Some("up"), "a check is not a run");
        assert_eq!(main.log.operations().await, once(&["create step"]), "a check changes nothing");
        main.until_event("DriftDetected").await;
        main.until_applied(&first).await;

        main.change(json!({"spec": {"drift": {"mode": "Correct"}}})).await;
        main.until("to have corrected the drift", WaitLimit::Run, |stack| {
            has_condition(stack, DRIFTED, "False", drift_reason::CORRECTED)
        })
        .await;
        assert_eq!(main.log.operations().await, once(&["create step", "create step"]), "the resource exists again");
        main.change(json!({"spec": {"drift": null}})).await;
        main.until("to have no drift result", WaitLimit::Run, |stack| condition(stack, DRIFTED).is_none()).await;
    });
}

#[test]
fn a_drift_check_that_expects_no_changes_previews_the_program() {
    run("drift-program", async |scene| {
        let drift = json!({"interval": "1m", "expectNoChanges": true});
        let (main, _, drifted) = until_drifted(scene, drift).await;
        let message = condition(&drifted, DRIFTED).expect("Drifted condition").message.clone();
        // The drift check previews an update and not a refresh. A refresh would report a deletion instead of a
        // creation.
        let expected = "1 resource(s) differ from the state and the program: create urn:pulumi:";
        assert!(message.starts_with(expected), "{message}");
        assert_eq!(main.log.operations().await, once(&["create step"]), "a check changes nothing");
    });
}

#[test]
fn an_invalid_drift_policy_or_output_object_does_not_prevent_a_deployment() {
    run("drift-invalid", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&Program::new("drift-invalid").output("text", json!("one")).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.drift = serde_json::from_value(json!({"schedule": {"cron": "61 2 * * *"}})).expect("drift settings");
        let object = json!([{"kind": "ConfigMap", "name": "Invalid_Name"}]);
        stack.spec.write_outputs_to = serde_json::from_value(object).expect("objects");
        let main = scene.start(stack).await;
        let applied = main.until_applied(&first).await;
        assert!(has_condition(&applied, DRIFTED, "Unknown", drift_reason::SPEC_INVALID), "{applied:?}");
        let message = condition(&applied, DRIFTED).expect("Drifted condition").message.clone();
        assert!(message.starts_with("no drift checks start: invalid spec.drift.schedule.cron"), "{message}");
        assert!(has_condition(&applied, OUTPUTS_WRITTEN, "False", outputs_reason::OUTPUTS_NOT_WRITTEN), "{applied:?}");
        main.until_event("StackConfigInvalid").await;
        main.change(json!({"spec": {"drift": {"schedule": {"cron": "0 2 * * *"}}}})).await;
        main.until("to have no error", WaitLimit::Reaction, |stack| condition(stack, DRIFTED).is_none()).await;
    });
}
