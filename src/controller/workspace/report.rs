//! Describes the state of a Workspace with a reason, a message and a requeue interval.

use std::borrow::Cow;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::apply_conflicts::Contested;
use super::pod_state::{PodState, StartEvent};
use crate::api::auto::ArtifactReference;
use crate::api::conditions::{self, workspace_reason as reason};
use crate::api::names::ANNOTATION_REVISION_HASH;
use crate::artifact::{FetchError, InPod};
use crate::config::{AGENT_STATUS_INTERVAL, SLEEP_CHECK_INTERVAL};
use crate::pulumi::cli;
use crate::rpc::proto::{Candidate, InteractiveSession, PolicyPackState, Uncached};
use crate::source::Unavailable;

/// Requeue interval for a state that normally ends with a watch event. The requeue is necessary only if a watch event
/// is lost.
const FALLBACK_INTERVAL: Duration = Duration::from_secs(30);
/// Requeue interval while the API server rejects an object, or while another client prevents the controller from
/// replacing the pod. The controller does not watch the cause, such as an admission policy.
pub(super) const REJECTED_REQUEUE_INTERVAL: Duration = Duration::from_secs(3 * 60);
/// Requeue interval for a state that changes without a watch event, such as an unreachable agent.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum and maximum poll interval while the pod does not exist. The pod watch reports a new pod, so the controller
/// polls only to find the reason why the pod is missing. The intervals are long, because many Workspaces can be
/// waiting at the same time.
const NO_POD_POLL_INTERVALS: (Duration, Duration) = (POLL_INTERVAL, Duration::from_secs(30));
/// Divisor for the poll interval while the pod does not exist. The interval is the waiting time divided by this
/// number.
const NO_POD_POLL_DIVISOR: u32 = 2;
/// Minimum and maximum poll interval while an agent is installing a source.
const INSTALL_POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// Divisor for the poll interval while an agent is installing a source. The interval is the time since the
/// installation started divided by this number, within the bounds of [`INSTALL_POLL_INTERVALS`].
const INSTALL_POLL_DIVISOR: u32 = 8;

/// Maximum length of the CLI version in a message, in characters.
const MAX_VERSION: usize = 64;
/// Maximum length of an interactive session's command in a message, in characters.
const MAX_COMMAND: usize = 200;

/// Requeue interval while the kubelet updates a mounted Secret.
const MOUNT_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Requeue interval while the init container `fetch` is starting.
const FETCH_START_REQUEUE_INTERVAL: Duration = Duration::from_millis(300);

/// State of a Workspace, which determines its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The Workspace matches its spec.
    Ready,
    /// An operation is in progress.
    Working,
    /// A problem that can disappear without a change to the spec.
    Failing,
    /// A problem that only a change to the spec resolves.
    Stalled,
}

/// State to report in the status, and the requeue interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub state: State,
    pub reason: &'static str,
    pub message: String,
    /// Requeue interval, or `None` to wait for a watch event.
    pub again: Option<Duration>,
}

impl Report {
    pub(super) fn ready(artifact: &ArtifactReference) -> Self {
        let message = format!("source {} is ready", name(artifact));
        Self { state: State::Ready, reason: reason::SUCCEEDED, message, again: Some(AGENT_STATUS_INTERVAL) }
    }

    /// Reports that the Workspace is sleeping. A sleeping Workspace is ready, because the next run requires no user
    /// action.
    pub(super) fn sleeping(since: Timestamp) -> Self {
        let message = format!("sleeping since {}; the next run creates the pod", conditions::time(since));
        Self { state: State::Ready, reason: reason::SLEEPING, message, again: Some(SLEEP_CHECK_INTERVAL) }
    }

    pub(super) fn waking(why: &str) -> Self {
        Self::working(reason::WAKING, format!("creating the pod: {why}"), POLL_INTERVAL)
    }

    pub(super) fn taking_pod(pod: &str, why: &str) -> Self {
        Self::working(reason::WAKING, format!("taking pod {pod} from the pool: {why}"), POLL_INTERVAL)
    }

