//! Reads the state of a workspace pod, and the reason why the pod does not start.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Event, Pod, PodCondition,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::Deserialize;

use super::context::Context;
use super::init_containers::{self, BOOTSTRAP_CONTAINER, FETCH_CONTAINER};
use crate::api::auto::Workspace;
use crate::api::conditions;
use crate::api::names::{ANNOTATION_REVISION_HASH, ANNOTATION_RUN, PULUMI_CONTAINER, RUN_FINALIZER};
use crate::controller::update::marked_update_name;
use crate::runtime::reads::ReadError;
use crate::runtime::reconcile::ReconcileError;

/// Waiting reasons that containers report while a pod starts normally.
const ORDINARY_WAITING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Label in which the StatefulSet controller stores the name of the revision.
const LABEL_TEMPLATE_REVISION: &str = "controller-revision-hash";
/// Path of the agent in pods that the Pulumi Kubernetes Operator created.
const PKO_AGENT: &str = "/share/agent";
/// Names of the proxy containers of Istio, Linkerd, Consul and Kuma.
const MESH_PROXIES: [&str; 4] = ["istio-proxy", "linkerd-proxy", "consul-dataplane", "kuma-sidecar"];
/// Word in the scheduler's message about a resource request that no node can satisfy.
const DOES_NOT_FIT: &str = "Insufficient";
/// Part of the container runtime's message about an image without a variant for the node.
const NO_PLATFORM: &str = "no match for platform";
/// Condition of a pod that the scheduler, or the kubelet of a pod with `nodeName`, sets first.
const SCHEDULED: &str = "PodScheduled";
/// Reason of the event that reports an image pull.
const PULLING: &str = "Pulling";
const CRASH_LOOP: &str = "CrashLoopBackOff";
/// Maximum length of a message from a container, in bytes.
const MAX_MESSAGE: usize = 2048;
/// Delay before the controller reads events about a missing pod, in seconds.
const NO_POD_SECONDS: i64 = 4;
/// Minimum age of a pod that no scheduler and no kubelet has handled before the controller reports it, in seconds.
const UNHANDLED_SECONDS: i64 = 10;
/// Maximum grace period for the deletion of a pod that is starting, in seconds. The agent of a pod without a run exits
/// within this time.
const MAX_STARTING_GRACE_SECONDS: u32 = 60;
/// Scheduler of pods without `schedulerName`.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// Minimum age of a slowly starting pod before the controller reads its events, in seconds.
const SLOW_START_SECONDS: i64 = 40;
/// Maximum age of an event in seconds. Older events are irrelevant, because the StatefulSet controller retries after
/// at most 1000 seconds and then reports a persistent problem again.
const OLD_SECONDS: i64 = 1200;
/// Maximum number of events that the controller reads per object. Kubernetes clients aggregate and rate-limit the events
/// of an object, so more events are unlikely.
const MAX_EVENTS: u32 = 50;
/// Maximum size of the events of an object. The events of Kubernetes have messages of at most 1 KiB. Other clients can
/// create events of any size.
const MAX_EVENT_BYTES: u64 = 256 * 1024;

