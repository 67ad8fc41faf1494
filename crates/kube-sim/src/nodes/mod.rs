//! Nodes, the kubelet, the scheduler and the StatefulSet controller, as actors whose steps the caller triggers.
//!
//! [`Nodes::steps`] returns what these components can do now, and [`Nodes::act`] does it. Nothing else changes a pod, so a
//! test chooses the order and the time of each step. [`Nodes::run`] does the steps with latencies on tokio's clock.
//! Further methods simulate what does not happen by itself: containers that exit, evictions, and lost nodes.

mod kubelet;
mod stateful_set;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metadata;
use crate::request::Verb;
use crate::server::Server;
use crate::state::format_time;
use crate::status::Status;
use crate::store::{GroupResource, Key};

const SCHEDULER: &str = "scheduler";
const KUBELET: &str = "kubelet";
const NODE_CONTROLLER: &str = "node-controller";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Step that a component of the cluster can do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeStep {
    /// The StatefulSet controller writes a status, and creates or deletes the pod.
    StatefulSet { key: Key, action: StatefulSetAction },
    /// The scheduler selects a node.
    Schedule { pod: Key, node: String },
    /// The scheduler reports that no node fits.
    ReportUnschedulable { pod: Key },
    /// The kubelet accepts the pod.
    Admit { pod: Key },
    /// The kubelet reports that it cannot pull the image of a container.
    ReportPullError { pod: Key, container: String },
    /// The kubelet starts a container for the first time or again.
    StartContainer { pod: Key, container: String },
    /// An init container exits successfully.
    FinishInit { pod: Key, container: String },
    /// The containers of the pod become ready.
    BecomeReady { pod: Key },
    /// The containers of a pod that is being deleted exit.
    Terminate { pod: Key },
    /// The kubelet removes a pod whose containers have exited.
    Remove { pod: Key },
    /// The node controller reports that the pod on a lost node is not ready.
    ReportNotReady { pod: Key },
    /// The node controller deletes a pod on a lost node.
    EvictFromLostNode { pod: Key },
    /// The garbage collector of pods removes a pod whose node no longer exists.
    RemoveFromMissingNode { pod: Key },
}

/// Action of the StatefulSet controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatefulSetAction {
    CreatePod,
    DeletePod,
    WriteStatus,
}

/// Properties of the world that are not in the API.
#[derive(Debug, Default)]
struct World {
    /// Images that cannot be pulled.
    missing_images: BTreeSet<String>,
    /// Pods that never become ready.
    unready: BTreeSet<Key>,
    /// Pods that no node fits.
    unschedulable: BTreeSet<Key>,
    /// Nodes whose kubelet does not respond.
    lost: BTreeSet<String>,
    /// Number of times that the disk of a node has been replaced.
    disks: BTreeMap<String, u32>,
}

/// Nodes and the components that manage pods. Cheap to clone.
#[derive(Clone)]
pub struct Nodes {
    server: Server,
    world: Arc<Mutex<World>>,
}

