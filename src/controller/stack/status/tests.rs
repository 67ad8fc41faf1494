//! Tests for each row in the table of conditions.

mod lost_state;
mod queue_simulation;
mod repeated;
mod result;
mod stack_metrics;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::api::auto::{PendingCreates, Update};
use crate::api::conditions::ConditionUpdate;
use crate::api::names;
use crate::api::pulumi::{LastUpdate, StackSpec};
use crate::artifact::Digest;
use crate::controller::stack::run_spec;
use crate::runtime::run_limiter::Full;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("timestamp in range")
}

fn stack(last: Option<LastUpdate>) -> Stack {
    let mut stack = Stack::new("app", StackSpec { stack: "dev".to_owned(), ..StackSpec::default() });
    stack.metadata.generation = Some(3);
    stack.status = Some(StackStatus { observed_generation: Some(2), last_update: last, ..StackStatus::default() });
    stack
}

fn failed(reason: &str, failures: i64) -> LastUpdate {
    LastUpdate {
        kind: Some("up".to_owned()),
        state: Some("failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some("boom".to_owned()),
        failures,
        ..LastUpdate::default()
    }
}

/// Returns all conditions as `type=status/reason`.
fn brief(status: &StackStatus) -> Vec<String> {
    status.conditions.iter().map(|c| format!("{}={}/{}", c.type_, c.status, c.reason)).collect()
}

#[test]
fn a_failed_destroy_message_explains_how_to_keep_the_resources() {
    let (kind, ended) = (Some("destroy".to_owned()), Some(Time(at(5))));
    let last = LastUpdate { kind, last_resync_time: ended, ..failed("UpdateFailed", 5) };
    let status = with_state(&stack(Some(last)), &State::Failed, at(10));
    let message = |kind| conditions::find(&status.conditions, kind).map(|c| c.message.clone()).unwrap_or_default();
    assert_eq!(message("Ready"), "destroy failed: boom");
    let retry = message("Reconciling");
    assert!(retry.starts_with("5 destroy failure(s); next retry at 1970-01-01T00:13:35Z. "), "{retry}");
    assert!(retry.ends_with("set spec.destroyOnFinalize to false"), "{retry}");
}

#[test]
fn each_state_sets_the_expected_conditions() {
    for (state, last, expected) in rows() {
        let status = with_state(&stack(last), &state, at(10));
        assert_eq!(brief(&status), expected, "{state:?}");
        assert_eq!(status.observed_generation, Some(3));
        assert!(status.conditions.iter().all(|c| c.observed_generation == Some(3)));
    }
}

/// Compares the table of states in the documentation with the table in these tests. The state `Suspended` has no row,
/// because a suspended Stack keeps its previous conditions.
#[test]
fn the_documented_states_are_the_tested_states() {
    let tested: BTreeSet<String> = rows().iter().map(|(_, _, expected)| expected.join(" ")).collect();
    let table =
        include_str!("../../../../docs/spec/v1/stack.md").split_once("| state | Ready | Reconciling | Stalled |");
    let lines = table.expect("docs contain the table").1.lines().skip(2).take_while(|line| line.starts_with('|'));
    let documented: BTreeSet<String> = lines.filter(|line| !line.contains("unchanged")).map(documented).collect();
    assert_eq!(documented, tested);
}

/// Converts a row of the documented table to the format of the tests.
fn documented(line: &str) -> String {
    let columns = line.trim_matches('|').split(" | ").skip(1).zip(["Ready", "Reconciling", "Stalled"]);
    let condition = |(column, kind): (&str, &str)| {
        let (status, reason) = column.trim().split_once(" / ")?;
        Some(format!("{kind}={status}/{}", reason.trim_matches('`')))
    };
    columns.filter_map(condition).collect::<Vec<_>>().join(" ")
}

/// Returns rows with a state, the last run and the expected conditions.
#[expect(clippy::too_many_lines, reason = "a table")]
fn rows() -> Vec<(State, Option<LastUpdate>, &'static [&'static str])> {
    let text = |s: &str| s.to_owned();
    let preview = |last| LastUpdate { kind: Some(text("preview")), ..last };
    vec![
        (State::Working(text("step")), None, &["Ready=Unknown/NotReadyInProgress", "Reconciling=True/StackProcessing"]),
        (
            State::WorkspaceFailed(text("ImagePullBackOff")),
            None,
            &["Ready=False/WorkspaceFailed", "Stalled=True/WorkspaceFailed"],
        ),
        (
            State::SourceStalled(text("source does not exist")),
            None,
            &["Ready=False/SourceUnavailable", "Stalled=True/SourceUnavailable"],
        ),
        (
            State::VersionTooLow(text("IncompatibleConfiguration: old")),
            None,
            &["Ready=False/PulumiVersionTooLow", "Stalled=True/PulumiVersionTooLow"],
        ),
        (
            State::SourceUnavailable(text("404")),
            None,
            &["Ready=False/SourceUnavailable", "Reconciling=True/SourceUnavailable"],
        ),
        (
            State::Failed,
            Some(failed("UpdateFailed", 1)),
            &["Ready=False/UpdateFailed", "Reconciling=True/RetryingAfterFailure"],
        ),
        (
            State::Failed,
            Some(failed("UpdateConflict", 0)),
            &["Ready=False/UpdateConflict", "Reconciling=True/UpdateConflict"],
        ),
        (
            State::FailedPermanently,
            Some(failed("UpdateFailed", 3)),
            &["Ready=False/UpdateFailed", "Stalled=True/UpdateFailed"],
        ),
        (
            State::FailedPermanently,
            Some(preview(failed("UpdateFailed", 3))),
            &["Ready=False/PreviewFailed", "Stalled=True/PreviewFailed"],
        ),
        (
            State::Abandoned,
            Some(failed("RunOutcomeUnknown", 0)),
            &["Ready=False/RunOutcomeUnknown", "Stalled=True/RunOutcomeUnknown"],
        ),
        (State::DeletionSuspended, None, &["Ready=False/Suspended", "Reconciling=True/Suspended"]),
        (
            State::OutcomeUnknown("RunOutcomeUnknown", text("unknown outcome")),
            None,
            &["Ready=False/RunOutcomeUnknown", "Stalled=True/RunOutcomeUnknown"],
        ),
        (
            State::DecisionRequired("RunOutcomeUnknown"),
            Some(failed("RunOutcomeUnknown", 0)),
            &["Ready=False/RunOutcomeUnknown", "Stalled=True/RunOutcomeUnknown"],
        ),
        (
            State::DecisionRequired("PendingCreates"),
            Some(failed("PendingCreates", 0)),
            &["Ready=False/PendingCreates", "Stalled=True/PendingCreates"],
        ),
        (State::Canceled, Some(failed("Canceled", 0)), &["Ready=False/Canceled", "Stalled=True/Canceled"]),
        (
            State::DecisionRequired("StackNotFound"),
            Some(failed("StackNotFound", 0)),
            &["Ready=False/StackNotFound", "Stalled=True/StackNotFound"],
        ),
        (
            State::DecisionRequired("BackendUpgradeRequired"),
            Some(failed("BackendUpgradeRequired", 0)),
            &["Ready=False/BackendUpgradeRequired", "Stalled=True/BackendUpgradeRequired"],
        ),
        (
            State::Abandoned,
            Some(failed("PendingCreates", 0)),
            &["Ready=False/PendingCreates", "Stalled=True/PendingCreates"],
        ),
        (
            State::Failed,
            Some(failed("Aborted", 0)),
            &["Ready=False/UpdateFailed", "Reconciling=True/RetryingAfterFailure"],
        ),
        (
            State::NamespaceTerminating(text("namespace is being deleted")),
            None,
            &["Ready=False/NamespaceTerminating", "Stalled=True/NamespaceTerminating"],
        ),
        (
            State::Conflict(text("another Stack manages it")),
            None,
            &["Ready=False/UpdateConflict", "Stalled=True/UpdateConflict"],
        ),
        (
            State::PrerequisiteNotSatisfied(text("waiting for base")),
            None,
            &["Ready=False/PrerequisiteNotSatisfied", "Reconciling=True/PrerequisiteNotSatisfied"],
        ),
        (
            State::AwaitingApproval(text("waiting for approval of plan sha256:1")),
            None,
            &["Ready=False/AwaitingApproval", "Reconciling=True/AwaitingApproval"],
        ),
        (
            State::PlanRejected(text("user carol rejected plan sha256:1")),
            None,
            &["Ready=False/PlanRejected", "Stalled=True/PlanRejected"],
        ),
        (
            State::AwaitingPermission(stack_reason::PAUSED, text("namespace apps is paused")),
            None,
            &["Ready=False/Paused", "Reconciling=True/Paused"],
        ),
        (
            State::AwaitingPermission(stack_reason::OUTSIDE_SCHEDULE, text("up waits")),
            None,
            &["Ready=False/OutsideSchedule", "Reconciling=True/OutsideSchedule"],
        ),
        (
            State::AwaitingPermission(stack_reason::INPUTS_CHANGE_OFTEN, text("a Secret has changed")),
            None,
            &["Ready=False/InputsChangeOften", "Reconciling=True/InputsChangeOften"],
        ),
        (
            State::DestroyUnconfirmed(text("destroy not confirmed")),
            None,
            &["Ready=False/DestroyUnconfirmed", "Stalled=True/DestroyUnconfirmed"],
        ),
        (
            State::Failed,
            Some(preview(failed("UpdateFailed", 1))),
            &["Ready=False/PreviewFailed", "Reconciling=True/RetryingAfterFailure"],
        ),
        (State::Invalid(text("bad")), None, &["Ready=False/SpecInvalid", "Stalled=True/SpecInvalid"]),
        (State::Denied(text("elsewhere")), None, &["Ready=False/AccessDenied", "Stalled=True/AccessDenied"]),
        (State::Done, None, &["Ready=True/ProcessingCompleted"]),
        (State::Done, Some(preview(LastUpdate::default())), &["Ready=True/Previewed"]),
    ]
}

