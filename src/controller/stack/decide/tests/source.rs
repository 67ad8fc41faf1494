//! Tests for missing sources, and for artifacts that the store no longer contains.

use super::*;
use crate::controller::first_report::{delay_after_apply, with_due_time};
use crate::controller::stack::status::State;
use crate::controller::stack::status::with_state;

fn missing() -> Option<Result<Resolved, Unavailable>> {
    Some(Err(Unavailable::Stalled("Program apps/app does not exist".to_owned())))
}

/// Returns a Stack that has been waiting for its source since this time, in seconds.
fn waiting_since(second: i64) -> Stack {
    let mut stack = stack();
    let state = State::SourceUnavailable("Program apps/app does not exist".to_owned());
    stack.status = Some(with_state(&stack, &state, Timestamp::from_second(second).expect("timestamp in range")));
    stack
}

#[test]
fn a_missing_source_stalls_the_stack_after_the_grace_period() {
    let decided = |stack: Stack| decide(&Observed { source: missing(), ..observed(stack) }, now()).name();
    let mut stalled = waiting_since(900);
    stalled.status = Some(with_state(&stalled, &State::SourceStalled("the source does not exist".to_owned()), now()));
    let mut edited = waiting_since(900);
    edited.metadata.generation = Some(2);
    let rows = [
        ("the Stack is new", stack(), "WaitForSource"),
        ("within the grace period", waiting_since(995), "WaitForSource"),
        ("after the grace period", waiting_since(990), "SourceStalled"),
        ("unchanged after the Stack is stalled", stalled, "SourceStalled"),
        ("the Stack references another source", edited, "WaitForSource"),
    ];
    for (name, stack, expected) in rows {
        assert_eq!(decided(stack), expected, "{name}");
    }
    let retry = |stack: Stack| match decide(&Observed { source: missing(), ..observed(stack) }, now()) {
        Action::WaitForSource(_, retry) => retry.map(|retry| retry.as_secs()),
        other => panic!("{other:?}"),
    };
    assert_eq!((retry(stack()), retry(waiting_since(993))), (Some(10), Some(3)), "requeued when the grace period ends");
    let outage = Some(Err(Unavailable::NotYet("cannot read it".to_owned())));
    let outage = Observed { source: outage, ..observed(waiting_since(0)) };
    assert_eq!(decide(&outage, now()).name(), "WaitForSource", "the controller retries after an outage");
}

#[test]
fn an_evicted_archive_is_fetched_again_for_another_directory() {
    let (mut stack, dir) = (stack(), "other".to_owned());
    stack.status = Some(StackStatus { last_update: Some(last("up", "succeeded")), ..StackStatus::default() });
    stack.metadata.generation = Some(2);
    let source = Resolved { directory: dir.parse().expect("valid"), ..resolved() };
    let seen = |workspace: Workspace, in_store: bool| {
        let observed = Observed {
            source: Some(Ok(source.clone())),
            workspace: Some(workspace),
            in_store,
            ..observed(stack.clone())
        };
        brief(&decide(&observed, now()))
    };
    let before = workspace(&stack, Status::True, "Succeeded");
    assert_eq!(seen(before.clone(), false), "Fetch");
    assert_eq!(seen(before.clone(), true), "ApplyWorkspace");
    // The store loses the bytes after the apply, and before the pod receives them.
    let mut lacking = build_workspace::workspace(&stack, &reference(&source)).expect("valid");
    lacking.metadata.generation = Some(1);
    lacking.status = workspace(&stack, Status::False, "ArtifactUnavailable").status;
    assert_eq!(seen(lacking.clone(), false), "Fetch");
    assert!(seen(lacking, true).starts_with("WaitForWorkspace"));
}

#[test]
fn a_source_that_the_pod_lost_is_fetched_again_for_a_due_run() {
    let mut stack = stack();
    stack.status = Some(StackStatus { last_update: Some(last("up", "succeeded")), ..StackStatus::default() });
    stack.metadata.generation = Some(2);
    // The status still contains the artifact of the previous pod.
    let lacking = workspace(&stack, Status::False, "ArtifactUnavailable");
    let observed = Observed { workspace: Some(lacking), in_store: false, ..observed(stack) };
    assert_eq!(brief(&decide(&observed, now())), "Fetch");
}

