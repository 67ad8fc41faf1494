//! State of a workspace pod as far as decisions use it, and the reason why it does not start.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::init_containers::{self, FETCH_CONTAINER};
use crate::api::names::{ANNOTATION_REVISION_HASH, ANNOTATION_RUN, PULUMI_CONTAINER, RUN_FINALIZER};

/// Reasons of waiting containers during a normal start.
const ORDINARY_WAITING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Path of the Pulumi Kubernetes Operator's agent in its pods.
const OPERATORS_AGENT: &str = "/share/agent";
/// Term in scheduler messages for a request that does not fit on any node.
const DOES_NOT_FIT: &str = "Insufficient";
const CRASH_LOOP: &str = "CrashLoopBackOff";
/// Maximum length of a message from a container, in bytes.
const MAX_MESSAGE: usize = 2048;

/// State of a workspace pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodState {
    pub name: String,
    pub uid: String,
    pub ip: Option<String>,
    /// Hash of the user's inputs from which the pod was created.
    pub revision_hash: Option<String>,
    /// Whether the pod has the agent of the Pulumi Kubernetes Operator, which uses another protocol.
    pub is_operators: bool,
    /// Whether the pod is being deleted.
    pub terminating: bool,
    /// Whether the pod has the finalizer of an open run.
    pub held: bool,
    /// UID of the Update whose run last marked the pod.
    pub run: Option<String>,
    /// Whether all init containers have completed, so that the `pulumi` container starts or has started.
    pub initialized: bool,
    /// Whether the `pulumi` container is running.
    pub running: bool,
    /// Whether the `pulumi` container is ready.
    pub ready: bool,
    /// Start time of the init container `fetch` while it runs and waits for the source.
    pub fetching: Option<Timestamp>,
    /// Name of the user's init container that is running.
    pub initializing: Option<String>,
    /// Reason why the pod does not start, as Kubernetes reports it. `None` during a normal start.
    pub trouble: Option<String>,
    /// Whether the pod does not start because no node fits.
    pub unschedulable: bool,
}

/// Returns the state of a pod.
pub(super) fn read(pod: &Pod) -> PodState {
    let status = pod.status.as_ref();
    let container = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|containers| containers.iter().find(|container| container.name == PULUMI_CONTAINER));
    // After the loss of the node, the container states are only the last known ones.
    let over = status.is_some_and(|status| matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")));
    let runs = |container: &&ContainerStatus| !over && state(container).is_some_and(|state| state.running.is_some());
    let mut running_init =
        status.iter().flat_map(|status| status.init_container_statuses.iter().flatten()).filter(runs);
    PodState {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        ip: status.and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty()),
        revision_hash: pod.annotations().get(ANNOTATION_REVISION_HASH).cloned(),
        is_operators: is_operators_pod(pod),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        held: pod.finalizers().iter().any(|finalizer| finalizer == RUN_FINALIZER),
        run: pod.annotations().get(ANNOTATION_RUN).cloned(),
        initialized: !over && is_initialized(pod),
        running: container.as_ref().is_some_and(runs),
        ready: !over && container.is_some_and(|container| container.ready),
        fetching: running_init.clone().find(|container| container.name == FETCH_CONTAINER).and_then(started),
        initializing: running_init
            .find(|container| init_containers::of_user(pod).any(|name| name == container.name))
            .map(|container| container.name.clone()),
        trouble: trouble(pod),
        unschedulable: unscheduled(pod).is_some(),
    }
}

/// Returns whether the `pulumi` container runs the agent of the Pulumi Kubernetes Operator.
pub fn is_operators_pod(pod: &Pod) -> bool {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let command =
        containers.find(|container| container.name == PULUMI_CONTAINER).and_then(|pulumi| pulumi.command.as_ref());
    command.is_some_and(|command| command.iter().take(2).any(|word| word == OPERATORS_AGENT))
}

fn is_initialized(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Initialized" && condition.status == "True")
}

fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Failed") {
        let reason = status.reason.as_deref().unwrap_or("Failed");
        return Some(sentence(reason, status.message.as_deref()));
    }
    if let Some(condition) = unscheduled(pod) {
        let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
        let why = sentence(reason, condition.message.as_deref());
        let requests = requests(pod).filter(|_| why.contains(DOES_NOT_FIT));
        let requests = requests.map(|requests| format!(" ({requests})")).unwrap_or_default();
        return Some(format!("cannot be scheduled: {why}{requests}"));
    }
    let mut init_containers = status.init_container_statuses.iter().flatten();
    let init_trouble = init_containers.find_map(|container| {
        let is_tried_again = || init_containers::of_user(pod).any(|name| name == container.name);
        let trouble = container_trouble(container).or_else(|| is_tried_again().then(|| last_failure(container))?);
        trouble.map(|trouble| format!("init container {}: {trouble}", container.name))
    });
    init_trouble.or_else(|| {
        let mut containers = status.container_statuses.iter().flatten();
        containers
            .find_map(|container| Some(format!("container {}: {}", container.name, container_trouble(container)?)))
    })
}

