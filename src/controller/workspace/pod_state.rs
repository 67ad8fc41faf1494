//! What a workspace pod's status says, and why it does not start: the pod's own reasons, for people.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use kube::ResourceExt;

use crate::api::names::{ANNOTATION_REVISION_HASH, PULUMI_CONTAINER, RUN_FINALIZER};

/// Reasons of a waiting container that are part of every start.
const ORDINARY_WAITING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The longest message of a container that is passed on, in bytes.
const LONGEST_MESSAGE: usize = 2048;

/// A workspace pod, as far as decisions need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodState {
    pub name: String,
    pub uid: String,
    pub ip: Option<String>,
    /// Hash of the user's inputs that it was made from.
    pub revision_hash: Option<String>,
    /// It is being deleted.
    pub terminating: bool,
    /// It carries the finalizer of an open run.
    pub held: bool,
    /// The `pulumi` container runs.
    pub running: bool,
    /// The `pulumi` container is ready.
    pub ready: bool,
    /// Why it does not start, in its own words; none while all goes as it should.
    pub trouble: Option<String>,
}

/// Reads a pod.
pub(super) fn read(pod: &Pod) -> PodState {
    let status = pod.status.as_ref();
    let container = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|containers| containers.iter().find(|container| container.name == PULUMI_CONTAINER));
    PodState {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        ip: status.and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty()),
        revision_hash: pod.annotations().get(ANNOTATION_REVISION_HASH).cloned(),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        held: pod.finalizers().iter().any(|finalizer| finalizer == RUN_FINALIZER),
        running: container.is_some_and(|container| state(container).is_some_and(|state| state.running.is_some())),
        ready: container.is_some_and(|container| container.ready),
        trouble: trouble(pod),
    }
}

fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Failed") {
        let reason = status.reason.as_deref().unwrap_or("Failed");
        return Some(sentence(reason, status.message.as_deref()));
    }
    let conditions = status.conditions.iter().flatten();
    let unscheduled =
        conditions.clone().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
        return Some(format!("it cannot be scheduled: {}", sentence(reason, condition.message.as_deref())));
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    containers.filter_map(container_trouble).next()
}

fn container_trouble(container: &ContainerStatus) -> Option<String> {
    let state = state(container)?;
    let trouble = if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().filter(|reason| !ORDINARY_WAITING.contains(reason))?;
        // A crash loop's own message says only how long it waits; the last end says why.
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        match last.filter(|_| reason == "CrashLoopBackOff") {
            Some(last) => sentence(reason, Some(&end(last))),
            None => sentence(reason, waiting.message.as_deref()),
        }
    } else {
        let terminated = state.terminated.as_ref().filter(|terminated| terminated.exit_code != 0)?;
        end(terminated)
    };
    Some(format!("container {}: {trouble}", container.name))
}

fn state(container: &ContainerStatus) -> Option<&ContainerState> {
    container.state.as_ref()
}

fn end(terminated: &ContainerStateTerminated) -> String {
    let ended = format!("it ended with exit code {}", terminated.exit_code);
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
    let end = message.floor_char_boundary(LONGEST_MESSAGE);
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
    fn a_pod_that_cannot_start_says_why_in_its_own_words() {
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
                "container pulumi: CrashLoopBackOff: it ended with exit code 1: no certificate",
            ),
            (
                container(waiting("CrashLoopBackOff", "back-off 10s"), json!({})),
                "container pulumi: CrashLoopBackOff: back-off 10s",
            ),
            (container(killed, json!({})), "container pulumi: it ended with exit code 137 (OOMKilled)"),
            (condition, "it cannot be scheduled: Unschedulable: 0/1 nodes are available"),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}),
                "Evicted: The node was low on memory.",
            ),
            (
                json!({"initContainerStatuses": [{
                    "name": "bootstrap", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": waiting("ErrImageNeverPull", "not present"),
                }]}),
                "container bootstrap: ErrImageNeverPull: not present",
            ),
        ];
        for (status, trouble) in cases {
            assert_eq!(pod(status.clone()).trouble.as_deref(), Some(trouble), "{status}");
        }
    }

    #[test]
    fn an_ordinary_start_is_no_trouble() {
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
}
