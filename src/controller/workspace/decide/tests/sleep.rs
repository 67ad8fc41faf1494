//! Tests for sleeping Workspaces.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;

use super::*;
use crate::controller::workspace::apply_conflicts::Contested;
use crate::controller::workspace::input_versions::InputVersion;
use crate::controller::workspace::policy_packs::DesiredPack;
use crate::controller::workspace::sleep::{self, SleepDecision, decision};
use crate::controller::workspace::status::status;

/// Returns the observed state of a Workspace whose idle time of 30 minutes has passed.
fn idle() -> Observed {
    let since = now() - SignedDuration::from_mins(30);
    let after = Some(SignedDuration::from_mins(30));
    Observed { idle: Idle { after, since, pending_update: None, inputs: Inputs::Read(BTreeMap::new()) }, ..at_rest() }
}

/// Returns a policy pack that the store contains.
fn pack() -> DesiredPack {
    DesiredPack { name: "house".to_owned(), artifact: reference("pack"), is_stored: true }
}

fn secret(version: &str, changed: Option<&str>) -> Inputs {
    let changed = changed.map(|time| time.parse().expect("valid time"));
    let version = InputVersion { version: version.to_owned(), changed, starts_run: true };
    Inputs::Read([("Secret/aws".to_owned(), version)].into())
}

/// Returns the observed state of a sleeping Workspace without a pod.
pub(super) fn asleep() -> Observed {
    let mut observed = Observed { pod: None, agent: Agent::NotCalled, ..idle() };
    observed.workspace = serde_json::from_value(json!({
        "metadata": {
            "name": "app", "namespace": "team", "generation": 3, "finalizers": ["finalizer.workspace.auto.pulumi.com"],
            "annotations": {"reconcile.fluxcd.io/requestedAt": "before"},
        },
        "spec": {"artifact": {"digest": digest("new"), "revision": "main@sha1:2", "dir": "infra"}},
        "status": {
            "observedGeneration": 3,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Sleeping", "message": "",
                "lastTransitionTime": "2026-01-01T11:00:00Z",
            }],
            "artifact": {"digest": digest("new"), "revision": "main@sha1:2", "dir": "infra"},
            "lastHandledReconcileAt": "before",
            "sleep": {"since": "2026-01-01T11:30:00Z", "inputVersions": {"Secret/aws": "7"}},
        },
    }))
    .expect("valid Workspace");
    observed.idle.inputs = secret("7", None);
    observed
}

/// Adds the pod of a Workspace that is going to sleep.
pub(super) fn with_pod(observed: &mut Observed) {
    observed.pod = Some(pod());
    observed.agent = responded(reply("new"));
    observed.stateful_set = PartState::Outdated;
}

#[test]
fn an_idle_workspace_goes_to_sleep_only_if_nothing_requires_its_pod() {
    let after = |seconds: i64| SleepDecision::After(SignedDuration::from_secs(seconds));
    let cases: Vec<(&str, Change, SleepDecision)> = vec![
        ("idle", |_| {}, SleepDecision::Now),
        ("no idle time", |o| o.idle.after = None, SleepDecision::Stay),
        ("recently active", |o| o.idle.since = now() - SignedDuration::from_mins(29), after(60)),
        ("an Update waits", |o| o.idle.pending_update = Some("app-13".to_owned()), SleepDecision::Stay),
        ("a run is open", |o| o.open_runs = run(), SleepDecision::Stay),
        (
            "the agent reports a run",
            |o| o.agent = responded(StatusReply { open_operation: "update".to_owned(), ..reply("new") }),
            SleepDecision::Stay,
        ),
        (
            "an interactive session",
            |o| {
                let interactive_session = Some(InteractiveSession::default());
                o.agent = responded(StatusReply { interactive_session, ..reply("new") });
            },
            SleepDecision::Stay,
        ),
        (
            "another client changes the StatefulSet",
            |o| o.contested = Some(Contested::new(&["StatefulSet".to_owned()], Duration::from_secs(60), true)),
            SleepDecision::Stay,
        ),
        (
            "another client changes the Service",
            |o| o.contested = Some(Contested::new(&["Service".to_owned()], Duration::from_secs(60), false)),
            SleepDecision::Now,
        ),
        (
            "an object cannot be read",
            |o| o.idle.inputs = Inputs::Unreadable("forbidden".to_owned()),
            SleepDecision::Stay,
        ),
        (
            "an object has changed a minute ago",
            |o| o.idle.inputs = secret("7", Some("2026-01-01T11:59:00Z")),
            after(120),
        ),
        (
            "an object has changed an hour ago",
            |o| o.idle.inputs = secret("7", Some("2026-01-01T11:00:00Z")),
            SleepDecision::Now,
        ),
        ("already asleep", |o| *o = asleep(), SleepDecision::Stay),
    ];
    for (name, change, expected) in cases {
        let mut observed = idle();
        change(&mut observed);
        assert_eq!(decision(&observed, now()), expected, "{name}");
    }
    let soon = Observed { idle: Idle { since: now() - SignedDuration::from_secs(1799), ..idle().idle }, ..idle() };
    assert_eq!(sleep::time_left(&soon, now()), Some(Duration::from_secs(1)));
    assert_eq!(sleep::time_left(&idle(), now()), None);
}

