//! Tests for the actions that install policy packs.

use super::*;
use crate::controller::workspace::policy_packs::DesiredPack;
use crate::rpc::proto::PolicyPackState;

fn pack(name: &str, is_stored: bool) -> DesiredPack {
    DesiredPack { name: name.to_owned(), artifact: reference(name), is_stored }
}

fn state(name: &str, installed: bool, failure: &str) -> PolicyPackState {
    let artifact = Some(pack(name, true).to_proto());
    PolicyPackState { artifact, installed, doing: "installing".to_owned(), failure: failure.to_owned() }
}

/// Returns the action for a Workspace with the given packs if its agent reports the given states.
fn action(packs: &[DesiredPack], states: &[PolicyPackState], open_operation: &str) -> Action {
    let mut observed = at_rest();
    if let Ok(desired) = &mut observed.desired {
        desired.policy_packs = packs.to_vec();
    }
    let reply =
        StatusReply { policy_packs: states.to_vec(), open_operation: open_operation.to_owned(), ..reply("new") };
    observed.agent = responded(reply);
    decide(&observed, now())
}

#[test]
fn packs_are_delivered_one_after_another_before_the_workspace_is_ready() {
    let packs = [pack("one", true), pack("two", true)];
    assert_eq!(action(&packs, &[], ""), Action::PutPolicyPack { pack: pack("one", true) });
    let first = [state("one", false, "")];
    assert_eq!(action(&packs, &first, ""), Action::PutPolicyPack { pack: pack("two", true) });
    let both = [state("one", true, ""), state("two", true, "")];
    let Action::Report(report) = action(&packs, &both, "") else { panic!("expected a report") };
    assert_eq!(report.state, State::Ready);
}

#[test]
fn a_workspace_without_all_packs_is_not_ready() {
    let rows = [
        (pack("one", false), vec![], "", reason::ARTIFACT_UNAVAILABLE),
        (pack("one", true), vec![state("one", false, "")], "", reason::INSTALLING),
        (pack("one", true), vec![state("one", false, "no such package")], "", reason::INSTALLATION_FAILED),
        (pack("one", true), vec![], "run-1", reason::INSTALLING),
    ];
    for (pack, states, open_operation, expected) in rows {
        let Action::Report(report) = action(&[pack], &states, open_operation) else { panic!("{expected}") };
        assert_eq!(report.reason, expected, "{}", report.message);
        assert!(report.message.contains("policy pack one") && report.state != State::Ready, "{}", report.message);
    }
}
