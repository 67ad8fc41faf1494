//! Tests for the decisions about policy packs.

use super::*;
use crate::controller::stack::policy_packs::{ResolvedPack, artifacts, inputs};

fn pack(content: &str, in_store: bool) -> ResolvedPack {
    let resolved = Resolved { digest: Digest::of(content.as_bytes()), ..resolved() };
    let (name, namespace) = ("house".to_owned(), "flux-system".to_owned());
    ResolvedPack { name, namespace, resolved, config: [].into(), in_store }
}

/// Returns a Stack whose last run succeeded with these packs, and its Workspace.
fn settled(before: &[ResolvedPack]) -> (Stack, Workspace) {
    let mut stack = stack();
    let last = last("up", "succeeded");
    let run_inputs = RunInputs { policy_inputs: inputs(before), ..last.inputs };
    let last = LastUpdate { inputs: run_inputs, ..last };
    stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
    let desired =
        build_workspace::with_policy_packs(&stack, &reference(&resolved()), artifacts(before)).expect("valid");
    let status = workspace(&stack, Status::True, "Succeeded").status;
    let mut workspace = Workspace { status, ..desired };
    workspace.metadata.generation = Some(1);
    (stack, workspace)
}

fn action(before: &[ResolvedPack], now_packs: Vec<ResolvedPack>) -> Action {
    let (stack, workspace) = settled(before);
    let observed = Observed { workspace: Some(workspace), policy_packs: Ok(now_packs), ..observed(stack) };
    decide(&observed, now())
}

#[test]
fn a_changed_pack_is_fetched_applied_and_starts_a_run() {
    let before = [pack("1", true)];
    assert_eq!(action(&before, vec![pack("1", false)]), Action::Settled(Settled::Done(None)));
    let changed = pack("2", false);
    assert_eq!(action(&before, vec![changed.clone()]), Action::FetchPolicyPack(Box::new(changed)));
    let Action::ApplyWorkspace(desired, _) = action(&before, vec![pack("2", true)]) else {
        panic!("expected an apply")
    };
    assert_eq!(desired.spec.policy_packs, artifacts(&[pack("2", true)]));

    let (mut changed, workspace) = settled(&[pack("2", true)]);
    let last = changed.status.as_mut().and_then(|status| status.last_update.as_mut()).expect("value is set");
    last.inputs.policy_inputs = inputs(&before);
    let observed =
        Observed { workspace: Some(workspace), policy_packs: Ok(vec![pack("2", true)]), ..observed(changed) };
    assert_eq!(brief(&decide(&observed, now())), "Start up: Policy pack house has changed");
}

#[test]
fn a_policy_pack_that_a_user_disables_in_the_workspace_is_restored_before_a_run() {
    let packs = [pack("1", true)];
    let (stack, mut workspace) = settled(&packs);
    let due = Stack { status: Some(StackStatus::default()), ..stack };
    workspace.spec.policy_packs[0].config = [("all".to_owned(), json!("disabled"))].into();
    let observed = Observed { workspace: Some(workspace), policy_packs: Ok(packs.to_vec()), ..observed(due) };
    let Action::ApplyWorkspace(desired, _) = decide(&observed, now()) else { panic!("expected an apply") };
    assert_eq!(desired.spec.policy_packs, artifacts(&packs));
}

#[test]
fn a_removed_pack_starts_no_run() {
    assert_eq!(action(&[pack("1", true)], vec![]), Action::Settled(Settled::Done(None)));
}

#[test]
fn a_stack_waits_for_the_source_of_a_pack() {
    let why = || "policy pack house: Bucket apps/policies has no artifact yet".to_owned();
    let rows = [
        (Unavailable::NotYet(why()), Action::WaitForSource(why(), None)),
        (Unavailable::Denied(why()), Action::Denied(why())),
        (Unavailable::Invalid(why()), Action::Invalid(why())),
    ];
    for (unavailable, expected) in rows {
        let (stack, workspace) = settled(&[]);
        let observed = Observed { workspace: Some(workspace), policy_packs: Err(unavailable), ..observed(stack) };
        assert_eq!(decide(&observed, now()), expected);
    }
}

#[test]
fn a_queued_run_is_revoked_if_a_pack_has_changed() {
    let revoked = |now_packs: Vec<ResolvedPack>| {
        let (mut stack, workspace) = settled(&[]);
        let recorded = Observed { policy_packs: Ok(vec![pack("1", true)]), ..observed(stack.clone()) };
        let current = current_update(&recorded, &resolved(), &up());
        let update = Some(Update::new(&current.name, UpdateSpec::default()));
        stack.status.as_mut().expect("value is set").current_update = Some(Box::new(current));
        let (workspace, policy_packs) = (Some(workspace), Ok(now_packs));
        let observed = Observed { update, workspace, policy_packs, ..observed(stack) };
        matches!(decide(&observed, now()), Action::RevokeUpdate(_))
    };
    assert!(!revoked(vec![pack("1", true)]));
    assert!(revoked(vec![pack("2", true)]));
}
