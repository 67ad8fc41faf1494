//! What a Workspace's conditions say about a run that is to start in it. Pure.

use crate::api::auto::{ArtifactReference, Workspace};
use crate::api::conditions::{self, workspace_reason};

pub enum Readiness {
    Ready,
    Waiting(String),
    Failed(String),
    VersionTooLow(String),
    /// What the source needs cannot be installed.
    NotInstalled(String),
    /// The pod is well and keeps the source that it has: the new one is not fit to be put in place.
    SourceRefused(String),
    /// The pod waits for bytes that are not here, or not any more.
    LacksSource(String),
}

pub fn readiness(workspace: &Workspace) -> Readiness {
    let status = workspace.status.clone().unwrap_or_default();
    let observed = status.observed_generation == workspace.metadata.generation;
    let Some(ready) = conditions::find(&status.conditions, conditions::READY).filter(|_| observed) else {
        return Readiness::Waiting(String::new());
    };
    let message = format!("{}: {}", ready.reason, ready.message);
    // The cause comes first: `kubectl get` prints the begin of the message.
    let waiting = format!("{} ({}); ", ready.message, ready.reason);
    match ready.reason.as_str() {
        _ if ready.status == "True" && status.artifact == workspace.spec.artifact => Readiness::Ready,
        workspace_reason::ARTIFACT_REFUSED => Readiness::SourceRefused(ready.message.clone()),
        workspace_reason::ARTIFACT_UNAVAILABLE => Readiness::LacksSource(waiting),
        workspace_reason::INSTALLATION_FAILED => Readiness::NotInstalled(message),
        workspace_reason::INCOMPATIBLE_CONFIGURATION => Readiness::VersionTooLow(message),
        workspace_reason::POD_FAILED | workspace_reason::SPEC_INVALID => Readiness::Failed(message),
        _ => Readiness::Waiting(waiting),
    }
}

/// Whether a Workspace cannot get this artifact into its pod with what the pod has: another directory of the same archive is not there, and a
/// new pod has nothing.
pub fn needs_bytes(workspace: &Workspace, artifact: &ArtifactReference) -> bool {
    let placed = workspace.status.as_ref().and_then(|status| status.artifact.as_ref());
    let is_placed = placed.is_some_and(|placed| placed.digest == artifact.digest && placed.dir == artifact.dir);
    let asks_for_it = workspace.spec.artifact.as_ref() == Some(artifact);
    !is_placed || asks_for_it && matches!(readiness(workspace), Readiness::LacksSource(_))
}
