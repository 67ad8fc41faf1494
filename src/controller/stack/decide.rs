//! Decides the next action of a Stack. The decision is a pure function of the observed state and the time: the function
//! performs no I/O and reads no clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::auto::{Update, UpdateKind, UpdatePhase};
use crate::api::conditions::{self, stack_reason, update_reason};
use crate::api::names;
use crate::api::pulumi::{CurrentUpdate, LastUpdate, Stack};
use crate::controller::first_report;
use crate::controller::stack::action::{Action, Settled};
use crate::controller::stack::next_run::{adopt_pko_workspace, missing_in_pod, run_if_due};
use crate::controller::stack::observed::Observed;
use crate::controller::stack::restrictions::restriction;
use crate::controller::stack::run::{self, artifact_of, queued_message, recorded_run, run_kind, waiting_message};
use crate::controller::stack::schedule::Due;
use crate::controller::stack::workspace_state::in_place;
use crate::controller::stack::{
    annotations, build_update, build_workspace, deletion, identity, pko_migration, policy_packs,
};
use crate::controller::stack::{approval, drift, expiry, run_spec};
use crate::runtime::field_managers;
use crate::source::{Resolved, Unavailable};

/// Grace period for a missing source. If the source is still missing after this period, the Stack becomes `Stalled`.
const SOURCE_GRACE: SignedDuration = SignedDuration::from_secs(10);
/// Interval between two checks of the reason why a recorded run has not started.
const START_CHECK_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

/// Returns the next action for the observed state.
pub fn decide(observed: &Observed, now: Timestamp) -> Action {
    let stack = &observed.stack;
    let deleting = stack.metadata.deletion_timestamp.is_some();
    if field_managers::is_managed_by_operator(stack) {
        return Action::TakeOver;
    }
    if !deleting && !stack.finalizers().iter().any(|f| f == names::STACK_FINALIZER) {
        return Action::AddFinalizer;
    }
    if let Some(action) = annotations::cancel(observed).or_else(|| open_run(observed, now)) {
        return action;
    }
    if let Some(action) = expiry::due(stack, now).filter(|_| observed.run_settings.pause.is_none()) {
        return action;
    }
    if let Some(action) = handle_duplicate(observed) {
        return action;
    }
    if deleting { deletion::decide(observed, now) } else { desired(observed, now) }
}

fn desired(observed: &Observed, now: Timestamp) -> Action {
    if observed.stack.spec.suspend.unwrap_or_default() {
        return suspended(observed);
    }
    let stack = &observed.stack;
    let workspace = build_workspace::check_address(stack).and_then(|()| build_workspace::check_pulumi_cloud(stack));
    if let Err(message) = workspace.map_err(|error| error.to_string()).and_then(|()| expiry::check(stack)) {
        return Action::Invalid(message);
    }
    let resolved = match (&observed.source, &observed.policy_packs) {
        (Some(Ok(resolved)), Ok(_)) => resolved,
        (Some(Err(why)), _) | (Some(Ok(_)), Err(why)) => return unavailable(stack, why, now),
        (None, _) => return Action::WaitForSource("the source was not resolved".to_owned(), None),
    };
    let action = run_if_due(observed, resolved, observed.in_store, run_kind(&observed.stack), now);
    match run::baseline(observed) {
        Some(first) if matches!(action, Action::Settled(_)) => Action::RecordBaseline(first),
        _ => action,
    }
}

/// Returns the action for a suspended Stack, which starts no runs. A user can wake up the Workspace of a suspended
/// Stack, for example to repair the Pulumi state. The new pod then needs the source.
fn suspended(observed: &Observed) -> Action {
    let missing = match (&observed.source, &observed.policy_packs) {
        (Some(Ok(resolved)), Ok(_)) => missing_in_pod(observed, resolved, observed.in_store, run_kind(&observed.stack)),
        _ => None,
    };
    missing.unwrap_or(Action::Settled(Settled::Suspended))
}

/// Returns the action if the artifact of the source or of a policy pack is unavailable.
fn unavailable(stack: &Stack, why: &Unavailable, now: Timestamp) -> Action {
    match why {
        Unavailable::Invalid(message) => Action::Invalid(message.clone()),
        Unavailable::Denied(message) => Action::Denied(message.clone()),
        Unavailable::NotYet(message) => Action::WaitForSource(message.clone(), None),
        Unavailable::Stalled(message) => stalled_source(stack, message, now),
        Unavailable::Resolving(message) => Action::AwaitSource(message.clone()),
    }
}