/// Computes an object's kstatus in the same way as cli-utils and the Flux health checks.
fn kstatus(stack: &Stack) -> &'static str {
    let status = stack.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let observed = status.and_then(|status| status.observed_generation);
    if stack.metadata.deletion_timestamp.is_some() {
        return "Terminating";
    }
    if observed.is_some_and(|observed| Some(observed) != stack.metadata.generation) {
        return "InProgress";
    }
    if conditions::is_true(conditions, RECONCILING) {
        return "InProgress";
    }
    if conditions::is_true(conditions, STALLED) {
        return "Failed";
    }
    match conditions::find(conditions, READY) {
        Some(ready) if ready.status == "True" => "Current",
        Some(_) => "InProgress",
        None if observed.is_some() => "InProgress",
        None => "Current",
    }
}

/// Computes the health of an object in the same way as Argo CD's health check for Stacks of the Pulumi Kubernetes
/// Operator.
fn argo_cd_health(stack: &Stack) -> &'static str {
    let conditions = stack.status.iter().flat_map(|status| &status.conditions);
    let kstatus = |condition: &Condition| match (condition.type_.as_str(), condition.status.as_str()) {
        (STALLED, "True") => Some("Degraded"),
        (RECONCILING, "True") => Some("Progressing"),
        (READY, "True") => Some("Healthy"),
        _ => None,
    };
    conditions.into_iter().find_map(kstatus).unwrap_or("Progressing")
}

