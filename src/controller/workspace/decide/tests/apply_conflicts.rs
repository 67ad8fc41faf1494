//! Tests that objects that another client changes after each apply do not block other actions.

use std::time::Duration;

use super::*;
use crate::controller::workspace::apply_conflicts::Contested;

fn contested(change: impl FnOnce(&mut Observed), stateful_set: bool) -> Action {
    let mut observed = at_rest();
    let objects = ["Service app-workspace: spec.ports (changed by mesh)".to_owned()];
    observed.contested = Some(Contested::new(&objects, Duration::from_secs(90), stateful_set));
    change(&mut observed);
    decide(&observed, now())
}

#[test]
fn a_workspace_stays_ready_while_its_service_is_rewritten() {
    let Action::Report(report) = contested(|observed| observed.service = PartState::Outdated, false) else {
        panic!("expected a report")
    };
    assert_eq!((report.state, report.again), (State::Ready, Some(Duration::from_secs(90))));
    assert!(report.message.contains("is ready; ") && report.message.contains("changed by mesh"), "{report:?}");
}

#[test]
fn missing_objects_are_created_while_others_are_rewritten() {
    let change = |observed: &mut Observed| {
        observed.service = PartState::Outdated;
        observed.budget = PartState::Missing;
    };
    let expected = Action::Apply { service: false, tls: false, budget: true, stateful_set: false };
    assert_eq!(contested(change, false), expected);
}

#[test]
fn a_pod_is_not_replaced_while_its_stateful_set_is_rewritten() {
    let change = |observed: &mut Observed| {
        observed.stateful_set = PartState::Outdated;
        outdated(observed);
    };
    let Action::Report(report) = contested(change, true) else { panic!("expected a report") };
    assert_eq!(report.state, State::Failing);
    assert!(
        report.message.contains("cannot replace the pod") && report.message.contains("changed by mesh"),
        "{report:?}"
    );
    assert_eq!(contested(outdated, false), Action::Drain, "a conflict on another object does not block the pod");
}
