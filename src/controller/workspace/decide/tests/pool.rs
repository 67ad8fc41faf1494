//! Tests for Workspaces that take a pod from a pool.

use k8s_openapi::jiff::SignedDuration;

use super::sleep::{asleep, with_pod};
use super::*;
use crate::api::auto::PooledPod;

/// Adds a pod that the Workspace has taken from a pool. The StatefulSet has no replicas.
fn with_pod_of_pool(observed: &mut Observed) {
    with_pod(observed);
    observed.pooled = Pooled::Taken;
    observed.stateful_set = PartState::Current;
}

#[test]
fn a_run_waits_until_the_pod_of_a_pool_has_the_inputs_key() {
    let has_inputs = |observed: &mut Observed, seconds: i64| {
        let env = json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "aws", "key": "a"}}});
        observed.workspace.spec.env = vec![env];
        observed.pooled = Pooled::Taken;
        let status = observed.workspace.status.as_mut().expect("status");
        status.conditions[0].last_transition_time.0 = now() - SignedDuration::from_secs(seconds);
    };
    let is_waiting = |observed: &Observed| decide(observed, now()) == Action::Report(Report::mounting());
    let mut observed = at_rest();
    has_inputs(&mut observed, 29);
    assert!(is_waiting(&observed));
    has_inputs(&mut observed, 30);
    assert!(!is_waiting(&observed), "the key is not necessary for a run");
    has_inputs(&mut observed, 0);
    observed.pooled = Pooled::None;
    assert!(!is_waiting(&observed), "a pod of the StatefulSet");
    has_inputs(&mut observed, 0);
    observed.workspace.status.as_mut().expect("status").conditions[0].status = "True".to_owned();
    assert!(!is_waiting(&observed), "the Workspace was ready");
    let mut observed = at_rest();
    has_inputs(&mut observed, 0);
    let mounted_inputs = [("/directory".to_owned(), "hash".to_owned())].into();
    observed.agent = responded(StatusReply { mounted_inputs, ..reply("new") });
    assert!(!is_waiting(&observed), "the agent reports hashes");
    observed.workspace.spec.env.clear();
    observed.agent = responded(reply("new"));
    assert!(!is_waiting(&observed), "no inputs");
}

/// Returns the observed state of an awake Workspace whose status contains a free pool pod.
fn recorded() -> Observed {
    let pooled = Pooled::Free { version: "7".to_owned() };
    Observed { pod: None, agent: Agent::NotCalled, pooled, ..at_rest() }
}

#[test]
fn a_secret_of_another_owner_is_not_used_for_a_pooled_pod() {
    check(vec![
        (
            "a free pod whose Secret belongs to another owner",
            |o| {
                *o = recorded();
                o.pooled_tls = PartState::Foreign;
            },
            Is::Action(Action::ForgetPod),
        ),
        (
            "a pod of the Workspace whose Secret belongs to another owner",
            |o| {
                with_pod_of_pool(o);
                o.pooled_tls = PartState::Foreign;
                let pod = PooledPod { name: "pulumi-pool-a".to_owned(), uid: "pod".to_owned() };
                o.workspace.status.as_mut().expect("status").pooled_pod = Some(pod);
            },
            Is::Report(State::Stalled, reason::SPEC_INVALID, "Secret pulumi-pool-a-tls exists"),
        ),
    ]);
}

#[test]
fn a_workspace_takes_the_recorded_pod_or_forgets_it() {
    let secret = || Is::Action(Action::Apply { service: false, tls: true, budget: false, stateful_set: false });
    check(vec![
        ("a free pod", |o| *o = recorded(), Is::Action(Action::TakePod { version: "7".to_owned() })),
        (
            "a free pod without the inputs key",
            |o| {
                *o = recorded();
                o.pooled_tls = PartState::Outdated;
            },
            secret(),
        ),
        (
            "a pod of another Workspace",
            |o| {
                *o = recorded();
                o.pooled = Pooled::Lost;
            },
            Is::Action(Action::ForgetPod),
        ),
        (
            "a pod that was deleted after the Workspace had gone to sleep",
            |o| {
                *o = asleep();
                o.pooled = Pooled::Lost;
            },
            Is::Action(Action::ForgetPod),
        ),
        (
            "a free pod while the Workspace is sleeping",
            |o| {
                *o = asleep();
                o.pooled = Pooled::Free { version: "7".to_owned() };
            },
            Is::Action(Action::ForgetPod),
        ),
        (
            "a pod with the source",
            |o| o.pooled = Pooled::Taken,
            Is::Report(State::Ready, reason::SUCCEEDED, "is ready"),
        ),
        (
            "an evicted pod",
            |o| {
                o.pooled = Pooled::Ended;
                o.pod = Some(PodState { running: false, ready: false, ..pod() });
                o.agent = Agent::NotCalled;
            },
            Is::Action(Action::DeletePod { uid: "pod".to_owned() }),
        ),
        (
            "an evicted pod whose run is not recorded",
            |o| {
                o.pooled = Pooled::Ended;
                o.pod = Some(PodState { running: false, ready: false, held: true, ..pod() });
                o.agent = Agent::NotCalled;
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::ROLLING_UPDATE, "app-12"),
        ),
    ]);
}

#[test]
fn a_pod_of_a_pool_is_deleted_when_its_workspace_goes_to_sleep() {
    let delete = || Is::Action(Action::DeletePod { uid: "pod".to_owned() });
    check(vec![
        (
            "before the drain",
            |o| {
                *o = asleep();
                with_pod_of_pool(o);
            },
            Is::Action(Action::Drain),
        ),
        (
            "drained",
            |o| {
                *o = asleep();
                with_pod_of_pool(o);
                o.agent = draining("new");
            },
            delete(),
        ),
        (
            "a pod whose agent is not called, because it is not ready",
            |o| {
                *o = asleep();
                with_pod_of_pool(o);
                o.agent = Agent::NotCalled;
            },
            delete(),
        ),
        (
            "a pod in which a run may be open",
            |o| {
                *o = asleep();
                with_pod_of_pool(o);
                o.agent = Agent::Unreachable("refused".to_owned());
            },
            Is::Action(Action::Wake("the agent is unreachable: refused".to_owned())),
        ),
        (
            "a terminating pod",
            |o| {
                *o = asleep();
                with_pod_of_pool(o);
                o.pod = Some(PodState { terminating: true, ..pod() });
                o.agent = Agent::NotCalled;
            },
            Is::Report(State::Ready, reason::SLEEPING, "sleeping since"),
        ),
    ]);
}
