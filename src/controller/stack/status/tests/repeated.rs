//! Tests for the changes that a run makes to the record of the previous run.

use super::*;
use crate::api::auto::{RunBinding, TerminationEvidence};
use crate::api::pulumi::PulumiStack;
use crate::controller::stack::identity;

/// Returns the status after another run with this type and result.
fn after(before: Option<StackStatus>, kind: UpdateKind, update: &Update) -> StackStatus {
    let mut stack = stack(None);
    stack.status = before.or(stack.status);
    stack.status =
        Some(started(&stack, &CurrentUpdate { kind, pulumi_stack: Some(here()), ..current() }, None, at(10)));
    let mut update = update.clone();
    update.spec.kind = kind;
    with_result(&stack, &update, None, at(20))
}

fn here() -> PulumiStack {
    PulumiStack { name: "dev".to_owned(), project: Some("web".to_owned()), backend: Some("s3://a".to_owned()) }
}

fn last(status: &StackStatus) -> LastUpdate {
    status.last_update.clone().expect("a run has ended")
}

fn locked_by(holder: &str) -> Update {
    let mut update = ended_update(Some("UpdateConflict"));
    update.status.as_mut().expect("value is set").message = Some(format!("the stack is locked by {holder}"));
    update
}

#[test]
fn consecutive_runs_with_the_same_lock_conflict_are_counted() {
    let ran = |before: Option<StackStatus>, update: &Update| after(before, UpdateKind::Up, update);
    let first = ran(None, &locked_by("alice"));
    let second = ran(Some(first.clone()), &locked_by("alice"));
    let third = ran(Some(second.clone()), &locked_by("alice"));
    let another = ran(Some(second.clone()), &locked_by("bob"));
    let failed = ran(Some(second.clone()), &ended_update(Some("UpdateFailed")));
    let found = [&first, &second, &third, &another, &failed].map(|status| last(status).conflicts);
    assert_eq!(found, [1, 2, 3, 1, 0]);
    let message = |status: &StackStatus| {
        conditions::find(&status.conditions, RECONCILING).map(|condition| condition.message.clone()).unwrap_or_default()
    };
    assert_eq!(message(&third), "the stack is locked by alice; next retry at 1970-01-01T00:02:20Z");
}

/// Returns the Update of a destroy that started and then ended with this reason.
fn destroy(reason: Option<&str>, evidence: TerminationEvidence, is_interrupted: bool) -> Update {
    let mut update = ended_update(reason);
    let status = update.status.as_mut().expect("value is set");
    status.run = Some(RunBinding::default());
    status.termination_evidence = Some(evidence);
    status.interrupted = is_interrupted.then_some(true);
    update
}

#[test]
fn a_stack_removed_by_an_interrupted_destroy_counts_as_destroyed() {
    let applied = || StackStatus { applied_stack: Some(here()), ..stack(None).status.unwrap_or_default() };
    let not_found = destroy(Some("StackNotFound"), TerminationEvidence::Agent, false);
    let mut unbound = destroy(Some("Aborted"), TerminationEvidence::Container, true);
    unbound.status.as_mut().expect("value is set").run = None;
    let interrupted = destroy(Some("Aborted"), TerminationEvidence::Container, true);
    let conflict = destroy(Some("UpdateConflict"), TerminationEvidence::Agent, false);
    let unknown = destroy(Some("RunOutcomeUnknown"), TerminationEvidence::User, true);
    let in_order = destroy(Some("UpdateFailed"), TerminationEvidence::Agent, false);
    let elsewhere = PulumiStack { backend: Some("s3://b".to_owned()), ..here() };
    // Columns: the previous runs, the Pulumi stack with the resources, and whether a destroy that does not find its
    // Pulumi stack succeeds.
    let rows: [(&str, Vec<&Update>, PulumiStack, bool); 7] = [
        ("interrupted", vec![&interrupted], here(), true),
        ("unknown outcome", vec![&unknown], here(), true),
        ("interrupted, then locked", vec![&interrupted, &conflict], here(), true),
        ("failed without interruption", vec![&in_order], here(), false),
        ("interrupted before the start", vec![&unbound], here(), false),
        ("the resources are in another backend", vec![&interrupted], elsewhere, false),
        ("no previous run", vec![], here(), false),
    ];
    for (name, before, resources_in, expected) in rows {
        let mut status = StackStatus { applied_stack: Some(resources_in), ..applied() };
        for update in before {
            status = after(Some(status), UpdateKind::Destroy, update);
        }
        let found = after(Some(status), UpdateKind::Destroy, &not_found);
        assert_eq!(last(&found).state.as_deref() == Some("succeeded"), expected, "{name}: {:?}", last(&found));
        assert_eq!(found.applied_stack.is_none(), expected, "{name}");
        let text = last(&found).message.unwrap_or_default();
        assert_eq!(text.contains("already removed by an earlier, interrupted destroy"), expected, "{name}: {text}");
    }
    let interrupted_up =
        after(Some(applied()), UpdateKind::Up, &destroy(Some("Aborted"), TerminationEvidence::Container, true));
    let found = after(Some(interrupted_up), UpdateKind::Destroy, &not_found);
    assert_eq!(last(&found).reason.as_deref(), Some("StackNotFound"), "an up does not remove the Pulumi stack");
}

#[test]
fn only_a_bucket_or_database_proves_that_a_stack_was_removed() {
    for (backend, expected) in [(Some("s3://a"), true), (Some("https://api.pulumi.com"), false), (None, false)] {
        let looked_up = PulumiStack { backend: backend.map(str::to_owned), ..here() };
        let previous = LastUpdate {
            kind: Some("destroy".to_owned()),
            stack_may_be_removed: Some(true),
            pulumi_stack: Some(looked_up.clone()),
            ..LastUpdate::default()
        };
        let mut stack = stack(None);
        stack.status.get_or_insert_default().applied_stack = Some(looked_up.clone());
        let found = identity::was_removed_before(&stack, UpdateKind::Destroy, Some(&previous), &looked_up);
        assert_eq!(found, expected, "{backend:?}");
    }
}

#[test]
fn the_config_inputs_read_by_a_run_are_recorded() {
    let ran = |recorded: Option<&str>, read: Option<&str>| {
        let mut stack = stack(None);
        let current = CurrentUpdate {
            inputs: RunInputs { config_inputs: recorded.map(str::to_owned), ..current().inputs },
            ..current()
        };
        stack.status = Some(started(&stack, &current, None, at(10)));
        let mut update = ended_update(None);
        update.status.as_mut().expect("value is set").config_inputs = read.map(str::to_owned);
        let last = last(&with_result(&stack, &update, None, at(20)));
        [last.inputs.config_inputs.unwrap_or_default(), last.run_config_inputs.unwrap_or_default()]
    };
    assert_eq!(ran(Some("a"), Some("a")), ["a", ""]);
    assert_eq!(ran(Some("a"), Some("b")), ["a", "b"], "the hash has changed since the request");
    assert_eq!(ran(Some("a"), None), ["a", ""], "the agent reports no hash");
    assert_eq!(ran(None, Some("b")), ["b", ""], "the hash was unknown when the run was requested");
}
