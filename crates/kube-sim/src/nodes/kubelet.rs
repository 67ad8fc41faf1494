//! The life of a pod on a node.

use serde_json::{Value, json};

use super::{KUBELET, NODE_CONTROLLER, NodeStep, Nodes, condition, pod_key, set_condition, set_field};
use crate::metadata;
use crate::status::Status;
use crate::store::Key;

/// Exit code of a process that SIGTERM has ended.
const TERMINATED: i32 = 143;

/// Lists of containers in the spec, and of their states in the status.
const LISTS: [(&str, &str); 2] = [("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")];

/// State of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    /// Contains the exit code.
    Terminated(i64),
}

fn statuses<'v>(pod: &'v Value, list: &str) -> &'v [Value] {
    pod.pointer(&format!("/status/{list}")).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn state(status: &Value) -> State {
    if status.pointer("/state/running").is_some() {
        return State::Running;
    }
    match status.pointer("/state/terminated/exitCode").and_then(Value::as_i64) {
        Some(code) => State::Terminated(code),
        None => State::Waiting,
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn phase(pod: &Value) -> &str {
    pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default()
}

fn node_of(pod: &Value) -> &str {
    pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default()
}

fn is_over(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

impl Nodes {
    /// Returns the next step in the life of a pod.
    pub(super) fn pod_step(&self, pod: &Value) -> Option<NodeStep> {
        let key = pod_key(pod);
        let node = node_of(pod);
        if node.is_empty() {
            return self.scheduling_step(pod, key);
        }
        if !self.node_exists(node) {
            // Only the removal of its finalizers ends a pod that has been removed once.
            let is_removed = metadata::get(pod, "deletionGracePeriodSeconds").and_then(Value::as_i64) == Some(0);
            return (!is_removed).then_some(NodeStep::RemoveFromMissingNode { pod: key });
        }
        if self.world().lost.contains(node) {
            return lost_step(pod, key);
        }
        if metadata::is_deleting(pod) {
            return deletion_step(pod, key);
        }
        if is_over(pod) {
            return None;
        }
        if pod.pointer("/status/startTime").is_none() {
            return Some(NodeStep::Admit { pod: key });
        }
        self.container_step(pod, key)
    }

    fn scheduling_step(&self, pod: &Value, key: Key) -> Option<NodeStep> {
        if metadata::is_deleting(pod) || is_over(pod) {
            return None;
        }
        let fits = |node: &&std::sync::Arc<Value>| {
            condition(node, "Ready") == Some("True")
                && node.pointer("/spec/unschedulable") != Some(&Value::Bool(true))
                && !self.world().lost.contains(metadata::text(node, "name"))
        };
        let nodes = self.server.list(&super::node_key("").resource, None);
        let node = nodes.iter().find(fits).filter(|_| !self.world().unschedulable.contains(&key));
        match node {
            Some(node) => Some(NodeStep::Schedule { pod: key, node: metadata::text(node, "name").to_owned() }),
            None if condition(pod, "PodScheduled") == Some("False") => None,
            None => Some(NodeStep::ReportUnschedulable { pod: key }),
        }
    }

    fn container_step(&self, pod: &Value, key: Key) -> Option<NodeStep> {
        let does_restart = pod.pointer("/spec/restartPolicy").and_then(Value::as_str) != Some("Never");
        for (list, status_list) in LISTS {
            let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
            for (container, status) in containers.zip(statuses(pod, status_list)) {
                let name = text(container, "name").to_owned();
                let is_sidecar = text(container, "restartPolicy") == "Always";
                let is_init = list == "initContainers";
                match state(status) {
                    State::Waiting if self.world().missing_images.contains(text(container, "image")) => {
                        let reason =
                            status.pointer("/state/waiting/reason").and_then(Value::as_str).unwrap_or_default();
                        let is_reported = reason == "ImagePullBackOff";
                        return (!is_reported).then_some(NodeStep::ReportPullError { pod: key, container: name });
                    }
                    State::Waiting => return Some(NodeStep::StartContainer { pod: key, container: name }),
                    State::Running if is_init && !is_sidecar => {
                        return Some(NodeStep::FinishInit { pod: key, container: name });
                    }
                    State::Terminated(0) if is_init && !is_sidecar => {}
                    State::Terminated(_) if does_restart => {
                        return Some(NodeStep::StartContainer { pod: key, container: name });
                    }
                    State::Terminated(_) if is_init => return None,
                    State::Terminated(_) | State::Running => {}
                }
            }
        }
        let all_run = statuses(pod, "containerStatuses").iter().all(|status| state(status) == State::Running);
        let can_be_ready = !self.world().unready.contains(&key);
        (all_run && can_be_ready && condition(pod, "Ready") != Some("True"))
            .then_some(NodeStep::BecomeReady { pod: key })
    }

    pub(super) fn act_as_kubelet(&self, step: &NodeStep) -> Result<(), Status> {
        let now = self.now();
        match step {
            NodeStep::Admit { pod } => self.edit_pod(pod, KUBELET, |object| admit(object, &now)),
            NodeStep::ReportPullError { pod, container } => self.edit_pod(pod, KUBELET, |object| {
                let waiting =
                    json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image" } });
                edit_status(object, container, |status| set_field(status, "state", waiting));
            }),
            NodeStep::StartContainer { pod, container } => {
                self.edit_pod(pod, KUBELET, |object| start_container(object, container, &now))
            }
            NodeStep::FinishInit { pod, container } => {
                self.edit_pod(pod, KUBELET, |object| exit_container(object, container, 0, "Completed", &now))
            }
            NodeStep::BecomeReady { pod } => self.edit_pod(pod, KUBELET, |object| set_ready(object, true, &now)),
            NodeStep::Terminate { pod } => self.edit_pod(pod, KUBELET, |object| terminate(object, TERMINATED, &now)),
            NodeStep::Remove { pod } => self.remove_pod(pod, KUBELET),
            NodeStep::ReportNotReady { pod } => self.edit_pod(pod, NODE_CONTROLLER, |object| {
                set_condition(object, "Ready", false, Some(("NodeNotReady", "Node is not ready")), &now);
            }),
            NodeStep::EvictFromLostNode { pod } => self.server.delete_as(pod, NODE_CONTROLLER, &Value::Null),
            NodeStep::RemoveFromMissingNode { pod } => {
                self.edit_pod(pod, NODE_CONTROLLER, |object| {
                    if let Some(status) = object
                        .get_mut("status")
                        .filter(|status| !matches!(text(status, "phase"), "Succeeded" | "Failed"))
                    {
                        set_field(status, "phase", "Failed".into());
                    }
                    set_condition(object, "Ready", false, None, &now);
                })?;
                self.remove_pod(pod, NODE_CONTROLLER)
            }
            NodeStep::StatefulSet { .. } | NodeStep::Schedule { .. } | NodeStep::ReportUnschedulable { .. } => Ok(()),
        }
    }

    /// Deletes a pod without a grace period.
    fn remove_pod(&self, pod: &Key, actor: &str) -> Result<(), Status> {
        let uid = self.server.get_key(pod).map(|object| metadata::text(&object, "uid").to_owned()).unwrap_or_default();
        self.server.delete_as(pod, actor, &json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": uid } }))
    }

    /// Ends a container with an exit code and a reason, such as `OOMKilled`. The kubelet restarts it with a later step.
    ///
    /// # Errors
    /// Returns the response of the API server if the pod does not exist.
    pub fn exit_container(&self, pod: &Key, container: &str, code: i32, reason: &str) -> Result<(), Status> {
        let now = self.now();
        self.edit_pod(pod, KUBELET, |object| exit_container(object, container, code, reason, &now))
    }

    /// Ends the containers of a pod that is being deleted. One container exits with an exit code and a termination
    /// message, and SIGTERM ends the others.
    ///
    /// # Errors
    /// Returns the response of the API server if the pod does not exist.
    pub fn end_containers(&self, pod: &Key, container: &str, code: i32, message: &str) -> Result<(), Status> {
        let now = self.now();
        let reason = if code == 0 { "Completed" } else { "Error" };
        self.edit_pod(pod, KUBELET, |object| {
            exit_container(object, container, code, reason, &now);
            if !message.is_empty() {
                edit_status(object, container, |status| {
                    if let Some(terminated) = status.pointer_mut("/state/terminated") {
                        set_field(terminated, "message", message.into());
                    }
                });
            }
            terminate(object, TERMINATED, &now);
            let has_succeeded =
                statuses(object, "containerStatuses").iter().all(|status| state(status) == State::Terminated(0));
            if let Some(status) = object.get_mut("status").filter(|_| has_succeeded) {
                set_field(status, "phase", "Succeeded".into());
            }
        })
    }

    /// Evicts a pod, as the kubelet does if its node lacks memory or disk space: the pod fails with the reason `Evicted`,
    /// and its containers exit.
    ///
    /// # Errors
    /// Returns the response of the API server if the pod does not exist.
    pub fn evict(&self, pod: &Key, message: &str) -> Result<(), Status> {
        let now = self.now();
        self.edit_pod(pod, KUBELET, |object| {
            terminate(object, 137, &now);
            if let Some(status) = object.get_mut("status") {
                set_field(status, "phase", "Failed".into());
                set_field(status, "reason", "Evicted".into());
                set_field(status, "message", message.into());
            }
        })
    }
}

fn lost_step(pod: &Value, key: Key) -> Option<NodeStep> {
    if condition(pod, "Ready") == Some("True") {
        return Some(NodeStep::ReportNotReady { pod: key });
    }
    (!metadata::is_deleting(pod)).then_some(NodeStep::EvictFromLostNode { pod: key })
}

fn deletion_step(pod: &Value, key: Key) -> Option<NodeStep> {
    let lists = LISTS.iter().flat_map(|(_, list)| statuses(pod, list));
    if lists.clone().any(|status| state(status) == State::Running) {
        return Some(NodeStep::Terminate { pod: key });
    }
    let is_removed = metadata::get(pod, "deletionGracePeriodSeconds").and_then(Value::as_i64) == Some(0);
    (!is_removed || metadata::finalizers(pod).is_empty()).then_some(NodeStep::Remove { pod: key })
}

fn admit(pod: &mut Value, now: &str) {
    for (list, status_list) in LISTS {
        let has_init =
            pod.pointer("/spec/initContainers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
        let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).cloned().unwrap_or_default();
        let waiting = |container: &Value| {
            json!({
                "name": text(container, "name"), "image": text(container, "image"), "imageID": "", "ready": false,
                "started": false, "restartCount": 0, "state": { "waiting": { "reason": reason } }, "lastState": {},
            })
        };
        if !containers.is_empty()
            && let Some(status) = pod.get_mut("status")
        {
            set_field(status, status_list, containers.iter().map(waiting).collect());
        }
    }
    if let Some(status) = pod.get_mut("status") {
        set_field(status, "startTime", now.into());
        set_field(status, "hostIP", "198.18.0.1".into());
    }
    for (kind, holds) in [("PodScheduled", true), ("Initialized", false), ("ContainersReady", false), ("Ready", false)]
    {
        set_condition(pod, kind, holds, None, now);
    }
    update_phase(pod, now);
}

fn edit_status(pod: &mut Value, container: &str, change: impl FnOnce(&mut Value)) {
    let Some(status) = pod.get_mut("status") else { return };
    for (_, list) in LISTS {
        let statuses = status.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for status in statuses {
            if text(status, "name") == container {
                return change(status);
            }
        }
    }
}

fn start_container(pod: &mut Value, container: &str, now: &str) {
    let uid = metadata::text(pod, "uid").to_owned();
    edit_status(pod, container, |status| {
        let mut count = status.get("restartCount").and_then(Value::as_i64).unwrap_or_default();
        if let Some(terminated) = status.pointer("/state/terminated").cloned() {
            count += 1;
            set_field(status, "lastState", json!({ "terminated": terminated }));
        }
        set_field(status, "restartCount", count.into());
        set_field(status, "state", json!({ "running": { "startedAt": now } }));
        set_field(status, "started", true.into());
        set_field(status, "containerID", format!("sim://{uid}/{container}/{count}").into());
    });
    update_phase(pod, now);
}

fn exit_container(pod: &mut Value, container: &str, code: i32, reason: &str, now: &str) {
    edit_status(pod, container, |status| {
        let started = status.pointer("/state/running/startedAt").cloned().unwrap_or_default();
        let id = status.get("containerID").cloned().unwrap_or_default();
        let terminated =
            json!({ "exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now, "containerID": id });
        set_field(status, "state", json!({ "terminated": terminated }));
        set_field(status, "ready", false.into());
        set_field(status, "started", false.into());
    });
    update_phase(pod, now);
}

/// Ends all running containers.
fn terminate(pod: &mut Value, code: i32, now: &str) {
    let running: Vec<String> = LISTS
        .iter()
        .flat_map(|(_, list)| statuses(pod, list))
        .filter(|status| state(status) == State::Running)
        .map(|status| text(status, "name").to_owned())
        .collect();
    for container in running {
        exit_container(pod, &container, code, "Error", now);
    }
    set_ready(pod, false, now);
    if let Some(status) = pod.get_mut("status") {
        set_field(status, "phase", "Failed".into());
    }
}

fn set_ready(pod: &mut Value, is_ready: bool, now: &str) {
    let names: Vec<String> =
        statuses(pod, "containerStatuses").iter().map(|status| text(status, "name").to_owned()).collect();
    for name in names {
        edit_status(pod, &name, |status| set_field(status, "ready", is_ready.into()));
    }
    set_condition(pod, "ContainersReady", is_ready, None, now);
    set_condition(pod, "Ready", is_ready, None, now);
}

/// Sets the phase and the conditions that follow from the states of the containers.
fn update_phase(pod: &mut Value, now: &str) {
    let is_sidecar = |name: &str| {
        let list = pod.pointer("/spec/initContainers").and_then(Value::as_array).into_iter().flatten();
        list.filter(|container| text(container, "name") == name)
            .any(|container| text(container, "restartPolicy") == "Always")
    };
    let init = statuses(pod, "initContainerStatuses");
    let is_initialized = init.iter().all(|status| match state(status) {
        State::Terminated(code) => code == 0,
        State::Running => is_sidecar(text(status, "name")),
        State::Waiting => false,
    });
    let containers = statuses(pod, "containerStatuses");
    let all_ready = containers.iter().all(|status| status.get("ready") == Some(&Value::Bool(true)));
    let has_started = containers.iter().any(|status| state(status) != State::Waiting);
    let never_restarts = pod.pointer("/spec/restartPolicy").and_then(Value::as_str) == Some("Never");
    let codes = || {
        containers.iter().map(|status| match state(status) {
            State::Terminated(code) => Some(code),
            _ => None,
        })
    };
    let phase = match codes().collect::<Option<Vec<i64>>>() {
        Some(codes) if never_restarts && has_started => {
            if codes.iter().all(|code| *code == 0) {
                "Succeeded"
            } else {
                "Failed"
            }
        }
        _ if has_started => "Running",
        _ => "Pending",
    };
    let is_not_ready = !all_ready && condition(pod, "Ready") == Some("True");
    set_condition(pod, "Initialized", is_initialized, None, now);
    if is_not_ready {
        set_condition(
            pod,
            "ContainersReady",
            false,
            Some(("ContainersNotReady", "containers with unready status")),
            now,
        );
        set_condition(pod, "Ready", false, Some(("ContainersNotReady", "containers with unready status")), now);
    }
    let ip = pod_ip(metadata::text(pod, "uid"));
    if let Some(status) = pod.get_mut("status") {
        set_field(status, "phase", phase.into());
        if phase == "Running" && text(status, "podIP").is_empty() {
            set_field(status, "podIP", ip.clone().into());
            set_field(status, "podIPs", json!([{ "ip": ip }]));
        }
    }
}

/// Returns the address of a pod, which follows from its UID.
fn pod_ip(uid: &str) -> String {
    let sum = uid.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    format!("10.{}.{}.{}", 128 + sum % 64, sum / 64 % 256, 1 + sum / 16384 % 254)
}
