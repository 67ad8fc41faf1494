//! Evidence from the pod and node of a run without a reporting agent: whether its end is proven. Pure functions.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Node, Pod};
use kube::ResourceExt;

use crate::api::auto::{RunBinding, TerminationEvidence};
use crate::api::names;
use crate::controller::update::outcome::RunOutcome;
use crate::pulumi::advice::MORE_MEMORY;

/// Time that an exited container has to restart, because the journal of the agent contains more than the kubelet reports. The
/// kubelet's restart backoff is at most five minutes.
const RESTART_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// State of the node of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Not read, because the state of the run is not in doubt.
    NotAsked,
    Ready,
    /// Not ready, with the message of the node's condition.
    NotReady(String),
    /// An administrator has declared by a taint that nothing runs on the node.
    OutOfService,
    Gone,
    /// Not readable: a namespaced Role cannot grant access to Nodes.
    Unreadable(String),
}

impl NodeState {
    /// Returns the state of a Node object.
    pub fn of(node: Option<&Node>) -> Self {
        let Some(node) = node else { return NodeState::Gone };
        let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        if taints.any(|taint| taint.key == names::TAINT_OUT_OF_SERVICE) {
            return NodeState::OutOfService;
        }
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        match conditions.find(|condition| condition.type_ == "Ready") {
            Some(ready) if ready.status == "True" => NodeState::Ready,
            Some(ready) => NodeState::NotReady(ready.message.clone().unwrap_or_else(|| "it is not ready".to_owned())),
            None => NodeState::NotReady("it has not said how it is".to_owned()),
        }
    }
}

/// Conclusion from the evidence.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The run is in progress or its agent will report, with additional information for the user.
    Open(Option<String>),
    /// The run has ended: none of its processes is left.
    Proven(Box<RunOutcome>),
    /// The state is unknown, for this reason.
    Unknown(String),
}

/// Recorded run, with the current time.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// UID of the Update.
    pub id: &'a str,
    pub binding: &'a RunBinding,
    pub pod_name: &'a str,
    pub now: Timestamp,
}

/// Judges by the pod, if the run is bound to it, and by the node of the run.
pub fn judge(run: Recorded<'_>, pod: Option<&Pod>, node: &NodeState) -> End {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(run.binding.pod_uid.as_str()));
    let by_container = pod.map_or(End::Open(None), |pod| by_container(run, pod));
    if let End::Proven(_) = by_container {
        return by_container;
    }
    let node_name = &run.binding.node_name;
    let lost = |proof, why: String| End::Proven(Box::new(RunOutcome::interrupted(&why, proof, Some(run.now))));
    match (node, pod) {
        (NodeState::Gone, _) => lost(TerminationEvidence::NodeGone, format!("its node {node_name} is gone")),
        (NodeState::OutOfService, _) => {
            lost(TerminationEvidence::NodeOutOfService, format!("its node {node_name} was taken out of service"))
        }
        (NodeState::NotReady(why), Some(_)) => {
            unknown(run, &format!("is on the node {node_name}, which is not ready: {why}"))
        }
        (_, None) => unknown(run, &format!("is gone, and nobody has seen its container end{}", about(node, node_name))),
        (_, Some(pod)) => match phase(pod) {
            Some(phase @ ("Failed" | "Succeeded" | "Unknown")) => {
                let said = pod_words(pod).unwrap_or_else(|| phase.to_owned());
                unknown(
                    run,
                    &format!("is over ({said}), and nobody has seen its container end{}", about(node, node_name)),
                )
            }
            _ => by_container,
        },
    }
}

/// Returns whether the state of the node can change the conclusion.
pub fn needs_node(binding: &RunBinding, pod: Option<&Pod>, is_unreachable: bool) -> bool {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()));
    let is_over = |pod: &Pod| matches!(phase(pod), Some("Failed" | "Succeeded" | "Unknown"));
    !binding.node_name.is_empty() && (is_unreachable || pod.is_none_or(is_over))
}

/// Judges by the kubelet's report on the container in which the run started.
fn by_container(run: Recorded<'_>, pod: &Pod) -> End {
    let Some(container) = pulumi_container(pod) else { return End::Open(None) };
    let state = container.state.as_ref();
    let ended = state.and_then(|state| state.terminated.as_ref());
    let before = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let is_final = pod.metadata.deletion_timestamp.is_some() || matches!(phase(pod), Some("Failed" | "Succeeded"));
    let runs = state.is_some_and(|state| state.running.is_some());
    let of_the_run = ends_of(run.binding, container).next();
    if runs || (ended.is_none() && of_the_run.is_none()) {
        return End::Open(None);
    }
    let Some(terminated) = of_the_run.or(ended) else { return End::Open(None) };
    if !is_final && !is_given_up(terminated, run.now) {
        return End::Open(Some(format!("its container has ended ({}) and is started again", why(terminated, pod))));
    }
    let words = [ended, before].into_iter().flatten().find_map(|end| RunOutcome::of_last_words(end, run.id));
    let outcome = words.unwrap_or_else(|| {
        RunOutcome::interrupted(
            &format!("its pod ended before it did ({})", why(terminated, pod)),
            TerminationEvidence::Container,
            None,
        )
    });
    End::Proven(Box::new(outcome.ended_by(finished(terminated))))
}