#[test]
fn only_a_ready_workspace_goes_to_sleep() {
    check(vec![
        ("idle", |o| *o = idle(), Is::Action(Action::Sleep)),
        (
            "an installation is in progress",
            |o| {
                *o = idle();
                let candidate = Some(crate::rpc::proto::Candidate {
                    artifact: reply("new").artifact,
                    doing: "npm ci".to_owned(),
                    ..Default::default()
                });
                o.agent = responded(StatusReply { candidate, ..reply("old") });
            },
            Is::Report(State::Working, reason::INSTALLING, "npm ci"),
        ),
        (
            "another source is requested",
            |o| {
                *o = idle();
                o.agent = responded(reply("old"));
            },
            Is::Action(Action::PutSource { artifact: reference("new") }),
        ),
        (
            "a policy pack is not installed",
            |o| {
                *o = idle();
                if let Ok(desired) = &mut o.desired {
                    desired.policy_packs = vec![pack()];
                }
            },
            Is::Action(Action::PutPolicyPack { pack: pack() }),
        ),
        (
            "an outdated pod",
            |o| {
                *o = idle();
                outdated(o);
            },
            Is::Action(Action::Drain),
        ),
    ]);
}

#[test]
fn the_pod_is_removed_after_its_agent_is_drained() {
    let scale = || Is::Action(Action::Apply { service: false, tls: false, budget: false, stateful_set: true });
    check(vec![
        (
            "recorded",
            |o| {
                *o = asleep();
                with_pod(o);
            },
            Is::Action(Action::Drain),
        ),
        (
            "drained",
            |o| {
                *o = asleep();
                with_pod(o);
                o.agent = draining("new");
            },
            scale(),
        ),
        (
            "a pod whose agent is not called, because it is not ready",
            |o| {
                *o = asleep();
                with_pod(o);
                o.agent = Agent::NotCalled;
            },
            scale(),
        ),
    ]);
}

#[test]
fn a_workspace_without_replicas_is_asleep_until_its_pod_has_ended() {
    let sleeping = || Is::Report(State::Ready, reason::SLEEPING, "sleeping since 2026-01-01T11:30:00Z");
    check(vec![
        (
            "without replicas, before the pod is deleted",
            |o| {
                *o = asleep();
                with_pod(o);
                o.agent = draining("new");
                o.stateful_set = PartState::Current;
            },
            sleeping(),
        ),
        (
            "without replicas, with a terminating agent",
            |o| {
                *o = asleep();
                with_pod(o);
                o.agent = Agent::Unreachable("refused".to_owned());
                o.stateful_set = PartState::Current;
            },
            sleeping(),
        ),
        (
            "a terminating pod with the finalizer of a completed run",
            |o| {
                *o = asleep();
                o.pod = Some(PodState { terminating: true, held: true, running: false, ..pod() });
            },
            Is::Action(Action::RemovePodFinalizer),
        ),
        ("without a pod", |o| *o = asleep(), sleeping()),
        (
            "a new certificate",
            |o| {
                *o = asleep();
                o.tls = PartState::Outdated;
            },
            Is::Action(Action::Apply { service: false, tls: true, budget: false, stateful_set: false }),
        ),
    ]);
}