/// Returns the condition of a pod for which the scheduler has found no node.
fn unscheduled(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// Returns the requests of all containers of a pod.
fn requests(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let inits = spec.init_containers.iter().flatten().filter_map(|container| requested("init container", container));
    let containers = spec.containers.iter().filter_map(|container| requested("container", container));
    let all: Vec<String> = containers.chain(inits).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Returns the requests of a container, such as `container pulumi requests memory 16Mi`.
fn requested(what: &str, container: &Container) -> Option<String> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    let amounts: Vec<String> = requests.iter().map(|(resource, amount)| format!("{resource} {}", amount.0)).collect();
    (!amounts.is_empty()).then(|| format!("{what} {} requests {}", container.name, amounts.join(", ")))
}

fn container_trouble(container: &ContainerStatus) -> Option<String> {
    let state = state(container)?;
    let Some(waiting) = &state.waiting else {
        let terminated = state.terminated.as_ref().filter(|terminated| terminated.exit_code != 0)?;
        return Some(failure(container, terminated));
    };
    let reason = waiting.reason.as_deref().filter(|reason| !ORDINARY_WAITING.contains(reason))?;
    // The message of a crash loop contains only the backoff. The last termination contains the cause.
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    Some(match last.filter(|_| reason == CRASH_LOOP) {
        Some(last) => failure(container, last),
        None => sentence(reason, waiting.message.as_deref()),
    })
}

/// Returns the last failure of an init container that is being retried. The failure is reported until a retry succeeds,
/// because two messages would otherwise alternate with each retry.
fn last_failure(container: &ContainerStatus) -> Option<String> {
    state(container)?.running.as_ref()?;
    let last = container.last_state.as_ref()?.terminated.as_ref()?;
    (last.exit_code != 0).then(|| failure(container, last))
}

/// Describes a failure. The text is independent of the progress of the next retry.
fn failure(container: &ContainerStatus, last: &ContainerStateTerminated) -> String {
    let is_repeated = container.restart_count > 0 || state(container).is_some_and(|state| state.terminated.is_none());
    if is_repeated { sentence(CRASH_LOOP, Some(&end(last))) } else { end(last) }
}

fn started(container: &ContainerStatus) -> Option<Timestamp> {
    state(container)?.running.as_ref()?.started_at.as_ref().map(|time| time.0)
}

fn state(container: &ContainerStatus) -> Option<&ContainerState> {
    container.state.as_ref()
}

fn end(terminated: &ContainerStateTerminated) -> String {
    let ended = format!("terminated with exit code {}", terminated.exit_code);
    let ended = match terminated.reason.as_deref() {
        Some(reason) if reason != "Error" => format!("{ended} ({reason})"),
        _ => ended,
    };
    sentence(&ended, terminated.message.as_deref())
}

fn sentence(reason: &str, message: Option<&str>) -> String {
    let message = message.map(str::trim).unwrap_or_default();
    if message.is_empty() {
        return reason.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE);
    format!("{reason}: {}", message.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> PodState {
        let metadata = json!({"name": "app-workspace-0", "uid": "pod-uid"});
        read(&serde_json::from_value(json!({"metadata": metadata, "status": status})).expect("a pod"))
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
    fn the_trouble_of_a_pod_contains_the_kubelet_message() {
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
        for (status, trouble) in cases {
            assert_eq!(pod(status.clone()).trouble.as_deref(), Some(trouble), "{status}");
        }
    }

    #[test]
    fn an_unschedulable_pod_message_lists_its_resource_requests() {
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
            read(&serde_json::from_value(pod).expect("a pod")).trouble
        };
        let full = "0/1 nodes are available: 1 Insufficient memory.";
        let wanted = format!(
            "cannot be scheduled: Unschedulable: {full} (container pulumi requests cpu 2, memory 900Gi; init container bootstrap \
             requests cpu 1m, memory 16Mi)"
        );
        assert_eq!(scheduled(full), Some(wanted));
        let tainted = "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.";
        assert_eq!(scheduled(tainted), Some(format!("cannot be scheduled: Unschedulable: {tainted}")));
    }

    #[test]
    fn a_normal_pod_start_reports_no_trouble() {
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
            assert_eq!(pod(status.clone()).trouble, None, "{status}");
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
        read(&serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).expect("a pod"))
    }

    #[test]
    fn a_failing_init_container_has_a_stable_message_across_retries() {
        let failed = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "no database\n"}});
        let running = json!({"running": {"startedAt": "2026-01-01T12:00:00Z"}});
        let first = init_pod("prepare", failed.clone(), json!({}), 0).trouble;
        assert_eq!(first.as_deref(), Some("init container prepare: terminated with exit code 3: no database"));
        let again = Some("init container prepare: CrashLoopBackOff: terminated with exit code 3: no database");
        let waits = waiting("CrashLoopBackOff", "back-off 10s");
        for (case, state, last, restarts) in [
            ("it waits for its second try", waits, failed.clone(), 0),
            ("it runs once more", running.clone(), failed.clone(), 1),
            ("it failed once more", failed.clone(), failed.clone(), 1),
        ] {
            assert_eq!(init_pod("prepare", state, last, restarts).trouble.as_deref(), again, "{case}");
        }
        for (case, name, state, last) in [
            ("the first try", "prepare", running.clone(), json!({})),
            ("it has succeeded", "prepare", json!({"terminated": {"exitCode": 0}}), failed.clone()),
            ("fetch can take the source again", "fetch", running.clone(), failed.clone()),
            ("a side-car that was started again", "proxy", running, failed),
        ] {
            assert_eq!(init_pod(name, state, last, 1).trouble, None, "{case}");
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
        assert!(!over.running && !over.ready && over.trouble.is_some(), "{over:?}");
    }
}
