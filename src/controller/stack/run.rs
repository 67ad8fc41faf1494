//! What a run does, on which artifact, and how messages name it. Pure.

use crate::api::auto::{ArtifactReference, UpdateKind};
use crate::api::pulumi::{CurrentUpdate, Stack};
use crate::source::Resolved;

/// The name of a run in messages. A source in a Workspace or from its init containers has no revision.
pub fn named(kind: UpdateKind, revision: &str) -> String {
    match revision {
        "" => kind.as_str().to_owned(),
        revision => format!("{} of revision {revision}", kind.as_str()),
    }
}

/// The message for a run that was requested, as long as its Update says nothing.
pub fn queued(current: &CurrentUpdate) -> String {
    format!("{} ({}) is queued", named(current.kind, current.commit.as_deref().unwrap_or("unknown")), current.name)
}

/// What a Stack runs as long as it lives.
pub fn forward(stack: &Stack) -> UpdateKind {
    if stack.spec.preview.unwrap_or_default() { UpdateKind::Preview } else { UpdateKind::Up }
}

/// The artifact that a run is bound to.
pub fn artifact_of(current: &CurrentUpdate) -> ArtifactReference {
    ArtifactReference {
        digest: current.digest.clone().unwrap_or_default(),
        revision: current.commit.clone().unwrap_or_default(),
        dir: current.dir.clone().unwrap_or_default(),
    }
}

/// The reference to an artifact.
pub fn reference(resolved: &Resolved) -> ArtifactReference {
    ArtifactReference {
        digest: resolved.digest.to_string(),
        revision: resolved.revision.clone(),
        dir: resolved.directory.as_str().to_owned(),
    }
}
