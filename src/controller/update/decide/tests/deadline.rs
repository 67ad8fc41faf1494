//! Tests for runs that exceed their deadline.

use super::*;
use k8s_openapi::api::core::v1::PodSpec;

/// Returns an Update with the given timeout and a binding that was recorded 700 seconds ago.
fn bound_before(timeout: &str) -> Update {
    let mut update = update(Some(bound()));
    update.spec.timeout = Some(timeout.to_owned());
    let bound_at = jiff::Timestamp::from_second(300).expect("timestamp in range");
    update.status.as_mut().expect("there").start_time = Some(Time(bound_at));
    update
}

fn pod_with_grace(seconds: i64) -> Pod {
    let mut pod = pod("pod-uid");
    pod.spec = Some(PodSpec { termination_grace_period_seconds: Some(seconds), ..PodSpec::default() });
    pod
}

#[test]
fn the_pod_of_a_run_is_deleted_after_the_deadline_of_the_run() {
    let unreachable = || RunState::Unreachable("no route".to_owned());
    let at = |run_state: RunState, timeout: &str, grace: i64| {
        let pod = Some(pod_with_grace(grace));
        decide(&Observed { run_state: Some(run_state), pod, ..observed(bound_before(timeout)) })
    };
    let message = "the run exceeded its timeout of 2m0s, and the agent did not end it".to_owned();
    for state in [unreachable(), RunState::Running, RunState::Connecting] {
        assert_eq!(at(state, "120s", 30), Action::DeletePod(message.clone()));
    }
    assert!(matches!(at(unreachable(), "120s", 600), Action::Await(_)), "the agent has time to cancel the run");
    assert!(matches!(at(unreachable(), "200s", 30), Action::Await(_)), "the run may have started later");
    assert!(matches!(at(unreachable(), "0s", 30), Action::Await(_)), "the run has no timeout");
    let result = proto::Result { outcome: proto::Outcome::Succeeded.into(), ..proto::Result::default() };
    assert!(matches!(at(RunState::Ended(Box::new(result)), "120s", 30), Action::Record(_)));
}

#[test]
fn the_deadline_ends_a_run_to_which_no_task_can_attach() {
    let mut reachable = pod_with_grace(30);
    reachable.metadata.namespace = Some("apps".to_owned());
    reachable.status = Some(PodStatus { pod_ip: Some("10.0.0.1".to_owned()), ..PodStatus::default() });
    let mut invalid = workspace();
    invalid.spec.env = vec![serde_json::json!({"name": "A=B", "value": "x"})];
    let message = "the run exceeded its timeout of 2m0s, and the agent did not end it".to_owned();
    let (attach, delete) = (Action::Attach(bound()), Action::DeletePod(message));
    let rows = [
        ("reachable agent", Some(workspace()), reachable.clone(), "120s", &attach),
        ("no Workspace", None, reachable.clone(), "120s", &attach),
        ("invalid Workspace", Some(invalid), reachable, "120s", &attach),
        ("no address", Some(workspace()), pod_with_grace(30), "120s", &delete),
        ("no address before the deadline", Some(workspace()), pod_with_grace(30), "200s", &attach),
        ("no address and no timeout", Some(workspace()), pod_with_grace(30), "0s", &attach),
    ];
    for (name, workspace, pod, timeout, expected) in rows {
        let action = decide(&Observed { workspace, pod: Some(pod), ..observed(bound_before(timeout)) });
        assert_eq!(&action, expected, "{name}");
    }
}

#[test]
fn a_report_from_a_replaced_pod_is_ignored_after_the_deadline() {
    let at = |uid: &str, timeout: &str, node: NodeState| {
        let mut pod = pod_with_grace(30);
        pod.metadata.uid = Some(uid.to_owned());
        let (run_state, pod) = (Some(RunState::Running), Some(pod));
        decide(&Observed { run_state, pod, node, ..observed(bound_before(timeout)) })
    };
    assert!(matches!(at("pod-uid", "120s", NodeState::Ready), Action::DeletePod(_)));
    assert!(matches!(at("other", "200s", NodeState::Ready), Action::Await(_)), "the deadline has not passed");
    assert!(matches!(at("other", "120s", NodeState::Ready), Action::OutcomeUnknown(_)), "the other pod is not deleted");
    assert!(matches!(at("other", "120s", NodeState::Gone), Action::Record(_)));
}