    /// Reports that the kubelet has not mounted the Workspace's inputs key in a pod from a pool yet.
    pub(super) fn mounting() -> Self {
        let message = "waiting for the kubelet to update the mounted Secrets and ConfigMaps".to_owned();
        Self::working(reason::INSTALLING, message, MOUNT_POLL_INTERVAL)
    }

    pub(super) fn stalled(message: String) -> Self {
        Self { state: State::Stalled, reason: reason::SPEC_INVALID, message, again: None }
    }

    /// Reports that the controller does not support the CLI version in the image.
    pub(super) fn cli_too_old(version: &str) -> Self {
        let version: String = version.chars().filter(|c| !c.is_control()).take(MAX_VERSION).collect();
        let (major, minor) = cli::OLDEST;
        let message = format!(
            "the image has Pulumi CLI version {version}, and {major}.{minor}.0 or later is required: set spec.image \
             (spec.workspaceTemplate.spec.image of a Stack) to a newer image"
        );
        let reason = reason::INCOMPATIBLE_CONFIGURATION;
        Self { state: State::Stalled, reason, message, again: Some(AGENT_STATUS_INTERVAL) }
    }

    /// Reports that an object with the required name exists but does not belong to the Workspace. The controller
    /// polls the object, because no watch reports that the object is deleted.
    pub(super) fn foreign(object: &str) -> Self {
        let message = format!("{object} exists and is not part of this Workspace: delete it or rename the Workspace");
        Self { state: State::Stalled, reason: reason::SPEC_INVALID, message, again: Some(AGENT_STATUS_INTERVAL) }
    }

    /// Reports that the pod does not exist. `waiting` is the time since the condition `Ready` last changed.
    pub(super) fn no_pod(event: Option<&StartEvent>, waiting: Duration) -> Self {
        let (min, max) = NO_POD_POLL_INTERVALS;
        let again = (waiting / NO_POD_POLL_DIVISOR).clamp(min, max);
        match event {
            Some(StartEvent::Warning(warning)) => {
                Self::failing(reason::POD_FAILED, format!("failed to create the pod: {warning}"), again)
            }
            Some(StartEvent::Step(_) | StartEvent::Resolved) | None => {
                Self::working(reason::WAITING_FOR_REPLICAS, "waiting for the pod to be created".to_owned(), again)
            }
        }
    }

    pub(super) fn starting(pod: &str, event: Option<&StartEvent>) -> Self {
        match event {
            Some(StartEvent::Warning(warning)) => {
                Self::failing(reason::POD_FAILED, format!("{warning}; pod {pod} failed to start"), POLL_INTERVAL * 2)
            }
            Some(StartEvent::Step(step)) => {
                Self::working(reason::WAITING_FOR_REPLICAS, format!("pod {pod} is starting: {step}"), POLL_INTERVAL * 2)
            }
            Some(StartEvent::Resolved) | None => {
                Self::working(reason::WAITING_FOR_REPLICAS, format!("pod {pod} is starting"), POLL_INTERVAL * 2)
            }
        }
    }

    /// Reports that the user-defined init containers are running after the source has been delivered.
    pub(super) fn initializing(pod: &str, container: Option<&str>) -> Self {
        let what = container.map_or_else(
            || "waiting for its init containers".to_owned(),
            |name| format!("running init container {name}"),
        );
        Self::working(reason::INITIALIZING, format!("pod {pod} is starting: {what}"), FALLBACK_INTERVAL)
    }

    /// Reports that the init container `fetch` is starting. The controller polls the container, because no watch
    /// reports when the container accepts connections.
    pub(super) fn fetch_starting(pod: &str) -> Self {
        Self::working(reason::WAITING_FOR_REPLICAS, format!("pod {pod} is starting"), FETCH_START_REQUEUE_INTERVAL)
    }

    pub(super) fn pod_failed(pod: &str, problem: &str) -> Self {
        Self::failing(reason::POD_FAILED, format!("{problem}; pod {pod} failed to start"), FALLBACK_INTERVAL)
    }

    /// Reports that no node meets the requirements of the pod. The problem can disappear at any time, for example when
    /// an autoscaler adds a node.
    pub(super) fn unschedulable(pod: &str, problem: &str) -> Self {
        Self::failing(reason::UNSCHEDULABLE, format!("{problem}; pod {pod} failed to start"), FALLBACK_INTERVAL)
    }

