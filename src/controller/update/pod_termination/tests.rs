//! Tests for the pod and node states that prove that a run has ended.

use super::*;
use crate::api::conditions::update_reason;
use serde_json::{Value, json};

const RUNNING: &str = "2026-01-01T12:00:00Z";

fn binding() -> RunBinding {
    RunBinding {
        pod_uid: "pod-uid".to_owned(),
        node_name: "node-1".to_owned(),
        container_id: "containerd://run".to_owned(),
        ..RunBinding::default()
    }
}

fn judged(pod: Option<&Pod>, node: &NodeState) -> End {
    let now = "2026-01-01T12:05:00Z".parse().expect("valid time");
    let binding = binding();
    judge(Recorded { id: "update-uid", binding: &binding, pod_name: "app-workspace-0", now }, pod, node)
}

fn pod(status: Value, deleting: bool) -> Pod {
    let limits = json!({"limits": {"memory": "512Mi"}});
    let mut pod = json!({
        "metadata": {"name": "app-workspace-0", "uid": "pod-uid"},
        "spec": {"containers": [{"name": "pulumi", "resources": limits}]},
        "status": status,
    });
    if deleting {
        pod["metadata"]["deletionTimestamp"] = json!(RUNNING);
    }
    serde_json::from_value(pod).expect("valid pod")
}

fn container(phase: &str, state: Value, last: Value) -> Value {
    json!({"phase": phase, "containerStatuses": [{
        "name": "pulumi", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state, "lastState": last,
    }]})
}

fn ended(id: &str, reason: &str, message: &str) -> Value {
    json!({"terminated": {
        "exitCode": 137, "reason": reason, "message": message, "containerID": format!("containerd://{id}"),
        "startedAt": RUNNING, "finishedAt": "2026-01-01T12:04:00Z",
    }})
}

fn running() -> Value {
    json!({"running": {"startedAt": RUNNING}})
}

fn waiting() -> Value {
    json!({"waiting": {"reason": "CrashLoopBackOff"}})
}

fn brief(end: &End) -> String {
    match end {
        End::Open(None) => "open".to_owned(),
        End::Open(Some(words)) => format!("open: {words}"),
        End::Proven(outcome) => {
            format!("{:?} {}: {}", outcome.evidence, outcome.failure.unwrap_or("-"), outcome.message)
        }
        End::Unknown(words) => format!("unknown: {words}"),
    }
}

const WORDS: &str = r#"{"id":"update-uid","outcome":"OUTCOME_SUCCEEDED"}"#;

#[test]
fn the_end_of_a_run_is_determined_from_container_statuses() {
    let rows = [
        ("the container runs", pod(container("Running", running(), json!({})), false), "open"),
        (
            "the container was restarted",
            pod(container("Running", running(), ended("run", "OOMKilled", "")), false),
            "open",
        ),
        (
            "the container is about to restart",
            pod(container("Running", waiting(), ended("run", "OOMKilled", "")), false),
            "open: container ended (OOMKilled: memory limit of 512Mi exceeded",
        ),
        (
            "the container has just ended",
            pod(container("Running", ended("run", "Error", ""), json!({})), false),
            "open: container ended (Error, exit code 137)",
        ),
        ("the container runs in a terminating pod", pod(container("Running", running(), json!({})), true), "open"),
        (
            "the container ended with the pod",
            pod(container("Running", ended("run", "Error", ""), json!({})), true),
            "Some(Container) Aborted: run interrupted: pod ended during the run (Error, exit code 137)",
        ),
        (
            "a later container has ended",
            pod(container("Running", ended("next", "Completed", ""), ended("run", "OOMKilled", "")), true),
            "Some(Container) Aborted: run interrupted: pod ended during the run (OOMKilled: memory limit of 512Mi exceeded",
        ),
        (
            "the pod is deleted before the restart",
            pod(container("Running", waiting(), ended("run", "Error", "")), true),
            "Some(Container) Aborted",
        ),
        (
            "the container has a termination message",
            pod(container("Running", ended("run", "Completed", WORDS), json!({})), true),
            "Some(Container) -",
        ),
        (
            "the next container has the termination message",
            pod(container("Running", ended("next", "Completed", WORDS), ended("run", "Error", "")), true),
            "Some(Container) -",
        ),
    ];
    for (name, pod, expected) in rows {
        let found = brief(&judged(Some(&pod), &NodeState::NotRead));
        assert!(found.starts_with(expected), "{name}: {found}");
    }
}

