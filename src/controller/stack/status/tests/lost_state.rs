//! Tests for the status after the loss of the state or of an Update.

use serde_json::json;

use super::*;
use crate::api::conditions::ORPHANED;
use crate::api::pulumi::PulumiStack;
use crate::controller::stack::identity;

fn here() -> PulumiStack {
    PulumiStack { name: "dev".to_owned(), project: Some("web".to_owned()), backend: Some("s3://a".to_owned()) }
}

/// Returns the status after a run in `pulumi_stack`. `changes` are the changes that the agent reports.
fn after(
    before: StackStatus,
    current: CurrentUpdate,
    pulumi_stack: PulumiStack,
    failure: Option<&str>,
    changes: &[(&str, i64)],
) -> StackStatus {
    let mut stack = stack(None);
    stack.status = Some(before);
    let current = CurrentUpdate { pulumi_stack: Some(pulumi_stack), ..current };
    stack.status = Some(started(&stack, &current, None, at(10)));
    let mut update = ended_update(failure);
    update.spec.kind = current.kind;
    let result = update.status.as_mut().expect("value is set");
    result.changes = changes.iter().map(|(operation, count)| ((*operation).to_owned(), *count)).collect();
    result.termination_evidence = Some(TerminationEvidence::Agent);
    result.interrupted = (failure == Some("Aborted")).then_some(true);
    with_result(&stack, &update, None, at(20))
}

fn up() -> CurrentUpdate {
    CurrentUpdate { kind: UpdateKind::Up, ..current() }
}

fn applied() -> StackStatus {
    after(StackStatus::default(), up(), here(), None, &[("create", 2)])
}

#[test]
fn the_state_is_confirmed_by_a_report_and_until_it_is_created_again() {
    let create = || CurrentUpdate { create_stack: Some(true), ..up() };
    let preview = || CurrentUpdate { kind: UpdateKind::Preview, create_stack: Some(true), ..up() };
    let elsewhere = || PulumiStack { name: "prod".to_owned(), ..here() };
    let interrupted = || after(StackStatus::default(), up(), here(), Some("Aborted"), &[]);
    let rows = [
        ("a first success", after(StackStatus::default(), up(), here(), None, &[]), Some(true)),
        (
            "a first failure with changes",
            after(StackStatus::default(), up(), here(), Some("UpdateFailed"), &[("create", 1)]),
            Some(true),
        ),
        ("a first failure", after(StackStatus::default(), up(), here(), Some("UpdateFailed"), &[]), None),
        ("a first interruption", interrupted(), None),
        ("a success after an interruption", after(interrupted(), create(), here(), None, &[]), Some(true)),
        ("a later failure", after(applied(), up(), here(), Some("UpdateFailed"), &[]), Some(true)),
        ("a later interruption", after(applied(), up(), here(), Some("Aborted"), &[]), Some(true)),
        ("a missing stack", after(applied(), up(), here(), Some("StackNotFound"), &[]), Some(true)),
        ("a permitted creation failed", after(applied(), create(), here(), Some("UpdateFailed"), &[]), None),
        ("a permitted creation was previewed", after(applied(), preview(), here(), None, &[("create", 2)]), None),
        ("a permitted creation", after(applied(), create(), here(), None, &[("create", 2)]), Some(true)),
        ("an interruption in another stack", after(applied(), up(), elsewhere(), Some("Aborted"), &[]), None),
    ];
    for (name, status, expected) in rows {
        assert_eq!(status.state_confirmed, expected, "{name}");
    }
}

#[test]
fn a_run_without_its_state_requires_a_decision() {
    let found = after(applied(), up(), here(), Some("StackNotFound"), &[]);
    assert_eq!(brief(&found), ["Ready=False/StackNotFound", "Stalled=True/StackNotFound"]);
    assert_eq!(found.applied_stack, Some(here()));
    let stalled = |status: &StackStatus| {
        conditions::find(&status.conditions, STALLED).map(|stalled| stalled.message.clone()).unwrap_or_default()
    };
    let text = stalled(&found);
    for words in ["boom. ", "emptied", "another account", "app-1=create", "app-1=abandon", "request a run"] {
        assert!(text.contains(words), "{words} is missing in {text}");
    }
    assert!(!text.contains("destroy"), "{text}");
    let file = || PulumiStack { backend: Some("file:///tmp/state".to_owned()), ..here() };
    let lost = after(StackStatus::default(), up(), file(), None, &[]);
    let text = stalled(&after(lost, up(), file(), Some("StackNotFound"), &[]));
    assert!(text.contains("not on a persistent volume") && !text.contains("another account"), "{text}");
}

