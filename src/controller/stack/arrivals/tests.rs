//! Tests for the times of an artifact from its detection to the Update.

use serde_json::json;

use super::*;
use crate::api::auto::{ArtifactReference, PreviewOf, UpdateKind, UpdateSpec, WorkspaceSpec};
use crate::api::pulumi::{LastUpdate, RunInputs, StackSpec, StackStatus};

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(milliseconds).unwrap()
}

fn digest(content: &str) -> Digest {
    Digest::of(content.as_bytes())
}

fn stack() -> Stack {
    let mut stack = Stack::new("app", StackSpec::default());
    stack.metadata.uid = Some("uid".to_owned());
    stack
}

fn workspace(content: &str) -> Workspace {
    let artifact = ArtifactReference { digest: digest(content), revision: content.to_owned(), dir: String::new() };
    Workspace::new("app", WorkspaceSpec { artifact: Some(artifact), ..WorkspaceSpec::default() })
}

fn current(content: &str) -> CurrentUpdate {
    let inputs = RunInputs { digest: Some(digest(content)), ..RunInputs::default() };
    CurrentUpdate { inputs, ..CurrentUpdate::default() }
}

/// Returns the times in the Update of a run.
fn times_of_run(arrivals: &Arrivals, stack: &Stack, workspace: &Workspace, now: i64) -> PhaseTimes {
    let update = Update::new("app-1", UpdateSpec::default());
    let update = arrivals.add_to_update(stack, Some(workspace), &current("a"), update, at(now));
    PhaseTimes::of(update.annotations()).expect("times")
}

#[test]
fn the_update_of_the_first_run_has_the_times_of_its_artifact() {
    let arrivals = Arrivals::new(true);
    arrivals.detected(&stack(), &digest("a"), at(1_000));
    arrivals.detected(&stack(), &digest("a"), at(1_500));
    arrivals.fetched(&stack(), &digest("a"), at(2_000));
    let placed = arrivals.workspace_with_times(&stack(), None, &workspace("a"), at(2_100)).expect("times");
    let again = arrivals.workspace_with_times(&stack(), Some(&placed), &workspace("a"), at(9_000)).expect("times");
    assert_eq!(again.annotations(), placed.annotations(), "a later apply keeps the times");
    let expected = PhaseTimes {
        digest: digest("a").to_string(),
        stack: Some("uid".to_owned()),
        pushed: Some(1_000),
        detected: Some(1_000),
        fetched: Some(2_000),
        placed: None,
        requested: Some(3_000),
    };
    assert_eq!(times_of_run(&arrivals, &stack(), &placed, 3_000), expected);

    let mut ran = stack();
    let inputs = current("a").inputs;
    let last_update = Some(LastUpdate { inputs, ..LastUpdate::default() });
    ran.status = Some(StackStatus { last_update, ..StackStatus::default() });
    let later = times_of_run(&arrivals, &ran, &placed, 8_000);
    assert_eq!((later.detected, later.requested), (None, Some(8_000)), "a later run has another cause");
}

#[test]
fn the_later_runs_of_a_push_have_its_time_until_the_revision_is_applied() {
    let arrivals = Arrivals::new(true);
    arrivals.detected(&stack(), &digest("a"), at(1_000));
    let placed = arrivals.workspace_with_times(&stack(), None, &workspace("a"), at(2_000)).expect("times");
    let pushed = |reason: Option<&str>, applied: &str, run: &CurrentUpdate| {
        let reason = reason.map(str::to_owned);
        let last_update = Some(LastUpdate { inputs: current("a").inputs, reason, ..LastUpdate::default() });
        let last_applied_revision = Some(applied.to_owned());
        let status = Some(StackStatus { last_update, last_applied_revision, ..StackStatus::default() });
        let update = Update::new("app-2", UpdateSpec::default());
        let stack = Stack { status, ..stack() };
        let update = arrivals.add_to_update(&stack, Some(&placed), run, update, at(9_000));
        let times = PhaseTimes::of(update.annotations()).expect("times");
        assert_eq!((times.detected, times.requested), (None, Some(9_000)), "only the first run has these times");
        times.pushed
    };
    let run = CurrentUpdate { commit: Some("new".to_owned()), ..current("a") };
    assert_eq!(pushed(Some("UpdateFailed"), "old", &run), Some(1_000), "a retry");
    let plan = CurrentUpdate { save_plan: Some(true), preview_of: Some(PreviewOf::Up), ..run.clone() };
    assert_eq!(pushed(None, "old", &plan), Some(1_000), "a new plan");
    assert_eq!(pushed(None, "old", &run), None, "a run at an interval, such as a preview");
    assert_eq!(pushed(Some("UpdateFailed"), "new", &run), None, "the revision was already applied");
    let check = CurrentUpdate { preview_of: Some(PreviewOf::Refresh), ..run.clone() };
    assert_eq!(pushed(Some("UpdateFailed"), "old", &check), None, "a drift check");
    let destroy = CurrentUpdate { kind: UpdateKind::Destroy, ..run };
    assert_eq!(pushed(Some("UpdateFailed"), "old", &destroy), None, "a destroy");
}

#[test]
fn a_wait_between_the_installation_and_the_run_is_recorded() {
    let arrivals = Arrivals::new(true);
    arrivals.detected(&stack(), &digest("a"), at(1_000));
    let mut placed = arrivals.workspace_with_times(&stack(), None, &workspace("a"), at(1_100)).expect("times");
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "Succeeded", "message": "",
        "lastTransitionTime": "1970-01-01T00:00:05Z",
    });
    placed.status = Some(serde_json::from_value(json!({ "conditions": [ready] })).unwrap());
    assert_eq!(times_of_run(&arrivals, &stack(), &placed, 60_000).placed, Some(5_000));
    assert_eq!(times_of_run(&arrivals, &stack(), &placed, 6_000).placed, None, "the run follows immediately");
}

#[test]
fn an_artifact_from_the_store_is_detected_when_it_is_placed() {
    let arrivals = Arrivals::new(true);
    let placed = arrivals.workspace_with_times(&stack(), Some(&workspace("b")), &workspace("a"), at(7)).expect("times");
    assert_eq!(PhaseTimes::of(placed.annotations()).and_then(|times| times.detected), Some(7));
    let unchanged = arrivals.workspace_with_times(&stack(), Some(&workspace("a")), &workspace("a"), at(8));
    assert!(unchanged.is_none(), "the pod received the artifact before the export of traces");
}

#[test]
fn without_traces_no_object_has_times() {
    let arrivals = Arrivals::new(false);
    arrivals.detected(&stack(), &digest("a"), at(1));
    assert!(arrivals.workspace_with_times(&stack(), None, &workspace("a"), at(2)).is_none());
    let update = Update::new("app-1", UpdateSpec::default());
    let update = arrivals.add_to_update(&stack(), Some(&workspace("a")), &current("a"), update, at(3));
    assert_eq!(PhaseTimes::of(update.annotations()), None);
}
