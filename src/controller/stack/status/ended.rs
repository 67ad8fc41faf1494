//! The status of a Stack after a run.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use crate::api::auto::{PendingCreates, Update, UpdateKind, UpdateStatus};
use crate::api::conditions::{self, stack_reason, update_reason};
use crate::api::pulumi::{CurrentUpdate, LastUpdate, PulumiStack, Stack, StackStatus};
use crate::artifact::Revision;
use crate::controller::stack::backoff::StackBackoff;
use crate::controller::stack::inputs::inputs_of;
use crate::controller::stack::outputs::masked;
use crate::controller::stack::state::State;
use crate::controller::stack::status::claims::{failure_reason, is_conflict, success_reason, with_state};
use crate::controller::stack::{cancel, history, identity, pko_migration, resolve, schedule};
use crate::source::git::names_git;

/// Maximum length of a failure message in the status, in bytes.
const MAX_MESSAGE: usize = 8 * 1024;

/// Returns the status with the result of the run. If the spec has changed meanwhile, the next step sets the conditions from `lastUpdate`.
pub fn with_result(stack: &Stack, update: &Update, outputs: Option<&Secret>, now: Timestamp) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    let Some(current) = pko_migration::take_run(&mut status, update.spec.kind) else { return status };
    let result = update.status.clone().unwrap_or_default();
    let is_deleted = update.metadata.deletion_timestamp.is_some();
    if result.run.is_none() && result.interrupted != Some(true) && is_deleted && !cancel::is_by_user(stack, update) {
        // The Update was revoked before it started.
        return status;
    }
    status.pending_since = None;
    let previous = status.last_update.take();
    let last = last_update(stack, &current, previous.as_ref(), update, outputs, now);
    status.applied_stack = match current.kind {
        UpdateKind::Destroy if last.reason.is_none() => None,
        _ if identity::may_have_changed(update) => {
            last.pulumi_stack.clone().map(|worked_on| identity::applied_by(stack, worked_on))
        }
        _ => identity::recorded(stack),
    };
    status.project_info = result.project_info.clone().or(status.project_info);
    if last.reason.is_none() && current.kind == UpdateKind::Up {
        status.last_applied_revision = current.commit.clone();
        status.last_applied_origin_revision = current.origin_revision.clone();
        // If the outputs are unavailable, the status keeps the previous ones until the next run.
        if result.outputs_unavailable != Some(true) && (outputs.is_some() || result.outputs.is_none()) {
            status.outputs = masked(outputs);
        }
    }
    history::add(&mut status.history, &current, &result, outcome(&last), now);
    status.last_update = Some(last);
    // A user may suspend the Stack before the next step, which preserves the conditions of that moment. Therefore they are set together
    // with the result.
    if Some(current.generation) == stack.metadata.generation {
        let last = status.last_update.as_ref();
        let state = match last.and_then(|last| last.reason.as_deref()) {
            None => State::Done,
            Some(_) if last.is_some_and(|last| last.canceled_by_user.unwrap_or_default()) => State::Canceled,
            Some(reason) => resolve::pending_reason(reason).map_or(State::Failed, State::Unanswered),
        };
        return with_state(&Stack { status: Some(status), ..stack.clone() }, &state, now);
    }
    status
}

/// Returns the record of a completed run.
fn last_update(
    stack: &Stack,
    current: &CurrentUpdate,
    previous: Option<&LastUpdate>,
    update: &Update,
    outputs: Option<&Secret>,
    now: Timestamp,
) -> LastUpdate {
    let result = update.status.clone().unwrap_or_default();
    let failed = conditions::find(&result.conditions, conditions::FAILED).filter(|c| c.status == "True");
    let pulumi_stack = identity::reported(stack, current, &result);
    let not_found = failed.filter(|failed| failed.reason == update_reason::STACK_NOT_FOUND);
    let is_removed = identity::was_removed_before(stack, current.kind, previous, &pulumi_stack);
    // A Stack without resources has nothing to destroy, so a missing Pulumi stack is a success.
    let failed = failed.filter(|_| not_found.is_none() || (identity::has_applied(stack) && !is_removed));
    let (inputs, backoff) = (inputs_of(current), StackBackoff::of(&stack.spec));
    LastUpdate {
        name: Some(update.name_any()),
        kind: Some(current.kind.as_str().to_owned()),
        state: Some(if failed.is_some() { "failed" } else { "succeeded" }.to_owned()),
        reason: failed.map(|f| f.reason.clone()),
        canceled_by_user: failed.filter(|failed| is_canceled_by_user(stack, update, failed)).map(|_| true),
        message: match (not_found, is_removed) {
            (Some(_), true) => Some(removed_before(&pulumi_stack)),
            (Some(not_found), false) if failed.is_some() => {
                Some(not_found_message(stack, &not_found.message, &pulumi_stack))
            }
            _ => message(&result, failed, outputs),
        },
        generation: current.generation,
        reconcile_request: current.reconcile_request.clone(),
        requested_at: current.requested_at.clone(),
        force_at: current.force_at.clone(),
        reset_at: current.reset_at.clone(),
        last_attempted_commit: recorded(stack, current.commit.clone()),
        last_successful_commit: match (failed, current.kind) {
            // A preview applies nothing.
            (Some(_), _) | (None, UpdateKind::Preview) => previous.and_then(|p| p.last_successful_commit.clone()),
            (None, _) => recorded(stack, current.commit.clone()),
        },
        digest: current.digest.clone(),
        content_id: current.content_id.clone(),
        paths_digest: current.paths_digest.clone(),
        config_inputs: current.config_inputs.clone().or_else(|| result.config_inputs.clone()),
        run_config_inputs: read_since(current, &result),
        mounted_inputs: current.mounted_inputs.clone(),
        failures: failed.map_or(0, |f| schedule::failures_after(previous, &inputs, &f.reason, &backoff)),
        interruptions: schedule::interruptions_after(previous, &inputs, failed.map(|f| f.reason.as_str())),
        conflicts: conflicts_after(previous, failed, &result),
        stack_may_be_removed: failed.filter(|_| may_be_removed(previous, update)).map(|_| true),
        pending_creates: match (failed, current.kind) {
            // A preview does not resolve pending creations.
            (_, UpdateKind::Preview) => current.pending_creates,
            (None, _) => None,
            (Some(failed), _) => creations_after(current.pending_creates, &failed.reason, result.interrupted),
        },
        permalink: result.permalink,
        changes: result.changes,
        pulumi_stack: Some(pulumi_stack),
        last_resync_time: Some(Time(now)),
    }
}