#[test]
fn kstatus_and_argo_cd_health_are_correct_in_every_state() {
    let text = |s: &str| s.to_owned();
    let again = || Some(failed("UpdateFailed", 1));
    let rows = [
        (State::Working(text("step")), None, "InProgress"),
        (State::VersionTooLow(text("IncompatibleConfiguration: old")), None, "Failed"),
        (State::WorkspaceFailed(text("ImagePullBackOff")), None, "Failed"),
        (State::SourceStalled(text("source does not exist")), None, "Failed"),
        (State::SourceUnavailable(text("404")), None, "InProgress"),
        (State::PrerequisiteNotSatisfied(text("waiting for base")), None, "InProgress"),
        (State::Failed, again(), "InProgress"),
        (State::FailedPermanently, again(), "Failed"),
        (State::OutcomeUnknown("RunOutcomeUnknown", text("unknown outcome")), None, "Failed"),
        (State::DecisionRequired("PendingCreates"), Some(failed("PendingCreates", 0)), "Failed"),
        (State::DecisionRequired("StackNotFound"), Some(failed("StackNotFound", 0)), "Failed"),
        (State::Canceled, Some(failed("Canceled", 0)), "Failed"),
        (State::Abandoned, Some(failed("PendingCreates", 0)), "Failed"),
        (State::NamespaceTerminating(text("namespace is being deleted")), None, "Failed"),
        (State::Conflict(text("another Stack manages it")), None, "Failed"),
        (State::Invalid(text("bad")), None, "Failed"),
        (State::Denied(text("elsewhere")), None, "Failed"),
        (State::Done, None, "Current"),
        (State::Done, Some(LastUpdate { kind: Some(text("preview")), ..LastUpdate::default() }), "Current"),
    ];
    for (state, last, expected) in rows {
        let mut stack = stack(last);
        stack.status = Some(with_state(&stack, &state, at(10)));
        assert_eq!(kstatus(&stack), expected, "{state:?}");
        let health = match expected {
            "InProgress" => "Progressing",
            "Failed" => "Degraded",
            _ => "Healthy",
        };
        assert_eq!(argo_cd_health(&stack), health, "{state:?}");
        let mut edited = stack.clone();
        edited.metadata.generation = Some(4);
        assert_eq!(kstatus(&edited), "InProgress", "{state:?}, then the spec changed");
        stack.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(20)));
        assert_eq!(kstatus(&stack), "Terminating", "{state:?}, then deleted");
    }
    let mut fresh = stack(None);
    fresh.status = Some(StackStatus { observed_generation: Some(-1), ..StackStatus::default() });
    assert_eq!(kstatus(&fresh), "InProgress", "the default status in the CRD");
}

