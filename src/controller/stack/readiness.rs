//! Readiness of a Workspace for a run, derived from its conditions.

use crate::api::auto::{ArtifactReference, Workspace};
use crate::api::conditions::{self, workspace_reason};

pub enum Readiness {
    Ready,
    Waiting(String),
    Failed(String),
    VersionTooLow(String),
    /// The installation of the source's dependencies failed.
    NotInstalled(String),
    /// The pod is ready with its current source, and rejected the new one as unusable.
    SourceRefused(String),
    /// The pod waits for bytes that the store does not have.
    LacksSource(String),
}

pub fn readiness(workspace: &Workspace) -> Readiness {
    let status = workspace.status.clone().unwrap_or_default();
    let observed = status.observed_generation == workspace.metadata.generation;
    let Some(ready) = conditions::find(&status.conditions, conditions::READY).filter(|_| observed) else {
        return Readiness::Waiting(String::new());
    };
    let message = format!("{}: {}", ready.reason, ready.message);
    // The cause comes first because `kubectl get` truncates the message.
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

/// Whether the pod of a Workspace needs the bytes of this artifact. A new pod has no artifact, and a running one keeps only one directory
/// of an archive, so another directory of the same archive has to be delivered too.
pub fn needs_bytes(workspace: &Workspace, artifact: &ArtifactReference) -> bool {
    let placed = workspace.status.as_ref().and_then(|status| status.artifact.as_ref());
    let is_placed = placed.is_some_and(|placed| placed.digest == artifact.digest && placed.dir == artifact.dir);
    let asks_for_it = workspace.spec.artifact.as_ref() == Some(artifact);
    !is_placed || asks_for_it && matches!(readiness(workspace), Readiness::LacksSource(_))
}
