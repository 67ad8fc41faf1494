//! Tests the health of a Stack in each state that the table in `docs/spec/v1/stack.md` lists.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use pulumi_controller::api::pulumi::{LastUpdate, Stack, StackSpec, StackStatus};
use pulumi_controller::controller::stack::{State, with_state};

use crate::health_check::{Health, health};
use crate::{at, deleted, expect_not_reconciled, expect_unobserved};

fn stack(last: Option<LastUpdate>) -> Stack {
    let mut stack = Stack::new("app", StackSpec { stack: "dev".to_owned(), ..StackSpec::default() });
    stack.metadata.generation = Some(3);
    stack.status = Some(StackStatus { observed_generation: Some(2), last_update: last, ..StackStatus::default() });
    stack
}

fn in_state(state: &State, last: Option<LastUpdate>) -> Stack {
    let mut stack = stack(last);
    stack.status = Some(with_state(&stack, state, at(10)));
    stack
}

fn failed(reason: &str, failures: i64) -> Option<LastUpdate> {
    let text = |text: &str| Some(text.to_owned());
    Some(LastUpdate {
        kind: text("up"),
        state: text("failed"),
        reason: text(reason),
        message: text("boom"),
        failures,
        ..LastUpdate::default()
    })
}

fn of_preview(last: Option<LastUpdate>) -> Option<LastUpdate> {
    Some(LastUpdate { kind: Some("preview".to_owned()), ..last.unwrap_or_default() })
}