#[test]
fn a_preview_message_lists_the_planned_changes() {
    let preview = |changes: &[(&str, i64)]| LastUpdate {
        kind: Some("preview".to_owned()),
        state: Some("succeeded".to_owned()),
        last_attempted_commit: Some("main@sha1:a".to_owned()),
        changes: changes.iter().map(|(operation, count)| ((*operation).to_owned(), *count)).collect(),
        ..LastUpdate::default()
    };
    for (changes, expected) in [
        (&[("same", 3)][..], "no changes"),
        (&[("create", 2), ("delete", 1), ("same", 3)][..], "2 to create, 1 to delete"),
    ] {
        let status = with_state(&stack(Some(preview(changes))), &State::Done, at(10));
        let ready = conditions::find(&status.conditions, READY).map(|c| c.message.clone()).unwrap_or_default();
        assert_eq!(ready, format!("preview: {expected} (main@sha1:a)"));
    }
}

#[test]
fn the_stalled_message_explains_how_to_request_a_new_run() {
    let status = with_state(&stack(Some(failed("UpdateFailed", 3))), &State::FailedPermanently, at(10));
    assert_eq!(conditions::find(&status.conditions, READY).map(|c| c.message.as_str()), Some("boom"));
    let stalled = conditions::find(&status.conditions, STALLED).map(|c| c.message.clone()).unwrap_or_default();
    assert!(stalled.contains("pulumi.com/reconciliation-request"), "{stalled}");
}

#[test]
fn a_suspended_stack_keeps_its_conditions_until_the_spec_changes() {
    let mut stack = stack(None);
    stack.status = Some(with_state(&stack, &State::Done, at(10)));
    stack.metadata.generation = Some(4);
    let suspended = with_state(&stack, &State::Suspended(None), at(20));
    assert_eq!(brief(&suspended), ["Ready=True/ProcessingCompleted"]);
    assert_eq!(suspended.conditions[0].message, "suspended: up to date");
    stack.status = Some(suspended);
    stack.metadata.generation = Some(5);
    let edited = with_state(&stack, &State::Suspended(None), at(30));
    assert_eq!(edited.conditions[0].message, "suspended, spec changed: up to date");
    stack.status = Some(edited.clone());
    assert_eq!(with_state(&stack, &State::Suspended(None), at(40)), edited, "an unchanged status is not written again");
}