#[test]
fn an_eviction_message_is_included_in_the_outcome() {
    let mut status = container("Failed", ended("run", "Error", ""), json!({}));
    status["reason"] = json!("Evicted");
    status["message"] = json!("The node was low on memory.");
    let found = brief(&judged(Some(&pod(status, false)), &NodeState::NotRead));
    assert!(found.contains("Aborted") && found.contains("Evicted: The node was low on memory.; Error"), "{found}");
}

#[test]
fn an_eviction_is_reported_before_the_end_of_the_container() {
    let with_reason = |mut status: Value| {
        status["reason"] = json!("Evicted");
        status["message"] = json!("The node was low on memory.");
        cause(&binding(), Some(&pod(status, false)))
    };
    let failed = with_reason(container("Failed", running(), json!({})));
    assert_eq!(failed.as_deref(), Some("Evicted: The node was low on memory."));
    assert_eq!(with_reason(container("Running", running(), json!({}))), None);
}

#[test]
fn a_container_that_does_not_restart_in_time_proves_the_end_of_its_run() {
    let status = container("Running", waiting(), ended("run", "Error", ""));
    let later = "2026-01-01T12:14:02Z".parse().expect("valid time");
    let binding = binding();
    let run = Recorded { id: "update-uid", binding: &binding, pod_name: "app-workspace-0", now: later };
    let End::Proven(outcome) = judge(run, Some(&pod(status, false)), &NodeState::NotRead) else {
        panic!("expected End::Proven")
    };
    assert_eq!(outcome.failure, Some(update_reason::ABORTED));
    assert_eq!(outcome.ended.map(|time| time.to_string()).as_deref(), Some("2026-01-01T12:04:01Z"));
}

#[test]
fn the_wait_for_the_restart_of_a_container_is_limited() {
    let rows = [
        ("shortly after the end", "2026-01-01T12:14:01Z", false),
        ("after the limit", "2026-01-01T12:14:02Z", true),
        ("clock of the node slightly ahead", "2026-01-01T11:54:01Z", false),
        ("end far in the future", "2026-01-01T11:54:00Z", true),
        ("end in the distant future", "2025-01-01T00:00:00Z", true),
    ];
    let binding = binding();
    for (name, now, is_proven) in rows {
        let now = now.parse().expect("valid time");
        let run = Recorded { id: "update-uid", binding: &binding, pod_name: "app-workspace-0", now };
        let pod = pod(container("Running", waiting(), ended("run", "Error", "")), false);
        let end = judge(run, Some(&pod), &NodeState::NotRead);
        assert_eq!(matches!(end, End::Proven(_)), is_proven, "{name}: {}", brief(&end));
    }
}

#[test]
fn an_agent_that_exits_repeatedly_does_not_keep_an_ended_run_open() {
    // The container of the run is no longer in the status. The last container ended at 12:04:00.
    let restarted = |restarts: i32, state: Value, not_ready_since: Option<&str>| {
        let mut status = container("Running", state, ended("next", "Error", ""));
        status["containerStatuses"][0]["restartCount"] = json!(restarts);
        if let Some(since) = not_ready_since {
            let condition = json!({"type": "ContainersReady", "status": "False", "lastTransitionTime": since});
            status["conditions"] = json!([{"type": "Ready", "status": "False"}, condition]);
        }
        status
    };
    let status = |state: Value, not_ready_since: Option<&str>| restarted(MIN_RESTARTS, state, not_ready_since);
    let open = "open: container ended (Error, exit code 137) and is restarting";
    let proven = "Some(Container) Aborted: run interrupted: pod ended during the run (Error, exit code 137)";
    let (recent, long_ago) = (Some("2026-01-01T11:56:00Z"), Some("2026-01-01T11:54:59Z"));
    let rows = [
        ("the agent may restart", status(waiting(), recent), false, open),
        ("not ready for more than ten minutes", status(waiting(), long_ago), false, proven),
        ("the run used the CPU, and one agent has exited", restarted(2, waiting(), long_ago), false, open),
        ("no condition", status(waiting(), None), false, open),
        ("the next container has just ended", status(ended("third", "Error", ""), long_ago), false, proven),
        ("the next container runs", status(running(), long_ago), false, "open"),
        ("the pod is deleted", status(waiting(), recent), true, proven),
    ];
    for (name, status, deleting, expected) in rows {
        let found = brief(&judged(Some(&pod(status, deleting)), &NodeState::NotRead));
        assert_eq!(found, expected, "{name}");
    }
    let created = json!({"waiting": {"reason": "ContainerCreating"}});
    let first = pod(container("Pending", created, json!({})), false);
    assert_eq!(brief(&judged(Some(&first), &NodeState::NotRead)), "open", "no container has ended");
}

