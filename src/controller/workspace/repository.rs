//! A Workspace whose source is a Git repository: what that has right now is its artifact, as if a Stack had written it.

use kube::ResourceExt;

use super::context::Context;
use crate::api::auto::{ArtifactReference, Workspace, WorkspaceSpec};
use crate::api::conditions::{READY, find};
use crate::source::git::{Git, Known, Question, RepositorySpec};
use crate::source::inline::InlineSource;
use crate::source::{Origin, Unavailable};

/// Puts the artifact of a repository where that of a Stack is. The answer is where its bytes come from, for a Workspace that names a
/// repository and nothing else.
pub(super) fn resolve(workspace: &mut Workspace, context: &Context) -> Result<Option<Origin>, Unavailable> {
    look(workspace, &context.git)
}

fn look(workspace: &mut Workspace, git: &Git) -> Result<Option<Origin>, Unavailable> {
    let follower = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    let wanted = match repository(workspace) {
        Ok(Some(wanted)) => wanted,
        other => {
            git.forget(&follower);
            return other.map(|_| None);
        }
    };
    let known = known(workspace);
    let question = Question { known, ..Question::default() };
    match git.look(&follower, &wanted, &question) {
        Ok(resolved) => {
            let artifact = ArtifactReference {
                digest: resolved.digest.to_string(),
                revision: resolved.revision,
                dir: resolved.directory.as_str().to_owned(),
            };
            put(workspace, artifact);
            Ok(Some(resolved.origin))
        }
        // What is ready stays so until more is known.
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

/// The repository that a Workspace follows: none where a Stack says what is in it, and none while it is being deleted.
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

/// What is in the pod, by its revision.
fn known(workspace: &Workspace) -> Option<Known> {
    let artifact = workspace.status.as_ref()?.artifact.as_ref()?;
    Some(Known { revision: artifact.revision.clone(), digest: artifact.digest.parse().ok()?, selection: None })
}

/// What is in the pod, if it is what this spec asks for.
fn ready(workspace: &Workspace) -> Option<ArtifactReference> {
    let status = workspace.status.as_ref()?;
    let ready = find(&status.conditions, READY).filter(|ready| ready.status == "True")?;
    (ready.observed_generation == workspace.metadata.generation).then(|| status.artifact.clone())?
}
