//! Annotations with which a user controls the runs of a Stack: requests for a run, `pulumi.com/cancel` and
//! `pulumi.com/resolve`.

use kube::ResourceExt;

use crate::api::auto::{Update, UpdateKind};
use crate::api::conditions::{shorten, stack_reason, update_reason};
use crate::api::names::{self, ANNOTATION_CANCEL, ANNOTATION_RESOLVE};
use crate::api::pulumi::{CurrentUpdate, LastUpdate, Stack, StackStatus};
use crate::api::resolve::{Decision, parse};
use crate::controller::stack::action::Action;
use crate::controller::stack::observed::Observed;

/// Maximum length of a `pulumi.com/cancel` value in the status, in events and in Updates, in bytes. The controller
/// truncates longer values.
const MAX_VALUE: usize = 256;
/// Failure reasons that a user can resolve with `pulumi.com/resolve`.
const RESOLVABLE_REASONS: [&str; 4] = [
    update_reason::RUN_OUTCOME_UNKNOWN,
    update_reason::PENDING_CREATES,
    update_reason::STACK_NOT_FOUND,
    update_reason::ABORTED,
];

/// Returns the values of the annotations `pulumi.com/reconciliation-request` and `reconcile.fluxcd.io/requestedAt`.
pub fn requests(stack: &Stack) -> (Option<String>, Option<String>) {
    let value = |key: &str| stack.annotations().get(key).cloned();
    (value(names::ANNOTATION_RECONCILIATION_REQUEST), value(names::ANNOTATION_REQUESTED_AT))
}

/// Returns whether a user has requested a run, and no completed run has handled this request.
pub fn has_new_request(stack: &Stack) -> bool {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref()).map(|last| &last.inputs);
    let is_new = |request: Option<String>, handled: Option<&String>| request.is_some() && request.as_ref() != handled;
    let (reconcile_request, requested_at) = requests(stack);
    is_new(reconcile_request, last.and_then(|inputs| inputs.reconcile_request.as_ref()))
        || is_new(requested_at, last.and_then(|inputs| inputs.requested_at.as_ref()))
}

/// Returns the values of the Flux annotations `forceAt` and `resetAt`. A value is valid only if it equals the value of
/// `requestedAt`. `forceAt` forces a run, and `resetAt` resets the failure count.
pub fn force_and_reset_requests(stack: &Stack) -> (Option<String>, Option<String>) {
    (part_of_request(stack, names::ANNOTATION_FORCE_AT), part_of_request(stack, names::ANNOTATION_RESET_AT))
}

/// Returns the value of the annotation `pulumi.com/refresh`, which requests a run with a refresh. The value is valid
/// only if it equals the value of `requestedAt`.
pub fn refresh_request(stack: &Stack) -> Option<String> {
    part_of_request(stack, names::ANNOTATION_REFRESH)
}

/// Returns whether a user has requested a refresh, and no run has succeeded since this request. If a run with a refresh
/// fails, its retry therefore also refreshes the Pulumi state.
pub fn is_refresh_due(stack: &Stack) -> bool {
    let handled = stack.status.as_ref().and_then(|status| status.last_handled_refresh_at.as_ref());
    refresh_request(stack).is_some_and(|requested| Some(&requested) != handled)
}

/// Returns the `pulumi.com/refresh` value that a successful run handles. Returns `None` for a preview that saves a
/// plan, because only the run that executes the plan refreshes the Pulumi state. Also returns `None` for a destroy,
/// which refreshes nothing.
pub fn handled_refresh(current: &CurrentUpdate) -> Option<String> {
    let is_plan = current.save_plan.unwrap_or_default();
    current.inputs.refresh_at.clone().filter(|_| !is_plan && current.kind != UpdateKind::Destroy)
}

/// Returns the value of an annotation that supplements `requestedAt`. Returns `None` if the values of the two
/// annotations differ.
fn part_of_request(stack: &Stack, key: &str) -> Option<String> {
    let (_, requested_at) = requests(stack);
    stack.annotations().get(key).filter(|value| Some(*value) == requested_at.as_ref()).cloned()
}