/// A state, the last run, and the expected health. The health consists of a status and a list of strings. The message
/// must contain each string exactly once, in this order.
type Row = (State, Option<LastUpdate>, &'static str, &'static [&'static str]);

#[expect(clippy::too_many_lines, reason = "a table")]
fn rows() -> Vec<Row> {
    let text = |text: &str| text.to_owned();
    vec![
        (State::Working(text("step 2")), None, "Progressing", &["step 2"]),
        (State::WorkspaceFailed(text("ImagePullBackOff")), None, "Degraded", &["ImagePullBackOff"]),
        (State::VersionTooLow(text("old CLI")), None, "Degraded", &["old CLI"]),
        (State::SourceUnavailable(text("no artifact")), None, "Progressing", &["no artifact"]),
        (State::SourceStalled(text("no source")), None, "Degraded", &["no source"]),
        (State::NamespaceTerminating(text("namespace ends")), None, "Degraded", &["namespace ends"]),
        (State::Conflict(text("another Stack")), None, "Degraded", &["another Stack"]),
        (State::PrerequisiteNotSatisfied(text("waits for base")), None, "Progressing", &["waits for base"]),
        (State::AwaitingApproval(text("plan 1")), of_preview(None), "Progressing", &["plan 1"]),
        (State::PlanRejected(text("plan 1")), of_preview(None), "Degraded", &["plan 1"]),
        (State::AwaitingPermission("Paused", text("namespace paused")), None, "Progressing", &["namespace paused"]),
        (State::AwaitingPermission("OutsideSchedule", text("up waits")), None, "Progressing", &["up waits"]),
        (State::AwaitingPermission("InputsChangeOften", text("up waits")), None, "Progressing", &["up waits"]),
        (State::DestroyUnconfirmed(text("too many destroys")), None, "Degraded", &["too many destroys"]),
        (State::Failed, failed("UpdateFailed", 2), "Degraded", &["boom", "; 2 update failure(s); ", "retrying"]),
        (
            State::Failed,
            of_preview(failed("UpdateFailed", 2)),
            "Degraded",
            &["boom", "; 2 update failure(s); ", "retrying"],
        ),
        (State::Failed, failed("Aborted", 0), "Degraded", &["boom", "; the run was interrupted; ", "retrying"]),
        (State::Failed, failed("RunRefused", 0), "Degraded", &["boom", "; the run could not start; ", "retrying"]),
        (State::Failed, failed("UpdateConflict", 0), "Progressing", &["boom", "; retrying"]),
        (
            State::FailedPermanently,
            failed("UpdateFailed", 3),
            "Degraded",
            &["boom", "; the Pulumi Kubernetes Operator stopped retrying", "The Stack runs again"],
        ),
        (
            State::FailedPermanently,
            of_preview(failed("UpdateFailed", 3)),
            "Degraded",
            &["boom", "; the Pulumi Kubernetes Operator stopped retrying", "The Stack runs again"],
        ),
        (State::OutcomeUnknown("RunOutcomeUnknown", text("outcome unknown")), None, "Degraded", &["outcome unknown"]),
        (
            State::DecisionRequired("RunOutcomeUnknown"),
            failed("RunOutcomeUnknown", 0),
            "Degraded",
            &["boom", "pulumi.com/resolve", "The Stack runs again"],
        ),
        (
            State::DecisionRequired("PendingCreates"),
            failed("PendingCreates", 0),
            "Degraded",
            &["boom", "pulumi.com/resolve", "The Stack runs again"],
        ),
        (
            State::DecisionRequired("StackNotFound"),
            failed("StackNotFound", 0),
            "Degraded",
            &["boom", "pulumi.com/resolve"],
        ),
        (State::DecisionRequired("BackendUpgradeRequired"), failed("BackendUpgradeRequired", 0), "Degraded", &["boom"]),
        (
            State::Abandoned,
            failed("PendingCreates", 0),
            "Degraded",
            &["boom", "; a user abandoned the last run", "The Stack runs again"],
        ),
        (
            State::Abandoned,
            failed("RunOutcomeUnknown", 0),
            "Degraded",
            &["boom", "; a user abandoned the last run", "The Stack runs again"],
        ),
        (State::Canceled, failed("Canceled", 0), "Degraded", &["boom", "The Stack runs again"]),
        (State::Invalid(text("bad spec")), None, "Degraded", &["bad spec"]),
        (State::Denied(text("another namespace")), None, "Degraded", &["another namespace"]),
        (State::Done, None, "Healthy", &["up to date"]),
        (State::Done, of_preview(None), "Healthy", &["preview: no changes"]),
        (State::DeletionSuspended, None, "Progressing", &["set spec.suspend to false"]),
    ]
}

fn expect_message(found: &Health, parts: &[&str], state: &State) {
    let mut rest = found.message.as_str();
    for part in parts {
        let (_, after) = rest.split_once(part).unwrap_or_else(|| panic!("{state:?}: {part:?} is absent: {found:?}"));
        assert_eq!(found.message.matches(part).count(), 1, "{state:?}: {part:?} is repeated: {found:?}");
        rest = after;
    }
    assert!(found.message.starts_with(parts[0]) || parts[0] != "boom", "{state:?}: the cause is not first: {found:?}");
}

#[test]
fn each_state_of_a_stack_has_the_expected_health() {
    for (state, last, status, parts) in rows() {
        let found = health(&in_state(&state, last));
        assert_eq!(found.status, status, "{state:?}: {found:?}");
        expect_message(&found, parts, &state);
    }
}

#[test]
fn a_suspended_stack_is_suspended_in_each_state() {
    for (state, last, _, _) in rows() {
        let mut stack = in_state(&state, last);
        stack.spec.suspend = Some(true);
        let before = health(&stack);
        assert_eq!(before.status, "Suspended", "{state:?}, before the controller observes the change");
        assert!(before.message.starts_with("suspended"), "{state:?}: {before:?}");
        stack.metadata.generation = Some(4);
        stack.status = Some(with_state(&stack, &State::Suspended(None), at(20)));
        assert_eq!(health(&stack).status, "Suspended", "{state:?}");
        // The controller has not observed this change to the spec.
        stack.metadata.generation = Some(5);
        stack.status = Some(with_state(&stack, &State::Suspended(None), at(30)));
        let after = health(&stack);
        assert_eq!(after.status, "Suspended", "{state:?}");
        assert!(after.message.starts_with("suspended, spec changed: "), "{state:?}: {after:?}");
    }
}

#[test]
fn a_stack_is_progressing_until_the_controller_observes_its_generation() {
    expect_not_reconciled(&stack(None));
    for (state, last, _, _) in rows() {
        expect_unobserved(&in_state(&state, last));
    }
    let mut suspended = stack(None);
    suspended.spec.suspend = Some(true);
    assert_eq!(health(&suspended), Health::new("Suspended", "suspended"));
}

#[test]
fn a_stack_that_is_being_deleted_is_never_healthy() {
    for (state, last, status, parts) in rows() {
        let mut stack = deleted(&in_state(&state, last));
        let waiting = health(&stack);
        assert_eq!(waiting.status, "Progressing", "{state:?}: {waiting:?}");
        stack.status = Some(with_state(&stack, &state, at(110)));
        let found = health(&stack);
        if status == "Healthy" {
            assert_eq!(found, Health::new("Progressing", "waiting for the deletion"), "{state:?}");
        } else {
            assert_eq!(found.status, status, "{state:?}: {found:?}");
            expect_message(&found, parts, &state);
        }
    }
}

#[test]
fn a_suspended_stack_that_is_being_deleted_explains_what_to_do() {
    let mut stack = stack(None);
    stack.spec.suspend = Some(true);
    let mut stack = deleted(&stack);
    stack.status = Some(with_state(&stack, &State::DeletionSuspended, at(110)));
    let found = health(&stack);
    assert_eq!(found.status, "Progressing");
    assert!(found.message.contains("set spec.suspend to false"), "{found:?}");
}

/// Fails if the documentation table contains a state that no row of this test contains.
#[test]
fn the_rows_cover_each_documented_state() {
    let brief = |condition: &Condition| format!("{}={}/{}", condition.type_, condition.status, condition.reason);
    let tested: BTreeSet<String> = rows()
        .into_iter()
        .map(|(state, last, _, _)| in_state(&state, last).status.expect("a status"))
        .map(|status| status.conditions.iter().map(brief).collect::<Vec<_>>().join(" "))
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/spec/v1/stack.md");
    let text = std::fs::read_to_string(path).expect("the document");
    let table = text.split_once("| state | Ready | Reconciling | Stalled |").expect("the table of states").1;
    let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    // The table contains no conditions for a suspended Stack, because a suspended Stack keeps its conditions.
    let documented: BTreeSet<String> = lines.filter(|line| !line.contains("unchanged")).map(documented).collect();
    assert!(documented.len() > 10, "{documented:?}");
    assert_eq!(documented, tested);
}

/// Converts a row of the documentation table to the format `type=status/reason`.
fn documented(line: &str) -> String {
    let columns = line.trim_matches('|').split(" | ").skip(1).zip(["Ready", "Reconciling", "Stalled"]);
    let condition = |(column, kind): (&str, &str)| {
        let (status, reason) = column.trim().split_once(" / ")?;
        Some(format!("{kind}={status}/{}", reason.trim_matches('`')))
    };
    columns.filter_map(condition).collect::<Vec<_>>().join(" ")
}