#[test]
fn a_suspended_duplicate_names_the_other_stack() {
    let mut stack = stack(None);
    stack.status = Some(with_state(&stack, &State::Done, at(10)));
    let mut message = |duplicate_of: Option<&str>, generation: i64| {
        stack.metadata.generation = Some(generation);
        let suspended = with_state(&stack, &State::Suspended(duplicate_of.map(str::to_owned)), at(20));
        stack.status = Some(suspended.clone());
        suspended.conditions[0].message.clone()
    };
    assert_eq!(message(Some("apps/web"), 4), "suspended, duplicate of Stack apps/web: up to date");
    assert_eq!(message(Some("apps/web"), 4), "suspended, duplicate of Stack apps/web: up to date");
    assert_eq!(message(Some("apps/a"), 5), "suspended, spec changed, duplicate of Stack apps/a: up to date");
    assert_eq!(message(None, 5), "suspended, spec changed: up to date");
}

#[test]
fn a_suspension_together_with_another_change_does_not_say_up_to_date() {
    let mut stack = stack(None);
    stack.spec.suspend = None;
    let inputs = RunInputs { run_spec_digest: Some(run_spec::digest_to_record(&stack)), ..RunInputs::default() };
    let inputs = RunInputs { generation: stack.metadata.generation.unwrap_or_default(), ..inputs };
    stack.status =
        Some(StackStatus { last_update: Some(LastUpdate { inputs, ..LastUpdate::default() }), ..Default::default() });
    stack.status = Some(with_state(&stack, &State::Done, at(10)));
    (stack.metadata.generation, stack.spec.suspend) = (Some(9), Some(true));
    let message = |stack: &Stack| with_state(stack, &State::Suspended(None), at(20)).conditions[0].message.clone();
    assert!(message(&stack).starts_with("suspended: "), "{}", message(&stack));
    stack.spec.targets = vec!["urn".to_owned()];
    assert!(message(&stack).starts_with("suspended, spec changed: "), "{}", message(&stack));
}

#[test]
fn suspending_a_stack_removes_its_reconciling_condition() {
    let mut stack = stack(None);
    stack.status = Some(with_state(&stack, &State::Working("step".to_owned()), at(10)));
    let suspended = with_state(&stack, &State::Suspended(None), at(20));
    assert_eq!(brief(&suspended), ["Ready=False/Suspended"]);
    assert_eq!(suspended.summary.as_deref(), Some("suspended: no run has completed"));
    assert!(!stack_state(&suspended).is_failing, "{suspended:?}");
    stack.status = Some(suspended.clone());
    assert_eq!(
        with_state(&stack, &State::Suspended(None), at(30)),
        suspended,
        "an unchanged status is not written again"
    );
}

/// `kubectl get` displays the first [`columns::MAX_STATUS`] characters of the message.
#[test]
fn the_status_column_contains_the_content_of_the_message() {
    let commit = "48d22117c0ffee00c0ffee00c0ffee00c0ffee00";
    let revision = format!("main@sha1:{commit}");
    let run = CurrentUpdate { commit: Some(revision.clone()), name: "app-000012b1a9f".to_owned(), ..current() };
    let changes = BTreeMap::from([("create".to_owned(), 12), ("delete".to_owned(), 1)]);
    let last = |kind: &str| LastUpdate {
        kind: Some(kind.to_owned()),
        last_attempted_commit: Some(revision.clone()),
        last_successful_commit: Some(revision.clone()),
        changes: changes.clone(),
        ..LastUpdate::default()
    };
    let wait = SlotWait { reason: Full::All { limit: 9 }, estimate: None };
    let rows = [
        (State::Done, Some(last("up")), "up to date (main@sha1:48d22117)"),
        (
            State::Done,
            Some(LastUpdate { last_successful_commit: Some("7".to_owned()), ..last("up") }),
            "up to date (revision 7)",
        ),
        (State::Done, None, "up to date"),
        (State::Done, Some(last("preview")), "preview: 12 to create, 1 to delete (main@sha1:48d22117)"),
        (State::Working(queued_message(&run, None)), None, "queued: up of revision main@sha1:48d22117 (app-000012..."),
        (
            State::Working(queued_message(&run, Some(&wait))),
            None,
            "waiting for a run slot: 9 of 9 in use (--max-concurre...",
        ),
        (State::DeletionSuspended, None, "deleted while suspended; set spec.suspend to false to..."),
    ];
    for (state, last, expected) in rows {
        let status = with_state(&stack(last), &state, at(10));
        assert_eq!(status.summary.as_deref(), Some(expected), "{state:?}");
    }
}