/// State of a workspace pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodState {
    pub name: String,
    pub uid: String,
    pub ip: Option<String>,
    /// Hash of the user-defined inputs from which the pod was created.
    pub revision_hash: Option<String>,
    /// Name of the StatefulSet revision from which the pod was created. `None` for a pod from a pool.
    pub template_revision: Option<String>,
    /// Image of the init container that copies the agent.
    pub agent_image: Option<String>,
    /// Whether the pod contains the agent of the Pulumi Kubernetes Operator, which uses a different protocol.
    pub has_pko_agent: bool,
    /// Whether the pod is being deleted.
    pub terminating: bool,
    /// End of the termination grace period of a pod that is being deleted. At this time, the kubelet kills the
    /// containers.
    pub grace_end: Option<Timestamp>,
    /// Grace period in seconds for the deletion of a pod that is starting. `None` for other pods, which the controller
    /// deletes with their own grace period. See [`short_grace_seconds`].
    pub short_grace_seconds: Option<u32>,
    /// Whether the pod has the finalizer of an open run.
    pub held: bool,
    /// UID of the Update that last marked the pod for its run.
    pub run: Option<String>,
    /// Name of that Update. `None` if an earlier version of the controller marked the pod.
    pub run_update: Option<String>,
    /// Whether all init containers have completed, so that the `pulumi` container is starting or has started.
    pub initialized: bool,
    /// Whether the `pulumi` container is running.
    pub running: bool,
    /// Whether the `pulumi` container is ready.
    pub ready: bool,
    /// Start time of the running init container `fetch`, or `None` if the container is not running.
    pub fetching: Option<Timestamp>,
    /// Name of the user-defined init container that is running.
    pub initializing: Option<String>,
    /// Reason why the pod failed to start, or `None` if the pod starts normally.
    pub problem: Option<String>,
    /// Whether the pod does not start because no node meets its requirements.
    pub unschedulable: bool,
    /// Name of the container with the proxy of a service mesh.
    pub mesh_proxy: Option<String>,
}

/// Returns the state of a pod.
pub(super) fn read(pod: &Pod) -> PodState {
    let status = pod.status.as_ref();
    let container = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|containers| containers.iter().find(|container| container.name == PULUMI_CONTAINER));
    // If the node is lost, the container states are outdated.
    let over = status.is_some_and(|status| matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")));
    let runs = |container: &&ContainerStatus| !over && state(container).is_some_and(|state| state.running.is_some());
    let mut running_init =
        status.iter().flat_map(|status| status.init_container_statuses.iter().flatten()).filter(runs);
    PodState {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        ip: status.and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty()),
        revision_hash: pod.annotations().get(ANNOTATION_REVISION_HASH).cloned(),
        template_revision: pod.labels().get(LABEL_TEMPLATE_REVISION).cloned(),
        agent_image: agent_image(pod),
        has_pko_agent: is_pko_pod(pod),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        grace_end: pod.metadata.deletion_timestamp.as_ref().map(|end| end.0),
        short_grace_seconds: short_grace_seconds(pod, container),
        held: pod.finalizers().iter().any(|finalizer| finalizer == RUN_FINALIZER),
        run: pod.annotations().get(ANNOTATION_RUN).cloned(),
        run_update: marked_update_name(pod),
        initialized: !over && is_initialized(pod),
        running: container.as_ref().is_some_and(runs),
        ready: !over && container.is_some_and(|container| container.ready),
        fetching: running_init.clone().find(|container| container.name == FETCH_CONTAINER).and_then(started),
        initializing: running_init
            .find(|container| init_containers::of_user(pod).any(|name| name == container.name))
            .map(|container| container.name.clone()),
        problem: problem(pod),
        unschedulable: unscheduled(pod).is_some(),
        mesh_proxy: mesh_proxy(pod),
    }
}

/// Returns the grace period for the deletion of a pod whose startup probe has not succeeded. The kernel drops a SIGTERM
/// that process 1 receives before it has registered a handler, and the kubelet then kills the container only at the end of
/// the grace period. The grace period of the pod is long, because it must be sufficient for a run. The kubelet ignores a
/// shorter grace period of a later deletion.
fn short_grace_seconds(pod: &Pod, container: Option<&ContainerStatus>) -> Option<u32> {
    if container.is_some_and(|container| container.started == Some(true)) {
        return None;
    }
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let grace = grace.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(MAX_STARTING_GRACE_SECONDS);
    Some(grace.min(MAX_STARTING_GRACE_SECONDS))
}

/// Returns the name of the container that a service mesh has added to the pod.
fn mesh_proxy(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let mut names = spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|found| &found.name);
    names.find(|name| MESH_PROXIES.contains(&name.as_str())).cloned()
}

fn agent_image(pod: &Pod) -> Option<String> {
    let mut init_containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    init_containers.find(|container| container.name == BOOTSTRAP_CONTAINER)?.image.clone()
}