#[test]
fn a_drift_check_without_its_state_is_the_result_of_the_last_run() {
    let check = |failure: &str| {
        let current = CurrentUpdate {
            kind: UpdateKind::Preview,
            preview_of: serde_json::from_value(json!("refresh")).expect("an operation"),
            ..up()
        };
        after(applied(), current, here(), Some(failure), &[])
    };
    let last = |status: StackStatus| status.last_update.and_then(|last| last.reason);
    assert_eq!(last(check("StackNotFound")).as_deref(), Some("StackNotFound"));
    assert_eq!(last(check("UpdateFailed")), None, "the condition Drifted reports other failures");
}

#[test]
fn a_lost_run_is_recorded_as_interrupted() {
    for (name, before) in [("first run", StackStatus::default()), ("later run", applied())] {
        let mut stack = stack(None);
        stack.status = Some(before);
        let current = CurrentUpdate { pulumi_stack: Some(here()), ..up() };
        stack.status = Some(started(&stack, &current, None, at(10)));
        let update = lost_update(&stack, &current, at(20)).expect("a valid Update");
        stack.status = Some(with_result(&stack, &update, None, at(20)));
        assert!(identity::has_applied(&stack), "{name}: the deletion destroys the resources");
        let status = stack.status.expect("value is set");
        assert_eq!((status.current_update, status.applied_stack), (None, Some(here())), "{name}");
        let last = status.last_update.expect("a result");
        assert_eq!(last.reason.as_deref(), Some("Aborted"), "{name}");
        assert_eq!(last.pending_creates, Some(PendingCreates::Stop), "{name}");
        let message = last.message.unwrap_or_default();
        assert!(message.contains("no longer exists, and its run may have started"), "{name}: {message}");
    }
}

#[test]
fn the_record_of_a_run_is_evidence_before_its_update_is_created_again() {
    let current = CurrentUpdate { pulumi_stack: Some(here()), ..up() };
    let of = |before: StackStatus, current: &CurrentUpdate| {
        let mut stack = stack(None);
        stack.status = Some(StackStatus { current_update: Some(Box::new(current.clone())), ..before });
        of_possible_run(&stack, current, at(20)).map(|status| {
            let current = status.current_update.expect("a recorded run");
            (status.applied_stack, status.state_confirmed, current.create_stack, current.pending_creates)
        })
    };
    let stop = Some(PendingCreates::Stop);
    assert_eq!(of(StackStatus::default(), &current), Some((Some(here()), None, Some(true), stop)), "first run");
    assert_eq!(of(applied(), &current), Some((Some(here()), Some(true), None, stop)), "later run");
    let rejected = CurrentUpdate { rejected: Some(true), ..current.clone() };
    assert_eq!(of(StackStatus::default(), &rejected), None, "the Update never existed");
    let preview = CurrentUpdate { kind: UpdateKind::Preview, ..current.clone() };
    assert_eq!(of(StackStatus::default(), &preview), None, "a preview changes no resources");
    let recorded = CurrentUpdate { pending_creates: stop, ..current };
    assert_eq!(of(StackStatus::default(), &recorded), None, "the status already contains the evidence");
}

#[test]
fn a_pulumi_stack_left_with_resources_is_reported_until_it_is_managed_again() {
    let other = || PulumiStack { name: "prod".to_owned(), ..here() };
    let moved = after(applied(), up(), other(), None, &[]);
    let listed: Vec<&PulumiStack> = moved.orphaned_stacks.iter().map(|orphaned| &orphaned.pulumi_stack).collect();
    assert_eq!(listed, [&here()]);
    let condition = conditions::find(&moved.conditions, ORPHANED).expect("a condition");
    assert!(condition.message.contains(&here().to_string()), "{}", condition.message);
    let failed = after(applied(), up(), other(), Some("UpdateFailed"), &[]);
    assert_eq!(failed.orphaned_stacks, [], "the run has changed no resources");
    let back = after(moved, up(), here(), None, &[]);
    let names: Vec<&str> = back.orphaned_stacks.iter().map(|orphaned| orphaned.pulumi_stack.name.as_str()).collect();
    assert_eq!(names, ["prod"]);
}
