//! State of a Workspace as a reason and a message, with the requeue time.

use std::borrow::Cow;
use std::time::Duration;

use super::apply_conflicts::Contested;
use crate::api::auto::ArtifactReference;
use crate::api::conditions::workspace_reason as reason;
use crate::artifact::{FetchError, InPod};
use crate::config::AGENT_STATUS_INTERVAL;
use crate::pulumi::cli;
use crate::rpc::proto::{Candidate, InteractiveSession};
use crate::source::Unavailable;

/// Requeue interval as a fallback for missed watch events of pods and runs.
const BACKSTOP: Duration = Duration::from_secs(30);
/// Retry interval for an object that the API server rejects or another client rewrites. No watch reports when a policy
/// changes.
pub(super) const REJECTED_RETRY: Duration = Duration::from_secs(3 * 60);
/// Requeue interval for an unreachable agent or a missing pod.
const SOON: Duration = Duration::from_secs(5);
/// Poll interval for an agent that is installing a source.
const WATCH: Duration = Duration::from_secs(2);

/// Maximum length of the CLI version in a message, in characters.
const MAX_VERSION: usize = 64;
/// Maximum length of the command of an interactive session in a message, in characters.
const MAX_COMMAND: usize = 200;

/// Retry interval for a process that has just started.
const AT_ONCE: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Everything matches the spec.
    Ready,
    /// In progress.
    Working,
    /// A problem that may disappear without a change of the spec.
    Failing,
    /// A problem that only a change of the spec solves.
    Stalled,
}

/// State to write to the status, and the requeue time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub state: State,
    pub reason: &'static str,
    pub message: String,
    /// Requeue interval, or `None` to wait for a change.
    pub again: Option<Duration>,
}

impl Report {
    pub(super) fn ready(artifact: &ArtifactReference) -> Self {
        let message = format!("the source {} is in place", name(artifact));
        Self { state: State::Ready, reason: reason::SUCCEEDED, message, again: Some(AGENT_STATUS_INTERVAL) }
    }

    pub(super) fn stalled(message: String) -> Self {
        Self { state: State::Stalled, reason: reason::SPEC_INVALID, message, again: None }
    }

    /// Requires a change of the image.
    pub(super) fn cli_too_old(version: &str) -> Self {
        let version: String = version.chars().filter(|c| !c.is_control()).take(MAX_VERSION).collect();
        let (major, minor) = cli::OLDEST;
        let message = format!(
            "the Pulumi CLI in the image has version {version}, and the oldest supported version is {major}.{minor}.0: set \
             spec.image (spec.workspaceTemplate.spec.image of a Stack) to a newer one"
        );
        let reason = reason::INCOMPATIBLE_CONFIGURATION;
        Self { state: State::Stalled, reason, message, again: Some(AGENT_STATUS_INTERVAL) }
    }

    /// No watch reports the deletion of the other object, so it is polled.
    pub(super) fn foreign(object: &str) -> Self {
        let message =
            format!("{object} exists and does not belong to this Workspace: delete it or rename the Workspace");
        Self { state: State::Stalled, reason: reason::SPEC_INVALID, message, again: Some(AGENT_STATUS_INTERVAL) }
    }

    pub(super) fn no_pod(warning: Option<&str>) -> Self {
        match warning {
            Some(warning) => Self::failing(reason::POD_FAILED, format!("no pod can be made: {warning}"), SOON),
            None => Self::working(reason::WAITING_FOR_REPLICAS, "the pod is being made".to_owned(), SOON),
        }
    }

    pub(super) fn starting(pod: &str, warning: Option<&str>) -> Self {
        match warning {
            Some(warning) => {
                Self::failing(reason::POD_FAILED, format!("pod {pod} does not start: {warning}"), SOON * 2)
            }
            None => Self::working(reason::WAITING_FOR_REPLICAS, format!("pod {pod} is starting"), SOON * 2),
        }
    }

