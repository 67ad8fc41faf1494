//! Deletion of a Stack: decides whether the controller destroys the resources, which artifact the destroy uses, and
//! which dependents the controller must destroy first.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::auto::{UpdateKind, Workspace};
use crate::api::conditions::{self, READY};
use crate::api::names;
use crate::api::pulumi::{CurrentUpdate, PulumiStack, Stack};
use crate::artifact::{Digest, Directory, pack_file};
use crate::controller::stack::action::{Action, Settled};
use crate::controller::stack::next_run::run_if_due;
use crate::controller::stack::observed::{Observed, OtherClaim};
use crate::controller::stack::run::reference;
use crate::controller::stack::workspace_state::{Readiness, last_in_place, readiness};
use crate::controller::stack::{annotations, destroy_limit, identity, ownership};
use crate::pulumi::project;
use crate::source::{Origin, Resolved, Unavailable};

/// Revision for a destroy that uses only the Pulumi state and runs no program.
const STATE_ONLY: &str = "state-alone";
/// Grace period for dependents that are not being deleted yet. A client that deletes several Stacks deletes them one
/// after another.
const DELETION_GRACE: SignedDuration = SignedDuration::from_secs(3);
/// Requeue interval while dependents are being deleted. A watch event normally requeues the Stack earlier.
const DEPENDENTS_RETRY: SignedDuration = SignedDuration::from_secs(10);
/// Time after which the controller reports that the Stack waits for the deletion of its Workspace or its Updates. Most
/// deletions end earlier, so they cause no additional write.
const UNREPORTED_DELETION: SignedDuration = SignedDuration::from_secs(10);
/// Requeue interval while the cache does not contain the deletion. The watch event normally requeues the Stack earlier.
const CLAIM_RETRY: SignedDuration = SignedDuration::from_secs(1);
/// Maximum number of Updates in the message about their deletion.
const MAX_LISTED: usize = 3;

/// Returns the next action of a Stack that is being deleted and has no open run.
pub fn decide(observed: &Observed, now: Timestamp) -> Action {
    let stack = &observed.stack;
    if !has_to_destroy(stack) {
        return Action::RemoveFinalizer;
    }
    if let Some(action) = held(observed) {
        return action;
    }
    if stack.spec.suspend.unwrap_or_default() {
        return Action::Settled(Settled::DeletionSuspended);
    }
    if let Some(action) = waiting_for_dependents(observed, now) {
        return action;
    }
    if let Some(what) = pending_lookup(observed) {
        return Action::AwaitSource(what.to_owned());
    }
    let (resolved, in_store) = match source(observed) {
        Ok(found) => found,
        Err(why) => {
            let message = format!("destroy failed: {why}");
            return match observed.source {
                Some(Err(Unavailable::Stalled(_) | Unavailable::Invalid(_))) => Action::SourceStalled(message),
                _ => Action::WaitForSource(message, None),
            };
        }
    };
    match run_if_due(observed, &resolved, in_store, UpdateKind::Destroy, now) {
        Action::Settled(Settled::Done(_)) => Action::RemoveFinalizer,
        action => action,
    }
}

/// Returns whether the controller must destroy the Stack's resources before it removes the finalizer. Returns `false` if
/// the Stack cannot have resources, for example after a successful destroy, because another Stack may manage the Pulumi
/// stack in the spec.
pub fn has_to_destroy(stack: &Stack) -> bool {
    would_destroy(stack) && identity::has_applied(stack)
}

/// Returns whether the deletion of the Stack needs a destroy, or can need a destroy after its open run.
pub fn may_have_to_destroy(stack: &Stack) -> bool {
    let open = stack.status.as_ref().and_then(|status| status.current_update.as_ref());
    would_destroy(stack) && (identity::has_applied(stack) || open.is_some_and(|run| run.kind == UpdateKind::Up))
}

