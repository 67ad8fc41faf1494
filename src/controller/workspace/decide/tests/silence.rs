//! Tests for pods whose agent does not respond.

use k8s_openapi::jiff::SignedDuration;

use super::*;
use crate::controller::workspace::decide::{SILENT_SECONDS, decide_with_ignored_call};

/// Sets an agent that has not responded for the given time.
fn silent(o: &mut Observed, seconds: i64) {
    o.agent = Agent::Unreachable("refused".to_owned());
    o.silent_since = Some(now() - SignedDuration::from_secs(seconds));
}

/// Makes the pod outdated. The Workspace has not been ready for an hour, so the age of the condition does not matter.
fn not_ready(o: &mut Observed, why: &str) {
    outdated(o);
    o.workspace = workspace(json!({}), why);
}

fn not_ready_pod(o: &mut Observed) {
    o.pod = o.pod.take().map(|pod| PodState { ready: false, ..pod });
}

fn waits() -> Is {
    Is::Report(State::Failing, reason::CONNECTION_FAILED, "refused")
}

fn delete() -> Is {
    Is::Action(Action::DeletePod { uid: "pod".to_owned() })
}

#[test]
fn an_outdated_pod_is_deleted_only_after_a_long_silence_of_its_agent() {
    check(vec![
        (
            "the first failed call",
            |o| {
                outdated(o);
                silent(o, 0);
            },
            waits(),
        ),
        (
            "the second failed call, after the Workspace waited for an interactive session",
            |o| {
                not_ready(o, reason::CONNECTION_FAILED);
                silent(o, 5);
            },
            waits(),
        ),
        (
            "at the timeout",
            |o| {
                not_ready(o, reason::CONNECTION_FAILED);
                silent(o, SILENT_SECONDS);
            },
            waits(),
        ),
        (
            "after the timeout",
            |o| {
                not_ready(o, reason::ROLLING_UPDATE);
                silent(o, SILENT_SECONDS + 1);
            },
            delete(),
        ),
    ]);
}

#[test]
fn the_pod_of_a_silent_agent_is_protected_without_readiness_and_during_a_deletion() {
    check(vec![
        (
            "the readiness probe fails",
            |o| {
                not_ready(o, reason::ROLLING_UPDATE);
                not_ready_pod(o);
                silent(o, 5);
            },
            waits(),
        ),
        (
            "the readiness probe fails, after the timeout",
            |o| {
                not_ready(o, reason::ROLLING_UPDATE);
                not_ready_pod(o);
                silent(o, SILENT_SECONDS + 1);
            },
            delete(),
        ),
        (
            "the Workspace is being deleted",
            |o| {
                deleted(o);
                not_ready_pod(o);
                silent(o, 5);
            },
            waits(),
        ),
        (
            "the Workspace is being deleted, after the timeout",
            |o| {
                deleted(o);
                silent(o, SILENT_SECONDS + 1);
            },
            Is::Action(Action::DeleteStatefulSet),
        ),
    ]);
}

#[test]
fn an_agent_that_stays_silent_in_a_pod_that_is_not_ready_is_unreachable() {
    check(vec![
        (
            "after a restart of the container",
            |o| {
                not_ready_pod(o);
                silent(o, SILENT_SECONDS);
            },
            Is::Report(State::Working, reason::WAITING_FOR_REPLICAS, "is starting"),
        ),
        (
            "after the timeout",
            |o| {
                not_ready_pod(o);
                silent(o, SILENT_SECONDS + 1);
            },
            waits(),
        ),
    ]);
}

#[test]
fn the_pod_of_an_agent_that_ignores_drain_is_deleted_after_the_timeout() {
    let waits = || Some(Is::Report(State::Working, reason::DELETING, "waiting for run app-12 to end"));
    let rows: [(&str, Change, i64, Option<Is>); 6] = [
        ("the Workspace is being deleted", deleted, 0, None),
        ("at the timeout", deleted, SILENT_SECONDS, None),
        (
            "after the timeout, the StatefulSet is deleted first",
            deleted,
            SILENT_SECONDS + 1,
            Some(Is::Action(Action::DeleteStatefulSet)),
        ),
        (
            "after the timeout, with an open run",
            |o| {
                deleted(o);
                o.open_runs = run();
            },
            SILENT_SECONDS + 1,
            waits(),
        ),
        (
            "after the timeout, with a run that only the agent reports",
            |o| {
                outdated(o);
                o.agent = responded(StatusReply { open_operation: "unknown".to_owned(), ..reply("new") });
            },
            SILENT_SECONDS + 1,
            Some(delete()),
        ),
        ("the pod is outdated", outdated, SILENT_SECONDS + 1, Some(delete())),
    ];
    for (name, change, seconds, expected) in rows {
        let mut observed = at_rest();
        change(&mut observed);
        assert_eq!(decide(&observed, now()), Action::Drain, "{name}");
        observed.silent_since = Some(now() - SignedDuration::from_secs(seconds));
        let action = decide_with_ignored_call(&mut observed, now());
        let message = match &expected {
            Some(Is::Report(_, _, message)) => message,
            Some(Is::Action(_)) | None => "",
        };
        assert_eq!(action.map(|action| summary(action, message)), expected, "{name}");
    }
}
