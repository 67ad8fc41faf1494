//! Determines whether the Workspace of an Update is ready for the run. All functions are pure.

use kube::ResourceExt;

use crate::api::auto::{ArtifactReference, Update, Workspace};
use crate::api::conditions;
use crate::artifact::Directory;
use crate::controller::update::observe::{Observed, is_of_stack};

/// Returns an error message if a user-created Update requests a source that its Workspace does not have. Without this
/// check, the Update would block the Workspace queue forever, because no controller deletes the Update. The check
/// skips a sleeping Workspace, which can install the source when it wakes up.
pub fn source_mismatch(workspace: &Workspace, update: &Update) -> Option<String> {
    let desired = update.spec.artifact.as_ref().filter(|_| !is_of_stack(update))?;
    let status = workspace.status.as_ref()?;
    let is_ready = conditions::is_true(&status.conditions, conditions::READY);
    let is_current = status.observed_generation == workspace.metadata.generation;
    let is_ready = is_ready && !status.is_asleep();
    let other = status.artifact.as_ref().filter(|found| is_ready && is_current && !is_same_source(desired, found))?;
    let describe = |artifact: &ArtifactReference| format!("{} with directory {:?}", artifact.digest, artifact.dir);
    let name = &update.spec.workspace_name;
    Some(format!("spec.artifact requests source {}, but Workspace {name} has {}", describe(desired), describe(other)))
}

/// Returns an error message if a user has changed the policy packs of the Workspace after the Stack requested the run.
pub fn policy_packs_mismatch(workspace: &Workspace, update: &Update) -> Option<String> {
    let desired = update.spec.policy_packs_digest.as_ref()?;
    if workspace.spec.policy_packs_digest().as_ref() == Some(desired) {
        return None;
    }
    let name = &update.spec.workspace_name;
    Some(format!(
        "the policy packs of Workspace {name} have changed since the run was requested; the controller restores them"
    ))
}

/// Returns whether `found` is the requested artifact. Compares the revisions only if `desired` contains a revision.
fn is_same_source(desired: &ArtifactReference, found: &ArtifactReference) -> bool {
    let directory = |artifact: &ArtifactReference| artifact.dir.parse::<Directory>().ok();
    desired.digest == found.digest
        && directory(desired) == directory(found)
        && (desired.revision.is_empty() || desired.revision == found.revision)
}

/// Returns the reason why a run cannot start in the Workspace now, or `None` if the Workspace is ready.
pub fn not_ready(workspace: &Workspace, observed: &Observed) -> Option<String> {
    let status = workspace.status.clone().unwrap_or_default();
    if workspace.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".to_owned());
    }
    let Some(ready) = workspace.current_ready() else {
        let generation = workspace.metadata.generation.unwrap_or_default();
        return Some(format!("is not ready: its generation {generation} has not been processed yet"));
    };
    if ready.status != "True" {
        return Some(format!("is not ready: {}", ready.message));
    }
    if status.is_asleep() {
        return Some("is sleeping; the controller wakes it up".to_owned());
    }
    match (&observed.update.spec.artifact, &status.artifact) {
        (Some(desired), found) if found.as_ref().is_none_or(|found| !is_same_source(desired, found)) => {
            let name = if desired.revision.is_empty() { desired.digest.to_string() } else { desired.revision.clone() };
            return Some(format!("does not have source {name} installed"));
        }
        (None, None) => return Some("has no source installed".to_owned()),
        _ => {}
    }
    let pod = observed.pod.as_ref().filter(|p| p.metadata.deletion_timestamp.is_none());
    if pod.is_none_or(|p| p.uid() != status.pod_uid) {
        return Some("is waiting for a new pod".to_owned());
    }
    None
}