/// Returns whether the `pulumi` container runs the agent of the Pulumi Kubernetes Operator.
pub fn is_pko_pod(pod: &Pod) -> bool {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let command =
        containers.find(|container| container.name == PULUMI_CONTAINER).and_then(|pulumi| pulumi.command.as_ref());
    command.is_some_and(|command| command.iter().take(2).any(|word| word == PKO_AGENT))
}

fn is_initialized(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Initialized" && condition.status == "True")
}

fn problem(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Failed") {
        let reason = status.reason.as_deref().unwrap_or("Failed");
        return Some(with_message(reason, status.message.as_deref()));
    }
    if let Some(condition) = unscheduled(pod) {
        let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
        let why = with_message(reason, condition.message.as_deref());
        let requests = requests(pod).filter(|_| why.contains(DOES_NOT_FIT));
        let requests = requests.map(|requests| format!(" ({requests})")).unwrap_or_default();
        return Some(format!("cannot be scheduled: {why}{requests}"));
    }
    let mut init_containers = status.init_container_statuses.iter().flatten();
    let init_trouble = init_containers.find_map(|container| {
        let is_tried_again = || init_containers::of_user(pod).any(|name| name == container.name);
        let problem = container_problem(container).or_else(|| is_tried_again().then(|| last_failure(container))?);
        problem.map(|problem| format!("init container {}: {problem}", container.name))
    });
    init_trouble.or_else(|| {
        let mut containers = status.container_statuses.iter().flatten();
        containers
            .find_map(|container| Some(format!("container {}: {}", container.name, container_problem(container)?)))
    })
}

/// Returns the condition `PodScheduled` if the scheduler has found no node for the pod.
fn unscheduled(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == SCHEDULED && condition.status == "False")
}

/// Describes the resource requests of all containers in a pod.
fn requests(pod: &Pod) -> Option<String> {
    describe_containers(pod, |container| requested(container).map(|amounts| format!("requests {amounts}")))
}

/// Describes the resource requests and limits of all containers in a pod.
pub(super) fn resources(pod: &Pod) -> Option<String> {
    describe_containers(pod, |container| {
        let limits = container.resources.as_ref().and_then(|resources| amounts(resources.limits.as_ref()?));
        match (requested(container), limits) {
            (Some(requests), Some(limits)) => Some(format!("requests {requests} and is limited to {limits}")),
            (Some(requests), None) => Some(format!("requests {requests}")),
            (None, limits) => limits.map(|limits| format!("is limited to {limits}")),
        }
    })
}

/// Describes all containers in a pod, such as `container pulumi requests memory 16Mi`.
fn describe_containers(pod: &Pod, describe: impl Fn(&Container) -> Option<String>) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let described = |what: &'static str| {
        let describe = &describe;
        move |container: &Container| Some(format!("{what} {} {}", container.name, describe(container)?))
    };
    let inits = spec.init_containers.iter().flatten().filter_map(described("init container"));
    let all: Vec<String> = spec.containers.iter().filter_map(described("container")).chain(inits).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn requested(container: &Container) -> Option<String> {
    amounts(container.resources.as_ref()?.requests.as_ref()?)
}

fn amounts(amounts: &BTreeMap<String, Quantity>) -> Option<String> {
    let listed: Vec<String> = amounts.iter().map(|(resource, amount)| format!("{resource} {}", amount.0)).collect();
    (!listed.is_empty()).then(|| listed.join(", "))
}

fn container_problem(container: &ContainerStatus) -> Option<String> {
    let state = state(container)?;
    let Some(waiting) = &state.waiting else {
        let terminated = state.terminated.as_ref().filter(|terminated| terminated.exit_code != 0)?;
        return Some(failure(container, terminated));
    };
    let reason = waiting.reason.as_deref().filter(|reason| !ORDINARY_WAITING.contains(reason))?;
    // The message of a crash loop contains only the backoff. The last termination state of the container contains the
    // cause.
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    Some(match last.filter(|_| reason == CRASH_LOOP) {
        Some(last) => failure(container, last),
        None => with_architecture_advice(with_message(reason, waiting.message.as_deref())),
    })
}

