//! States of a Stack, and the conditions for each state.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use crate::api::auto::UpdateKind;
use crate::api::conditions::{
    self, ConditionUpdate, PROGRESSING_WITH_RETRY, READY, RECONCILING, STALLED, Status, stack_reason, update_reason,
};
use crate::api::pulumi::{LastUpdate, Stack, StackStatus};
use crate::api::{columns, names};
use crate::controller::stack::annotations::{self, requests};
use crate::controller::stack::backoff::StackBackoff;
use crate::controller::stack::run::named_revision;
use crate::controller::stack::{drift, expiry, ignored_settings, orphaned_stacks, output_objects, run_spec};
use crate::pulumi::operations;

/// Advice for a Stack whose last run has no retry.
const RESUME_ADVICE: &str = "The Stack runs again when the spec or the source changes, or when the annotation \
                       pulumi.com/reconciliation-request or reconcile.fluxcd.io/requestedAt gets a new value";
/// Advice for a Stack whose destroy does not succeed.
pub const WITHOUT_DESTROY: &str = "To delete the Stack and keep its resources, set spec.destroyOnFinalize to false";

/// State of a Stack. Each state except `Suspended` has a row in the table of conditions in `docs/spec/v1/stack.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A run, or a step that prepares a run, is in progress. Contains the step and the revision.
    Working(String),
    WorkspaceFailed(String),
    /// The Pulumi CLI in the image is too old.
    VersionTooLow(String),
    SourceUnavailable(String),
    /// The source does not exist or is not usable. Only a user can resolve the problem, by changing the source or the
    /// spec.
    SourceStalled(String),
    /// The namespace is being deleted, so the API server rejects new objects in the namespace.
    NamespaceTerminating(String),
    /// Another Stack manages the same Pulumi stack.
    Conflict(String),
    /// A dependency is not ready or has not run yet.
    PrerequisiteNotSatisfied(String),
    /// The last run failed. The controller retries the run.
    Failed,
    /// The Pulumi Kubernetes Operator stopped retrying the last run.
    FailedPermanently,
    /// The outcome of the open run is unknown. Contains the Update's reason and message.
    OutcomeUnknown(&'static str, String),
    /// The result of the last run requires a decision or another action of a user. Contains the reason.
    DecisionRequired(&'static str),
    /// A user abandoned the last run.
    Abandoned,
    /// A user canceled the last run.
    Canceled,
    /// The plan of the next run requires an approval.
    AwaitingApproval(String),
    /// A user rejected the plan of the next run.
    PlanRejected(String),
    /// A pause or a schedule prevents the run. Contains the reason and a message.
    AwaitingPermission(&'static str, String),
    /// Users have deleted too many Stacks, so the destroy waits until a user confirms it.
    DestroyUnconfirmed(String),
    Invalid(String),
    Denied(String),
    Done,
    /// Contains the Stack that already manages the Pulumi stack, if any.
    Suspended(Option<String>),
    DeletionSuspended,
}

/// Returns the status with the state's conditions. Changes no other fields, except fields that depend on conditions or
/// annotations.
pub fn with_state(stack: &Stack, state: &State, now: Timestamp) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    let generation = stack.metadata.generation.unwrap_or_default();
    let (reconcile_request, requested_at) = requests(stack);
    // A suspended Stack keeps its conditions. The message of the condition `Ready` starts with a note.
    if let State::Suspended(duplicate_of) = state {
        suspend(stack, &mut status, duplicate_of.as_deref(), now);
    } else {
        let last = status.last_update.clone();
        status.suspended = None;
        let mut desired = desired_conditions(stack, state, last.as_ref());
        if let Some(warning) = annotations::resolution_warning(stack) {
            desired.add_warning(&warning);
        }
        set_conditions(&mut status.conditions, &desired, generation, now);
        drift::keep(stack, &mut status, now);
        output_objects::keep(stack, &mut status);
        expiry::keep(stack, &mut status, now);
    }
    orphaned_stacks::keep(stack, &mut status, now);
    ignored_settings::keep(stack, &mut status, now);
    if *state == State::Abandoned {
        status.handled_resolve = annotations::handled_resolution(stack).or(status.handled_resolve);
    }
    status.short_revision = status.last_applied_revision.as_deref().and_then(columns::revision);
    status.summary = conditions::summary(&status.conditions);
    status.pending_since = pending_since(status.pending_since, state, now);
    status.observed_generation = Some(generation);
    status.observed_reconcile_request = reconcile_request;
    let handled = |key: &str, before: Option<String>| stack.annotations().get(key).cloned().or(before);
    status.last_handled_reconcile_at = requested_at.or(status.last_handled_reconcile_at);
    status.last_handled_force_at = handled(names::ANNOTATION_FORCE_AT, status.last_handled_force_at);
    status.last_handled_reset_at = handled(names::ANNOTATION_RESET_AT, status.last_handled_reset_at);
    status
}

/// Returns the time at which the pending run became due. The time is reset when a run completes, even if the run
/// failed. A Stack that fails repeatedly therefore does not take precedence in the queue.
fn pending_since(before: Option<Time>, state: &State, now: Timestamp) -> Option<Time> {
    match state {
        State::Working(_) | State::WorkspaceFailed(_) | State::PrerequisiteNotSatisfied(_) => {
            before.or(Some(Time(now)))
        }
        State::SourceUnavailable(_) | State::SourceStalled(_) | State::OutcomeUnknown(..) => before,
        State::NamespaceTerminating(_)
        | State::VersionTooLow(_)
        | State::Conflict(_)
        | State::Failed
        | State::FailedPermanently
        | State::DecisionRequired(_)
        | State::Abandoned
        | State::Canceled
        | State::AwaitingApproval(_)
        | State::PlanRejected(_)
        | State::AwaitingPermission(..)
        | State::DestroyUnconfirmed(_)
        | State::Invalid(_)
        | State::Denied(_)
        | State::Done
        | State::Suspended(_)
        | State::DeletionSuspended => None,
    }
}

/// Reason and message of a condition.
struct Detail(&'static str, String);

/// Desired contents of the conditions `Ready`, `Reconciling` and `Stalled`. If the content is `None`, the controller
/// removes the condition.
struct DesiredConditions {
    ready: (Status, Detail),
    reconciling: Option<Detail>,
    stalled: Option<Detail>,
}

impl DesiredConditions {
    /// Appends a warning about the annotation `pulumi.com/resolve` to all messages.
    fn add_warning(&mut self, warning: &str) {
        let others = [&mut self.reconciling, &mut self.stalled].into_iter().flatten();
        for Detail(_, message) in std::iter::once(&mut self.ready.1).chain(others) {
            message.push_str(&format!(" ({warning})"));
        }
    }
}

fn desired_conditions(stack: &Stack, state: &State, last: Option<&LastUpdate>) -> DesiredConditions {
    let cause = last.and_then(|l| l.message.clone()).unwrap_or_else(|| "the run failed without a message".to_owned());
    match state {
        State::Working(message) => DesiredConditions {
            ready: (Status::Unknown, Detail(stack_reason::NOT_READY_IN_PROGRESS, message.clone())),
            reconciling: Some(Detail(stack_reason::STACK_PROCESSING, message.clone())),
            stalled: None,
        },
        State::VersionTooLow(message) => stalled(stack_reason::PULUMI_VERSION_TOO_LOW, message, message),
        State::WorkspaceFailed(message) => stalled(stack_reason::WORKSPACE_FAILED, message, message),
        State::SourceStalled(message) => stalled(stack_reason::SOURCE_UNAVAILABLE, message, message),
        State::SourceUnavailable(message) => waiting(stack_reason::SOURCE_UNAVAILABLE, message),
        State::NamespaceTerminating(message) => stalled(stack_reason::NAMESPACE_TERMINATING, message, message),
        State::Conflict(message) => stalled(stack_reason::UPDATE_CONFLICT, message, message),
        State::PrerequisiteNotSatisfied(message) => waiting(stack_reason::PREREQUISITE_NOT_SATISFIED, message),
        State::Failed => failed(stack, last, cause),
        State::FailedPermanently => {
            let kind = last.and_then(|l| l.kind.as_deref()).unwrap_or("update");
            let message = format!("the Pulumi Kubernetes Operator stopped retrying the {kind}. {RESUME_ADVICE}");
            stalled(failure_reason(last), &cause, &message)
        }
        State::OutcomeUnknown(reason, message) => stalled(reason, message, message),
        // The next step adds the advice about the other Stack.
        State::DecisionRequired(stack_reason::UPDATE_CONFLICT) => {
            stalled(stack_reason::UPDATE_CONFLICT, &cause, &cause)
        }
        State::DecisionRequired(reason) => {
            let advice = resolution_advice(stack, reason, last);
            let message = match *reason {
                // The advice already states what triggers the next run.
                stack_reason::STACK_NOT_FOUND | stack_reason::BACKEND_UPGRADE_REQUIRED => format!("{cause}. {advice}"),
                _ => format!("{cause}. {advice}. {RESUME_ADVICE}"),
            };
            stalled(reason, &message, &message)
        }
        State::Abandoned => {
            let reason = match last.and_then(|l| l.reason.as_deref()) {
                Some(update_reason::PENDING_CREATES) => stack_reason::PENDING_CREATES,
                Some(update_reason::STACK_NOT_FOUND) => stack_reason::STACK_NOT_FOUND,
                _ => stack_reason::RUN_OUTCOME_UNKNOWN,
            };
            stalled(reason, &cause, &format!("a user abandoned the last run. {RESUME_ADVICE}"))
        }
        State::Canceled => stalled(stack_reason::CANCELED, &cause, &format!("{cause}. {RESUME_ADVICE}")),
        State::AwaitingApproval(message) => waiting(stack_reason::AWAITING_APPROVAL, message),
        State::PlanRejected(message) => stalled(stack_reason::PLAN_REJECTED, message, message),
        State::AwaitingPermission(reason, message) => waiting(reason, message),
        State::DestroyUnconfirmed(message) => stalled(stack_reason::DESTROY_UNCONFIRMED, message, message),
        State::Invalid(message) => stalled(stack_reason::SPEC_INVALID, message, message),
        State::Denied(message) => stalled(stack_reason::ACCESS_DENIED, message, message),
        State::Done | State::Suspended(_) => DesiredConditions {
            ready: (Status::True, Detail(success_reason(last), done(last))),
            reconciling: None,
            stalled: None,
        },
        State::DeletionSuspended => {
            let message =
                "deleted while suspended; set spec.suspend to false to destroy the resources and delete the Stack";
            waiting(stack_reason::SUSPENDED, message)
        }
    }
}

/// Returns the conditions of a Stack that is not ready, but can become ready without user action.
fn waiting(reason: &'static str, message: &str) -> DesiredConditions {
    DesiredConditions {
        ready: (Status::False, Detail(reason, message.to_owned())),
        reconciling: Some(Detail(reason, message.to_owned())),
        stalled: None,
    }
}

fn failed(stack: &Stack, last: Option<&LastUpdate>, cause: String) -> DesiredConditions {
    let retry = next_retry(last, &StackBackoff::of_stack(stack));
    if last.is_some_and(is_conflict) {
        return DesiredConditions {
            ready: (Status::False, Detail(stack_reason::UPDATE_CONFLICT, cause.clone())),
            reconciling: Some(Detail(stack_reason::UPDATE_CONFLICT, format!("{cause}; {retry}"))),
            stalled: None,
        };
    }
    let failures = last.map_or(1, |last| last.failures);
    let is_destroy = annotations::is_of_destroy(stack);
    let retry = match last.and_then(|l| l.reason.as_deref()) {
        Some(update_reason::RUN_REFUSED) => format!("the run could not start; {retry}"),
        Some(update_reason::ABORTED) => format!("the run was interrupted; {retry}"),
        _ if is_destroy => format!("{failures} destroy failure(s); {retry}. {WITHOUT_DESTROY}"),
        _ => format!("{failures} update failure(s); {retry}"),
    };
    let cause = if is_destroy { format!("destroy failed: {cause}") } else { cause };
    DesiredConditions {
        ready: (Status::False, Detail(failure_reason(last), cause)),
        reconciling: Some(Detail(stack_reason::RETRYING_AFTER_FAILURE, retry)),
        stalled: None,
    }
}

/// Returns the time of the next retry for messages. The run starts later if no run slot is free.
fn next_retry(last: Option<&LastUpdate>, backoff: &StackBackoff) -> String {
    let end = last.and_then(|last| Some((last.last_resync_time.as_ref()?.0, backoff.delay_after(last))));
    match end.and_then(|(end, pause)| end.checked_add(pause).ok()) {
        Some(time) => format!("next retry at {}", conditions::time(time)),
        None => "retrying".to_owned(),
    }
}

pub fn failure_reason(last: Option<&LastUpdate>) -> &'static str {
    if is_preview(last) { stack_reason::PREVIEW_FAILED } else { stack_reason::UPDATE_FAILED }
}

pub fn success_reason(last: Option<&LastUpdate>) -> &'static str {
    if is_preview(last) { stack_reason::PREVIEWED } else { stack_reason::PROCESSING_COMPLETED }
}