/// Returns the action for a new value of `pulumi.com/cancel`. The controller handles each value once. If the value is
/// the name of an Update, cancels the run of this Update. Any other value cancels the open run.
pub fn cancel(observed: &Observed) -> Option<Action> {
    let stack = &observed.stack;
    let value = cancel_value(stack)?;
    let open = stack.status.as_ref().and_then(|status| status.current_update.as_deref());
    let Some(open) = open else {
        let message = format!(
            "ignored annotation {ANNOTATION_CANCEL}={value}: no run is open or queued. To stop retries and new runs, set \
             spec.suspend"
        );
        return Some(Action::RejectCancel(value, message));
    };
    if is_update_name(stack, &value) && value != open.name {
        let message =
            format!("ignored annotation {ANNOTATION_CANCEL}={value}: the open or queued run is {}", open.name);
        return Some(Action::RejectCancel(value, message));
    }
    // Only a run with an existing Update can be canceled. If the run is complete, the controller records the result
    // before it handles the annotation.
    observed.update.as_ref().filter(|update| !update.is_complete())?;
    Some(Action::CancelUpdate(value))
}

fn cancel_value(stack: &Stack) -> Option<String> {
    let value = shorten(stack.annotations().get(ANNOTATION_CANCEL)?, MAX_VALUE);
    let handled = stack.status.as_ref().and_then(|status| status.handled_cancel.as_ref());
    (handled != Some(&value)).then_some(value)
}

/// Returns whether the value has the format of an Update name for this Stack.
fn is_update_name(stack: &Stack, value: &str) -> bool {
    let hash = value.strip_prefix(&stack.name_any()).and_then(|rest| rest.strip_prefix('-')).unwrap_or_default();
    hash.len() == names::UPDATE_HASH_LENGTH && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns whether a user canceled the run, either with an annotation or by deleting its Update. The deletion of an
/// Update is not a cancellation if the Stack is also being deleted, or if the controller revoked the Update. The
/// controller revokes only Updates whose run has not started.
pub fn is_canceled_by_user(stack: &Stack, update: &Update) -> bool {
    let has = |name: &str| update.annotations().contains_key(name);
    let is_deleted = update.metadata.deletion_timestamp.is_some() && stack.metadata.deletion_timestamp.is_none();
    let has_run = update.status.as_ref().is_some_and(|status| status.run.is_some());
    let is_revoked = has(names::ANNOTATION_REVOKED) && !has_run;
    has(ANNOTATION_CANCEL) || (is_deleted && !is_revoked)
}

/// Returns the condition reason after a run that failed with the reason `failure`. Returns `None` if the controller
/// retries the run without an action of a user.
pub fn pending_reason(failure: &str) -> Option<&'static str> {
    match failure {
        update_reason::RUN_OUTCOME_UNKNOWN => Some(stack_reason::RUN_OUTCOME_UNKNOWN),
        update_reason::PENDING_CREATES => Some(stack_reason::PENDING_CREATES),
        update_reason::STACK_NOT_FOUND => Some(stack_reason::STACK_NOT_FOUND),
        update_reason::DUPLICATE_STACK => Some(stack_reason::UPDATE_CONFLICT),
        update_reason::BACKEND_UPGRADE_REQUIRED => Some(stack_reason::BACKEND_UPGRADE_REQUIRED),
        _ => None,
    }
}

/// Returns the user's decision about the last run. Ignores a decision that the controller has already handled, unless
/// the decision is to abandon the run.
pub fn resolution(stack: &Stack) -> Option<Decision> {
    let value = resolve_value(stack)?;
    let parsed = parse(value).ok()?;
    let names_it = |last: &&LastUpdate| last.name.as_deref() == Some(parsed.update) && is_resolvable(last);
    last(stack).filter(names_it)?;
    if !applies(parsed.decision, stack) {
        return None;
    }
    (!is_handled(stack, value) || parsed.decision == Decision::Abandon).then_some(parsed.decision)
}

/// Returns whether the decision applies to the last run. A missing Pulumi stack has no pending creates, and only a
/// missing Pulumi stack can be created. A destroy creates nothing.
fn applies(decision: Decision, stack: &Stack) -> bool {
    match decision {
        Decision::Retry | Decision::Abandon => true,
        Decision::Clear => !is_stack_not_found(stack),
        Decision::Create => is_stack_not_found(stack) && stack.metadata.deletion_timestamp.is_none(),
    }
}

/// Returns whether the destroy did not find the Pulumi stack and the user decided to abandon the run.
pub fn is_abandoned_destroy(stack: &Stack) -> bool {
    is_stack_not_found(stack) && is_of_destroy(stack) && resolution(stack) == Some(Decision::Abandon)
}

