//! The artifact that the pod of a Workspace has in place. Pure.

use crate::api::auto::{ArtifactReference, Workspace};
use crate::source::{Origin, Resolved};

/// The artifact that a Workspace's pod has in place, if it is the one that the Workspace asks for.
pub fn in_place(workspace: &Workspace) -> Option<Resolved> {
    let reference = workspace.status.as_ref()?.artifact.as_ref()?;
    (workspace.spec.artifact.as_ref() == Some(reference)).then_some(())?;
    from_reference(reference)
}

/// The artifact that a Workspace's pod has in place, whatever the Workspace asks for: a newer one may have been refused.
pub fn last_in_place(workspace: &Workspace) -> Option<Resolved> {
    from_reference(workspace.status.as_ref()?.artifact.as_ref()?)
}

/// An artifact by its reference, without a place to fetch it from.
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