fn is_preview(last: Option<&LastUpdate>) -> bool {
    last.and_then(|last| last.kind.as_deref()) == Some(UpdateKind::Preview.as_str())
}

/// Returns the instructions for the user after the last run.
fn resolution_advice(stack: &Stack, reason: &str, last: Option<&LastUpdate>) -> String {
    let name = last.and_then(|last| last.name.as_deref()).unwrap_or("<update>");
    let annotation = names::ANNOTATION_RESOLVE;
    if reason == stack_reason::STACK_NOT_FOUND && !annotations::is_of_destroy(stack) {
        let backend = last.and_then(|last| last.pulumi_stack.as_ref()?.backend.as_deref()).unwrap_or_default();
        let loss = match backend.starts_with("file:") {
            true => "the directory of the backend is not on a persistent volume, so it was lost with the pod",
            false => "the bucket or the database was emptied or replaced, or the credentials belong to another account",
        };
        return format!(
            "Earlier runs have created resources, which probably still exist: another run would create them a second time. Possible \
             causes: {loss}, or a user removed the Pulumi stack. Restore the state or correct the backend, and request a run. \
             Or set the annotation {annotation} to {name}=create to create the Pulumi stack and all resources again, or to \
             {name}=abandon to stop"
        );
    }
    if reason == stack_reason::STACK_NOT_FOUND {
        return format!(
            "Correct the backend, its credentials, the stack name or the project name, and set the annotation {annotation} to \
             {name}=retry to retry the destroy; or set it to {name}=abandon to delete the Stack and keep its resources"
        );
    }
    if reason == stack_reason::BACKEND_UPGRADE_REQUIRED {
        // The message of the run already states how to upgrade the backend.
        return match annotations::is_of_destroy(stack) {
            true => WITHOUT_DESTROY.to_owned(),
            false => RESUME_ADVICE.to_owned(),
        };
    }
    format!(
        "Set the annotation {annotation} to {name}=retry to run again with the current state, to {name}=clear to remove the \
         pending creates from the state and run again, or to {name}=abandon to stop retrying"
    )
}