    pub(super) fn unreachable(message: &str) -> Self {
        Self::failing(reason::CONNECTION_FAILED, format!("agent is unreachable: {message}"), POLL_INTERVAL)
    }

    /// Reports that a run delays the deletion of the pod. If the pod is already being deleted, for example because its
    /// namespace is being deleted, the agent cancels the run, and the message contains the end of the grace period.
    pub(super) fn pod_waits_for_run(why: &'static str, pod: &PodState, run: &str) -> Self {
        let name = &pod.name;
        let message = match pod.grace_end {
            Some(end) => {
                format!("waiting for run {run} to end; pod {name} is terminating, and its grace period ends at {end}")
            }
            None => format!("waiting for run {run} to end before deleting pod {name}"),
        };
        Self::working(why, message, FALLBACK_INTERVAL)
    }

    /// Reports that an interactive session delays the deletion of the pod. The controller polls the agent, because no
    /// watch reports when the session ends.
    pub(super) fn pod_waits_for_session(why: &'static str, pod: &str, session: &InteractiveSession) -> Self {
        Self::working(why, format!("waiting for {} to end before deleting pod {pod}", describe(session)), POLL_INTERVAL)
    }

    pub(super) fn source_waits_for_session(artifact: &ArtifactReference, session: &InteractiveSession) -> Self {
        let message = format!("waiting for {} to end before installing source {}", describe(session), name(artifact));
        Self::working(reason::INSTALLING, message, POLL_INTERVAL)
    }

    /// Adds to the message that runs wait until the interactive session ends.
    pub(super) fn with_session(self, session: &InteractiveSession) -> Self {
        let message = format!("{}; runs wait for {} to end", self.message, describe(session));
        Self { message, again: Some(POLL_INTERVAL), ..self }
    }

    pub(super) fn pod_terminating(why: &'static str, pod: &str) -> Self {
        Self::working(why, format!("pod {pod} is terminating"), POLL_INTERVAL)
    }

    pub(super) fn deletion_waits_for_run(run: &str) -> Self {
        Self::working(
            reason::DELETING,
            format!("waiting for run {run} to end before deleting the Workspace"),
            FALLBACK_INTERVAL,
        )
    }

    pub(super) fn source_waits_for_run(artifact: &ArtifactReference, run: &str) -> Self {
        let message = format!("waiting for run {run} to end before installing source {}", name(artifact));
        Self::working(reason::INSTALLING, message, FALLBACK_INTERVAL)
    }

    pub(super) fn artifact_missing(artifact: &ArtifactReference) -> Self {
        let message = format!("waiting for source {} to be fetched", name(artifact));
        Self::failing(reason::ARTIFACT_UNAVAILABLE, message, FALLBACK_INTERVAL)
    }

    /// Reports why the source of the Workspace is unknown.
    pub(super) fn no_source(why: &Unavailable) -> Self {
        match why {
            Unavailable::Invalid(message) | Unavailable::Denied(message) => Self::stalled(message.clone()),
            Unavailable::NotYet(message) | Unavailable::Stalled(message) => {
                Self::failing(reason::ARTIFACT_UNAVAILABLE, message.clone(), FALLBACK_INTERVAL)
            }
            Unavailable::Resolving(message) => {
                Self::working(reason::ARTIFACT_UNAVAILABLE, message.clone(), FALLBACK_INTERVAL)
            }
        }
    }

    /// Reports that referenced objects are missing. The agent can install the source only if all objects that the
    /// environment references exist.
    pub(super) fn reference_not_found(artifact: &ArtifactReference, waits: &str) -> Self {
        let message = format!("{waits}; required to install source {}", name(artifact));
        Self::failing(reason::REFERENCE_NOT_FOUND, message, FALLBACK_INTERVAL)
    }

    pub(super) fn installing(artifact: &ArtifactReference) -> Self {
        Self::working(reason::INSTALLING, format!("installing source {}", name(artifact)), FALLBACK_INTERVAL)
    }