#[test]
fn a_workspace_wakes_up_for_runs_requests_and_changes() {
    let cases: Vec<(&str, Change, Option<&str>)> = vec![
        ("nothing has changed", |_| {}, None),
        ("the spec", |o| o.workspace.metadata.generation = Some(4), Some("the spec has changed")),
        ("an Update", |o| o.idle.pending_update = Some("app-13".to_owned()), Some("Update app-13 has not ended")),
        ("a run that started before the drain", |o| o.open_runs = run(), Some("run app-12 is open")),
        (
            "a session that started before the drain",
            |o| {
                with_pod(o);
                let interactive_session = Some(InteractiveSession::default());
                o.agent = responded(StatusReply { interactive_session, ..reply("new") });
            },
            Some("an interactive session is open"),
        ),
        (
            "a request",
            |o| {
                let annotations = o.workspace.metadata.annotations.get_or_insert_default();
                annotations.insert("reconcile.fluxcd.io/requestedAt".to_owned(), "now".to_owned());
            },
            Some("the annotation reconcile.fluxcd.io/requestedAt has changed"),
        ),
        ("a removed request", |o| o.workspace.metadata.annotations = None, None),
        ("a changed Secret", |o| o.idle.inputs = secret("8", None), Some("Secret aws has changed")),
        (
            "an unreadable Secret",
            |o| o.idle.inputs = Inputs::Unreadable("forbidden".to_owned()),
            Some("changes cannot be detected: forbidden"),
        ),
        (
            "an agent that does not respond",
            |o| {
                with_pod(o);
                o.agent = Agent::Unreachable("refused".to_owned());
            },
            Some("the agent is unreachable: refused"),
        ),
        ("a changed default", |o| o.idle.after = None, None),
        (
            "a pod of an older version of the controller",
            |o| o.workspace.status.as_mut().expect("status").pod_uid = Some("pod".to_owned()),
            None,
        ),
    ];
    for (name, change, expected) in cases {
        let mut observed = asleep();
        change(&mut observed);
        assert_eq!(sleep::wake_reason(&observed).as_deref(), expected, "{name}");
        if let Some(expected) = expected {
            assert_eq!(decide(&observed, now()), Action::Wake(expected.to_owned()), "{name}");
        }
    }
}

#[test]
fn a_deleted_sleeping_workspace_is_cleaned_up() {
    let mut observed = asleep();
    observed.workspace.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(decide(&observed, now()), Action::DeleteStatefulSet);
}

#[test]
fn the_status_of_a_sleeping_workspace_keeps_the_inputs_of_runs() {
    let mut observed = idle();
    observed.idle.inputs = secret("7", None);
    observed.workspace.metadata.annotations =
        Some([("reconcile.fluxcd.io/requestedAt".to_owned(), "x".to_owned())].into());
    observed.agent = responded(StatusReply { protocol_version: 7, project_name: "web".to_owned(), ..reply("new") });
    let fallen = status(&observed, &Report::sleeping(now()), now());
    assert!(fallen.is_asleep());
    assert_eq!((fallen.pod_uid.as_ref(), fallen.agent_start_id.as_ref()), (None, None), "no run can be bound");
    assert_eq!(fallen.artifact, observed.workspace.spec.artifact);
    assert_eq!((fallen.project_name.as_deref(), fallen.agent_protocol_version), (Some("web"), Some(7)));
    assert_eq!(fallen.last_handled_reconcile_at.as_deref(), Some("x"));
    let sleep = fallen.sleep.clone().expect("asleep");
    assert_eq!(sleep.input_versions, BTreeMap::from([("Secret/aws".to_owned(), "7".to_owned())]));
    let ready = fallen.conditions.iter().find(|condition| condition.type_ == "Ready").expect("a condition");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", reason::SLEEPING));

    // The agent in a terminating pod can still respond, for example after a restart without a source.
    observed.workspace.status = Some(fallen.clone());
    observed.agent = responded(StatusReply { artifact: None, ..reply("new") });
    observed.idle.inputs = secret("8", None);
    let later = now() + SignedDuration::from_secs(5);
    let since = sleep.since.as_ref().expect("a time").0;
    assert_eq!(status(&observed, &Report::sleeping(since), later), fallen, "no write is necessary");

    observed.workspace.status = Some(fallen);
    let woken = status(&observed, &Report::waking("the spec has changed"), later);
    assert!(!woken.is_asleep() && woken.sleep.is_none());
    assert_eq!((woken.artifact.as_ref(), woken.agent_protocol_version), (None, None), "the new pod has no source");
    assert_eq!(woken.mounted_inputs, observed.workspace.status.expect("status").mounted_inputs);
}

#[test]
fn a_pod_of_another_controller_version_ends_the_sleep() {
    let mut observed = asleep();
    with_pod(&mut observed);
    observed.workspace.status.as_mut().expect("status").pod_uid = Some("pod".to_owned());
    assert_eq!(status(&observed, &Report::ready(&reference("new")), now()).sleep, None);
}
