//! Tests the progress that an Update reports during its run, and runs that end early.

use std::time::Duration;

use kube::ResourceExt;
use pulumi_controller::api::auto::{TerminationEvidence, Update, UpdatePhase, UpdateSpec};
use pulumi_controller::api::conditions::{READY, update_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::harness::{Controller, Program, Scene, WaitLimit, condition, once, run};
use crate::runs_parts::{failure, progress, read, running_update, slow, until_ended_with_reason, until_update};

#[test]
fn an_open_run_reports_progress_and_a_finished_run_its_changes() {
    run("progress", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("progress", 15).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let name = running_update(scene, &main).await.name_any();
        let creating = "creating testing:index:Step slow";
        let update = until_update(scene, &name, "to report the resources in progress", WaitLimit::Reaction, |update| {
            progress(update).summary.contains(creating)
        })
        .await;
        assert_eq!(update.status.as_ref().and_then(|status| status.phase), Some(UpdatePhase::Running));
        let reported = progress(&update);
        assert_eq!((reported.kind.as_deref(), reported.name.as_deref()), (Some("testing:index:Step"), Some("slow")));
        assert!(reported.since.is_some(), "{reported:?}");
        let ready = |stack: &Stack| condition(stack, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        main.until("to report the progress of its run", WaitLimit::Reaction, |stack| {
            [" of 1 resources; up", " of 2 resources; up"].iter().any(|progress| ready(stack).contains(progress))
        })
        .await;
        let begun = |update: &Update| update.status.as_ref().is_some_and(|status| status.run.is_some());
        let begun = scene.timeline.first::<Update>(begun).expect("the start of the run");
        let reported = scene
            .timeline
            .first::<Stack>(|stack| ready(stack).starts_with("running: "))
            .expect("the progress in the Stack");
        let late = reported.saturating_sub(begun);
        assert!(late < Duration::from_secs(4), "the Stack reports the start of the run {late:?} later than the Update");

        main.until_applied(&commit).await;
        let status = read(scene, &name).await.status.unwrap_or_default();
        assert_eq!(
            (status.phase, status.termination_evidence),
            (Some(UpdatePhase::Succeeded), Some(TerminationEvidence::Agent))
        );
        assert_eq!(status.changes.get("create"), Some(&2), "the stack itself and its resource: {:?}", status.changes);
        assert!(status.duration.is_some() && status.permalink.is_none(), "{status:?}");
        assert!(status.last_output.is_some_and(|output| output.contains("Duration")), "the end of the CLI output");
        let states = scene.timeline.states_of::<Update>();
        assert!(states.len() < 30, "a run of 15 s was written {} times", states.len());
        let states = scene.timeline.states_of::<Stack>();
        assert!(states.len() < 30, "the Stack of a run of 15 s was written {} times", states.len());
        assert_one_log_line_per_transition(scene, &name, &commit.revision()).await;
    });
}

/// Checks the log lines of a run (requested, started, finished) and their keys. The Flux controllers use the same keys.
async fn assert_one_log_line_per_transition(scene: &Scene, update: &str, revision: &str) {
    let lines = Controller::new(&scene.client).log_lines(&format!("\"{update}\"")).await;
    let lines: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let line = |message: &str| {
        let mut found = lines.iter().filter(|line| line["msg"] == message);
        let line = found.next().unwrap_or_else(|| panic!("no line {message:?} among {lines:?}")).clone();
        assert!(found.next().is_none(), "{message:?} is logged once: {lines:?}");
        assert_eq!((&line["level"], &line["namespace"]), (&json!("info"), &json!(scene.namespace)), "{line}");
        assert_eq!((&line["revision"], &line["type"]), (&json!(revision), &json!("up")), "{line}");
        line
    };
    assert_eq!(line("run requested")["Stack"], json!({"name": "main", "namespace": scene.namespace}));
    assert_eq!(line("run started")["stack"], "main");
    let finished = line("run finished");
    assert_eq!((&finished["stack"], &finished["outcome"]), (&json!("main"), &json!("Succeeded")));
    assert!(finished["duration"].as_str().is_some_and(|duration| duration.ends_with('s')), "{finished}");
}

#[test]
fn deleting_an_update_cancels_its_run_gracefully_and_leaves_no_lock() {
    run("cancel", async |scene| {
        let source = scene.source("app").await;
        source.push(&slow("cancel", 120).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;
        let update = running_update(scene, &main).await.name_any();
        // The controller does not immediately retry a suspended Stack.
        main.change(json!({"spec": {"suspend": true}})).await;
        scene.delete::<Update>(&update).await;
        assert_eq!(until_ended_with_reason(&main, update_reason::CANCELED).await, update);
        assert_eq!(main.log.operations().await, ["create slow begin", "create slow cancelled"]);

        let commit = source.push(&slow("cancel", 1).files()).await;
        source.artifact_of(&commit).await;
        main.change(json!({"spec": {"suspend": false}})).await;
        main.until_applied(&commit).await;
        let failed: Vec<_> = main.updates().await.iter().filter_map(|u| failure(u).map(str::to_owned)).collect();
        assert!(failed.is_empty(), "the run does not wait for a lock: {failed:?}");
    });
}

#[test]
fn a_run_past_its_timeout_is_canceled_gracefully() {
    run("timeout", async |scene| {
        let source = scene.source("app").await;
        source.push(&slow("timeout", 120).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.timeout = Some("20s".to_owned());
        let main = scene.start(stack).await;
        main.log.wait_for("create", "slow", "cancelled").await;
        until_ended_with_reason(&main, update_reason::CANCELED).await;
        assert_eq!(main.log.operations().await[..2], ["create slow begin", "create slow cancelled"]);

        let commit = source.push(&slow("timeout", 1).files()).await;
        main.until_applied_within(WaitLimit::Long, &commit).await;
    });
}

#[test]
fn a_run_without_progress_is_reported_and_then_canceled() {
    run("idle", async |scene| {
        let source = scene.source("app").await;
        // A resource with a single step reports no progress until its operation is complete.
        let silent = Program::new("idle").step("slow", json!({"seconds": 120, "steps": 1}));
        source.push(&silent.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.idle_timeout = Some("20s".to_owned());
        let main = scene.start(stack).await;
        until_ended_with_reason(&main, update_reason::CANCELED).await;
        let states = scene.timeline.states_of::<Update>();
        assert!(states.iter().any(|update| progress(update).idle_since.is_some()), "no Update reported the idle time");
        assert!(main.log.operations().await.contains(&"create slow cancelled".to_owned()));

        let commit = source.push(&Program::new("idle").step("quick", json!({"value": "one"})).files()).await;
        main.until_applied_within(WaitLimit::Long, &commit).await;
        assert!(main.log.operations().await.ends_with(&once(&["create quick"])));
    });
}

#[test]
fn the_schema_rejects_invalid_durations_and_long_texts() {
    run("limits", async |scene| {
        let source = scene.source("app").await;
        let mut stack = scene.stack("main", &source);
        stack.spec.timeout = Some("ten minutes".to_owned());
        let created = scene.api().create(&kube::api::PostParams::default(), &stack).await;
        let error = created.expect_err("the schema rejects the duration").to_string();
        assert!(error.contains("spec.timeout"), "{error}");
        let message = Some("x".repeat(10_000));
        let spec = UpdateSpec { workspace_name: "main".to_owned(), message, ..UpdateSpec::default() };
        let update = Update::new("long", spec);
        let created = scene.api::<Update>().create(&kube::api::PostParams::default(), &update).await;
        let error = created.expect_err("the schema rejects the message").to_string();
        assert!(error.contains("spec.message"), "{error}");
    });
}