    /// Reports how far the installation of a source has progressed after `elapsed`. The controller polls the agent,
    /// because the agent sends no events during the installation.
    pub(super) fn install_progress(artifact: &ArtifactReference, candidate: &Candidate, elapsed: Duration) -> Self {
        let name = name(artifact);
        if candidate.failure.is_empty() {
            let message = format!("installing source {name}: {}", candidate.doing);
            let (shortest, longest) = INSTALL_POLL_INTERVALS;
            let again = (elapsed / INSTALL_POLL_DIVISOR).clamp(shortest, longest);
            return Self::working(reason::INSTALLING, message, again);
        }
        let message = format!("{}; retrying to install the dependencies of source {name}", candidate.failure);
        Self::failing(reason::INSTALLATION_FAILED, message, POLL_INTERVAL)
    }

    /// Reports that the store does not contain a policy pack yet. The controller downloads the pack when it
    /// reconciles the Stack that requests the pack.
    pub(super) fn pack_missing(pack: &str) -> Self {
        let message = format!("waiting for policy pack {pack} to be fetched");
        Self::failing(reason::ARTIFACT_UNAVAILABLE, message, FALLBACK_INTERVAL)
    }

    pub(super) fn pack_waits_for_run(pack: &str, run: &str) -> Self {
        let message = format!("waiting for run {run} to end before installing policy pack {pack}");
        Self::working(reason::INSTALLING, message, FALLBACK_INTERVAL)
    }

    /// Reports how far the installation of a policy pack has progressed after `elapsed`.
    pub(super) fn pack_progress(pack: &str, state: &PolicyPackState, elapsed: Duration) -> Self {
        if !state.failure.is_empty() {
            let message = format!("{}; retrying to install the dependencies of policy pack {pack}", state.failure);
            return Self::failing(reason::INSTALLATION_FAILED, message, POLL_INTERVAL);
        }
        let (shortest, longest) = INSTALL_POLL_INTERVALS;
        let again = (elapsed / INSTALL_POLL_DIVISOR).clamp(shortest, longest);
        Self::working(reason::INSTALLING, format!("installing policy pack {pack}: {}", state.doing), again)
    }

    pub(super) fn pack_refused(pack: &str, message: &str) -> Self {
        let message = format!("agent rejected policy pack {pack}: {message}");
        Self::failing(reason::ARTIFACT_REFUSED, message, FALLBACK_INTERVAL)
    }

    /// Reports that objects that a policy pack requires are missing.
    pub(super) fn pack_reference_not_found(pack: &str, waits: &str) -> Self {
        let message = format!("{waits}; required to install policy pack {pack}");
        Self::failing(reason::REFERENCE_NOT_FOUND, message, FALLBACK_INTERVAL)
    }

    /// Reports that the agent has repeatedly accepted a source and then dropped it. The next delivery starts after
    /// `pause`.
    pub(super) fn source_dropped(artifact: &ArtifactReference, pause: Duration) -> Self {
        let message = format!(
            "agent accepted source {}, but dropped it before the installation was complete; retrying with backoff",
            name(artifact)
        );
        Self::failing(reason::INSTALLATION_FAILED, message, pause)
    }

    pub(super) fn artifact_refused(artifact: &ArtifactReference, message: &str) -> Self {
        let message = format!("agent rejected source {}: {message}", name(artifact));
        Self::failing(reason::ARTIFACT_REFUSED, message, FALLBACK_INTERVAL)
    }

    /// Reports that the controller failed to download a source. If the URL is not allowed, only a change to the spec
    /// resolves the problem.
    pub(super) fn artifact_not_fetched(artifact: &ArtifactReference, error: &FetchError) -> Self {
        let message = format!("failed to fetch source {}: {error}", name(artifact));
        match error {
            FetchError::Url { .. } | FetchError::RefusedHost { .. } | FetchError::ForeignArtifact { .. } => {
                Self::stalled(message)
            }
            _ => {
                let again = error.retry_after().map_or(FALLBACK_INTERVAL, |wait| wait.max(POLL_INTERVAL));
                Self::failing(reason::ARTIFACT_UNAVAILABLE, message, again)
            }
        }
    }