/// Returns whether the deletion of the Stack needs a destroy if the Stack has resources.
fn would_destroy(stack: &Stack) -> bool {
    stack.finalizers().iter().any(|finalizer| finalizer == names::STACK_FINALIZER)
        && stack.spec.destroy_on_finalize.unwrap_or_default()
        && !stack.spec.preview.unwrap_or_default()
        && !annotations::is_abandoned_destroy(stack)
}

/// Returns the action if the destroy must wait for the decision of a user: because users have deleted too many Stacks, or
/// because another Stack claims the Pulumi stack.
pub fn held(observed: &Observed) -> Option<Action> {
    let stack = &observed.stack;
    // The conditions record that the destroy requires a confirmation. Another reason must not replace this record.
    if let Some(message) = destroy_limit::awaiting_confirmation(stack, observed.is_destroy_limit_exceeded) {
        return Some(Action::AwaitConfirmation(message));
    }
    match &observed.deletion.as_ref()?.claim {
        OtherClaim::None => None,
        OtherClaim::Unknown => Some(Action::DelayReport(CLAIM_RETRY)),
        OtherClaim::By(name) => Some(Action::Conflict(claimed_message(stack, name))),
    }
}

/// Returns the message about a destroy that waits because another Stack claims the Pulumi stack.
fn claimed_message(stack: &Stack, claimant: &str) -> String {
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    let applied = identity::recorded(stack).unwrap_or_default();
    let cause = format!(
        "the destroy of {applied} waits for a decision, because Stack {namespace}/{claimant} also claims this Pulumi stack"
    );
    format!(
        "{cause}. To hand the resources over to Stack {claimant}, run: kubectl patch --namespace {namespace} stack {name} --type merge --patch \
         '{{\"spec\":{{\"destroyOnFinalize\":false}}}}'. To destroy the resources, delete Stack {claimant}, or change its spec.stack \
         or spec.backend"
    )
}

/// Returns the message if the deletion of the Stack's Workspace or Updates takes longer than usual. The controller
/// deletes the Workspace and the Updates before it removes the finalizer of the Stack.
pub fn delayed_by(observed: &Observed, now: Timestamp) -> Option<String> {
    let workspace = observed.workspace.as_ref().filter(|workspace| ownership::owns(&observed.stack, workspace));
    if let Some(workspace) = workspace {
        return is_delayed(workspace, now).then(|| workspace_message(workspace));
    }
    let delayed: Vec<_> = observed.updates.iter().filter(|update| is_delayed(update.as_ref(), now)).collect();
    let listed = delayed.iter().take(MAX_LISTED).map(|update| with_finalizers(update.as_ref()));
    let listed = listed.collect::<Vec<_>>().join("; ");
    let more = delayed.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!delayed.is_empty()).then(|| format!("waiting for the deletion of Updates: {listed}{more}"))
}

fn is_delayed(object: &impl Resource, now: Timestamp) -> bool {
    let deleted = object.meta().deletion_timestamp.as_ref();
    deleted.is_some_and(|deleted| now.duration_since(deleted.0) >= UNREPORTED_DELETION)
}

/// Returns the message about a Workspace that is being deleted. If only other clients still hold the Workspace, its
/// condition does not contain the cause, so the message contains the finalizers.
fn workspace_message(workspace: &Workspace) -> String {
    let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_ours = workspace.finalizers().iter().any(|finalizer| finalizer == names::WORKSPACE_FINALIZER);
    match conditions::find(conditions, READY).filter(|ready| is_ours && ready.status != "True") {
        Some(ready) => format!("waiting for the deletion of Workspace {}: {}", workspace.name_any(), ready.message),
        None => format!("waiting for the deletion of Workspace {}", with_finalizers(workspace)),
    }
}

/// Returns the name and the finalizers of an object for a message.
fn with_finalizers(object: &impl ResourceExt) -> String {
    let finalizers = object.finalizers();
    let held = if finalizers.is_empty() { String::new() } else { format!(" (finalizers: {})", finalizers.join(", ")) };
    format!("{}{held}", object.name_any())
}

