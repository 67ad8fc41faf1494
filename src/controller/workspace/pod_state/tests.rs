//! Tests for the state of a pod, and for the reasons why a pod does not start.

use serde_json::{Value, json};

use super::*;

fn pod(status: Value) -> PodState {
    let metadata = json!({"name": "app-workspace-0", "uid": "pod-uid"});
    read(&serde_json::from_value(json!({"metadata": metadata, "status": status})).expect("valid pod"))
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": message}})
}

fn container(state: Value, last: Value) -> Value {
    json!({"containerStatuses": [{
        "name": "pulumi", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state, "lastState": last,
    }]})
}

#[test]
fn the_proxy_of_a_service_mesh_is_found_among_all_containers() {
    let of = |list: &str, name: &str| {
        let mut spec = json!({"containers": [{"name": "pulumi"}]});
        spec[list] = json!([{"name": "pulumi"}, {"name": name}]);
        read(&serde_json::from_value(json!({"spec": spec})).expect("valid pod")).mesh_proxy
    };
    assert_eq!(of("containers", "istio-proxy").as_deref(), Some("istio-proxy"));
    assert_eq!(of("initContainers", "linkerd-proxy").as_deref(), Some("linkerd-proxy"), "a native sidecar");
    assert_eq!(of("containers", "proxy"), None);
}

#[test]
fn the_problem_of_a_pod_that_does_not_start_has_the_kubelet_message() {
    let terminated = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "no certificate\n"}});
    let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    let condition = json!({"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"},
    ]});
    let cases = [
        (
            container(waiting("ImagePullBackOff", "Back-off pulling image \"x\""), json!({})),
            "container pulumi: ImagePullBackOff: Back-off pulling image \"x\"",
        ),
        (
            container(waiting("CreateContainerConfigError", "secret \"s\" not found"), json!({})),
            "container pulumi: CreateContainerConfigError: secret \"s\" not found",
        ),
        (
            container(waiting("CrashLoopBackOff", "back-off 10s"), terminated.clone()),
            "container pulumi: CrashLoopBackOff: terminated with exit code 1: no certificate",
        ),
        (
            container(waiting("CrashLoopBackOff", "back-off 10s"), json!({})),
            "container pulumi: CrashLoopBackOff: back-off 10s",
        ),
        (container(killed, json!({})), "container pulumi: terminated with exit code 137 (OOMKilled)"),
        (condition, "cannot be scheduled: Unschedulable: 0/1 nodes are available"),
        (
            container(waiting("ErrImagePull", "no match for platform in manifest: not found"), json!({})),
            "container pulumi: ErrImagePull: no match for platform in manifest: not found; the image does not support the \
             architecture of the node: set spec.nodeSelector[kubernetes.io/arch] in podTemplate, or use another image",
        ),
        (
            json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}),
            "Evicted: The node was low on memory.",
        ),
        (
            json!({"initContainerStatuses": [{
                "name": "bootstrap", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": waiting("ErrImageNeverPull", "not present"),
            }]}),
            "init container bootstrap: ErrImageNeverPull: not present",
        ),
    ];
    for (status, problem) in cases {
        assert_eq!(pod(status.clone()).problem.as_deref(), Some(problem), "{status}");
    }
}

#[test]
fn the_label_of_a_pod_contains_its_stateful_set_revision() {
    for (labels, expected) in [
        (json!({"controller-revision-hash": "app-workspace-b"}), Some("app-workspace-b")),
        (json!({"auto.pulumi.com/pool": "key"}), None),
    ] {
        let pod = json!({"metadata": {"name": "app-workspace-0", "labels": labels}});
        let state = read(&serde_json::from_value(pod).expect("valid pod"));
        assert_eq!(state.template_revision.as_deref(), expected);
    }
}