/// Returns the conditions of a Stack that becomes ready only after a user has resolved the problem.
fn stalled(reason: &'static str, cause: &str, message: &str) -> DesiredConditions {
    DesiredConditions {
        ready: (Status::False, Detail(reason, cause.to_owned())),
        reconciling: None,
        stalled: Some(Detail(reason, message.to_owned())),
    }
}

fn done(last: Option<&LastUpdate>) -> String {
    if let Some(last) = last.filter(|last| is_preview(Some(last))) {
        let revision = last.last_attempted_commit.as_deref().filter(|revision| !revision.is_empty());
        let of = revision.map(|revision| format!(" ({})", named_revision(revision))).unwrap_or_default();
        return format!("preview: {}{of}", changes(last));
    }
    let done = match last.and_then(|l| l.last_successful_commit.as_deref()).filter(|revision| !revision.is_empty()) {
        Some(revision) => format!("up to date ({})", named_revision(revision)),
        None => "up to date".to_owned(),
    };
    // The message of a successful run contains additional information, for example about missing outputs.
    match last.filter(|last| last.state.as_deref() == Some("succeeded")).and_then(|last| last.message.as_deref()) {
        Some(note) => format!("{done}; {note}"),
        None => done,
    }
}

/// Returns a description of a preview's changes, such as `2 to create, 1 to delete`.
pub fn changes(last: &LastUpdate) -> String {
    planned_changes(&last.changes)
}

