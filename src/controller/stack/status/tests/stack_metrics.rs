//! Tests for the metrics that the controller derives from a Stack's status.

use serde_json::json;

use super::*;
use crate::api::pulumi::{PolicyViolations, StackDrift};

fn wait_of(state: State) -> Option<&'static str> {
    stack_state(&with_state(&stack(None), &state, at(10))).wait.map(|wait| wait.reason)
}

#[test]
fn a_stack_waits_for_approvers_users_and_objects_but_not_for_its_own_run() {
    let why = || "why".to_owned();
    let rows = [
        (State::AwaitingApproval(why()), Some("AwaitingApproval")),
        (State::AwaitingPermission("Paused", why()), Some("Paused")),
        (State::AwaitingPermission("OutsideSchedule", why()), Some("OutsideSchedule")),
        (State::PrerequisiteNotSatisfied(why()), Some("PrerequisiteNotSatisfied")),
        (State::SourceUnavailable(why()), Some("SourceUnavailable")),
        (State::SourceStalled(why()), Some("SourceUnavailable")),
        (State::DestroyUnconfirmed(why()), Some("DestroyUnconfirmed")),
        (State::OutcomeUnknown("RunOutcomeUnknown", why()), Some("RunOutcomeUnknown")),
        (State::DecisionRequired("PendingCreates"), Some("PendingCreates")),
        (State::Working(why()), None),
        (State::WorkspaceFailed(why()), None),
        (State::Invalid(why()), None),
        (State::Failed, None),
        (State::Done, None),
    ];
    for (state, expected) in rows {
        assert_eq!(wait_of(state.clone()), expected, "{state:?}");
    }
}

#[test]
fn a_wait_begins_with_the_condition_and_the_wait_for_an_approval_with_the_plan() {
    let since = |status: &StackStatus| stack_state(status).wait.map(|wait| wait.since);
    let why = || "why".to_owned();
    let mut stack = stack(None);
    stack.status = Some(with_state(&stack, &State::SourceUnavailable(why()), at(10)));
    let mut waiting = with_state(&stack, &State::AwaitingApproval(why()), at(90));
    assert_eq!(since(&waiting), Some(at(10)), "the Stack has not been ready since then");
    let digest = Digest::of(b"plan");
    let created = "1970-01-01T00:01:20Z";
    let plan = json!({"digest": digest, "fileDigest": digest, "updateName": "app-1", "created": created});
    waiting.plan = serde_json::from_value(plan).unwrap();
    assert_eq!(since(&waiting), Some(at(80)));
}

#[test]
fn a_suspended_stack_does_not_wait() {
    let mut stack = stack(None);
    stack.status = Some(with_state(&stack, &State::PrerequisiteNotSatisfied("why".to_owned()), at(10)));
    assert_eq!(stack_state(&with_state(&stack, &State::Suspended(None), at(20))).wait, None);
}

#[test]
fn drift_checks_written_outputs_and_violations_are_reported_if_they_exist() {
    let state = stack_state(&StackStatus::default());
    assert_eq!((state.drifted, state.drift_check_failed, state.outputs_written), (None, None, None));
    assert_eq!(state.violations, None);
    let mut status = StackStatus {
        drift: Some(Box::new(StackDrift { count: 4, ..StackDrift::default() })),
        policy_violations: Some(PolicyViolations { mandatory: 1, advisory: 2, ..PolicyViolations::default() }),
        ..StackStatus::default()
    };
    for (kind, status_of, reason) in [
        (conditions::DRIFTED, Status::Unknown, "CheckFailed"),
        (conditions::OUTPUTS_WRITTEN, Status::False, "OutputsNotWritten"),
    ] {
        let update = ConditionUpdate { kind, status: status_of, reason, message: "why" };
        conditions::set(&mut status.conditions, &update, 1, at(10));
    }
    let state = stack_state(&status);
    assert_eq!((state.drifted, state.drift_check_failed, state.outputs_written), (Some(4), Some(true), Some(false)));
    assert_eq!(state.violations, Some(Violations { mandatory: 1, advisory: 2 }));
}
