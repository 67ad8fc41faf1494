//! What the pod and its node say of a run that no agent tells of: whether it is proven that nothing of it is left. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Node, Pod};
use kube::ResourceExt;

use crate::api::auto::{RunBinding, TerminationEvidence};
use crate::api::names;
use crate::controller::update::outcome::RunOutcome;
use crate::pulumi::advice::MORE_MEMORY;

/// How long a container that has ended is given to be started again: the agent's journal knows more than the kubelet. The
/// kubelet waits five minutes at most between two starts.
const RESTART_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// What is known of the node that a run is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Nobody has asked: there is no doubt.
    NotAsked,
    Ready,
    /// Why, in the node's own words.
    NotReady(String),
    /// An administrator says that nothing runs on it any more.
    OutOfService,
    Gone,
    /// It cannot be read: with a Role there is no right to Nodes.
    Unreadable(String),
}

impl NodeState {
    /// What a Node object says.
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

/// What is to be made of it.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// It goes on, or its agent will tell; with what is known besides.
    Open(Option<String>),
    /// Nothing of it is left.
    Proven(Box<RunOutcome>),
    /// Nobody knows: why, for people.
    Unknown(String),
}

/// A run, as it was written down, and the moment.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// UID of the Update.
    pub id: &'a str,
    pub binding: &'a RunBinding,
    pub pod_name: &'a str,
    pub now: Timestamp,
}

/// Judges by the pod, if it is the one that the run is bound to, and by its node.
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

/// Whether a look at the node may decide.
pub fn needs_node(binding: &RunBinding, pod: Option<&Pod>, is_unreachable: bool) -> bool {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()));
    let is_over = |pod: &Pod| matches!(phase(pod), Some("Failed" | "Succeeded" | "Unknown"));
    !binding.node_name.is_empty() && (is_unreachable || pod.is_none_or(is_over))
}

/// What the kubelet has said of the container in which the run was started.
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

/// The ends of the container in which the run was started. Where that was not written down, it is the one that has ended.
fn ends_of<'a>(
    binding: &'a RunBinding,
    container: &'a ContainerStatus,
) -> impl Iterator<Item = &'a ContainerStateTerminated> {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let ends = states.into_iter().flatten().filter_map(|state| state.terminated.as_ref());
    ends.filter(|end| end.container_id.as_deref() == Some(binding.container_id.as_str()))
}

/// Why the container of a run ended, in the cluster's own words, if it did.
pub fn cause(binding: &RunBinding, pod: Option<&Pod>) -> Option<String> {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()))?;
    let end = ends_of(binding, pulumi_container(pod)?).next()?;
    Some(why(end, pod))
}

/// Whether the pod of a run has ended, or was told to: by a deletion, an eviction, a drain.
pub fn is_pod_ending(binding: &RunBinding, pod: Option<&Pod>) -> bool {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()));
    pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some() || phase(pod) == Some("Failed"))
}

/// The container that runs Pulumi.
pub fn pulumi_container(pod: &Pod) -> Option<&ContainerStatus> {
    let mut containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.find(|container| container.name == names::PULUMI_CONTAINER)
}

fn is_given_up(terminated: &ContainerStateTerminated, now: Timestamp) -> bool {
    finished(terminated).is_none_or(|finished| now.duration_since(finished) > RESTART_TIMEOUT)
}

/// The kubelet writes whole seconds: the container may have lived a little longer.
fn finished(terminated: &ContainerStateTerminated) -> Option<Timestamp> {
    terminated.finished_at.as_ref()?.0.checked_add(SignedDuration::from_secs(1)).ok()
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Why a container ended: the pod's reason, such as an eviction, then the kubelet's, with the limit where memory ran out.
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

/// Why the pod is over, in its own words.
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

/// What is known of a node that proves nothing.
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