/// Returns a description of the planned operations, such as `2 to create, 1 to delete`.
pub fn planned_changes(changes: &BTreeMap<String, i64>) -> String {
    let changes = changes.iter().filter(|(operation, count)| *operation != "same" && **count > 0);
    let change = |(operation, count): (&String, &i64)| match operation.as_str() {
        operations::MISSING => format!("{count} missing"),
        _ => format!("{count} to {operation}"),
    };
    let changes: Vec<String> = changes.map(change).collect();
    if changes.is_empty() { "no changes".to_owned() } else { changes.join(", ") }
}

fn suspend(stack: &Stack, status: &mut StackStatus, duplicate_of: Option<&str>, now: Timestamp) {
    let generation = stack.metadata.generation.unwrap_or_default();
    // The suspension itself changes the generation. The message must contain the note only if the spec changes in
    // addition to the suspension, or after it.
    let is_unseen = status.observed_generation.unwrap_or(-1) >= 0 && status.observed_generation != Some(generation);
    let has_changed = match was_suspended(status) {
        true => is_unseen,
        false => run_spec::has_changed_besides_suspension(stack),
    };
    conditions::remove(&mut status.conditions, RECONCILING);
    let old = conditions::find(&status.conditions, READY).cloned();
    let old = match old {
        // A repeated error is not a result of the Stack.
        Some(old) if old.reason == PROGRESSING_WITH_RETRY => last_result(status.last_update.as_ref(), old),
        old => old,
    };
    let (ready, reason, message) = match &old {
        Some(old) if old.status == "True" => (Status::True, old.reason.clone(), old.message.clone()),
        Some(old) if old.status == "False" => (Status::False, old.reason.clone(), old.message.clone()),
        _ => {
            let message =
                if status.last_update.is_some() { "a due run has not started" } else { "no run has completed" };
            (Status::False, stack_reason::SUSPENDED.to_owned(), message.to_owned())
        }
    };
    const NOTE: &str = "suspended";
    const NOTE_ABOUT_CHANGE: &str = ", spec changed";
    let (notes, bare) = message.strip_prefix(NOTE).and_then(|rest| rest.split_once(": ")).unwrap_or(("", &message));
    let changed = if has_changed || notes.starts_with(NOTE_ABOUT_CHANGE) { NOTE_ABOUT_CHANGE } else { "" };
    let duplicate = duplicate_of.map(|other| format!(", duplicate of Stack {other}")).unwrap_or_default();
    let message = format!("{NOTE}{changed}{duplicate}: {bare}");
    let condition = ConditionUpdate { kind: READY, status: ready, reason: &reason, message: &message };
    conditions::set(&mut status.conditions, &condition, generation, now);
    if let Some(stalled) = status.conditions.iter_mut().find(|c| c.type_ == STALLED) {
        stalled.observed_generation = Some(generation);
    }
    status.suspended = Some(true);
    // Without this digest, a resumed Stack would start a run even if its spec is the same as before the suspension.
    if let Some(last) = &mut status.last_update {
        last.inputs.run_spec_digest = None;
    }
}