/// Adds the solution if the image does not support the architecture of the node.
fn with_architecture_advice(problem: String) -> String {
    if !problem.contains(NO_PLATFORM) {
        return problem;
    }
    format!(
        "{problem}; the image does not support the architecture of the node: set spec.nodeSelector[kubernetes.io/arch] in podTemplate, \
         or use another image"
    )
}

/// Returns the last failure of an init container that is running again. The status reports the failure until a retry
/// succeeds, because the message would otherwise change with each retry.
fn last_failure(container: &ContainerStatus) -> Option<String> {
    state(container)?.running.as_ref()?;
    let last = container.last_state.as_ref()?.terminated.as_ref()?;
    (last.exit_code != 0).then(|| failure(container, last))
}

/// Describes a failure with a message that remains the same during the next retry.
fn failure(container: &ContainerStatus, last: &ContainerStateTerminated) -> String {
    let is_repeated = container.restart_count > 0 || state(container).is_some_and(|state| state.terminated.is_none());
    if is_repeated { with_message(CRASH_LOOP, Some(&describe_end(last))) } else { describe_end(last) }
}

fn started(container: &ContainerStatus) -> Option<Timestamp> {
    state(container)?.running.as_ref()?.started_at.as_ref().map(|time| time.0)
}

fn state(container: &ContainerStatus) -> Option<&ContainerState> {
    container.state.as_ref()
}

fn describe_end(terminated: &ContainerStateTerminated) -> String {
    let ended = format!("terminated with exit code {}", terminated.exit_code);
    let ended = match terminated.reason.as_deref() {
        Some(reason) if reason != "Error" => format!("{ended} ({reason})"),
        _ => ended,
    };
    with_message(&ended, terminated.message.as_deref())
}

/// Removes the last sentence if it repeats the end of the previous sentence. The scheduler writes such messages, for
/// example `persistentvolumeclaim "cache" not found. not found`.
fn without_repetition(message: &str) -> &str {
    match message.rsplit_once(". ") {
        Some((before, last)) if !last.is_empty() && before.ends_with(last) => before,
        _ => message,
    }
}

fn with_message(reason: &str, message: Option<&str>) -> String {
    let message = without_repetition(message.map(str::trim).unwrap_or_default());
    if message.is_empty() {
        return reason.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE);
    format!("{reason}: {}", message.get(..end).unwrap_or_default())
}

/// Event that explains why a pod is missing or does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartEvent {
    /// Problem that Kubernetes reports, such as an exceeded quota.
    Warning(String),
    /// Slow step of a normal pod start, such as an image pull.
    Step(String),
    /// Kubernetes rejected the pod earlier, and would accept it now.
    Resolved,
}

/// Returns whether the pod has been missing for some time.
pub(super) fn is_missing(workspace: &Workspace, pod: Option<&Pod>, now: Timestamp) -> bool {
    pod.is_none() && workspace.metadata.deletion_timestamp.is_none() && unready_seconds(workspace, now) > NO_POD_SECONDS
}

