//! Determines whether a run has ended if the agent does not report a result. The evidence is the state of the pod and
//! of its node. All functions are pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Node, Pod};
use kube::ResourceExt;

use crate::api::auto::{RunBinding, TerminationEvidence};
use crate::api::names;
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::request::pulumi_container;
use crate::pulumi::advice::MORE_MEMORY;

/// Time for which the controller waits for the kubelet to restart an exited container. After a restart, the agent's
/// journal contains more information than the kubelet's report. The kubelet's restart backoff is at most five
/// minutes.
const RESTART_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// State of the node on which the run executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The controller has not read the node, because its state cannot change the conclusion.
    NotRead,
    Ready,
    /// The node is not ready. Contains the message of the node condition `Ready`.
    NotReady(String),
    /// The node has the taint `node.kubernetes.io/out-of-service`, with which an administrator confirms that no
    /// process is running on the node.
    OutOfService,
    Gone,
    /// The controller has no permission to read the node, because a Role cannot grant access to nodes. Contains the
    /// error.
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
            Some(ready) => NodeState::NotReady(ready.message.clone().unwrap_or_else(|| "no message".to_owned())),
            None => NodeState::NotReady("no Ready condition".to_owned()),
        }
    }
}

/// Conclusion about whether a run has ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The run is in progress, or its agent will report the result. Contains additional information for the user.
    Open(Option<String>),
    /// The run has ended, and none of its processes is running.
    Proven(Box<RunOutcome>),
    /// It is unknown whether the run has ended. Contains the reason.
    Unknown(String),
}

/// Number of restarts after which the agent is assumed to exit repeatedly. The kubelet doubles the delay before each
/// restart, so this number takes about five minutes. A pod can already be not ready during a run that uses the CPU, so
/// the time since then is not sufficient.
const MIN_RESTARTS: i32 = 5;

/// Run whose binding is recorded, and the current time.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// UID of the Update.
    pub id: &'a str,
    pub binding: &'a RunBinding,
    pub pod_name: &'a str,
    pub now: Timestamp,
}

/// Returns the conclusion from the bound pod, if it exists, and from the node on which the run executes.
pub fn judge(run: Recorded<'_>, pod: Option<&Pod>, node: &NodeState) -> End {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(run.binding.pod_uid.as_str()));
    let by_container = pod.map_or(End::Open(None), |pod| by_container(run, pod));
    if let End::Proven(_) = by_container {
        return by_container;
    }
    let node_name = &run.binding.node_name;
    let lost = |evidence, why: String| End::Proven(Box::new(RunOutcome::interrupted(&why, evidence, Some(run.now))));
    match (node, pod) {
        (NodeState::Gone, _) => lost(TerminationEvidence::NodeGone, format!("node {node_name} no longer exists")),
        (NodeState::OutOfService, _) => {
            lost(TerminationEvidence::NodeOutOfService, format!("node {node_name} is out of service"))
        }
        (NodeState::NotReady(why), Some(_)) => {
            unknown_end(run, &format!("is on node {node_name}, which is not ready: {why}"))
        }
        (_, None) => unknown_end(
            run,
            &format!(
                "no longer exists, and the controller did not observe the end of its container{}",
                describe(node, node_name)
            ),
        ),
        (_, Some(pod)) => match phase(pod) {
            Some(phase @ ("Failed" | "Succeeded" | "Unknown")) => {
                let reason = pod_reason(pod).unwrap_or_else(|| phase.to_owned());
                unknown_end(
                    run,
                    &format!(
                        "ended ({reason}), and the controller did not observe the end of its container{}",
                        describe(node, node_name)
                    ),
                )
            }
            _ => by_container,
        },
    }
}

/// Returns the outcome of a run that had started, but of which the agent in the bound pod has no record, for example
/// because the disk of the node was replaced. The kubelet starts a container only after the previous one has
/// terminated, so another container proves that the run has ended.
///
/// # Errors
///
/// Returns the reason why it is unknown whether the run has ended.
pub fn judge_without_journal(run: Recorded<'_>, pod: &Pod) -> Result<Box<RunOutcome>, String> {
    let container = pulumi_container(pod);
    let current = container.and_then(|container| container.container_id.as_deref()).unwrap_or_default();
    let bound = run.binding.container_id.as_str();
    if current.is_empty() || bound.is_empty() || current == bound {
        return Err(unknown(run, "has no record of the run, and its container may still execute the run"));
    }
    let ended = container.and_then(|container| ends_of(run.binding, container).next()).and_then(finished);
    let why = "the container of the run was replaced, and the journal of the agent was lost";
    let ended = Some(ended.unwrap_or(run.now));
    Ok(Box::new(RunOutcome::interrupted(why, TerminationEvidence::Container, ended)))
}

/// Returns whether the state of the node can change the conclusion.
pub fn needs_node(binding: &RunBinding, pod: Option<&Pod>, is_unreachable: bool) -> bool {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()));
    let is_over = |pod: &Pod| matches!(phase(pod), Some("Failed" | "Succeeded" | "Unknown"));
    !binding.node_name.is_empty() && (is_unreachable || pod.is_none_or(is_over))
}

