//! Tests for the actions of a Workspace that is being deleted.

use super::*;

fn without_pod(o: &mut Observed) {
    deleted(o);
    o.pod = None;
    o.agent = Agent::NotCalled;
    o.stateful_set = PartState::Missing;
}

fn grace_end() -> Timestamp {
    "2026-01-01T12:10:00Z".parse().expect("valid time")
}

#[test]
fn the_message_of_a_terminating_pod_names_its_run_and_the_end_of_the_grace_period() {
    check(vec![(
        "the namespace or only the pod is being deleted",
        |o| {
            o.agent = Agent::NotCalled;
            o.pod = Some(PodState { terminating: true, grace_end: Some(grace_end()), held: true, ..pod() });
            o.open_runs = run();
        },
        Is::Report(
            State::Working,
            reason::ROLLING_UPDATE,
            "waiting for run app-12 to end; pod app-workspace-0 is terminating, and its grace period ends at \
                 2026-01-01T12:10:00Z",
        ),
    )]);
}

#[test]
fn a_deleted_workspace_waits_for_its_open_run() {
    check(vec![
        (
            "only finalizers of other clients remain",
            |o| {
                let metadata = json!({"deletionTimestamp": "2026-01-01T11:59:00Z", "finalizers": ["other"]});
                o.workspace = workspace(metadata, "Succeeded");
            },
            Is::Action(Action::Ignore),
        ),
        ("the agent is drained first", deleted, Is::Action(Action::Drain)),
        (
            "waits for an open run",
            |o| {
                deleted(o);
                o.agent = draining("new");
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::DELETING, "waiting for run app-12 to end"),
        ),
        (
            "an open run in a pod that no longer exists",
            |o| {
                without_pod(o);
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::DELETING, "waiting for run app-12 to end before deleting the Workspace"),
        ),
        (
            "an open run in a terminating pod",
            |o| {
                without_pod(o);
                o.pod = Some(PodState { terminating: true, grace_end: Some(grace_end()), ..pod() });
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::DELETING, "its grace period ends at 2026-01-01T12:10:00Z"),
        ),
    ]);
}

#[test]
fn the_objects_of_a_deleted_workspace_are_deleted_in_order() {
    check(vec![
        (
            "the StatefulSet is deleted first, because it would recreate the pod",
            |o| {
                deleted(o);
                o.agent = draining("new");
            },
            Is::Action(Action::DeleteStatefulSet),
        ),
        (
            "an invalid spec does not block the deletion",
            |o| {
                deleted(o);
                o.desired = Err(Unavailable::Invalid("invalid".to_owned()));
                o.stateful_set = PartState::Outdated;
                o.agent = draining("new");
            },
            Is::Action(Action::DeleteStatefulSet),
        ),
        (
            "then the pod",
            |o| {
                without_pod(o);
                o.pod = Some(pod());
            },
            Is::Action(Action::DeletePod { uid: "pod".to_owned() }),
        ),
        (
            "a terminating pod",
            |o| {
                without_pod(o);
                o.pod = Some(PodState { terminating: true, ..pod() });
            },
            Is::Report(State::Working, reason::DELETING, "is terminating"),
        ),
        (
            "then all other objects",
            without_pod,
            Is::Action(Action::DeleteParts { service: true, tls: true, budget: true }),
        ),
        (
            "objects that exist",
            |o| {
                without_pod(o);
                (o.service, o.budget) = (PartState::Missing, PartState::Foreign);
            },
            Is::Action(Action::DeleteParts { service: false, tls: true, budget: false }),
        ),
        (
            "the finalizer is removed last; objects of other owners are kept",
            |o| {
                without_pod(o);
                o.service = PartState::Foreign;
                o.tls = PartState::Missing;
                o.budget = PartState::Foreign;
            },
            Is::Action(Action::RemoveFinalizer),
        ),
    ]);
}

#[test]
fn a_starting_pod_is_deleted_before_its_stateful_set() {
    let starting = |o: &mut Observed| {
        deleted(o);
        o.agent = Agent::NotCalled;
        o.pod = Some(PodState { ready: false, short_grace_seconds: Some(60), ..pod() });
    };
    check(vec![
        ("the startup probe has not succeeded", starting, Is::Action(Action::DeletePod { uid: "pod".to_owned() })),
        (
            "the pod is terminating",
            |o| {
                deleted(o);
                o.agent = Agent::NotCalled;
                o.pod = Some(PodState { terminating: true, short_grace_seconds: Some(60), ..pod() });
            },
            Is::Action(Action::DeleteStatefulSet),
        ),
    ]);
}