    /// The source is delivered, and the user's init containers run.
    pub(super) fn initializing(pod: &str, container: Option<&str>) -> Self {
        let what = container.map_or_else(
            || "its init containers are next".to_owned(),
            |name| format!("its init container {name} runs"),
        );
        Self::working(reason::INITIALIZING, format!("pod {pod} is starting: {what}"), BACKSTOP)
    }

    /// No event reports that the init container `fetch` accepts connections.
    pub(super) fn fetch_starting(pod: &str) -> Self {
        Self::working(reason::WAITING_FOR_REPLICAS, format!("pod {pod} is starting"), AT_ONCE)
    }

    pub(super) fn pod_failed(pod: &str, trouble: &str) -> Self {
        Self::failing(reason::POD_FAILED, format!("pod {pod} does not start: {trouble}"), BACKSTOP)
    }

    /// Nodes can be added at any time, for example by an autoscaler.
    pub(super) fn unschedulable(pod: &str, trouble: &str) -> Self {
        Self::failing(reason::UNSCHEDULABLE, format!("pod {pod} does not start: {trouble}"), BACKSTOP)
    }

    pub(super) fn unreachable(message: &str) -> Self {
        Self::failing(reason::CONNECTION_FAILED, format!("the agent cannot be reached: {message}"), SOON)
    }

    pub(super) fn pod_waits_for_run(why: &'static str, pod: &str, run: &str) -> Self {
        Self::working(why, format!("pod {pod} goes away when the run {run} has ended"), BACKSTOP)
    }

    /// No event reports the end of a session, so the agent is polled.
    pub(super) fn pod_waits_for_session(why: &'static str, pod: &str, session: &InteractiveSession) -> Self {
        Self::working(why, format!("pod {pod} goes away when {} has ended", command(session)), SOON)
    }

    pub(super) fn source_waits_for_session(artifact: &ArtifactReference, session: &InteractiveSession) -> Self {
        let message = format!("the source {} is put in place when {} has ended", name(artifact), command(session));
        Self::working(reason::INSTALLING, message, SOON)
    }

    /// Adds to the message the interactive session that delays runs.
    pub(super) fn beside(self, session: &InteractiveSession) -> Self {
        let message = format!("{}; a run waits until {} has ended", self.message, command(session));
        Self { message, again: Some(SOON), ..self }
    }

    pub(super) fn pod_going(why: &'static str, pod: &str) -> Self {
        Self::working(why, format!("pod {pod} is going away"), SOON)
    }

    pub(super) fn deletion_waits_for_run(run: &str) -> Self {
        Self::working(reason::DELETING, format!("the Workspace goes away when the run {run} has ended"), BACKSTOP)
    }

    pub(super) fn source_waits_for_run(artifact: &ArtifactReference, run: &str) -> Self {
        let message = format!("the source {} is put in place when the run {run} has ended", name(artifact));
        Self::working(reason::INSTALLING, message, BACKSTOP)
    }

    pub(super) fn artifact_missing(artifact: &ArtifactReference) -> Self {
        let message = format!("the source {} has not been fetched yet, or not again", name(artifact));
        Self::failing(reason::ARTIFACT_UNAVAILABLE, message, BACKSTOP)
    }

    /// It is unknown which source should be in place.
    pub(super) fn no_source(why: &Unavailable) -> Self {
        match why {
            Unavailable::Invalid(message) | Unavailable::Denied(message) => Self::stalled(message.clone()),
            Unavailable::NotYet(message) | Unavailable::Stalled(message) => {
                Self::failing(reason::ARTIFACT_UNAVAILABLE, message.clone(), BACKSTOP)
            }
            Unavailable::Looking(message) => Self::working(reason::ARTIFACT_UNAVAILABLE, message.clone(), BACKSTOP),
        }
    }

    /// An installation needs the environment, so the source waits for all objects that the environment refers to.
    pub(super) fn reference_not_found(artifact: &ArtifactReference, waits: &str) -> Self {
        let message = format!("{waits}; the source {} is installed afterwards", name(artifact));
        Self::failing(reason::REFERENCE_NOT_FOUND, message, BACKSTOP)
    }