#[test]
fn suspending_a_stack_replaces_a_repeated_error_by_the_last_result() {
    let succeeded = LastUpdate { state: Some("succeeded".to_owned()), ..LastUpdate::default() };
    let failed =
        LastUpdate { state: Some("failed".to_owned()), message: Some("no quota".to_owned()), ..LastUpdate::default() };
    for (last, expected, message) in [
        (None, "Ready=False/Suspended", "suspended: no run has completed"),
        (Some(succeeded), "Ready=True/ProcessingCompleted", "suspended: up to date"),
        (Some(failed), "Ready=False/UpdateFailed", "suspended: no quota"),
    ] {
        let mut stack = stack(None);
        let mut status = StackStatus { last_update: last, ..StackStatus::default() };
        let (kind, reason) = (conditions::READY, conditions::PROGRESSING_WITH_RETRY);
        let error = ConditionUpdate { kind, status: Status::False, reason, message: "connection refused" };
        conditions::set(&mut status.conditions, &error, 3, at(10));
        stack.status = Some(status);
        let suspended = with_state(&stack, &State::Suspended(None), at(20));
        assert_eq!(brief(&suspended), [expected]);
        assert_eq!(suspended.conditions[0].message, message);
    }
}

fn current() -> CurrentUpdate {
    CurrentUpdate {
        inputs: RunInputs { generation: 3, digest: Some(Digest::of(b"b")), ..RunInputs::default() },
        name: "app-1".to_owned(),
        commit: Some("main@sha1:b".to_owned()),
        ..CurrentUpdate::default()
    }
}

fn ended_update(failed_reason: Option<&str>) -> Update {
    let mut update = Update::new("app-1", crate::api::auto::UpdateSpec::default());
    let mut conditions = Vec::new();
    let condition = ConditionUpdate {
        kind: conditions::FAILED,
        status: if failed_reason.is_some() { Status::True } else { Status::False },
        reason: failed_reason.unwrap_or("UpdateSucceeded"),
        message: "boom",
    };
    conditions::set(&mut conditions, &condition, 1, at(5));
    update.status = Some(crate::api::auto::UpdateStatus { conditions, ..Default::default() });
    update
}

#[test]
fn failed_runs_and_blocking_states_are_reported_as_failing() {
    let waits = [
        "NotReadyInProgress",
        "Suspended",
        "PrerequisiteNotSatisfied",
        "AwaitingApproval",
        "Paused",
        "OutsideSchedule",
        "InputsChangeOften",
        "ProcessingCompleted",
        "Previewed",
    ];
    for (state, last, _) in rows() {
        let has_failed = last.as_ref().is_some_and(|last| last.state.as_deref() == Some("failed"));
        let status = with_state(&stack(last), &state, at(10));
        let stack_state = stack_state(&status);
        let is_waiting = waits.contains(&stack_state.reason.as_str());
        assert_eq!(stack_state.is_failing, has_failed || !is_waiting, "{state:?}: {stack_state:?}");
        assert_eq!(stack_state.is_reconciling, conditions::is_true(&status.conditions, RECONCILING), "{state:?}");
    }
}