/// Returns the terminations of the container in which the run started. Empty if the binding names no container.
fn ends_of<'a>(
    binding: &'a RunBinding,
    container: &'a ContainerStatus,
) -> impl Iterator<Item = &'a ContainerStateTerminated> {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let ends = states.into_iter().flatten().filter_map(|state| state.terminated.as_ref());
    ends.filter(|end| end.container_id.as_deref() == Some(binding.container_id.as_str()))
}

/// Returns why the container of a run ended, as the cluster reports it.
pub fn cause(binding: &RunBinding, pod: Option<&Pod>) -> Option<String> {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()))?;
    let end = ends_of(binding, pulumi_container(pod)?).next()?;
    Some(why(end, pod))
}

/// Returns whether the pod of a run has ended or is terminating, for example after a deletion, an eviction or a drain.
pub fn is_pod_ending(binding: &RunBinding, pod: Option<&Pod>) -> bool {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()));
    pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some() || phase(pod) == Some("Failed"))
}

/// Returns the status of the container that runs Pulumi.
pub fn pulumi_container(pod: &Pod) -> Option<&ContainerStatus> {
    let mut containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.find(|container| container.name == names::PULUMI_CONTAINER)
}

fn is_given_up(terminated: &ContainerStateTerminated, now: Timestamp) -> bool {
    finished(terminated).is_none_or(|finished| now.duration_since(finished) > RESTART_TIMEOUT)
}

/// Returns the end time, rounded up. The kubelet reports whole seconds, so the container may have run a little longer.
fn finished(terminated: &ContainerStateTerminated) -> Option<Timestamp> {
    terminated.finished_at.as_ref()?.0.checked_add(SignedDuration::from_secs(1)).ok()
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Describes why a container ended: the reason of the pod, such as an eviction, then the reason of the kubelet, with the
/// memory limit after an OOM kill.
fn why(terminated: &ContainerStateTerminated, pod: &Pod) -> String {
    let reason = terminated.reason.as_deref().unwrap_or("unknown reason");
    let code = terminated.exit_code;
    let own = match reason {
        "OOMKilled" => match memory_limit(pod) {
            Some(limit) => {
                format!("OOMKilled: it used more memory than its limit of {limit}, exit code {code}; {MORE_MEMORY}")
            }
            None => format!("OOMKilled: its node ran out of memory, and it has no limit, exit code {code}"),
        },
        reason => format!("{reason}, exit code {code}"),
    };
    match pod_words(pod) {
        Some(words) => format!("{words}; {own}"),
        None => own,
    }
}

/// Returns the reason and message of the pod.
fn pod_words(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let reason = status.reason.as_deref()?;
    match status.message.as_deref().map(str::trim).filter(|message| !message.is_empty()) {
        Some(message) => Some(format!("{reason}: {message}")),
        None => Some(reason.to_owned()),
    }
}

fn memory_limit(pod: &Pod) -> Option<String> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let container = containers.find(|container| container.name == names::PULUMI_CONTAINER)?;
    Some(container.resources.as_ref()?.limits.as_ref()?.get("memory")?.0.clone())
}

/// Describes a node whose state proves nothing.
fn about(node: &NodeState, name: &str) -> String {
    match node {
        NodeState::NotReady(why) => format!("; its node {name} is not ready: {why}"),
        NodeState::Unreadable(why) => format!("; how its node {name} is cannot be read: {why}"),
        NodeState::Ready => format!("; its node {name} is ready"),
        NodeState::NotAsked | NodeState::OutOfService | NodeState::Gone => String::new(),
    }
}

fn unknown(run: Recorded<'_>, what: &str) -> End {
    let node = match run.binding.node_name.as_str() {
        "" => "its node".to_owned(),
        name => format!("the node {name}"),
    };
    End::Unknown(format!(
        "nobody knows whether the run still goes on: pod {} {what}. If {node} is lost, delete the Node, or taint it with \
         {}, once nothing runs on it",
        run.pod_name,
        names::TAINT_OUT_OF_SERVICE
    ))
}

#[cfg(test)]
mod tests;