#[test]
fn the_message_of_an_unschedulable_pod_lists_its_resource_requests() {
    let scheduled = |message: &str| {
        let condition =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
        let containers = json!([
            {"name": "pulumi", "resources": {"requests": {"cpu": "2", "memory": "900Gi"}}},
            {"name": "proxy", "resources": {"limits": {"cpu": "1"}}},
        ]);
        let inits = json!([{"name": "bootstrap", "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}}}]);
        let pod = json!({
            "metadata": {"name": "app-workspace-0"}, "spec": {"containers": containers, "initContainers": inits},
            "status": {"conditions": [condition]},
        });
        read(&serde_json::from_value(pod).expect("valid pod")).problem
    };
    let full = "0/1 nodes are available: 1 Insufficient memory.";
    let expected = format!(
        "cannot be scheduled: Unschedulable: {full} (container pulumi requests cpu 2, memory 900Gi; init container bootstrap \
         requests cpu 1m, memory 16Mi)"
    );
    assert_eq!(scheduled(full), Some(expected));
    let tainted = "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.";
    assert_eq!(scheduled(tainted), Some(format!("cannot be scheduled: Unschedulable: {tainted}")));
    let missing = "0/1 nodes are available: persistentvolumeclaim \"cache\" not found";
    let repeated = format!("{missing}. not found");
    assert_eq!(scheduled(&repeated), Some(format!("cannot be scheduled: Unschedulable: {missing}")));
}

#[test]
fn a_normally_starting_pod_has_no_problem() {
    let cases = [
        json!({}),
        json!({"phase": "Pending"}),
        container(waiting("ContainerCreating", ""), json!({})),
        container(waiting("PodInitializing", ""), json!({})),
        container(json!({"running": {}}), json!({"terminated": {"exitCode": 1}})),
        container(json!({"terminated": {"exitCode": 0}}), json!({})),
        json!({"conditions": [{"type": "PodScheduled", "status": "True"}]}),
    ];
    for status in cases {
        assert_eq!(pod(status.clone()).problem, None, "{status}");
    }
}

fn init_pod(container: &str, state: Value, last: Value, restarts: i32) -> PodState {
    let spec = json!({"containers": [], "initContainers": [
        {"name": "bootstrap"}, {"name": "fetch"}, {"name": "proxy", "restartPolicy": "Always"}, {"name": "prepare"},
    ]});
    let status = json!({"phase": "Pending", "initContainerStatuses": [{
        "name": container, "image": "i", "imageID": "", "ready": false, "restartCount": restarts, "state": state,
        "lastState": last,
    }]});
    let metadata = json!({"name": "app-workspace-0", "uid": "pod-uid"});
    read(&serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).expect("valid pod"))
}

#[test]
fn the_message_of_a_failing_init_container_is_the_same_in_each_retry() {
    let failed = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "no database\n"}});
    let running = json!({"running": {"startedAt": "2026-01-01T12:00:00Z"}});
    let first = init_pod("prepare", failed.clone(), json!({}), 0).problem;
    assert_eq!(first.as_deref(), Some("init container prepare: terminated with exit code 3: no database"));
    let again = Some("init container prepare: CrashLoopBackOff: terminated with exit code 3: no database");
    let waits = waiting("CrashLoopBackOff", "back-off 10s");
    for (case, state, last, restarts) in [
        ("waiting for the second attempt", waits, failed.clone(), 0),
        ("the second attempt is running", running.clone(), failed.clone(), 1),
        ("the second attempt failed", failed.clone(), failed.clone(), 1),
    ] {
        assert_eq!(init_pod("prepare", state, last, restarts).problem.as_deref(), again, "{case}");
    }
    for (case, name, state, last) in [
        ("the first attempt", "prepare", running.clone(), json!({})),
        ("succeeded", "prepare", json!({"terminated": {"exitCode": 0}}), failed.clone()),
        ("the container fetch is restarted", "fetch", running.clone(), failed.clone()),
        ("a restarted sidecar", "proxy", running, failed),
    ] {
        assert_eq!(init_pod(name, state, last, 1).problem, None, "{case}");
    }
}

#[test]
fn the_running_init_container_is_detected() {
    let running = || json!({"running": {"startedAt": "2026-01-01T12:00:00Z"}});
    let seen = |name: &str, state: Value| {
        let pod = init_pod(name, state, json!({}), 0);
        (pod.fetching.map(|since| since.to_string()), pod.initializing)
    };
    assert_eq!(seen("bootstrap", running()), (None, None));
    assert_eq!(seen("fetch", running()), (Some("2026-01-01T12:00:00Z".to_owned()), None));
    assert_eq!(seen("fetch", json!({"terminated": {"exitCode": 0}})), (None, None));
    assert_eq!(seen("prepare", running()), (None, Some("prepare".to_owned())));
    assert_eq!(seen("proxy", running()), (None, None));
}

#[test]
fn a_failed_pod_is_neither_running_nor_ready() {
    let status = container(json!({"running": {}}), json!({}));
    let mut failed = status.clone();
    failed["phase"] = json!("Failed");
    failed["containerStatuses"][0]["ready"] = json!(true);
    assert!(pod(status).running);
    let over = pod(failed);
    assert!(!over.running && !over.ready && over.problem.is_some(), "{over:?}");
}