/// Waits for a missing source during the grace period. One `kubectl apply` can create the source shortly after the
/// Stack.
fn stalled_source(stack: &Stack, message: &str, now: Timestamp) -> Action {
    let ready = stack.status.as_ref().and_then(|status| conditions::find(&status.conditions, conditions::READY));
    let is_known = |ready: &&Condition| {
        ready.observed_generation == stack.metadata.generation && ready.reason == stack_reason::SOURCE_UNAVAILABLE
    };
    let known_for = ready.filter(is_known).map(|ready| now.duration_since(ready.last_transition_time.0));
    let grace = SOURCE_GRACE - known_for.unwrap_or_default();
    match Duration::try_from(grace) {
        Ok(left) if !left.is_zero() => Action::WaitForSource(message.to_owned(), Some(left)),
        _ => Action::SourceStalled(message.to_owned()),
    }
}

/// Returns the action for the open run in `status.currentUpdate`.
fn open_run(observed: &Observed, now: Timestamp) -> Option<Action> {
    let current = observed.stack.status.as_ref()?.current_update.as_deref()?;
    let Some(update) = &observed.update else {
        return Some(match is_current(observed, current, now) {
            true => Action::CreateUpdate(current.clone()),
            false if may_have_started(current) => Action::RecordLostRun(current.clone()),
            false => Action::ForgetUpdate,
        });
    };
    if !build_update::is_recorded(update, current) {
        return Some(Action::DiscardUpdate(format!(
            "ignored Update {}, which a user created in advance or changed; the controller records the run again",
            current.name
        )));
    }
    if update.is_complete() {
        return Some(Action::RecordResult);
    }
    let bound = update.status.as_ref().is_some_and(|s| s.run.is_some()) || update.is_started_by_operator();
    if let Some(unknown_outcome) = unknown_outcome(update) {
        let resolution = annotations::resolution_of_open_run(&observed.stack, &current.name);
        let is_new =
            |resolution: &&str| update.annotations().get(names::ANNOTATION_RESOLVE).is_none_or(|a| a != resolution);
        return Some(match resolution.filter(is_new) {
            Some(resolution) => Action::ForwardResolution(resolution.to_owned()),
            None => Action::ReportUnknownOutcome(unknown_outcome.to_owned()),
        });
    }
    if let Some(action) = adopt_workspace_of_pko_run(observed, update) {
        return Some(action);
    }
    if bound && drift::is_superseded(observed, current) {
        return Some(Action::CancelDriftCheck);
    }
    if bound {
        let last = observed.stack.status.as_ref()?.last_update.as_ref();
        return Some(match (waiting(update), first_report::delay_of_run(update, now)) {
            (Some(waits), _) => Action::AwaitUpdate(waiting_message(&waits.message, current)),
            // Until the report, the message states that the run is queued.
            (None, Some(left)) => Action::DelayReport(left),
            (None, None) => Action::AwaitUpdate(running_message(current, update, last)),
        });
    }
    if let Some(why) = revocation(observed, current, now) {
        return Some(Action::RevokeUpdate(format!("{} revoked: {why}", recorded_run(current))));
    }
    Some(fetch_missing_bytes(observed, current).unwrap_or_else(|| await_start(observed, current, update, now)))
}

/// Returns whether a recorded run without an Update may have changed resources. The finalizers of an Update keep it until
/// the status contains the result, but a user can remove the finalizers. After a crash between the record and the
/// creation of the Update, the controller cannot exclude that the run has started.
fn may_have_started(current: &CurrentUpdate) -> bool {
    current.kind == UpdateKind::Up && current.rejected != Some(true) && !pko_migration::is_pko_run(current)
}

/// Returns the action for a run that has not started. The record of the run can contain a forecast of the wait, which
/// remains in the status until the reason of the wait is known.
fn await_start(observed: &Observed, current: &CurrentUpdate, update: &Update, now: Timestamp) -> Action {
    if let Some(waits) = waiting(update) {
        return Action::AwaitUpdate(waiting_message(&waits.message, current));
    }
    if let Some(left) = first_report::delay_of_slot_wait(update, now) {
        return Action::DelayReport(left);
    }
    let status = observed.stack.status.as_ref();
    let reconciling = status.and_then(|status| conditions::find(&status.conditions, conditions::RECONCILING));
    let is_reported = reconciling.is_some_and(|found| found.message.contains(&recorded_run(current)));
    match &observed.slot_wait {
        None if is_reported => Action::DelayReport(START_CHECK_INTERVAL),
        wait => Action::AwaitUpdate(queued_message(current, wait.as_ref())),
    }
}