/// Returns the outcome of a run as a reason of the `Ready` condition.
fn outcome(last: &LastUpdate) -> &'static str {
    match last.reason.as_deref() {
        None => success_reason(Some(last)),
        Some(update_reason::UPDATE_CONFLICT) => stack_reason::UPDATE_CONFLICT,
        Some(_) if last.canceled_by_user.unwrap_or_default() => stack_reason::CANCELED,
        Some(reason) => resolve::pending_reason(reason).unwrap_or_else(|| failure_reason(Some(last))),
    }
}

/// Returns the revision in the format of the Pulumi Kubernetes Operator: the bare commit for a Git repository that the controller polls
/// itself.
fn recorded(stack: &Stack, revision: Option<String>) -> Option<String> {
    let commit =
        |revision: String| Revision::parse(&revision).checksum().map_or_else(|| revision.clone(), str::to_owned);
    if names_git(&stack.spec) { revision.map(commit) } else { revision }
}

/// Returns the failure message of a run, or a note about a successful one.
fn message(result: &UpdateStatus, failed: Option<&Condition>, outputs: Option<&Secret>) -> Option<String> {
    let gone = result.outputs.as_ref().filter(|_| outputs.is_none() && failed.is_none());
    let gone = gone.map(|name| format!("outputs Secret {name} not found"));
    let of_failure = || failed.map(|failed| failed.message.as_str());
    let message = result.message.as_deref().or_else(of_failure).or(gone.as_deref())?;
    Some(conditions::shorten(message, MAX_MESSAGE))
}

/// Whether a user canceled the run, regardless of how it ended.
fn is_canceled_by_user(stack: &Stack, update: &Update, failed: &Condition) -> bool {
    resolve::pending_reason(&failed.reason).is_none() && cancel::is_by_user(stack, update)
}

/// Returns the number of runs in a row that found the same lock. The message contains holder and time of the lock, so equal messages mean
/// the same lock.
fn conflicts_after(previous: Option<&LastUpdate>, failed: Option<&Condition>, result: &UpdateStatus) -> i64 {
    if failed.is_none_or(|failed| failed.reason != update_reason::UPDATE_CONFLICT) {
        return 0;
    }
    let message = message(result, failed, None);
    let before = previous.filter(|previous| is_conflict(previous) && previous.message == message);
    before.map_or(0, |previous| previous.conflicts.max(1)).saturating_add(1)
}

/// Whether the Pulumi stack may be gone after a failed destroy, or may have been gone before it.
fn may_be_removed(previous: Option<&LastUpdate>, update: &Update) -> bool {
    let was_before = previous.is_some_and(|previous| previous.stack_may_be_removed == Some(true));
    identity::may_have_removed(update) || (update.spec.kind == UpdateKind::Destroy && was_before)
}

/// Returns the hash of the values that the run has read, if they changed after the announcement.
fn read_since(current: &CurrentUpdate, result: &UpdateStatus) -> Option<String> {
    let announced = current.config_inputs.as_ref()?;
    result.config_inputs.clone().filter(|read| read != announced)
}

/// Returns the message about a destroy that succeeded although it did not find the Pulumi stack.
fn removed_before(looked_up: &PulumiStack) -> String {
    format!("{looked_up} not found: already removed by an earlier, interrupted destroy")
}

/// Returns the message about a missing Pulumi stack. It names the Pulumi stack that has the resources, if that is known to be another one.
fn not_found_message(stack: &Stack, message: &str, looked_up: &PulumiStack) -> String {
    match identity::recorded(stack).filter(|applied| identity::differ(applied, looked_up)) {
        Some(applied) => format!("{message}; this Stack last updated {applied}"),
        None => message.to_owned(),
    }
}

/// Returns the handling of pending creations in the next run. Only a successful run clears it; an uninterrupted failure keeps the previous
/// value.
fn creations_after(before: Option<PendingCreates>, reason: &str, interrupted: Option<bool>) -> Option<PendingCreates> {
    match reason {
        update_reason::RUN_OUTCOME_UNKNOWN | update_reason::PENDING_CREATES => Some(PendingCreates::Stop),
        // Nothing has run, so an earlier decision by a user remains valid.
        update_reason::UPDATE_CONFLICT | update_reason::RUN_REFUSED if before.is_some() => before,
        _ if interrupted == Some(true) => Some(PendingCreates::Stop),
        _ => before,
    }
}
