//! The artifact that is installed in the pod of a Workspace.

use crate::api::auto::{ArtifactReference, Workspace};
use crate::source::{Origin, Resolved};

/// Returns the artifact that is in the pod, if it is the artifact in the Workspace's spec.
pub fn in_place(workspace: &Workspace) -> Option<Resolved> {
    let reference = workspace.status.as_ref()?.artifact.as_ref()?;
    (workspace.spec.artifact.as_ref() == Some(reference)).then_some(())?;
    from_reference(reference)
}

/// Returns the artifact that is in the pod. It can differ from the artifact in the spec, because the pod may have rejected a newer one.
pub fn last_in_place(workspace: &Workspace) -> Option<Resolved> {
    from_reference(workspace.status.as_ref()?.artifact.as_ref()?)
}

/// Converts a reference to an artifact without an origin, which cannot be fetched.
pub fn from_reference(reference: &ArtifactReference) -> Option<Resolved> {
    Some(Resolved {
        origin: Origin::Url(String::new()),
        revision: reference.revision.clone(),
        origin_revision: None,
        content_id: None,
        digest: reference.digest.parse().ok()?,
        directory: reference.dir.parse().ok()?,
    })
}
