//! Tests for runs whose pod is being deleted or whose node is being removed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::controller::update::interruptions::Disruption;

fn disruption() -> Disruption {
    Disruption { cause: "node n1 has the taint karpenter.sh/disrupted".to_owned(), seconds: Some(90) }
}

/// Returns a run in progress. `left` is the time until the kubelet kills the containers of the pod, in seconds.
fn running(pod_uid: &str, left: Option<i64>, disruption: Option<Disruption>) -> Observed {
    let mut pod = pod(pod_uid);
    pod.metadata.deletion_timestamp = left.map(|left| Time(now() + jiff::SignedDuration::from_secs(left)));
    let observed = observed(update(Some(bound())));
    Observed { pod: Some(pod), disruption, run_state: Some(RunState::Running), ..observed }
}

#[test]
fn a_run_in_progress_is_interrupted_before_its_pod_or_node_disappears() {
    let leave = Action::LeaveNode(disruption());
    let rows = [
        ("nothing happens", running("pod-uid", None, None), None),
        ("the node is being removed", running("pod-uid", None, Some(disruption())), Some(leave)),
        ("the pod is being deleted", running("pod-uid", Some(30), None), Some(Action::EndWithPod(30))),
        ("both", running("pod-uid", Some(30), Some(disruption())), Some(Action::EndWithPod(30))),
        ("the grace period has ended", running("pod-uid", Some(0), Some(disruption())), None),
        ("another pod", running("other", Some(30), Some(disruption())), None),
    ];
    for (name, observed, expected) in rows {
        let action = decide(&observed);
        match expected {
            Some(expected) => assert_eq!(action, expected, "{name}"),
            None => assert!(matches!(action, Action::Await(_)), "{name}: {action:?}"),
        }
    }
}

#[test]
fn a_run_that_a_user_cancels_or_that_has_ended_is_not_interrupted() {
    let mut canceled = running("pod-uid", None, Some(disruption()));
    canceled.update.annotations_mut().insert(names::ANNOTATION_CANCEL.to_owned(), "now".to_owned());
    assert_eq!(decide(&canceled), Action::Cancel);
    let ended = Some(RunState::Ended(Box::default()));
    let ended = Observed { run_state: ended, ..running("pod-uid", None, Some(disruption())) };
    assert!(matches!(decide(&ended), Action::Record(_)));
}