/// Returns the conclusion from the status that the kubelet reports for the run's container.
fn by_container(run: Recorded<'_>, pod: &Pod) -> End {
    let Some(container) = pulumi_container(pod) else { return End::Open(None) };
    let state = container.state.as_ref();
    let ended = state.and_then(|state| state.terminated.as_ref());
    let before = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let is_final = pod.metadata.deletion_timestamp.is_some() || matches!(phase(pod), Some("Failed" | "Succeeded"));
    let runs = state.is_some_and(|state| state.running.is_some());
    // The kubelet reports only the last two containers. While the container waits for its restart, all earlier
    // containers of the pod have ended, so the end of any of them is evidence.
    let waits = state.is_some_and(|state| state.waiting.is_some());
    let of_the_run = ends_of(run.binding, container).next();
    let of_a_later = ended.or_else(|| before.filter(|_| waits));
    let Some(terminated) = of_the_run.or(of_a_later).filter(|_| !runs) else { return End::Open(None) };
    let since = match of_the_run {
        Some(end) => finished(end),
        // The end of the last container is always recent if the agent exits repeatedly.
        None => {
            not_ready_since(pod).filter(|_| container.restart_count >= MIN_RESTARTS).or_else(|| finished(terminated))
        }
    };
    if !is_final && !has_restart_timed_out(since, run.now) {
        return End::Open(Some(format!("container ended ({}) and is restarting", termination_reason(terminated, pod))));
    }
    let message =
        [ended, before].into_iter().flatten().find_map(|end| RunOutcome::from_termination_message(end, run.id));
    let outcome = message.unwrap_or_else(|| {
        RunOutcome::interrupted(
            &format!("pod ended during the run ({})", termination_reason(terminated, pod)),
            TerminationEvidence::Container,
            None,
        )
    });
    End::Proven(Box::new(outcome.ended_by(finished(terminated))))
}

/// Returns the termination states of the container that the binding names. Returns nothing if the binding contains no
/// container ID.
fn ends_of<'a>(
    binding: &'a RunBinding,
    container: &'a ContainerStatus,
) -> impl Iterator<Item = &'a ContainerStateTerminated> {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let ends = states.into_iter().flatten().filter_map(|state| state.terminated.as_ref());
    ends.filter(|end| end.container_id.as_deref() == Some(binding.container_id.as_str()))
}

/// Returns the termination reason that the Kubernetes API reports for the container of a run.
pub fn cause(binding: &RunBinding, pod: Option<&Pod>) -> Option<String> {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()))?;
    match pulumi_container(pod).and_then(|container| ends_of(binding, container).next()) {
        Some(end) => Some(termination_reason(end, pod)),
        // The kubelet reports the termination reason of the pod, such as an eviction, before the containers
        // terminate.
        None => pod_reason(pod).filter(|_| phase(pod) == Some("Failed")),
    }
}

/// Returns whether the bound pod has failed, is terminating or no longer exists, for example after an eviction or a
/// drain.
pub fn is_pod_ending(binding: &RunBinding, pod: Option<&Pod>) -> bool {
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(binding.pod_uid.as_str()));
    pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some() || phase(pod) == Some("Failed"))
}

/// Returns whether the kubelet had enough time to restart the container since the given time, which is from the clock
/// of the node. If this time is far in the future, the clock is wrong, and the controller does not wait until that
/// time.
fn has_restart_timed_out(since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_none_or(|since| now.duration_since(since).abs() > RESTART_TIMEOUT)
}

/// Returns the time since when the containers of the pod have not been ready. The exit of a container that was not
/// ready does not change this time.
fn not_ready_since(pod: &Pod) -> Option<Timestamp> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let condition = conditions.find(|condition| condition.type_ == "ContainersReady" && condition.status != "True")?;
    condition.last_transition_time.as_ref().map(|time| time.0)
}

/// Returns the end time, rounded up. The kubelet truncates the time to whole seconds, so the container can have
/// terminated up to one second later.
fn finished(terminated: &ContainerStateTerminated) -> Option<Timestamp> {
    terminated.finished_at.as_ref()?.0.checked_add(SignedDuration::from_secs(1)).ok()
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Describes why a container terminated. The description contains the reason of the pod, such as an eviction, and the
/// reason of the container. After an OOM kill, it also contains the memory limit.
fn termination_reason(terminated: &ContainerStateTerminated, pod: &Pod) -> String {
    let reason = terminated.reason.as_deref().unwrap_or("unknown reason");
    let code = terminated.exit_code;
    let own = match reason {
        "OOMKilled" => match memory_limit(pod) {
            Some(limit) => {
                format!("OOMKilled: memory limit of {limit} exceeded, exit code {code}; {MORE_MEMORY}")
            }
            None => {
                format!("OOMKilled: node ran out of memory and the container has no memory limit, exit code {code}")
            }
        },
        reason => format!("{reason}, exit code {code}"),
    };
    match pod_reason(pod) {
        Some(reason) => format!("{reason}; {own}"),
        None => own,
    }
}

/// Returns the reason and the message from the pod status.
fn pod_reason(pod: &Pod) -> Option<String> {
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

/// Describes the state of a node if the state does not prove that the run has ended.
fn describe(node: &NodeState, name: &str) -> String {
    match node {
        NodeState::NotReady(why) => format!("; node {name} is not ready: {why}"),
        NodeState::Unreadable(why) => format!("; failed to read node {name}: {why}"),
        NodeState::Ready => format!("; node {name} is ready"),
        NodeState::NotRead | NodeState::OutOfService | NodeState::Gone => String::new(),
    }
}

fn unknown_end(run: Recorded<'_>, what: &str) -> End {
    End::Unknown(unknown(run, what))
}

/// Returns the message about a run if it is unknown whether the run has ended.
fn unknown(run: Recorded<'_>, what: &str) -> String {
    let node = match run.binding.node_name.as_str() {
        "" => "the node".to_owned(),
        name => format!("node {name}"),
    };
    format!(
        "run state is unknown: pod {} {what}. If {node} is lost, delete the Node or, after its shutdown, taint it with {}",
        run.pod_name,
        names::TAINT_OUT_OF_SERVICE
    )
}

#[cfg(test)]
mod tests;