impl Nodes {
    /// Creates the components for a server, without any node.
    pub fn new(server: &Server) -> Self {
        Nodes { server: server.clone(), world: Arc::default() }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node that is ready.
    ///
    /// # Errors
    /// Returns the response of the API server, for example if a node with this name exists.
    pub fn add_node(&self, name: &str) -> Result<(), Status> {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } });
        self.server.request(Verb::Create, &node, "", NODE_CONTROLLER)?;
        self.world().lost.remove(name);
        self.set_node_ready(name, true)
    }

    /// Makes the kubelet of a node unreachable: its pods no longer change, and the node is not ready.
    ///
    /// # Errors
    /// Returns the response of the API server if the node does not exist.
    pub fn lose_node(&self, name: &str) -> Result<(), Status> {
        self.world().lost.insert(name.to_owned());
        self.set_node_ready(name, false)
    }

    /// Makes a lost node reachable again. Its containers have continued.
    ///
    /// # Errors
    /// Returns the response of the API server if the node does not exist.
    pub fn recover_node(&self, name: &str) -> Result<(), Status> {
        self.world().lost.remove(name);
        self.set_node_ready(name, true)
    }

    /// Removes a node with its machine.
    ///
    /// # Errors
    /// Returns the response of the API server if the node does not exist.
    pub fn remove_node(&self, name: &str) -> Result<(), Status> {
        self.world().lost.remove(name);
        *self.world().disks.entry(name.to_owned()).or_default() += 1;
        self.server.delete_as(&node_key(name), NODE_CONTROLLER, &Value::Null)
    }

    fn set_node_ready(&self, name: &str, is_ready: bool) -> Result<(), Status> {
        let now = self.now();
        let condition = match is_ready {
            true => {
                json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status" })
            }
            false => {
                json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status." })
            }
        };
        self.server.edit_metadata(&node_key(name), NODE_CONTROLLER, |node| {
            let mut condition = condition;
            set_field(&mut condition, "lastTransitionTime", now.clone().into());
            set_field(node, "status", json!({ "conditions": [condition] }));
            let taint = |effect: &str| json!({ "key": UNREACHABLE, "effect": effect, "timeAdded": now });
            let taints =
                if is_ready { json!({}) } else { json!({ "taints": [taint("NoSchedule"), taint("NoExecute")] }) };
            set_field(node, "spec", taints);
        })
    }

    /// Sets whether the kubelets can pull an image.
    pub fn set_image_available(&self, image: &str, is_available: bool) {
        let mut world = self.world();
        if is_available {
            world.missing_images.remove(image)
        } else {
            world.missing_images.insert(image.to_owned())
        };
    }

    /// Sets whether a pod with this key can become ready.
    pub fn set_can_be_ready(&self, pod: &Key, can: bool) {
        let mut world = self.world();
        if can {
            world.unready.remove(pod)
        } else {
            world.unready.insert(pod.clone())
        };
    }

    /// Sets whether any node fits a pod with this key.
    pub fn set_schedulable(&self, pod: &Key, is_schedulable: bool) {
        let mut world = self.world();
        if is_schedulable {
            world.unschedulable.remove(pod)
        } else {
            world.unschedulable.insert(pod.clone())
        };
    }

    /// Returns the steps that the components can do now, in a fixed order.
    pub fn steps(&self) -> Vec<NodeStep> {
        let mut steps = self.stateful_set_steps();
        for pod in self.server.list(&pods(), None) {
            steps.extend(self.pod_step(&pod));
        }
        steps
    }

    /// Does a step. A step that is no longer due has no effect.
    ///
    /// # Errors
    /// Returns the response of the API server, for example if an admission hook denies the creation of a pod.
    pub fn act(&self, step: &NodeStep) -> Result<(), Status> {
        match step {
            NodeStep::StatefulSet { key, action } => self.act_on_stateful_set(key, *action),
            NodeStep::Schedule { pod, node } => self.schedule(pod, node),
            NodeStep::ReportUnschedulable { pod } => self.report_unschedulable(pod),
            other => self.act_as_kubelet(other),
        }
    }

    /// Does the first possible step. Returns it, or `None` if there is nothing to do.
    pub fn step(&self) -> Option<NodeStep> {
        let step = self.steps().into_iter().next()?;
        // A failed creation of a pod is reported in an event.
        let _ = self.act(&step);
        Some(step)
    }

    /// Does all steps, including those that become possible, without latencies. Returns the number of steps. The limit
    /// prevents an endless loop, for example if a pod cannot be created.
    pub fn run_until_idle(&self) -> usize {
        const LIMIT: usize = 1000;
        (0..LIMIT).take_while(|_| self.step().is_some()).count()
    }

    /// Does steps as soon as their latencies have passed, without an end. `latency` returns the latency of a step.
    pub async fn run(&self, mut latency: impl FnMut(&NodeStep) -> Duration) {
        /// Time after which a step that failed is repeated.
        const RETRY: Duration = Duration::from_secs(10);
        let changed = Arc::new(Notify::new());
        let notify = changed.clone();
        self.server.observe(move |_| notify.notify_one());
        let mut due: BTreeMap<NodeStep, Instant> = BTreeMap::new();
        loop {
            let steps = self.steps();
            due.retain(|step, _| steps.contains(step));
            for step in steps {
                due.entry(step).or_insert_with_key(|step| Instant::now() + latency(step));
            }
            let next = due
                .iter()
                .min_by_key(|(step, time)| (**time, (*step).clone()))
                .map(|(step, time)| (step.clone(), *time));
            let Some((step, time)) = next else {
                changed.notified().await;
                continue;
            };
            if time > Instant::now() {
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(time) => {}
                    () = changed.notified() => {}
                }
                continue;
            }
            due.remove(&step);
            if self.act(&step).is_err() {
                due.insert(step, Instant::now() + RETRY);
            }
        }
    }

    /// Returns the identity of the data in a volume of a pod. Data survive a restart of the container, and the data of a
    /// claim also survive the pod. Returns `None` if the pod or the volume does not exist.
    pub fn volume_data(&self, pod: &Key, volume: &str) -> Option<String> {
        let object = self.server.get_key(pod)?;
        let volumes = object.pointer("/spec/volumes")?.as_array()?;
        let source = volumes.iter().find(|found| found.get("name").and_then(Value::as_str) == Some(volume))?;
        let claim = source.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str);
        if let Some(claim) = claim {
            let key = Key::new(GroupResource::new("", "persistentvolumeclaims"), pod.namespace(), claim);
            let uid = self.server.get_key(&key).map(|claim| metadata::text(&claim, "uid").to_owned());
            return Some(format!("claim {} {}", claim, uid.unwrap_or_default()));
        }
        let node = object.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        let disk = self.world().disks.get(node).copied().unwrap_or_default();
        Some(format!("pod {} node {node} disk {disk}", metadata::text(&object, "uid")))
    }

    fn now(&self) -> String {
        format_time(self.server.now())
    }

    fn node_exists(&self, name: &str) -> bool {
        self.server.get_key(&node_key(name)).is_some()
    }

    /// Changes a pod as a component does.
    fn edit_pod(&self, pod: &Key, actor: &str, change: impl FnOnce(&mut Value)) -> Result<(), Status> {
        self.server.edit_metadata(pod, actor, change)
    }

    fn schedule(&self, pod: &Key, node: &str) -> Result<(), Status> {
        let now = self.now();
        self.edit_pod(pod, SCHEDULER, |object| {
            if let Some(spec) = object.get_mut("spec") {
                set_field(spec, "nodeName", node.into());
            }
            set_condition(object, "PodScheduled", true, None, &now);
        })
    }

    fn report_unschedulable(&self, pod: &Key) -> Result<(), Status> {
        let now = self.now();
        let message = "0/1 nodes are available: 1 Insufficient memory.";
        self.edit_pod(pod, SCHEDULER, |object| {
            set_condition(object, "PodScheduled", false, Some(("Unschedulable", message)), &now);
        })
    }
}

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