/// Setting because of which the resources of a deleted Stack remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// `spec.destroyOnFinalize` is not `true`.
    ByUser,
    /// `spec.preview`. The controller does not destroy the resources of such a Stack, because another Stack may now manage
    /// the Pulumi stack.
    ByPreview,
}

/// Returns the Pulumi stack whose resources remain after the deletion of the Stack, and the setting that keeps them.
pub fn kept(stack: &Stack) -> Option<(Kept, PulumiStack)> {
    let by = match (stack.spec.destroy_on_finalize.unwrap_or_default(), stack.spec.preview.unwrap_or_default()) {
        (false, _) => Kept::ByUser,
        (true, true) => Kept::ByPreview,
        (true, false) => return None,
    };
    identity::recorded(stack).map(|applied| (by, applied))
}

/// Returns the artifact for the destroy, and whether its bytes are available. The order of preference is: the artifact
/// in the pod, the artifact in the Workspace spec, the source's artifact, and a generated project. A destroy with the
/// generated project uses only the Pulumi state. An artifact whose bytes are available takes precedence over an
/// artifact that the controller must fetch.
///
/// # Errors
///
/// Returns the reason as an error if no artifact is available.
pub fn source(observed: &Observed) -> Result<(Resolved, bool), String> {
    if let Some(placed) = observed.workspace.as_ref().and_then(last_in_place) {
        return Ok((placed, true));
    }
    let Some(deletion) = &observed.deletion else {
        return Err("the source for the destroy is not known yet".to_owned());
    };
    let is_usable = |resolved: &&Resolved| !is_unusable(observed, resolved);
    let requested = deletion.requested.as_ref().filter(is_usable);
    let found = observed.source.as_ref().and_then(|source| source.as_ref().ok()).filter(is_usable);
    let made = deletion.without_source.as_ref();
    let at_hand =
        requested.or_else(|| found.filter(|_| observed.in_store)).or_else(|| made.filter(|_| deletion.is_stored));
    let candidates = [(at_hand, true), (found, false), (made, false)];
    let chosen = candidates.into_iter().find_map(|(resolved, at_hand)| Some((resolved?.clone(), at_hand)));
    chosen.ok_or_else(|| no_source_message(observed))
}

/// Returns the condition message if the destroy must wait for the source lookup. If the source is unavailable, the
/// destroy runs without a program and needs only the Pulumi state.
fn pending_lookup(observed: &Observed) -> Option<&str> {
    let placed = observed.workspace.as_ref().and_then(last_in_place).is_some();
    let requested = observed.deletion.as_ref().and_then(|deletion| deletion.requested.as_ref());
    match &observed.source {
        Some(Err(Unavailable::Resolving(what)))
            if !placed && requested.is_none_or(|requested| is_unusable(observed, requested)) =>
        {
            Some(what)
        }
        _ => None,
    }
}

/// Returns whether the pod cannot use the artifact, because the agent rejected the archive or failed to install the
/// dependencies.
fn is_unusable(observed: &Observed, resolved: &Resolved) -> bool {
    let requested = observed.workspace.as_ref().filter(|w| w.spec.artifact.as_ref() == Some(&reference(resolved)));
    let is_made = observed.deletion.as_ref().and_then(|deletion| deletion.without_source.as_ref()) == Some(resolved);
    !is_made
        && requested.is_some_and(|workspace| {
            matches!(readiness(workspace), Readiness::SourceRefused(_) | Readiness::NotInstalled(_))
        })
}

fn no_source_message(observed: &Observed) -> String {
    let why = match &observed.source {
        Some(Err(error)) => error.to_string(),
        Some(Ok(_)) => "the Workspace rejected the source".to_owned(),
        None => "the source was not resolved".to_owned(),
    };
    let how = match observed.stack.spec.run_program.unwrap_or_default() {
        true => "unset spec.runProgram to destroy from the state without the source",
        false => "to destroy from the state without the source, set spec.stack to organization/project/stack",
    };
    format!("{why}; {how}")
}