/// Returns the message about the progress of an open run: the step while the engine is not running, or the number of
/// resources. The message uses the number of resources in the previous run as an estimate of the total.
fn running_message(current: &CurrentUpdate, update: &Update, last: Option<&LastUpdate>) -> String {
    let run = recorded_run(current);
    let status = update.status.as_ref();
    let word = match status.and_then(|status| status.phase) {
        Some(UpdatePhase::Canceling) => "canceling",
        _ => "running",
    };
    let progress = status.and_then(|status| status.progress.as_ref());
    if let Some(step) = progress.and_then(|progress| progress.step.as_ref()) {
        return format!("{word}: {step}; {run}");
    }
    let (done, so_far) = progress.map_or((0, 0), |progress| (progress.resources_done, progress.resources_total));
    if so_far == 0 {
        return format!("{word}: {run}");
    }
    // The changes of the previous run include the stack resource, which the progress does not count.
    let before = last.map_or(0, |last| last.changes.values().fold(0_i64, |sum, count| sum.saturating_add(*count)) - 1);
    format!("{word}: {done} of {} resources; {run}", so_far.max(before))
}

/// Returns the Update's message if the outcome of the open run is unknown.
fn unknown_outcome(update: &Update) -> Option<&str> {
    let progressing = conditions::find(&update.status.as_ref()?.conditions, conditions::PROGRESSING)?;
    (progressing.reason == update_reason::RUN_OUTCOME_UNKNOWN).then_some(progressing.message.as_str())
}

/// Returns the condition `Progressing` of a waiting Update. While the Update waits, this condition has the status
/// `False`.
fn waiting(update: &Update) -> Option<&Condition> {
    let progressing = conditions::find(&update.status.as_ref()?.conditions, conditions::PROGRESSING);
    progressing.filter(|progressing| progressing.status == "False")
}

/// Returns the reason if the controller must revoke a run that has not started. Returns `None` if the run is still
/// valid.
fn revocation(observed: &Observed, current: &CurrentUpdate, now: Timestamp) -> Option<&'static str> {
    let stack = &observed.stack;
    let deleting = stack.metadata.deletion_timestamp.is_some();
    let gone = observed.workspace.as_ref().is_none_or(|w| w.metadata.deletion_timestamp.is_some());
    let has_newer_source =
        matches!(&observed.source, Some(Ok(resolved)) if has_newer_source(observed, resolved, current));
    match () {
        () if pko_migration::is_pko_run(current) => Some("the Pulumi Kubernetes Operator did not start the run"),
        () if deleting && !approval::is_of_destroy(current) => Some("the Stack is being deleted"),
        // A backup can contain the record and the Update.
        () if !deleting && current.kind == UpdateKind::Destroy => Some("the Stack is not being deleted"),
        () if deletion::has_dependents_in_deletion(observed) => Some("dependent Stacks are destroyed first"),
        () if stack.spec.suspend.unwrap_or_default() => Some("the Stack is suspended"),
        () if run_spec::has_changed(stack, &current.inputs) => Some("the Stack has changed"),
        () if drift::is_disabled_correction(stack, current) => Some("a user disabled the correction of drift"),
        () if gone => Some("the Workspace was deleted"),
        () if let Some(why) = approval::withdrawn(observed, current) => Some(why),
        () if restriction(observed, current.kind, now).is_some() => Some("a pause or a schedule prevents the run"),
        () if deleting && deletion::held(observed).is_some() => Some("the destroy waits for the decision of a user"),
        () if drift::is_superseded(observed, current) || is_outdated_background_run(observed, current) => {
            Some("another run is due")
        }
        () if has_newer_source && !approval::is_of_destroy(current) => Some("the source has a newer revision"),
        () if has_changed_pack(observed, current) => Some("a policy pack has changed"),
        () if approval::is_of_destroy(current) && deletion::has_another_source(observed, current) => {
            Some("its source is no longer available")
        }
        () => None,
    }
}

/// Returns whether the inputs of the Stack have changed since the controller recorded a background run, for example
/// because a user has requested a run. The new run is not a background run, so it has an earlier position in the queue.
fn is_outdated_background_run(observed: &Observed, current: &CurrentUpdate) -> bool {
    current.background.unwrap_or_default() && drift::has_other_inputs(observed)
}

/// Returns whether a policy pack has changed since the controller recorded the run.
fn has_changed_pack(observed: &Observed, current: &CurrentUpdate) -> bool {
    let is_destroy = current.kind == UpdateKind::Destroy || approval::is_of_destroy(current);
    let now = observed.policy_packs.as_deref().map(policy_packs::inputs).unwrap_or_default();
    !is_destroy && policy_packs::changed(&current.inputs.policy_inputs, &now).is_some()
}

/// Returns whether the source's artifact is newer than the run's artifact. If the pod contains the run's artifact, an
/// artifact with the same selected files or a repacked archive of the same revision is not newer. If the pod lacks the
/// run's artifact, any other artifact is newer. The source no longer provides the run's artifact, so the run could not
/// start.
fn has_newer_source(observed: &Observed, resolved: &Resolved, current: &CurrentUpdate) -> bool {
    let run = &current.inputs;
    let is_of_run = |artifact: &Resolved| Some(&artifact.digest) == run.digest.as_ref();
    let is_same_selection = run.paths_digest.is_some() && resolved.selection() == run.paths_digest.as_deref();
    let is_placed = observed.workspace.as_ref().and_then(in_place).is_some_and(|placed| is_of_run(&placed));
    let is_repacked = resolved.content_id.is_some()
        && resolved.content_id == run.content_id
        && current.commit.as_ref() == Some(&resolved.revision);
    !(is_of_run(resolved) || (is_same_selection || is_repacked) && is_placed)
}