    /// Reports that the API server forbids creating an object of the Workspace, for example because of a quota.
    pub(super) fn forbidden(message: String) -> Self {
        Self::failing(reason::POD_FAILED, message, FALLBACK_INTERVAL)
    }

    /// Reports that an admission webhook or policy denied an object of the Workspace.
    pub(super) fn denied(message: String) -> Self {
        Self::failing(reason::POD_FAILED, message, REJECTED_REQUEUE_INTERVAL)
    }

    /// Reports that the API server rejected the content of an object. The cause can also be a webhook or policy whose
    /// message the controller does not recognize.
    pub(super) fn rejected(message: String) -> Self {
        Self { again: Some(REJECTED_REQUEUE_INTERVAL), ..Self::stalled(message) }
    }

    /// Reports that the controller does not replace the pod, because the StatefulSet would create a pod that does not
    /// match the spec.
    pub(super) fn contested_pod() -> Self {
        let message = "cannot replace the pod: another client changes the StatefulSet after each apply".to_owned();
        Self::failing(reason::POD_FAILED, message, REJECTED_REQUEUE_INTERVAL)
    }

    /// Reports that the agent of each new pod is too old. The next replacement starts after `pause`.
    pub(super) fn agent_still_too_old(pod: &str, version: &str, pause: Duration) -> Self {
        let version: String = version.chars().filter(|c| !c.is_control()).take(MAX_VERSION).collect();
        let message = format!(
            "agent in pod {pod} has version {version}, which is too old, and a new pod has the same agent: set --agent-image to the \
             image of the controller"
        );
        Self::failing(reason::POD_FAILED, message, pause)
    }

    /// Reports that each new pod has a revision hash that does not match the spec. The next replacement starts after
    /// `pause`.
    pub(super) fn pod_still_outdated(pod: &str, pause: Duration) -> Self {
        let message = format!(
            "pod {pod} does not match the spec, although it is new: exclude pods from the webhook or policy that changes the \
             annotation {ANNOTATION_REVISION_HASH}"
        );
        Self::failing(reason::POD_FAILED, message, pause)
    }

    /// Adds to the message the objects whose next apply is delayed. Limits the requeue interval to the delay.
    pub(super) fn with_contested(self, contested: &Contested) -> Self {
        let again = self.again.map_or(contested.pause, |again| again.min(contested.pause));
        Self { message: format!("{}; {}", self.message, contested.message), again: Some(again), ..self }
    }

    /// Adds to the message which dependencies the cache does not contain.
    pub(super) fn with_uncached(self, uncached: &Uncached) -> Self {
        Self { message: format!("{}; {}", self.message, describe_uncached(uncached)), ..self }
    }

    fn working(reason: &'static str, message: String, again: Duration) -> Self {
        Self { state: State::Working, reason, message, again: Some(again) }
    }

    fn failing(reason: &'static str, message: String, again: Duration) -> Self {
        Self { state: State::Failing, reason, message, again: Some(again) }
    }
}

/// Describes the dependencies that `idle.keep: Caches` does not keep.
pub(super) fn describe_uncached(uncached: &Uncached) -> String {
    let names = uncached.plugins.join(", ");
    match uncached.reason.as_str() {
        "" => format!(
            "the dependency cache does not keep plugins that runs download ({names}): use an image with these plugins"
        ),
        reason => format!("the dependency cache does not keep the dependencies: {reason}"),
    }
}

/// Describes an interactive session on one line. The description has a limited length, because the agent is not
/// trusted.
fn describe(session: &InteractiveSession) -> String {
    let typed: String =
        session.command.chars().take(MAX_COMMAND).map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("interactive session `{typed}` (PID {})", session.pid)
}

/// Returns a readable name for an artifact.
fn name(artifact: &ArtifactReference) -> Cow<'_, str> {
    if !artifact.revision.is_empty() {
        return Cow::Borrowed(&artifact.revision);
    }
    match InPod::of(&artifact.digest) {
        Some(InPod::Image) => Cow::Owned(format!("/{} of the image", artifact.dir)),
        Some(InPod::InitContainers) => Cow::Borrowed("from the init containers"),
        None => Cow::Owned(artifact.digest.to_string()),
    }
}
