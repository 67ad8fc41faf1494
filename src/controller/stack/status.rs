//! Builds the status of a Stack.

use jiff::Timestamp;

use crate::api::auto::UpdateKind;
use crate::api::conditions::{self, READY, RECONCILING, STALLED, Status, stack_reason};
use crate::api::pulumi::{CurrentUpdate, RunInputs, Stack, StackStatus};
use crate::controller::stack::action::Baseline;
use crate::controller::stack::annotations;
use crate::controller::stack::run::queued_message;
use crate::telemetry::stacks::StackState;

mod result;
mod state;

pub use result::{outputs_are_known, with_result};
pub use state::{State, WITHOUT_DESTROY, changes, is_conflict, planned_changes, with_state};

/// Returns the values of the Stack metrics for this status.
pub fn stack_state(status: &StackStatus) -> StackState {
    let ready = conditions::find(&status.conditions, READY);
    let stalled = conditions::find(&status.conditions, STALLED).filter(|stalled| stalled.status == "True");
    let last_failed = status.last_update.as_ref().is_some_and(|last| last.state.as_deref() == Some("failed"));
    // A Stack that has an open run or waits for a dependency, an approval, a pause or a schedule does not count as failing.
    let waits = |reason: &str| {
        let waiting = [
            stack_reason::NOT_READY_IN_PROGRESS,
            stack_reason::STACK_PROCESSING,
            stack_reason::PREREQUISITE_NOT_SATISFIED,
            stack_reason::AWAITING_APPROVAL,
            stack_reason::PAUSED,
            stack_reason::OUTSIDE_SCHEDULE,
        ];
        waiting.contains(&reason)
    };
    let lacks = ready.is_some_and(|ready| ready.status == "False" && !waits(&ready.reason));
    let reason = stalled.or(ready).map(|condition| condition.reason.clone());
    StackState {
        ready: ready.map_or_else(|| Status::Unknown.as_str().to_owned(), |ready| ready.status.clone()),
        reason: reason.unwrap_or_default(),
        is_failing: last_failed || lacks || stalled.is_some(),
        is_reconciling: conditions::is_true(&status.conditions, RECONCILING),
        drifted: status.drift.as_ref().map(|drift| drift.count),
    }
}

/// Returns the status that records the run `current`. The Update of the run is created afterwards.
pub fn started(stack: &Stack, current: &CurrentUpdate, now: Timestamp) -> StackStatus {
    let mut status = with_state(stack, &State::Working(queued_message(current)), now);
    status.attempts = Some(status.attempts.unwrap_or_default() + 1);
    status.last_attempted_revision = current.commit.clone();
    status.current_update = Some(current.clone());
    // Only a run that executes the plan leaves the plan in the status, until the run has ended.
    status.plan = status.plan.filter(|_| current.plan.is_some());
    status.handled_resolve = annotations::handled_resolution(stack).or(status.handled_resolve);
    status
}

/// Returns the status with another record of the open run.
pub fn with_current_update(stack: &Stack, current: CurrentUpdate) -> StackStatus {
    StackStatus { current_update: Some(current), ..stack.status.clone().unwrap_or_default() }
}

/// Returns the status without the recorded run. The Update of this run was not created.
pub fn without_current_update(stack: &Stack) -> StackStatus {
    StackStatus { current_update: None, ..stack.status.clone().unwrap_or_default() }
}

/// Returns the status after the value of the annotation `pulumi.com/cancel` is handled.
pub fn with_handled_cancel(stack: &Stack, value: String) -> StackStatus {
    StackStatus { handled_cancel: Some(value), ..stack.status.clone().unwrap_or_default() }
}

/// Returns the status with the first known hashes of Secrets and ConfigMaps. Later hashes are compared with these
/// hashes.
pub fn with_first_inputs(stack: &Stack, first: &Baseline) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    if let Some(last) = &mut status.last_update {
        last.inputs.config_inputs = first.config.clone().or_else(|| last.inputs.config_inputs.take());
        last.inputs.mounted_inputs.extend(first.mounted.clone());
    }
    status
}

/// Returns the status for a new revision of the source with the same selected files. Returns `None` if the status does
/// not change.
pub fn with_new_revision(stack: &Stack, revision: &str) -> Option<StackStatus> {
    let status = stack.status.as_ref()?;
    let last = status.last_update.as_ref()?;
    let is_up_to_date = last.inputs.paths_digest.is_some()
        && last.kind.as_deref() == Some(UpdateKind::Up.as_str())
        && last.state.as_deref() == Some("succeeded");
    if !is_up_to_date || status.last_applied_revision.as_deref() == Some(revision) {
        return None;
    }
    let revision = Some(revision.to_owned());
    Some(StackStatus { last_attempted_revision: revision.clone(), last_applied_revision: revision, ..status.clone() })
}

/// Returns the status after a repacked archive has replaced the archive of the last run.
pub fn with_repacked_archive(stack: &Stack, inputs: &RunInputs) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    if let Some(last) = &mut status.last_update {
        last.inputs.digest.clone_from(&inputs.digest);
        last.inputs.content_id.clone_from(&inputs.content_id);
    }
    status
}

#[cfg(test)]
mod tests;