#[test]
fn a_canceled_run_has_the_same_deadline() {
    let mut canceled = bound_before("120s");
    canceled.annotations_mut().insert(names::ANNOTATION_CANCEL.to_owned(), "now".to_owned());
    let run_state = Some(RunState::Unreachable("no route".to_owned()));
    let at = |grace| {
        decide(&Observed {
            run_state: run_state.clone(),
            pod: Some(pod_with_grace(grace)),
            ..observed(canceled.clone())
        })
    };
    assert_eq!(at(600), Action::Cancel);
    assert!(matches!(at(30), Action::DeletePod(_)));
}

#[test]
fn a_run_whose_pod_the_controller_deleted_is_interrupted() {
    let ended = ContainerStateTerminated {
        exit_code: 137,
        reason: Some("Error".to_owned()),
        container_id: Some("c1".to_owned()),
        ..ContainerStateTerminated::default()
    };
    let mut pod = pod_with("Failed", ContainerState { terminated: Some(ended), ..ContainerState::default() });
    pod.spec = pod_with_grace(30).spec;
    let expired = Observed { pod: Some(pod), ..observed(bound_before("120s")) };
    let Action::Record(outcome) = decide(&expired) else { panic!("expected Action::Record") };
    assert_eq!((outcome.failure, outcome.interrupted), (Some(update_reason::ABORTED), true));
    assert_eq!(
        outcome.message,
        "the run exceeded its timeout of 2m0s, and the controller deleted its pod because the agent did not end the run; run \
         interrupted: pod ended during the run (Error, exit code 137)"
    );
    let message = |outcome: proto::Outcome, ended: i64| {
        let result = proto::Result {
            outcome: outcome.into(),
            ended: ended * 1000,
            pod_terminated: true,
            ..proto::Result::default()
        };
        let Action::Record(outcome) =
            decide(&Observed { run_state: Some(RunState::Ended(Box::new(result))), ..expired.clone() })
        else {
            panic!("expected Action::Record")
        };
        outcome.message.contains("the controller deleted its pod")
    };
    assert!(message(proto::Outcome::Canceled, 871), "the agent ended the run when its pod was deleted");
    assert!(!message(proto::Outcome::Canceled, 870), "the run ended in time, and the controller recorded it late");
    assert!(!message(proto::Outcome::Succeeded, 871));
}

#[test]
fn the_wait_for_the_termination_reason_is_limited() {
    let decided = |seconds: i64, timeout: &str| {
        let result = proto::Result {
            outcome: proto::Outcome::Canceled.into(),
            ended: now().as_millisecond() - seconds * 1000,
            pod_terminated: true,
            ..proto::Result::default()
        };
        let (run_state, pod) = (Some(RunState::Ended(Box::new(result))), Some(pod_with_grace(30)));
        decide(&Observed { run_state, pod, ..observed(bound_before(timeout)) })
    };
    let rows = [
        ("recent", 5, "200s", true),
        ("clock of the agent ahead", -59, "200s", true),
        ("after the limit", 60, "200s", false),
        ("in the future", -60, "200s", false),
        ("in the distant future", -4_000_000_000, "200s", false),
        ("no timeout", -4_000_000_000, "0s", false),
        ("after the deadline of the run", 5, "120s", false),
    ];
    for (name, seconds, timeout, waits) in rows {
        let action = decided(seconds, timeout);
        assert_eq!(matches!(action, Action::Await(_)), waits, "{name}: {action:?}");
        assert_eq!(matches!(action, Action::Record(_)), !waits, "{name}: {action:?}");
    }
}

#[test]
fn a_run_that_waits_for_a_session_is_not_started_after_its_timeout() {
    let at = |run_state: RunState, timeout: &str| {
        decide(&Observed { run_state: Some(run_state), task_may_start: true, ..observed(bound_before(timeout)) })
    };
    let held = || RunState::Held("alice runs `pulumi import`".to_owned());
    assert!(matches!(at(held(), "700s"), Action::Hold(_)));
    for state in [held(), RunState::Connecting, RunState::Unreachable("no route".to_owned())] {
        assert_eq!(at(state, "699s"), Action::Attach(bound()), "the new task must not start the run");
    }
    let Action::Record(outcome) = at(RunState::NeverStarted, "600s") else { panic!("expected Action::Record") };
    assert_eq!(outcome.failure, Some(update_reason::RUN_REFUSED), "the Stack retries the run");
    assert_eq!(outcome.message, "failed to start the run within its timeout of 10m0s");
}
