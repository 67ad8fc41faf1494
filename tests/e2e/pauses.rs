//! Tests the settings that prevent runs: pauses, windows and freezes.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{self, PROGRESSING, READY, RECONCILING, stack_reason, update_reason};
use pulumi_controller::api::names::{ANNOTATION_PAUSE, ANNOTATION_SCHEDULE};
use serde_json::{Value, json};

use crate::harness::{Program, Scene, StackHandle, WaitLimit, condition, has_condition, kubectl, once, run};
use crate::runs_parts::until_update;

fn with_text(text: &str) -> Program {
    Program::new("pauses").step("step", json!({"value": text}))
}

/// Sets or removes a namespace annotation.
async fn annotate_namespace(scene: &Scene, change: &str) {
    kubectl(&["annotate", "namespace", &scene.namespace, "--overwrite", change], "").await;
}

/// Returns a schedule with a freeze that started an hour ago and ends at this time.
fn freeze_until(end: Timestamp) -> Value {
    let start = Timestamp::now() - SignedDuration::from_hours(1);
    json!({"freezes": [{"from": seconds(start), "to": seconds(end), "reason": "audit"}]})
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Waits until a run of the Stack waits for this reason, and returns the `Ready` condition's message.
async fn until_waiting(stack: &StackHandle<'_>, reason: &str) -> String {
    let waiting = stack
        .until(&format!("to wait with the reason {reason}"), WaitLimit::Run, |stack| {
            has_condition(stack, READY, "False", reason) && has_condition(stack, RECONCILING, "True", reason)
        })
        .await;
    condition(&waiting, READY).expect("Ready condition").message.clone()
}

#[test]
fn a_paused_namespace_starts_no_run_until_it_is_resumed() {
    run("pause", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;

        annotate_namespace(scene, &format!("{ANNOTATION_PAUSE}=audit")).await;
        let second = source.push(&with_text("two").files()).await;
        let message = until_waiting(&main, stack_reason::PAUSED).await;
        assert!(
            message.starts_with(&format!("namespace {} is paused: audit; to resume", scene.namespace)),
            "{message}"
        );
        main.until_event(stack_reason::PAUSED).await;
        // The pause also applies to an Update that a user creates.
        let spec = json!({"workspaceName": "main", "stackName": main.get().await.spec.stack, "type": "refresh"});
        scene.create::<Update>(json!({"metadata": {"name": "by-hand"}, "spec": spec})).await;
        until_update(scene, "by-hand", "to be paused", WaitLimit::Reaction, |update| {
            let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            conditions::find(conditions, PROGRESSING).is_some_and(|found| found.reason == update_reason::PAUSED)
        })
        .await;
        assert_eq!(main.log.operations().await, once(&["create step"]));
        assert_eq!(main.updates().await.iter().filter(|update| update.name_any() != "by-hand").count(), 1);

        annotate_namespace(scene, &format!("{ANNOTATION_PAUSE}-")).await;
        main.until_applied(&second).await;
        until_update(scene, "by-hand", "to be complete", WaitLimit::Run, Update::is_complete).await;
    });
}

#[test]
fn a_run_waits_for_the_end_of_a_freeze_that_does_not_stop_open_runs() {
    run("freeze", async |scene| {
        let source = scene.source("app").await;
        let slow = Program::new("pauses").step("slow", json!({"seconds": 6, "steps": 6}));
        let first = source.push(&slow.files()).await;
        let end = Timestamp::now() + SignedDuration::from_secs(20);
        let mut stack = scene.stack("main", &source);
        stack.spec.schedule = serde_json::from_value(freeze_until(end)).expect("a schedule");
        let main = scene.start(stack).await;
        let message = until_waiting(&main, stack_reason::OUTSIDE_SCHEDULE).await;
        assert!(message.contains("audit") && message.contains(&seconds(end)), "{message}");

        main.log.wait_for("create", "slow", "begin").await;
        assert!(Timestamp::now() >= end, "the run starts after the freeze");
        let annotation = freeze_until(Timestamp::now() + SignedDuration::from_hours(1));
        annotate_namespace(scene, &format!("{ANNOTATION_SCHEDULE}={annotation}")).await;
        main.until_applied(&first).await;
        source.push(&slow.step("step", json!({"value": "one"})).files()).await;
        let message = until_waiting(&main, stack_reason::OUTSIDE_SCHEDULE).await;
        assert!(message.contains(&format!("of namespace {}", scene.namespace)), "{message}");
        annotate_namespace(scene, &format!("{ANNOTATION_SCHEDULE}=freezes: none")).await;
        main.until("to report the invalid annotation", WaitLimit::Run, |stack| {
            let ready = condition(stack, READY);
            ready.is_some_and(|ready| ready.status == "False" && ready.message.contains(ANNOTATION_SCHEDULE))
        })
        .await;
        assert_eq!(main.log.operations().await, once(&["create slow"]));
        annotate_namespace(scene, &format!("{ANNOTATION_SCHEDULE}-")).await;
        main.log.wait_for("create", "step", "done").await;
    });
}

#[test]
fn an_expired_stack_is_announced_destroyed_and_deleted() {
    run("expiry", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let mut stack = scene.stack("main", &source);
        (stack.spec.ttl, stack.spec.destroy_on_finalize) = (Some("10m".to_owned()), Some(true));
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        let announced = main
            .until("to announce its expiry", WaitLimit::Reaction, |stack| {
                has_condition(stack, conditions::EXPIRING, "True", conditions::expiry_reason::EXPIRES_SOON)
            })
            .await;
        let created = announced.creation_timestamp().expect("a creation time").0;
        let message = condition(&announced, conditions::EXPIRING).expect("Expiring condition").message.clone();
        assert!(message.contains(&seconds(created + SignedDuration::from_mins(10))), "{message}");
        main.until_event("StackExpiring").await;

        main.change(json!({"spec": {"ttl": null}})).await;
        main.until("to expire no longer", WaitLimit::Reaction, |stack| {
            condition(stack, conditions::EXPIRING).is_none()
        })
        .await;
        // Changing the TTL starts no run. If the controller could not announce the expiry in time, the controller
        // delays the expiry until an hour after the announcement.
        main.until_applied(&first).await;
        assert_eq!(main.updates().await.len(), 1);
        let end = Timestamp::now() + SignedDuration::from_secs(15);
        main.change(json!({"spec": {"expiresAt": seconds(end)}})).await;
        main.until_gone().await;
        assert!(Timestamp::now() >= end);
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
    });
}