/// Returns the condition `Ready` after the last run. Returns `None` if no run has completed.
fn last_result(last: Option<&LastUpdate>, ready: Condition) -> Option<Condition> {
    let last = last?;
    let (status, reason, message) = match last.state.as_deref() {
        Some("succeeded") => (Status::True, success_reason(Some(last)), done(Some(last))),
        _ => (Status::False, failure_reason(Some(last)), last.message.clone().unwrap_or_default()),
    };
    Some(Condition { status: status.as_str().to_owned(), reason: reason.to_owned(), message, ..ready })
}

fn was_suspended(status: &StackStatus) -> bool {
    status.suspended.unwrap_or_default()
}

fn set_conditions(into: &mut Vec<Condition>, desired: &DesiredConditions, generation: i64, now: Timestamp) {
    let (ready, Detail(reason, message)) = &desired.ready;
    conditions::set(into, &ConditionUpdate { kind: READY, status: *ready, reason, message }, generation, now);
    for (kind, detail) in [(RECONCILING, &desired.reconciling), (STALLED, &desired.stalled)] {
        match detail {
            Some(Detail(reason, message)) => {
                conditions::set(
                    into,
                    &ConditionUpdate { kind, status: Status::True, reason, message },
                    generation,
                    now,
                );
            }
            None => conditions::remove(into, kind),
        }
    }
}

/// Returns whether the run failed because it found another update's lock.
pub fn is_conflict(last: &LastUpdate) -> bool {
    last.reason.as_deref() == Some(update_reason::UPDATE_CONFLICT)
}