fn node_key(name: &str) -> Key {
    Key::new(GroupResource::new("", "nodes"), None, name)
}

fn pod_key(pod: &Value) -> Key {
    Key::new(pods(), Some(metadata::text(pod, "namespace")), metadata::text(pod, "name"))
}

fn set_field(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(map) = object {
        map.insert(name.to_owned(), value);
    }
}

/// Returns the status of a condition.
fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v str> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions
        .iter()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some(kind))?
        .get("status")?
        .as_str()
}

/// Sets a condition in a status.
fn set_condition(object: &mut Value, kind: &str, holds: bool, why: Option<(&str, &str)>, now: &str) {
    let status = if holds { "True" } else { "False" };
    if condition(object, kind) == Some(status) && why.is_none() {
        return;
    }
    let mut new = json!({ "type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": now });
    if let Some((reason, message)) = why {
        set_field(&mut new, "reason", reason.into());
        set_field(&mut new, "message", message.into());
    }
    let Value::Object(map) = object else { return };
    let status = map.entry("status").or_insert_with(|| json!({}));
    let Value::Object(status) = status else { return };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Value::Array(conditions) = conditions else { return };
    let is_kind = |found: &Value| found.get("type").and_then(Value::as_str) == Some(kind);
    match conditions.iter_mut().find(|found| is_kind(found)) {
        Some(found) => *found = new,
        None => conditions.push(new),
    }
}

#[cfg(test)]
mod tests;