#[test]
fn the_newest_recent_event_explains_a_slow_start() {
    let now: Timestamp = "2026-01-01T12:00:00Z".parse().expect("valid time");
    let event = |kind: &str, reason: &str, time: &str, message: &str| -> StartEventFields {
        serde_json::from_value(json!({
            "metadata": {}, "involvedObject": {}, "reason": reason, "message": message, "lastTimestamp": time,
            "type": kind,
        }))
        .expect("valid event")
    };
    let old = event("Warning", "FailedCreate", "2026-01-01T11:39:00Z", "old");
    let first = event("Warning", "FailedCreate", "2026-01-01T11:59:00Z", "first");
    let second = event("Warning", "FailedCreate", "2026-01-01T11:59:30Z", "exceeded quota ");
    let mended = event("Normal", "SuccessfulCreate", "2026-01-01T11:59:40Z", "created");
    assert_eq!(newest_event(std::slice::from_ref(&old), None, now), None);
    let warnings = [second, first, old];
    let quota = StartEvent::Warning("FailedCreate: exceeded quota".to_owned());
    assert_eq!(newest_event(&warnings, None, now), Some(quota.clone()));
    let at = |time: &str| Some(time.parse::<Timestamp>().expect("valid time"));
    assert_eq!(newest_event(&warnings, at("2026-01-01T11:59:29Z"), now), Some(quota));
    assert_eq!(newest_event(&warnings, at("2026-01-01T11:59:30Z"), now), None, "the pod was requested again");
    assert_eq!(newest_event(&[warnings.as_slice(), &[mended]].concat(), None, now), None);
    let pulling = event("Normal", "Pulling", "2026-01-01T11:59:50Z", "Pulling image \"pulumi/pulumi\"");
    let step = StartEvent::Step("pulling an image: Pulling image \"pulumi/pulumi\"".to_owned());
    assert_eq!(newest_event(&[warnings.as_slice(), &[pulling]].concat(), None, now), Some(step));
}

#[test]
fn the_time_of_an_event_is_the_time_of_its_last_occurrence() {
    let time = |event: Value| {
        let event: StartEventFields = serde_json::from_value(event).expect("valid event");
        event_time(&event).map(|time| time.to_string())
    };
    let (first, later) = ("2026-01-01T12:00:00Z", "2026-01-01T12:01:00.000001Z");
    let cases = [
        (json!({"metadata": {"creationTimestamp": first}, "eventTime": null}), Some(first)),
        (json!({"metadata": {"creationTimestamp": first}, "eventTime": later}), Some(later)),
        (json!({"eventTime": first, "lastTimestamp": later, "series": null}), Some(later)),
        (json!({"lastTimestamp": first, "series": {"count": 2, "lastObservedTime": later}}), Some(later)),
        (json!({}), None),
    ];
    for (event, expected) in cases {
        assert_eq!(time(event.clone()).as_deref(), expected, "{event}");
    }
}

#[test]
fn only_a_starting_pod_is_deleted_with_a_short_grace_period() {
    let of = |grace: Value, started: Value| {
        let container = json!({
            "name": "pulumi", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "started": started,
        });
        let spec = json!({"containers": [{"name": "pulumi"}], "terminationGracePeriodSeconds": grace});
        let pod = json!({"spec": spec, "status": {"containerStatuses": [container]}});
        read(&serde_json::from_value(pod).expect("valid pod")).short_grace_seconds
    };
    assert_eq!(of(json!(600), json!(false)), Some(60));
    assert_eq!(of(json!(600), json!(null)), Some(60), "the container waits");
    assert_eq!(of(json!(10), json!(false)), Some(10), "not longer than the grace period of the pod");
    assert_eq!(of(json!(600), json!(true)), None, "the agent handles SIGTERM");
    assert_eq!(pod(json!({})).short_grace_seconds, Some(60), "the pod is not scheduled");
}

#[test]
fn a_pod_that_no_scheduler_or_kubelet_has_handled_names_the_cause() {
    let of = |spec: Value, status: Value, second: i64| {
        let metadata = json!({"name": "app-workspace-0", "creationTimestamp": "1970-01-01T00:00:00Z"});
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}));
        unhandled(&pod.expect("valid pod"), Timestamp::from_second(second).expect("valid time"))
    };
    let with = |field: &str, value: &str| json!({"containers": [], field: value});
    let pending = json!({"phase": "Pending"});
    let scheduler = "no scheduler named nope has handled the pod: check that this scheduler runs, or change \
                     spec.schedulerName in podTemplate";
    assert_eq!(of(with("schedulerName", "nope"), pending.clone(), 11).as_deref(), Some(scheduler));
    let node = "the kubelet of node gone has not handled the pod: check that the node exists and is ready, or unset \
                spec.nodeName in podTemplate";
    assert_eq!(of(with("nodeName", "gone"), pending.clone(), 11).as_deref(), Some(node));
    let default = of(json!({"containers": []}), pending.clone(), 11).expect("a cause");
    assert!(default.starts_with("no scheduler named default-scheduler has"), "{default}");
    assert_eq!(of(with("schedulerName", "nope"), pending, 10), None, "the pod is new");
    for status in ["True", "False"] {
        let status = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": status}]});
        assert_eq!(of(with("schedulerName", "nope"), status, 99), None);
    }
}