/// Returns the action that fetches the run's artifact or a policy pack. Returns `None` unless a pod needs the bytes and
/// the store no longer contains them.
fn fetch_missing_bytes(observed: &Observed, current: &CurrentUpdate) -> Option<Action> {
    let placed = observed.workspace.as_ref().and_then(in_place).is_some();
    let is_desired = |resolved: &&Resolved| Some(&resolved.digest) == current.inputs.digest.as_ref();
    let source = observed.source.as_ref().and_then(|source| source.as_ref().ok());
    let missing = source.filter(|_| !observed.in_store).filter(is_desired);
    let missing = missing.or_else(|| deletion::project_to_store(observed).filter(is_desired));
    let pack = policy_packs::lacking(observed.policy_packs_of(current.kind), observed.workspace.as_ref());
    let pack = pack.map(|pack| Action::FetchPolicyPack(Box::new(pack.clone())));
    missing.filter(|_| !placed).cloned().map(Action::Fetch).or(pack)
}

/// Returns whether a recorded run without an Update still matches the Stack and the artifact in the spec of the
/// Workspace.
fn is_current(observed: &Observed, current: &CurrentUpdate, now: Timestamp) -> bool {
    let deleting = observed.stack.metadata.deletion_timestamp.is_some();
    let kind = if deleting { UpdateKind::Destroy } else { run_kind(&observed.stack) };
    let is_restricted =
        restriction(observed, current.kind, now).is_some() || deleting && deletion::held(observed).is_some();
    // The recorded plan, and its approvals, do not apply to an Update with a changed spec.
    let has_changed = run_spec::has_changed(&observed.stack, &current.inputs);
    if observed.stack.spec.suspend.unwrap_or_default() || is_restricted || has_changed {
        return false;
    }
    let requested = observed.workspace.as_ref().and_then(|w| w.spec.artifact.as_ref());
    let is_desired = match current.save_plan.unwrap_or_default() || drift::is_check(current) {
        true if drift::is_check(current) => !drift::is_superseded(observed, current),
        true => approval::policy(&observed.stack, kind).is_some() && approval::is_of_destroy(current) == deleting,
        false => current.kind == kind && approval::withdrawn(observed, current).is_none(),
    };
    is_desired && requested.is_some() && requested == artifact_of(current).as_ref()
}

/// Returns the action that takes over the Workspace during an open run of the Pulumi Kubernetes Operator. The takeover
/// replaces the pod. When the previous pod no longer exists, the run has ended.
fn adopt_workspace_of_pko_run(observed: &Observed, update: &Update) -> Option<Action> {
    if !update.is_started_by_operator() {
        return None;
    }
    let (resolved, in_store) = match observed.stack.metadata.deletion_timestamp {
        Some(_) => deletion::source(observed).ok()?,
        None => (observed.source.as_ref()?.as_ref().ok()?.clone(), observed.in_store),
    };
    adopt_pko_workspace(observed, &resolved, in_store, &Due::FailedPermanently)
}

/// Returns the action for a duplicate. Returns `None` if the Stack is not a duplicate, or if the duplicate does not
/// affect the next action.
///
/// A duplicate starts no run other than a destroy of the Pulumi stack that it has applied. Such a destroy waits if
/// another Stack of the namespace claims this Pulumi stack ([`deletion::held`]).
fn handle_duplicate(observed: &Observed) -> Option<Action> {
    let (stack, preceding) = (&observed.stack, observed.duplicate.as_ref()?);
    let managed = format!(
        "Pulumi stack {} of project {} is already managed by Stack {preceding}",
        stack.spec.stack, preceding.project
    );
    if stack.metadata.deletion_timestamp.is_some() {
        if identity::has_applied_here(stack, observed.workspace.as_ref()) || !deletion::has_to_destroy(stack) {
            return None;
        }
        let message = format!(
            "{managed}, so this Stack does not destroy it. The resources of this Stack are in another Pulumi stack. To delete them, restore \
             spec.stack and spec.backend; to keep them, unset spec.destroyOnFinalize"
        );
        return Some(Action::Conflict(message));
    }
    let message = format!("{managed}, so this Stack does not run. {}", preceding.handover(stack));
    (!stack.spec.suspend.unwrap_or_default()).then_some(Action::Conflict(message))
}

#[cfg(test)]
mod tests;