#[test]
fn the_message_after_an_apply_stays_until_the_workspace_reports_its_state() {
    let Action::ApplyWorkspace(applied, message) = decide(&observed(stack()), now()) else {
        panic!("expected Action::ApplyWorkspace")
    };
    assert!(message.starts_with("waiting for workspace: up of revision main@sha1:a"), "{message}");
    let unobserved = |seconds: i64| {
        let mut workspace = applied_before(seconds);
        workspace.spec = applied.spec.clone();
        workspace.metadata.annotations.clone_from(&applied.metadata.annotations);
        workspace.metadata.generation = Some(2);
        decide(&Observed { workspace: Some(workspace), ..observed(stack()) }, now())
    };
    assert_eq!(unobserved(1), Action::WaitForWorkspace(message.clone()));
    let unprocessed = format!("generation 2 of Workspace app has not been processed yet; {message}");
    assert_eq!(unobserved(60), Action::WaitForWorkspace(unprocessed));
}

/// Returns a Stack whose condition `Ready` has this status and generation.
fn with_ready(ready: Status, generation: i64) -> Stack {
    let mut stack = stack();
    let status = stack.status.get_or_insert_default();
    status.observed_generation = Some(generation);
    let condition = ConditionUpdate { kind: conditions::READY, status: ready, reason: "", message: "" };
    conditions::set(&mut status.conditions, &condition, generation, now());
    stack
}

/// Returns a Workspace that waits for its pod, and that the controller applied before this number of seconds.
fn applied_before(seconds: i64) -> Workspace {
    let mut workspace = workspace(&stack(), Status::False, "WaitingForReplicas");
    let time = Time(now() - SignedDuration::from_secs(seconds));
    let entry = json!({"manager": names::FIELD_MANAGER, "operation": "Apply", "time": time});
    workspace.metadata.managed_fields = Some(vec![serde_json::from_value(entry).expect("valid entry")]);
    workspace
}

#[test]
fn a_ready_stack_reports_the_wait_for_its_workspace_after_two_seconds() {
    let waits = |stack: Stack, seconds: i64| {
        decide(&Observed { workspace: Some(applied_before(seconds)), ..observed(stack) }, now()).name()
    };
    let ready = with_ready(Status::True, 1);
    assert_eq!(waits(ready.clone(), 1), "DelayReport");
    assert_eq!(waits(ready.clone(), 2), "WaitForWorkspace");
    assert_eq!(waits(with_ready(Status::False, 1), 1), "WaitForWorkspace", "the conditions describe another state");
    assert_eq!(waits(with_ready(Status::True, 0), 1), "WaitForWorkspace", "the conditions describe the previous spec");
    for annotation in [names::ANNOTATION_REQUESTED_AT, names::ANNOTATION_RECONCILIATION_REQUEST] {
        let mut requested = ready.clone();
        requested.metadata.annotations = Some([(annotation.to_owned(), "now".to_owned())].into());
        assert_eq!(waits(requested.clone(), 1), "WaitForWorkspace", "a client waits for the requested run");
        let (request, digest) = (|| Some("now".to_owned()), Some(Digest::of(b"other")));
        let inputs = RunInputs {
            generation: 1,
            reconcile_request: request(),
            requested_at: request(),
            digest,
            ..RunInputs::default()
        };
        requested.status.get_or_insert_default().last_update = Some(LastUpdate { inputs, ..last("up", "succeeded") });
        assert_eq!(waits(requested, 1), "DelayReport", "the last run has handled the request");
    }
}

#[test]
fn only_the_first_of_several_applies_delays_the_report() {
    let stack = with_ready(Status::True, 1);
    let is_delayed =
        |before: Option<Workspace>| delay_after_apply(&stack, before.as_ref(), &applied_before(0), now()).is_some();
    assert!(is_delayed(None) && is_delayed(Some(applied_before(2))));
    assert!(!is_delayed(Some(applied_before(1))), "another client reverts each apply");
}

#[test]
fn the_run_of_a_ready_stack_became_due_at_the_apply_of_its_workspace() {
    let due_for = |stack: &Stack, seconds: i64| {
        let status = with_state(stack, &State::Working("up".to_owned()), now());
        let status = with_due_time(stack, Some(&applied_before(seconds)), status, now());
        status.pending_since.map(|since| now().duration_since(since.0).as_secs())
    };
    let ready = with_ready(Status::True, 1);
    assert_eq!(due_for(&ready, 3), Some(3));
    assert_eq!(due_for(&ready, 5), Some(0), "the apply belongs to an earlier run");
    assert_eq!(due_for(&with_ready(Status::False, 1), 3), Some(0), "the Stack has reported the wait");
    let mut pending = ready;
    pending.status.get_or_insert_default().pending_since = Some(Time(now() - SignedDuration::from_secs(9)));
    assert_eq!(due_for(&pending, 3), Some(9), "the run replaces a pending run");
}