/// Returns whether the last run did not find its Pulumi stack.
pub fn is_stack_not_found(stack: &Stack) -> bool {
    last(stack).is_some_and(|last| last.reason.as_deref() == Some(update_reason::STACK_NOT_FOUND))
}

/// Returns whether the last run is a destroy, or the failed preview of a destroy. If an approval is required, the
/// controller first previews the destroy. The deletion increments the generation of the Stack, so a preview with the
/// current generation started after the deletion.
pub fn is_of_destroy(stack: &Stack) -> bool {
    let is = |last: &LastUpdate, kind: UpdateKind| last.kind.as_deref() == Some(kind.as_str());
    last(stack).is_some_and(|last| {
        let is_current = Some(last.inputs.generation) == stack.metadata.generation;
        let is_deleting = stack.metadata.deletion_timestamp.is_some();
        is(last, UpdateKind::Destroy) || is_deleting && is_current && is(last, UpdateKind::Preview)
    })
}

/// Returns the `pulumi.com/resolve` value that the controller must record as handled.
pub fn handled_resolution(stack: &Stack) -> Option<String> {
    resolution(stack).and_then(|_| resolve_value(stack)).map(str::to_owned)
}

/// Makes the user's decision about the last run effective again. The caller removes a recorded run that has not
/// started. A run with a result would have become the last run. A handled decision about the last run is therefore a
/// decision that only the removed run would have applied. A decision to abandon the last run needs no restoration,
/// because it is effective even after the controller has handled it.
pub fn restore_resolution(status: &mut StackStatus) {
    let last = status.last_update.as_ref().and_then(|last| last.name.as_deref());
    let belongs_to_removed_run = |value: &String| {
        parse(value).is_ok_and(|parsed| Some(parsed.update) == last && parsed.decision != Decision::Abandon)
    };
    status.handled_resolve = status.handled_resolve.take().filter(|value| !belongs_to_removed_run(value));
}

/// Returns the `pulumi.com/resolve` value if it contains the name of this Update. The run of the Update must be open.
pub fn resolution_of_open_run<'a>(stack: &'a Stack, update: &str) -> Option<&'a str> {
    resolve_value(stack).filter(|value| parse(value).is_ok_and(|parsed| parsed.update == update))
}

/// Returns a warning if the `pulumi.com/resolve` value has no effect.
pub fn resolution_warning(stack: &Stack) -> Option<String> {
    let value = resolve_value(stack).filter(|value| !is_handled(stack, value))?;
    let parsed = match parse(value) {
        Ok(parsed) => parsed,
        Err(what) => return Some(format!("annotation {ANNOTATION_RESOLVE} {what}")),
    };
    let status = stack.status.as_ref();
    let is_open = status.and_then(|s| s.current_update.as_ref()).is_some_and(|open| open.name == parsed.update);
    if is_open || resolution(stack).is_some() {
        return None;
    }
    let named = parsed.update;
    Some(match last(stack).filter(|last| is_resolvable(last)).and_then(|last| last.name.as_deref()) {
        Some(resolvable) if resolvable == named && parsed.decision == Decision::Clear => format!(
            "annotation {ANNOTATION_RESOLVE} requests clear, but there is no state to clear; set it to {named}=retry or \
             {named}=abandon"
        ),
        Some(resolvable) if resolvable == named => format!(
            "annotation {ANNOTATION_RESOLVE} requests create, but the run requires no missing Pulumi stack; set it to \
             {named}=retry or {named}=abandon"
        ),
        Some(expected) => {
            format!("annotation {ANNOTATION_RESOLVE} names {named}, but the run to resolve is {expected}")
        }
        None => format!(
            "annotation {ANNOTATION_RESOLVE} names {named}, but no run requires a decision: remove the annotation"
        ),
    })
}

fn resolve_value(stack: &Stack) -> Option<&str> {
    stack.annotations().get(ANNOTATION_RESOLVE).map(String::as_str)
}

fn is_handled(stack: &Stack, value: &str) -> bool {
    stack.status.as_ref().and_then(|status| status.handled_resolve.as_deref()) == Some(value)
}

fn last(stack: &Stack) -> Option<&LastUpdate> {
    stack.status.as_ref()?.last_update.as_ref()
}

fn is_resolvable(last: &LastUpdate) -> bool {
    last.reason.as_deref().is_some_and(|reason| RESOLVABLE_REASONS.contains(&reason))
}

#[cfg(test)]
mod tests;