#[test]
fn only_a_dead_node_proves_the_end_of_a_run_without_an_exit_status() {
    let other: Pod = serde_json::from_value(json!({"metadata": {"uid": "other"}})).expect("valid pod");
    let here = || Some(pod(container("Running", running(), json!({})), false));
    let over = |phase: &str| Some(pod(container(phase, running(), json!({})), false));
    let bare = || Some(pod(json!({"phase": "Failed", "reason": "NodeLost"}), false));
    let not_ready = || NodeState::NotReady("Kubelet stopped posting node status.".to_owned());
    let rows = [
        (
            "the node is not ready",
            here(),
            not_ready(),
            "unknown: run state is unknown: pod app-workspace-0 is on node node-1, which is not ready: Kubelet stopped",
        ),
        ("the node is ready", here(), NodeState::Ready, "open"),
        (
            "the node is deleted",
            here(),
            NodeState::Gone,
            "Some(NodeGone) Aborted: run interrupted: node node-1 no longer exists",
        ),
        (
            "the node is out of service",
            here(),
            NodeState::OutOfService,
            "Some(NodeOutOfService) Aborted: run interrupted: node node-1 is out of service",
        ),
        ("the pod is deleted", None, NodeState::Ready, "unknown"),
        ("another pod has the same name", Some(other), NodeState::Ready, "unknown"),
        ("the pod and its node are deleted", None, NodeState::Gone, "Some(NodeGone) Aborted"),
        ("the pod is deleted, and Nodes are not readable", None, NodeState::Unreadable("403".to_owned()), "unknown"),
        ("the pod has failed while its container was running", over("Failed"), NodeState::Ready, "unknown"),
        ("the pod has succeeded while its container was running", over("Succeeded"), NodeState::Ready, "unknown"),
        ("the phase of the pod is unknown", over("Unknown"), NodeState::Ready, "unknown"),
        ("the pod has failed without containers", bare(), NodeState::Ready, "unknown"),
        ("the pod has failed on a deleted node", bare(), NodeState::Gone, "Some(NodeGone) Aborted"),
    ];
    for (name, pod, node, expected) in rows {
        let end = judged(pod.as_ref(), &node);
        assert!(brief(&end).starts_with(expected), "{name}: {}", brief(&end));
        if let End::Unknown(words) = end {
            assert!(
                words.contains("app-workspace-0") && words.contains("node-1") && words.contains("out-of-service"),
                "{words}"
            );
        }
    }
}

#[test]
fn the_node_is_read_only_if_the_end_of_a_run_is_unclear() {
    let here = pod(container("Running", running(), json!({})), false);
    let failed = pod(json!({"phase": "Failed"}), false);
    let nowhere = RunBinding { node_name: String::new(), ..binding() };
    let rows = [
        (binding(), Some(&here), false, false),
        (binding(), Some(&here), true, true),
        (binding(), Some(&failed), false, true),
        (binding(), None, false, true),
        (nowhere, None, true, false),
    ];
    for (binding, pod, unreachable, expected) in rows {
        assert_eq!(needs_node(&binding, pod, unreachable), expected, "{pod:?}");
    }
}

#[test]
fn the_out_of_service_taint_takes_precedence_over_node_conditions() {
    let node = |spec: Value, ready: Value| {
        let node = json!({"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": ready}});
        NodeState::of(Some(&serde_json::from_value(node).expect("valid node")))
    };
    let ready = |status: &str| json!([{"type": "Ready", "status": status, "message": "detail"}]);
    let taint = json!({"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]});
    assert_eq!(node(taint, ready("Unknown")), NodeState::OutOfService);
    assert_eq!(node(json!({}), ready("True")), NodeState::Ready);
    assert_eq!(node(json!({}), ready("Unknown")), NodeState::NotReady("detail".to_owned()));
    assert_eq!(NodeState::of(None), NodeState::Gone);
}
