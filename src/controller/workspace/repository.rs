//! Workspaces with a Git repository as source: the current content of the repository becomes the artifact, as if a Stack had
//! set it.

use kube::ResourceExt;

use super::context::Context;
use crate::api::auto::{ArtifactReference, Workspace, WorkspaceSpec};
use crate::api::conditions::{READY, find};
use crate::source::git::{Git, Known, Lookup, RepositorySpec};
use crate::source::inline::InlineSource;
use crate::source::{Origin, Unavailable};

/// Sets `spec.artifact` from the Git repository of a Workspace. Returns the origin of its bytes if a repository is the only
/// source of the Workspace.
pub(super) fn resolve(workspace: &mut Workspace, context: &Context) -> Result<Option<Origin>, Unavailable> {
    look(workspace, &context.git)
}

fn look(workspace: &mut Workspace, git: &Git) -> Result<Option<Origin>, Unavailable> {
    let follower = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    let repository = match repository(workspace) {
        Ok(Some(repository)) => repository,
        other => {
            git.forget(&follower);
            return other.map(|_| None);
        }
    };
    let known = known(workspace);
    let lookup = Lookup { known, ..Lookup::default() };
    match git.look(&follower, &repository, &lookup) {
        Ok(resolved) => {
            let artifact = ArtifactReference {
                digest: resolved.digest.to_string(),
                revision: resolved.revision,
                dir: resolved.directory.as_str().to_owned(),
            };
            put(workspace, artifact);
            Ok(Some(resolved.origin))
        }
        // A ready Workspace stays ready until the revision is known.
        Err(error @ Unavailable::Looking(_)) => match ready(workspace) {
            Some(artifact) => {
                put(workspace, artifact);
                Ok(None)
            }
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Returns the repository that a Workspace follows. `None` if a Stack sets the artifact, or during deletion.
fn repository(workspace: &Workspace) -> Result<Option<RepositorySpec>, Unavailable> {
    if workspace.spec.artifact.is_some() || workspace.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let wanted = InlineSource::of(&workspace.spec).repository(&workspace.namespace().unwrap_or_default());
    wanted.map_err(|error| Unavailable::Invalid(error.to_string()))
}

fn put(workspace: &mut Workspace, artifact: ArtifactReference) {
    let spec = std::mem::take(&mut workspace.spec);
    workspace.spec = WorkspaceSpec { git: None, artifact: Some(artifact), ..spec };
}

/// Returns the revision and digest of the artifact in the pod.
fn known(workspace: &Workspace) -> Option<Known> {
    let artifact = workspace.status.as_ref()?.artifact.as_ref()?;
    Some(Known { revision: artifact.revision.clone(), digest: artifact.digest.parse().ok()?, selection: None })
}

/// Returns the artifact in the pod if the Workspace is ready for the current spec.
fn ready(workspace: &Workspace) -> Option<ArtifactReference> {
    let status = workspace.status.as_ref()?;
    let ready = find(&status.conditions, READY).filter(|ready| ready.status == "True")?;
    (ready.observed_generation == workspace.metadata.generation).then(|| status.artifact.clone())?
}