/// Returns a generated project without a program. A destroy reads the resources from the Pulumi state and normally
/// requires no program. Returns `None` if `spec.runProgram` is set or the project name is unknown.
pub fn without_source(stack: &Stack) -> Option<Resolved> {
    if stack.spec.run_program.unwrap_or_default() {
        return None;
    }
    let known = stack.status.as_ref().and_then(|status| status.project_info.as_ref()).map(|info| info.name.clone());
    let named = || identity::parts(&stack.spec.stack).project.filter(|name| !name.is_empty()).map(str::to_owned);
    let name = known.filter(|name| !name.is_empty()).or_else(named)?;
    let purpose = format!("Made to destroy the stack of {} without its source", stack.uid().unwrap_or_default());
    let applied = stack.status.as_ref().and_then(|status| status.applied_stack.as_ref()?.backend.clone());
    // The project contains the applied backend URL. A backend URL in the run's environment takes precedence.
    let backend = applied.map(|url| ("backend", json!({"url": url})));
    let sections: Vec<_> = [("description", Value::from(purpose))].into_iter().chain(backend).collect();
    let text = project::yaml_program(&name, &sections)?;
    let bytes = pack_file(project::PROJECT_FILE, text.as_bytes()).ok()?;
    Some(Resolved {
        revision: STATE_ONLY.to_owned(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: Digest::of(&bytes),
        directory: Directory::root(),
        origin: Origin::Made(bytes.into()),
    })
}

/// Returns whether a destroy that has not started must use another artifact, because the recorded artifact is no longer
/// available.
pub fn has_another_source(observed: &Observed, current: &CurrentUpdate) -> bool {
    let is_another = |chosen: &Resolved| Some(&chosen.digest) != current.inputs.digest.as_ref();
    pending_lookup(observed).is_none() && source(observed).is_ok_and(|(chosen, _)| is_another(&chosen))
}

/// Returns the generated project. Returns `None` if the store already contains the project.
pub fn project_to_store(observed: &Observed) -> Option<&Resolved> {
    observed.deletion.as_ref().filter(|deletion| !deletion.is_stored)?.without_source.as_ref()
}

/// Returns whether a Stack that depends on this Stack is also being deleted.
pub fn has_dependents_in_deletion(observed: &Observed) -> bool {
    observed
        .deletion
        .as_ref()
        .is_some_and(|deletion| deletion.dependents.iter().any(|dependent| is_being_deleted(dependent)))
}

/// Returns the action that waits for dependents that are being deleted. For other dependents, the destroy waits only
/// for a short grace period.
fn waiting_for_dependents(observed: &Observed, now: Timestamp) -> Option<Action> {
    let dependents = &observed.deletion.as_ref()?.dependents;
    let names = |dependents: &[&Arc<Stack>]| dependents.iter().map(|s| s.name_any()).collect::<Vec<_>>().join(", ");
    let deleting: Vec<&Arc<Stack>> = dependents.iter().filter(|dependent| is_being_deleted(dependent)).collect();
    if !deleting.is_empty() {
        let message = format!("waiting for dependent Stacks: {}", names(&deleting));
        return Some(Action::WaitForDependents(message, DEPENDENTS_RETRY));
    }
    let alive: Vec<&Arc<Stack>> = dependents.iter().filter(|dependent| exists(dependent)).collect();
    let deleted = observed.stack.metadata.deletion_timestamp.as_ref()?.0;
    let left = DELETION_GRACE.saturating_sub(now.duration_since(deleted));
    if alive.is_empty() || !left.is_positive() {
        return None;
    }
    let message = format!("checking whether dependent Stacks are being deleted too: {}", names(&alive));
    Some(Action::WaitForDependents(message, left))
}

/// Returns whether the Stack is being deleted and still has its finalizer.
fn is_being_deleted(dependent: &Stack) -> bool {
    dependent.metadata.deletion_timestamp.is_some()
        && dependent.finalizers().iter().any(|finalizer| finalizer == names::STACK_FINALIZER)
}

fn exists(dependent: &Stack) -> bool {
    dependent.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests;
