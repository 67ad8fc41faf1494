//! Interprets the state that the Pulumi Kubernetes Operator has recorded. The migration starts only runs that the
//! Pulumi Kubernetes Operator would also start.

use crate::api::auto::{UpdateKind, UpdateStatus, Workspace};
use crate::api::pulumi::{CurrentUpdate, LastUpdate, RunInputs, Stack, StackStatus};
use crate::artifact::Revision;
use crate::controller::stack::annotations::{force_and_reset_requests, refresh_request, requests};
use crate::controller::stack::identity;
use crate::controller::stack::run::RunCandidate;
use crate::runtime::field_managers;
use crate::source::Resolved;

/// Number of failures after which the Pulumi Kubernetes Operator stops retrying.
const PKO_MAX_FAILURES: i64 = 3;

/// Minimum length of a commit hash or an archive hash.
const MIN_HASH: usize = 40;

/// Returns whether the last run used this artifact, or another archive with the same content. The Pulumi Kubernetes
/// Operator records no digest. In the operator's status, `lastAttemptedCommit` is a Flux revision, a commit hash, a
/// digest or the generation of a Program.
pub fn is_same_artifact(last: &LastUpdate, candidate: &RunCandidate) -> bool {
    let RunCandidate { revision, inputs: RunInputs { digest, content_id, .. } } = candidate;
    // `lastAttemptedCommit` is absent if the source has no revision.
    let commit = last.last_attempted_commit.as_deref().unwrap_or_default();
    match &last.inputs.digest {
        // For a Git repository that the controller polls, the status contains only the commit hash.
        Some(last_digest) => {
            (commit == revision || hash(revision) == Some(commit))
                && (digest.as_ref() == Some(last_digest) || is_same_content(last, revision, content_id.as_deref()))
        }
        None => {
            is_same_revision(commit, revision) || digest.as_ref().is_some_and(|digest| commit == digest.to_string())
        }
    }
}

/// Returns whether the last run used an artifact with the same content ID. Earlier versions recorded no content ID.
/// Without source options, the checksum in the revision equals the content ID.
fn is_same_content(last: &LastUpdate, revision: &str, content_id: Option<&str>) -> bool {
    let revision = Revision::parse(revision);
    content_id.is_some() && last.inputs.content_id.as_deref().or_else(|| revision.checksum()) == content_id
}

fn is_same_revision(commit: &str, revision: &str) -> bool {
    commit == revision || hash(commit).is_some_and(|hash_of_commit| hash(revision) == Some(hash_of_commit))
}

/// Returns the hash in `main@sha1:<hash>`, `main/<hash>`, `sha256:<hash>` or `<hash>`.
fn hash(revision: &str) -> Option<&str> {
    let hash = revision.rsplit(['@', ':', '/']).next()?;
    (hash.len() >= MIN_HASH && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
}

/// Returns the status after the controller takes over a Stack. Records the current values of the Flux annotations as
/// handled, because the Pulumi Kubernetes Operator ignored these annotations. Also records the applied Pulumi stack,
/// because the record of the next run replaces the record of the operator.
pub fn adopted(stack: &Stack) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    if let Some(last) =
        status.last_update.as_mut().filter(|last| is_pko_record(last) && last.inputs.requested_at.is_none())
    {
        last.inputs.requested_at = requests(stack).1;
        (last.inputs.force_at, last.inputs.reset_at) = force_and_reset_requests(stack);
        last.inputs.refresh_at = refresh_request(stack);
    }
    status.applied_stack = identity::recorded(stack);
    status
}

/// Returns the status with a digest for the last run of the Pulumi Kubernetes Operator. Returns `None` if this
/// controller has recorded the last run, or if the source no longer has the revision of this run. With a digest in the
/// record, an artifact with another digest triggers a run.
pub fn baseline(stack: &Stack, resolved: &Resolved) -> Option<StackStatus> {
    let mut status = stack.status.clone()?;
    let digest = Some(resolved.digest.clone());
    let last = status.last_update.as_mut()?;
    let inputs = RunInputs { digest: digest.clone(), ..RunInputs::default() };
    if !is_pko_record(last) || !is_same_artifact(last, &RunCandidate { revision: resolved.revision.clone(), inputs }) {
        return None;
    }
    last.inputs.digest = digest;
    // With a digest, the record is no longer evidence of resources. An earlier version may have taken over the Stack
    // without `appliedStack`.
    status.applied_stack = identity::recorded(stack);
    let is_applied =
        last.kind.as_deref() == Some(UpdateKind::Up.as_str()) && last.state.as_deref() == Some("succeeded");
    if is_applied && status.last_applied_revision.is_none() {
        status.last_applied_revision = Some(resolved.revision.clone());
        status.last_applied_origin_revision = resolved.origin_revision.clone();
    }
    Some(status)
}

/// Returns whether the Pulumi Kubernetes Operator stopped retrying the last run. The operator stops after a fixed
/// number of failures and records no reason.
pub fn has_failed_permanently(last: &LastUpdate) -> bool {
    last.state.as_deref() == Some("failed") && last.reason.is_none() && last.failures >= PKO_MAX_FAILURES
}

fn is_pko_record(last: &LastUpdate) -> bool {
    last.inputs.digest.is_none()
}

/// Returns whether the Pulumi Kubernetes Operator recorded this run in `status.currentUpdate`. Only this controller
/// records a digest.
pub fn is_pko_run(current: &CurrentUpdate) -> bool {
    current.inputs.digest.is_none()
}

/// Removes the completed run from the status, and returns the run. `of_update` is the run type in the Update, because
/// the Pulumi Kubernetes Operator records the type only there.
pub fn take_run(status: &mut StackStatus, of_update: UpdateKind) -> Option<CurrentUpdate> {
    let current = *status.current_update.take()?;
    let kind = if is_pko_run(&current) { of_update } else { current.kind };
    Some(CurrentUpdate { kind, ..current })
}

/// Returns the Workspace. Returns `None` if the Pulumi Kubernetes Operator no longer manages the Workspace.
pub fn workspace(workspace: Option<&Workspace>) -> Option<&Workspace> {
    workspace.filter(|w| w.metadata.deletion_timestamp.is_none() && field_managers::is_applied_by_operator(*w))
}

/// Returns the name of the Secret with an Update's outputs. The Pulumi Kubernetes Operator records an empty name if the
/// Secret does not exist.
pub fn outputs_name(status: &UpdateStatus) -> Option<&str> {
    status.outputs.as_deref().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
