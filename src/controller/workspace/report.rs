//! How things are with a Workspace, in a reason and a sentence, and when to look again.

use std::borrow::Cow;
use std::time::Duration;

use super::apply_conflicts::Contested;
use crate::api::auto::ArtifactReference;
use crate::api::conditions::workspace_reason as reason;
use crate::artifact::{FetchError, InPod};
use crate::config::AGENT_STATUS_INTERVAL;
use crate::pulumi::version;
use crate::rpc::proto::{Candidate, InteractiveSession};
use crate::source::Unavailable;

/// Changes of pods and runs are watched; this is for what a watch has missed.
const BACKSTOP: Duration = Duration::from_secs(30);
/// How soon an object is applied again that the API server has rejected or that others rewrite: nothing tells when a policy changes.
pub(super) const REJECTED_RETRY: Duration = Duration::from_secs(3 * 60);
/// How soon an agent that cannot be reached is tried again, and a pod that is not there is looked for.
const SOON: Duration = Duration::from_secs(5);
/// How soon an agent is asked again that is putting a source in place.
const WATCH: Duration = Duration::from_secs(2);

/// The most of the version that the CLI prints that is told, in characters.
const MAX_VERSION: usize = 64;
/// The most of a person's command that is told, in characters.
const MAX_COMMAND: usize = 200;

/// How soon a process is tried again that has just been started.
const AT_ONCE: Duration = Duration::from_millis(300);

/// What kind of state it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// All is as the spec wants it.
    Ready,
    /// On its way.
    Working,
    /// Something is wrong that may mend itself or be mended from outside.
    Failing,
    /// Only a change of the spec helps.
    Stalled,
}

/// What the status shall say, and when to look again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub state: State,
    pub reason: &'static str,
    pub message: String,
    /// None: when something changes.
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

    /// Only another image helps.
    pub(super) fn cli_too_old(version: &str) -> Self {
        let version: String = version.chars().filter(|c| !c.is_control()).take(MAX_VERSION).collect();
        let (major, minor) = version::OLDEST;
        let message = format!(
            "the Pulumi CLI in the image has version {version}, and the oldest supported version is {major}.{minor}.0: set \
             spec.image (spec.workspaceTemplate.spec.image of a Stack) to a newer one"
        );
        let reason = reason::INCOMPATIBLE_CONFIGURATION;
        Self { state: State::Stalled, reason, message, again: Some(AGENT_STATUS_INTERVAL) }
    }

    /// Nothing tells us when the other's object goes away, so we look.
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

    /// The source is there, and the user's init containers work on it.
    pub(super) fn initializing(pod: &str, container: Option<&str>) -> Self {
        let what = container.map_or_else(
            || "its init containers are next".to_owned(),
            |name| format!("its init container {name} runs"),
        );
        Self::working(reason::INITIALIZING, format!("pod {pod} is starting: {what}"), BACKSTOP)
    }

    /// No event tells that the init container `fetch` listens.
    pub(super) fn fetch_starting(pod: &str) -> Self {
        Self::working(reason::WAITING_FOR_REPLICAS, format!("pod {pod} is starting"), AT_ONCE)
    }

    pub(super) fn pod_failed(pod: &str, trouble: &str) -> Self {
        Self::failing(reason::POD_FAILED, format!("pod {pod} does not start: {trouble}"), BACKSTOP)
    }

    /// Nodes come and go: an autoscaler may be at work on it.
    pub(super) fn unschedulable(pod: &str, trouble: &str) -> Self {
        Self::failing(reason::UNSCHEDULABLE, format!("pod {pod} does not start: {trouble}"), BACKSTOP)
    }

    pub(super) fn unreachable(message: &str) -> Self {
        Self::failing(reason::CONNECTION_FAILED, format!("the agent cannot be reached: {message}"), SOON)
    }

    pub(super) fn pod_waits_for_run(why: &'static str, pod: &str, run: &str) -> Self {
        Self::working(why, format!("pod {pod} goes away when the run {run} has ended"), BACKSTOP)
    }

    /// Nothing tells us that somebody has ended; so we ask.
    pub(super) fn pod_waits_for_session(why: &'static str, pod: &str, session: &InteractiveSession) -> Self {
        Self::working(why, format!("pod {pod} goes away when {} has ended", command(session)), SOON)
    }

    pub(super) fn source_waits_for_session(artifact: &ArtifactReference, session: &InteractiveSession) -> Self {
        let message = format!("the source {} is put in place when {} has ended", name(artifact), command(session));
        Self::working(reason::INSTALLING, message, SOON)
    }

    /// The same, and somebody works in the pod.
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

    /// It is not known what shall be in place.
    pub(super) fn no_source(why: &Unavailable) -> Self {
        match why {
            Unavailable::Invalid(message) | Unavailable::Denied(message) => Self::stalled(message.clone()),
            Unavailable::NotYet(message) | Unavailable::Stalled(message) => {
                Self::failing(reason::ARTIFACT_UNAVAILABLE, message.clone(), BACKSTOP)
            }
            Unavailable::Looking(message) => Self::working(reason::ARTIFACT_UNAVAILABLE, message.clone(), BACKSTOP),
        }
    }

    /// An installation needs the environment, so the source waits for all that this refers to.
    pub(super) fn reference_not_found(artifact: &ArtifactReference, waits: &str) -> Self {
        let message = format!("{waits}; the source {} is installed afterwards", name(artifact));
        Self::failing(reason::REFERENCE_NOT_FOUND, message, BACKSTOP)
    }

    pub(super) fn installing(artifact: &ArtifactReference) -> Self {
        Self::working(reason::INSTALLING, format!("the source {} is being put in place", name(artifact)), BACKSTOP)
    }

    /// The agent has it and goes on by itself; nothing tells us how far it is, so we ask.
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

    /// Only another spec helps where the address may not be asked.
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

    /// The API server forbids an object of the Workspace, for instance because of a quota.
    pub(super) fn forbidden(message: String) -> Self {
        Self::failing(reason::POD_FAILED, message, BACKSTOP)
    }

    /// An admission webhook or policy denied an object of the Workspace.
    pub(super) fn denied(message: String) -> Self {
        Self::failing(reason::POD_FAILED, message, REJECTED_RETRY)
    }

    /// The API server found fault with the content of an object. That may be a webhook or policy, too, which says so in its own
    /// words.
    pub(super) fn rejected(message: String) -> Self {
        Self { again: Some(REJECTED_RETRY), ..Self::stalled(message) }
    }

    /// A new pod would be made of a StatefulSet that is not as the spec wants it.
    pub(super) fn contested_pod() -> Self {
        let message = "the pod has to be replaced, and the StatefulSet does not stay as it is applied".to_owned();
        Self::failing(reason::POD_FAILED, message, REJECTED_RETRY)
    }

    /// The same, and objects are not applied again yet.
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

/// What a person does in the pod, bounded and on one line: the agent is not trusted.
fn command(session: &InteractiveSession) -> String {
    let typed: String =
        session.command.chars().take(MAX_COMMAND).map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("a person's `{typed}` in the pod (pid {})", session.pid)
}

/// How people call an artifact.
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
