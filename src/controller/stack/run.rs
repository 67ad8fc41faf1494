//! Helpers for runs: type, artifact and the name of a run in messages.

use crate::api::auto::{ArtifactReference, UpdateKind};
use crate::api::pulumi::{CurrentUpdate, Stack};
use crate::source::Resolved;

/// Returns the name of a run for messages. A source that is already in the pod has no revision.
pub fn named(kind: UpdateKind, revision: &str) -> String {
    match revision {
        "" => kind.as_str().to_owned(),
        revision => format!("{} of revision {revision}", kind.as_str()),
    }
}

/// Returns the message about an announced run whose Update has no condition yet.
pub fn queued(current: &CurrentUpdate) -> String {
    format!("{} ({}) is queued", named(current.kind, current.commit.as_deref().unwrap_or("unknown")), current.name)
}

/// Returns the type of run for a Stack that is not being deleted.
pub fn forward(stack: &Stack) -> UpdateKind {
    if stack.spec.preview.unwrap_or_default() { UpdateKind::Preview } else { UpdateKind::Up }
}

/// Returns the reference to the artifact of a run.
pub fn artifact_of(current: &CurrentUpdate) -> ArtifactReference {
    ArtifactReference {
        digest: current.digest.clone().unwrap_or_default(),
        revision: current.commit.clone().unwrap_or_default(),
        dir: current.dir.clone().unwrap_or_default(),
    }
}

pub fn reference(resolved: &Resolved) -> ArtifactReference {
    ArtifactReference {
        digest: resolved.digest.to_string(),
        revision: resolved.revision.clone(),
        dir: resolved.directory.as_str().to_owned(),
    }
}