    pub(super) fn installing(artifact: &ArtifactReference) -> Self {
        Self::working(reason::INSTALLING, format!("the source {} is being put in place", name(artifact)), BACKSTOP)
    }

    /// The agent installs the source without further requests and sends no events, so it is polled.
    pub(super) fn on_its_way(artifact: &ArtifactReference, candidate: &Candidate) -> Self {
        let name = name(artifact);
        if candidate.failure.is_empty() {
            let message = format!("the source {name} is being put in place: {}", candidate.doing);
            return Self::working(reason::INSTALLING, message, WATCH);
        }
        let message = format!(
            "the dependencies of the source {name} cannot be installed; it is tried again: {}",
            candidate.failure
        );
        Self::failing(reason::INSTALLATION_FAILED, message, SOON)
    }

    pub(super) fn artifact_refused(artifact: &ArtifactReference, message: &str) -> Self {
        let message = format!("the agent refused the source {}: {message}", name(artifact));
        Self::failing(reason::ARTIFACT_REFUSED, message, BACKSTOP)
    }

    /// Requires a change of the spec if the URL is not allowed.
    pub(super) fn artifact_not_fetched(artifact: &ArtifactReference, error: &FetchError) -> Self {
        let message = format!("the source {} cannot be fetched: {error}", name(artifact));
        match error {
            FetchError::Url { .. } | FetchError::RefusedHost { .. } | FetchError::ForeignArtifact { .. } => {
                Self::stalled(message)
            }
            _ => {
                let again = error.retry_after().map_or(BACKSTOP, |wait| wait.max(SOON));
                Self::failing(reason::ARTIFACT_UNAVAILABLE, message, again)
            }
        }
    }

    /// The API server forbids an object of the Workspace, for example because of a quota.
    pub(super) fn forbidden(message: String) -> Self {
        Self::failing(reason::POD_FAILED, message, BACKSTOP)
    }

    /// An admission webhook or policy denied an object of the Workspace.
    pub(super) fn denied(message: String) -> Self {
        Self::failing(reason::POD_FAILED, message, REJECTED_RETRY)
    }

    /// The API server rejected the content of an object. The cause may also be a webhook or policy with an unrecognized
    /// message.
    pub(super) fn rejected(message: String) -> Self {
        Self { again: Some(REJECTED_RETRY), ..Self::stalled(message) }
    }

    /// A new pod would be created from a StatefulSet that does not match the spec.
    pub(super) fn contested_pod() -> Self {
        let message = "the pod has to be replaced, and the StatefulSet does not stay as it is applied".to_owned();
        Self::failing(reason::POD_FAILED, message, REJECTED_RETRY)
    }

    /// Adds to the message the objects that are not applied again yet.
    pub(super) fn with_contested(self, contested: &Contested) -> Self {
        let again = self.again.map_or(contested.pause, |again| again.min(contested.pause));
        Self { message: format!("{}; {}", self.message, contested.message), again: Some(again), ..self }
    }

    fn working(reason: &'static str, message: String, again: Duration) -> Self {
        Self { state: State::Working, reason, message, again: Some(again) }
    }

    fn failing(reason: &'static str, message: String, again: Duration) -> Self {
        Self { state: State::Failing, reason, message, again: Some(again) }
    }
}

/// Describes an interactive session, bounded and on one line, because the agent is not trusted.
fn command(session: &InteractiveSession) -> String {
    let typed: String =
        session.command.chars().take(MAX_COMMAND).map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("a person's `{typed}` in the pod (pid {})", session.pid)
}

/// Returns a readable name for an artifact.
fn name(artifact: &ArtifactReference) -> Cow<'_, str> {
    if !artifact.revision.is_empty() {
        return Cow::Borrowed(&artifact.revision);
    }
    match artifact.digest.parse().ok().and_then(|digest| InPod::of(&digest)) {
        Some(InPod::Image) => Cow::Owned(format!("/{} of the image", artifact.dir)),
        Some(InPod::InitContainers) => Cow::Borrowed("from the init containers"),
        None => Cow::Borrowed(&artifact.digest),
    }
}
