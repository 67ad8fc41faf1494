//! Tests for the decisions about a Stack with dependencies.

use std::sync::Arc;

use super::*;
use crate::api::auto::WorkspaceSleep;
use crate::controller::stack::prerequisites::{Dependency, Rule, Stale};

#[test]
fn a_run_waits_for_its_dependencies_but_a_destroy_does_not() {
    let missing = || vec![Dependency { name: "base".to_owned(), rule: Rule::Ready, stack: None, result: None }];
    let waits = Action::WaitForDependencies("waiting for base: not found".to_owned(), Vec::new());
    let new = Observed { dependencies: missing(), ..observed(stack()) };
    assert_eq!(decide(&new, now()), waits, "the Workspace is not prepared before the dependencies are met");
    let rule = Rule::Expression("dep.spec.suspend".to_owned());
    let unknown = Dependency { name: "base".to_owned(), rule, stack: Some(Arc::new(stack())), result: None };
    let evaluating = Observed { dependencies: vec![unknown], ..observed(stack()) };
    assert_eq!(decide(&evaluating, now()), Action::AwaitExpression, "the expression is still being evaluated");
    let in_a_cycle = Observed { cycle: Some(["app", "base", "app"].map(str::to_owned).into()), ..new };
    let Action::Invalid(message) = decide(&in_a_cycle, now()) else { panic!("expected Action::Invalid for a cycle") };
    assert!(message.starts_with("dependency cycle: app -> base -> app;"), "{message}");
    let mut done = stack();
    done.status = Some(StackStatus { last_update: Some(last("up", "succeeded")), ..StackStatus::default() });
    let there = Some(workspace(&done, Status::True, "Succeeded"));
    let settled = Observed { dependencies: missing(), workspace: there.clone(), ..observed(done.clone()) };
    assert_eq!(decide(&settled, now()), Action::Settled(Settled::Done(None)), "only due runs wait for dependencies");
    done.spec.destroy_on_finalize = Some(true);
    done.status.as_mut().expect("value is set").applied_stack =
        Some(PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() });
    done.metadata.deletion_timestamp = Some(Time(now()));
    let deleted = Observed { dependencies: missing(), workspace: there, ..observed(done) };
    assert_eq!(brief(&decide(&deleted, now())), "Start destroy: Stack marked for deletion");
}

/// Returns a prerequisite whose last run succeeded more than a minute ago.
fn stale() -> (Dependency, Stale) {
    let mut base = stack();
    let ended = Some(Time(now() - SignedDuration::from_hours(1)));
    let last = LastUpdate { name: Some("base-1".to_owned()), last_resync_time: ended, ..last("up", "succeeded") };
    base.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
    let (name, limit) = ("base".to_owned(), SignedDuration::from_mins(1));
    let rule = Rule::Succeeded { within: Some(limit) };
    let dependency = Dependency { name: name.clone(), rule, stack: Some(Arc::new(base)), result: None };
    (dependency, Stale { name, limit, request: "after-base-1".to_owned() })
}

#[test]
fn the_run_of_a_stale_prerequisite_is_requested_when_the_workspace_is_ready() {
    let (dependency, request) = stale();
    let message = "waiting for base: last run ended more than 1m0s ago; requested another run";
    let requests = brief(&Action::WaitForDependencies(message.to_owned(), vec![request]));
    let mut asleep = workspace(&stack(), Status::True, "Sleeping");
    asleep.status.as_mut().expect("value is set").sleep = Some(WorkspaceSleep::default());
    let mut outdated = workspace(&stack(), Status::True, "Succeeded");
    outdated.metadata.annotations = None;
    let of = |status, reason| Some(workspace(&stack(), status, reason));
    let rows = [
        ("no Workspace", None, "ApplyWorkspace".to_owned()),
        ("an outdated Workspace", Some(outdated), "ApplyWorkspace".to_owned()),
        ("a starting pod", of(Status::False, "WaitingForReplicas"), "WaitForWorkspace".to_owned()),
        ("a pod that cannot start", of(Status::False, "PodFailed"), "WorkspaceFailed".to_owned()),
        ("a ready Workspace", of(Status::True, "Succeeded"), requests.clone()),
        ("a sleeping Workspace", Some(asleep), requests),
    ];
    for (name, workspace, expected) in rows {
        let observed = Observed { workspace, dependencies: vec![dependency.clone()], ..observed(stack()) };
        let found = brief(&decide(&observed, now()));
        assert!(found.starts_with(&expected), "{name}: {found}");
    }
    let without_source = Observed { in_store: false, dependencies: vec![dependency.clone()], ..observed(stack()) };
    assert_eq!(brief(&decide(&without_source, now())), "Fetch", "the source can be unavailable");
    let missing = Dependency { name: "other".to_owned(), rule: Rule::Ready, stack: None, result: None };
    let workspace = of(Status::True, "Succeeded");
    let blocked = Observed { workspace, dependencies: vec![dependency, missing], ..observed(stack()) };
    let Action::WaitForDependencies(message, requested) = decide(&blocked, now()) else { panic!("does not wait") };
    assert_eq!(message, "waiting for other: not found; base: last run ended more than 1m0s ago");
    assert!(requested.is_empty(), "another dependency prevents the run: {requested:?}");
}
