//! Tests for runs of which the agent has no record.

use super::*;
use crate::api::auto::RunProgress;

fn pod_in_container(id: &str) -> Pod {
    let running = ContainerState { running: Some(Default::default()), ..ContainerState::default() };
    let mut pod = pod_with("Running", running);
    let containers = pod.status.as_mut().and_then(|status| status.container_statuses.as_mut());
    containers.expect("there")[0].container_id = Some(id.to_owned());
    pod
}

/// Returns a run in the container `c1`, of which the agent has no record. `progress` is the progress in the status.
fn without_record(run_state: RunState, progress: Option<RunProgress>, container: &str) -> Observed {
    let mut update = update(Some(RunBinding { container_id: "c1".to_owned(), ..bound() }));
    update.status.as_mut().expect("there").progress = progress;
    Observed { run_state: Some(run_state), pod: Some(pod_in_container(container)), ..observed(update) }
}

fn states() -> [RunState; 3] {
    let why = || "operation x is bound to another instance of the agent".to_owned();
    [RunState::NeverStarted, RunState::Rejected(why()), RunState::PreconditionFailed(why())]
}

fn in_progress() -> Option<RunProgress> {
    Some(RunProgress { pid: Some(42), ..RunProgress::default() })
}

#[test]
fn a_run_without_progress_has_not_started() {
    for state in states() {
        for container in ["c1", "c2"] {
            let Action::Record(outcome) = decide(&without_record(state.clone(), None, container)) else {
                panic!("{state:?} {container}: expected Action::Record")
            };
            assert_eq!((outcome.interrupted, outcome.evidence), (false, None), "{state:?} {container}");
        }
    }
}

#[test]
fn the_outcome_of_a_run_that_was_not_allowed_to_start_states_the_cause() {
    let changed = |change: fn(&mut Observed)| {
        let mut observed = without_record(RunState::NeverStarted, None, "c1");
        change(&mut observed);
        observed
    };
    let rows = [
        (
            changed(|observed| {
                observed.update.annotations_mut().insert(names::ANNOTATION_CANCEL.to_owned(), "now".to_owned());
                observed.plan = PlanFile::Unavailable("Secret app-0-plan with the plan not found".to_owned());
            }),
            update_reason::CANCELED,
            "the run was canceled before it started",
        ),
        (
            changed(|observed| {
                observed.plan = PlanFile::Unavailable("Secret app-0-plan with the plan not found".to_owned());
            }),
            update_reason::PLAN_VIOLATED,
            "Secret app-0-plan with the plan not found",
        ),
        (
            changed(|observed| observed.forbidden = Some("Stack app requires approvals".to_owned())),
            update_reason::SPEC_INVALID,
            "Stack app requires approvals",
        ),
        (
            changed(|observed| observed.workspace = None),
            update_reason::RUN_REFUSED,
            "failed to start the run: Workspace app not found",
        ),
        (
            changed(|observed| {
                let workspace = observed.workspace.as_mut().expect("there");
                workspace.spec.env = vec![serde_json::json!({"name": "A=B", "value": "x"})];
            }),
            update_reason::RUN_REFUSED,
            "failed to start the run: ",
        ),
        (
            changed(|_| {}),
            update_reason::RUN_REFUSED,
            "failed to start the run: a requirement was not met when the controller attached to the run",
        ),
    ];
    for (observed, reason, message) in rows {
        let Action::Record(outcome) = decide(&observed) else { panic!("{message}: expected Action::Record") };
        assert_eq!(outcome.failure, Some(reason), "{message}");
        assert!(outcome.message.starts_with(message), "{message}: {}", outcome.message);
    }
}

#[test]
fn a_run_whose_journal_was_lost_is_interrupted_if_its_container_was_replaced() {
    for state in states() {
        let replaced = without_record(state.clone(), in_progress(), "c2");
        let reported = Observed { progress: in_progress(), ..without_record(state.clone(), None, "c2") };
        for observed in [replaced, reported] {
            let Action::Record(outcome) = decide(&observed) else { panic!("{state:?}: expected Action::Record") };
            assert_eq!((outcome.failure, outcome.interrupted), (Some(update_reason::ABORTED), true), "{state:?}");
            assert_eq!((outcome.evidence, outcome.ended), (Some(TerminationEvidence::Container), Some(now())));
        }
    }
}

#[test]
fn the_outcome_of_a_run_whose_journal_was_lost_in_its_container_is_unknown() {
    for state in states() {
        for container in ["c1", ""] {
            let lost = without_record(state.clone(), in_progress(), container);
            let Action::OutcomeUnknown(message) = decide(&lost) else {
                panic!("{state:?} {container:?}: expected Action::OutcomeUnknown")
            };
            assert!(message.contains("has no record of the run"), "{message}");
        }
        let mut resolved = without_record(state.clone(), in_progress(), "c1");
        resolved.update.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), "app-1=retry".to_owned());
        let Action::Record(outcome) = decide(&resolved) else { panic!("{state:?}: expected Action::Record") };
        assert_eq!(outcome.evidence, Some(TerminationEvidence::User));
        let mut expired = without_record(state.clone(), in_progress(), "c1");
        expired.update.spec.timeout = Some("1s".to_owned());
        expired.update.status.as_mut().expect("there").start_time = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        expired.pod.as_mut().expect("there").spec = Some(k8s_openapi::api::core::v1::PodSpec {
            termination_grace_period_seconds: Some(30),
            ..Default::default()
        });
        assert!(matches!(decide(&expired), Action::DeletePod(_)), "{state:?}: the container must terminate");
    }
}
