//! Decides the next action of a Stack. A pure function without I/O or clock that covers every observed state.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::conditions::{self, stack_reason};
use crate::api::names;
use crate::api::pulumi::Stack;
use crate::controller::stack::action::{Action, Settled};
use crate::controller::stack::next_run::run_if_due;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::run::forward;
use crate::controller::stack::{active_update, build_workspace, cancel, deletion, duplicate, input_changes};
use crate::runtime::field_managers;
use crate::source::Unavailable;

/// Time for which a missing source does not stall the Stack.
const SOURCE_GRACE: SignedDuration = SignedDuration::from_secs(10);

/// Returns the next action for the observed state.
pub fn decide(observed: &Observed, now: Timestamp) -> Action {
    let stack = &observed.stack;
    let deleting = stack.metadata.deletion_timestamp.is_some();
    if field_managers::is_due(stack) {
        return Action::TakeOver;
    }
    if !deleting && !stack.finalizers().iter().any(|f| f == names::STACK_FINALIZER) {
        return Action::AddFinalizer;
    }
    if let Some(action) = cancel::decide(observed).or_else(|| active_update::decide(observed)) {
        return action;
    }
    if let Some(action) = duplicate::decide(observed) {
        return action;
    }
    if deleting { deletion::decide(observed, now) } else { desired(observed, now) }
}

fn desired(observed: &Observed, now: Timestamp) -> Action {
    if observed.stack.spec.suspend.unwrap_or_default() {
        return Action::Settled(Settled::Suspended);
    }
    if let Err(error) = build_workspace::check_address(&observed.stack) {
        return Action::Invalid(error.to_string());
    }
    let resolved = match &observed.source {
        Some(Ok(resolved)) => resolved,
        Some(Err(Unavailable::Invalid(message))) => return Action::Invalid(message.clone()),
        Some(Err(Unavailable::Denied(message))) => return Action::Denied(message.clone()),
        Some(Err(Unavailable::NotYet(message))) => return Action::WaitForSource(message.clone(), None),
        Some(Err(Unavailable::Stalled(message))) => return stalled_source(&observed.stack, message, now),
        Some(Err(Unavailable::Looking(message))) => return Action::AwaitSource(message.clone()),
        None => return Action::WaitForSource("the source was not resolved".to_owned(), None),
    };
    let action = run_if_due(observed, resolved, observed.in_store, forward(&observed.stack), now);
    match input_changes::baseline(observed) {
        Some(first) if matches!(action, Action::Settled(_)) => Action::RecordBaseline(first),
        _ => action,
    }
}

/// Waits for a missing source during the grace period: the source may be created shortly after the Stack, for example in the same `kubectl
/// apply`.
fn stalled_source(stack: &Stack, message: &str, now: Timestamp) -> Action {
    let ready = stack.status.as_ref().and_then(|status| conditions::find(&status.conditions, conditions::READY));
    let is_known = |ready: &&Condition| {
        let reasons = [stack_reason::SOURCE_UNAVAILABLE, stack_reason::NOT_READY_STALLED];
        ready.observed_generation == stack.metadata.generation && reasons.contains(&ready.reason.as_str())
    };
    let known_for = ready.filter(is_known).map(|ready| now.duration_since(ready.last_transition_time.0));
    let grace = SOURCE_GRACE - known_for.unwrap_or_default();
    match Duration::try_from(grace) {
        Ok(left) if !left.is_zero() => Action::WaitForSource(message.to_owned(), Some(left)),
        _ => Action::SourceStalled(message.to_owned()),
    }
}

#[cfg(test)]
mod tests;