/// Returns the newest event of the StatefulSet if the pod is missing, or the newest event of a pod that has not
/// started. `requested` is the UID of the StatefulSet and the time at which the controller last requested the pod, and the
/// function ignores earlier events of the StatefulSet. Returns `None` if the event is irrelevant, or if `NO_POD_SECONDS` or
/// `SLOW_START_SECONDS` have not passed yet. Only events report exceeded quotas, Pod Security violations, failed volume mounts and image pulls.
pub(super) async fn find_start_event(
    workspace: &Workspace,
    requested: Option<(&str, Option<Timestamp>)>,
    pod: Option<&Pod>,
    context: &Context,
    now: Timestamp,
) -> Result<Option<StartEvent>, ReconcileError> {
    let (uid, since) = match pod {
        // The status of a deleted Workspace does not report why the pod does not start.
        _ if workspace.metadata.deletion_timestamp.is_some() => return Ok(None),
        None if is_missing(workspace, pod, now) => {
            (requested.map(|(uid, _)| uid.to_owned()), requested.and_then(|(_, since)| since))
        }
        Some(pod) if let Some(why) = unhandled(pod, now) => return Ok(Some(StartEvent::Warning(why))),
        Some(pod) if starts_slowly(pod, now) => (pod.uid(), None),
        _ => return Ok(None),
    };
    let Some(uid) = uid else {
        return Ok(None);
    };
    let namespace = workspace.namespace().unwrap_or_default();
    let fields = format!("involvedObject.uid={uid}");
    let listed =
        context.reader.list_as::<Event, StartEventFields>(&namespace, &fields, MAX_EVENTS, MAX_EVENT_BYTES).await;
    match listed {
        Ok(events) => Ok(newest_event(&events, since, now)),
        // The events only explain the slow start.
        Err(ReadError::TooLarge { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Fields of an event that the controller uses. The other fields can contain any number of values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StartEventFields {
    metadata: EventMetadata,
    #[serde(rename = "type")]
    kind: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    series: Option<EventSeries>,
    last_timestamp: Option<Timestamp>,
    event_time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EventMetadata {
    creation_timestamp: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EventSeries {
    last_observed_time: Option<Timestamp>,
}

/// Returns the newest event after `since` if it is a warning or reports an image pull. A normal event after a warning
/// shows that the problem is resolved.
fn newest_event(events: &[StartEventFields], since: Option<Timestamp>, now: Timestamp) -> Option<StartEvent> {
    let recent = events.iter().filter_map(|event| Some((event_time(event)?, event)));
    let recent = recent.filter(|(time, _)| now.as_second() - time.as_second() <= OLD_SECONDS);
    let recent = recent.filter(|(time, _)| since.is_none_or(|since| *time > since));
    let (_, event) = recent.max_by_key(|(time, _)| *time)?;
    let message = event.message.as_deref().unwrap_or_default().trim();
    match (event.kind.as_deref(), event.reason.as_deref()) {
        (Some("Warning"), reason) => {
            Some(StartEvent::Warning(with_message(reason.unwrap_or("Warning"), Some(message))))
        }
        (_, Some(PULLING)) => Some(StartEvent::Step(with_message("pulling an image", Some(message)))),
        _ => None,
    }
}

fn event_time(event: &StartEventFields) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time);
    series.or(event.last_timestamp).or(event.event_time).or(event.metadata.creation_timestamp)
}

fn unready_seconds(workspace: &Workspace, now: Timestamp) -> i64 {
    let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match conditions::find(conditions, conditions::READY) {
        Some(ready) if ready.status != "True" => now.as_second() - ready.last_transition_time.0.as_second(),
        _ => 0,
    }
}

/// Returns the reason why a pod does not start if no scheduler or no kubelet has handled it. No event reports this problem.
fn unhandled(pod: &Pod, now: Timestamp) -> Option<String> {
    let created = pod.creation_timestamp()?.0;
    let status = pod.status.as_ref();
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_handled = conditions.any(|condition| condition.type_ == SCHEDULED);
    let is_new = now.as_second() - created.as_second() <= UNHANDLED_SECONDS;
    if is_new || is_handled || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let spec = pod.spec.as_ref();
    let value = |field: Option<&String>| field.filter(|name| !name.is_empty()).cloned();
    Some(match value(spec.and_then(|spec| spec.node_name.as_ref())) {
        Some(node) => format!(
            "the kubelet of node {node} has not handled the pod: check that the node exists and is ready, or unset spec.nodeName in \
             podTemplate"
        ),
        None => {
            let scheduler = value(spec.and_then(|spec| spec.scheduler_name.as_ref()));
            let scheduler = scheduler.as_deref().unwrap_or(DEFAULT_SCHEDULER);
            format!(
                "no scheduler named {scheduler} has handled the pod: check that this scheduler runs, or change spec.schedulerName in \
                 podTemplate"
            )
        }
    })
}

fn starts_slowly(pod: &Pod, now: Timestamp) -> bool {
    let state = read(pod);
    let created = pod.creation_timestamp().map_or(now, |time| time.0);
    let slow = now.as_second() - created.as_second() > SLOW_START_SECONDS;
    let begun = state.running || state.fetching.is_some() || state.initializing.is_some();
    slow && !begun && !state.terminating && state.problem.is_none()
}

#[cfg(test)]
mod tests;