#[test]
fn a_stack_keeps_its_queue_position_until_its_run_has_ended() {
    let since = |stack: &Stack| stack.status.as_ref().and_then(|s| s.pending_since.as_ref()).map(|t| t.0.as_second());
    let mut stack = stack(None);
    let stands = |stack: &Stack, state: State, second| Some(with_state(stack, &state, at(second)));
    let waits = || State::PrerequisiteNotSatisfied("waiting for base".to_owned());
    stack.status = stands(&stack, waits(), 10);
    stack.status = stands(&stack, State::Working("preparing".to_owned()), 20);
    stack.status = Some(started(&stack, &current(), None, at(30)));
    assert_eq!(since(&stack), Some(10), "the time at which the run became due");

    let mut revoked = Update::new("app-1", crate::api::auto::UpdateSpec::default());
    revoked.metadata.deletion_timestamp = Some(Time(at(40)));
    revoked.metadata.annotations =
        Some([(names::ANNOTATION_REVOKED.to_owned(), "the run has progressed".to_owned())].into());
    stack.status = Some(with_result(&stack, &revoked, None, at(40)));
    stack.status = stands(&stack, State::SourceUnavailable("404".to_owned()), 45);
    stack.status = Some(started(&stack, &current(), None, at(50)));
    assert_eq!(since(&stack), Some(10), "a newer revision replaces the older one");

    for reason in [None, Some("UpdateFailed"), Some("Aborted")] {
        let mut run = stack.clone();
        run.status = Some(with_result(&run, &ended_update(reason), None, at(60)));
        assert_eq!(since(&run), None, "{reason:?}: the run has ended");
        run.status = Some(started(&run, &current(), None, at(70)));
        assert_eq!(since(&run), Some(70), "{reason:?}");
        run.metadata.generation = Some(4);
        run.status = Some(with_result(&run, &ended_update(reason), None, at(80)));
        assert_eq!(since(&run), None, "{reason:?}: the spec has changed");
    }
}

fn failed_update(reason: &str, interrupted: bool) -> Update {
    let mut update = ended_update(Some(reason));
    update.status.as_mut().expect("value is set").interrupted = interrupted.then_some(true);
    update
}

#[test]
fn a_resolve_annotation_is_handled_once_and_reported_if_invalid() {
    let unresolved = |resolution: &str| {
        let mut stack = stack(Some(LastUpdate { name: Some("app-0".to_owned()), ..failed("PendingCreates", 0) }));
        stack.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), resolution.to_owned());
        stack
    };
    let begun = started(&unresolved("app-0=retry"), &current(), None, at(10));
    assert_eq!(begun.handled_resolve.as_deref(), Some("app-0=retry"));
    let abandoned = with_state(&unresolved("app-0=abandon"), &State::Abandoned, at(10));
    assert_eq!(abandoned.handled_resolve.as_deref(), Some("app-0=abandon"));
    let wrong = with_state(&unresolved("app-9=retry"), &State::DecisionRequired("PendingCreates"), at(10));
    assert_eq!(wrong.handled_resolve, None);
    for condition in &wrong.conditions {
        assert!(condition.message.contains("names app-9, but the run to resolve is app-0"), "{}", condition.message);
        assert!(condition.message.contains("app-0=clear"), "{}", condition.message);
    }
}

#[test]
fn handled_requests_are_recorded_and_kept_in_every_state() {
    let requests = [names::ANNOTATION_REQUESTED_AT, names::ANNOTATION_FORCE_AT, names::ANNOTATION_RESET_AT];
    let echoes = |status: &StackStatus| {
        [&status.last_handled_reconcile_at, &status.last_handled_force_at, &status.last_handled_reset_at]
            .map(|echo| echo.clone().unwrap_or_default())
    };
    let states = [
        State::Done,
        State::Failed,
        State::FailedPermanently,
        State::Suspended(None),
        State::SourceUnavailable("x".to_owned()),
    ];
    for state in states {
        let mut stack = stack(None);
        for (key, value) in requests.iter().zip(["1", "2", "3"]) {
            stack.annotations_mut().insert((*key).to_owned(), value.to_owned());
        }
        let status = with_state(&stack, &state, at(10));
        assert_eq!(echoes(&status), ["1", "2", "3"], "{state:?}");
        stack.metadata.annotations = None;
        stack.status = Some(status);
        assert_eq!(echoes(&with_state(&stack, &state, at(20))), ["1", "2", "3"], "{state:?}");
    }
}
