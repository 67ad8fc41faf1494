//! Builds the status of a Stack.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::auto::{PendingCreates, TerminationEvidence, Update, UpdateKind, UpdateStatus};
use crate::api::conditions::{
    self, ConditionUpdate, DRIFTED, OUTPUTS_WRITTEN, READY, RECONCILING, STALLED, Status, stack_reason, update_reason,
};
use crate::api::pulumi::{CurrentUpdate, RunInputs, Stack, StackStatus};
use crate::controller::stack::action::Baseline;
use crate::controller::stack::build_workspace::StackSpecError;
use crate::controller::stack::run::queued_message;
use crate::controller::stack::{annotations, build_update, identity};
use crate::runtime::run_limiter::SlotWait;
use crate::telemetry::stacks::{StackState, Violations, Wait};

mod latency;
mod result;
mod runs;
mod state;

pub use latency::of_new_artifact;
pub use result::{outputs_are_known, with_result};
pub use state::{State, WITHOUT_DESTROY, changes, is_conflict, planned_changes, with_state};

/// Returns the values of the Stack metrics for this status.
pub fn stack_state(status: &StackStatus) -> StackState {
    let ready = conditions::find(&status.conditions, READY);
    let stalled = conditions::find(&status.conditions, STALLED).filter(|stalled| stalled.status == "True");
    let last_failed = status.last_update.as_ref().is_some_and(|last| last.state.as_deref() == Some("failed"));
    // A Stack is not failing while it has an open run, or while a dependency, an approval, a pause or a schedule delays
    // its run.
    let waits = |reason: &str| {
        let waiting = [
            stack_reason::NOT_READY_IN_PROGRESS,
            stack_reason::SUSPENDED,
            stack_reason::PREREQUISITE_NOT_SATISFIED,
            stack_reason::AWAITING_APPROVAL,
            stack_reason::PAUSED,
            stack_reason::OUTSIDE_SCHEDULE,
            stack_reason::INPUTS_CHANGE_OFTEN,
        ];
        waiting.contains(&reason)
    };
    let lacks = ready.is_some_and(|ready| ready.status == "False" && !waits(&ready.reason));
    let cause = stalled.or(ready);
    let reason = cause.map(|condition| condition.reason.clone());
    let drift_check = conditions::find(&status.conditions, DRIFTED);
    let written = conditions::find(&status.conditions, OUTPUTS_WRITTEN);
    StackState {
        ready: ready.map_or_else(|| Status::Unknown.as_str().to_owned(), |ready| ready.status.clone()),
        reason: reason.unwrap_or_default(),
        is_failing: last_failed || lacks || stalled.is_some(),
        is_reconciling: conditions::is_true(&status.conditions, RECONCILING),
        wait: cause.and_then(|cause| wait(status, cause)),
        drifted: status.drift.as_ref().map(|drift| drift.count),
        drift_check_failed: drift_check.map(|check| check.status == Status::Unknown.as_str()),
        outputs_written: written.map(|written| written.status == "True"),
        violations: status
            .policy_violations
            .as_ref()
            .map(|found| Violations { mandatory: found.mandatory, advisory: found.advisory }),
    }
}

/// Condition reasons of Stacks that wait for a user or for an external object.
const WAITS: [&str; 11] = [
    stack_reason::AWAITING_APPROVAL,
    stack_reason::BACKEND_UPGRADE_REQUIRED,
    stack_reason::DESTROY_UNCONFIRMED,
    stack_reason::INPUTS_CHANGE_OFTEN,
    stack_reason::OUTSIDE_SCHEDULE,
    stack_reason::PAUSED,
    stack_reason::PENDING_CREATES,
    stack_reason::PREREQUISITE_NOT_SATISFIED,
    stack_reason::RUN_OUTCOME_UNKNOWN,
    stack_reason::SOURCE_UNAVAILABLE,
    stack_reason::STACK_NOT_FOUND,
];

/// Returns the reason and the start time of a wait. `cause` is the condition with the reason. A wait for an approval
/// starts when the controller creates the plan. The condition's transition time can be earlier if the Stack was not
/// ready before. All times are in the status, so a controller restart does not change them.
fn wait(status: &StackStatus, cause: &Condition) -> Option<Wait> {
    let reason = WAITS.into_iter().find(|reason| *reason == cause.reason)?;
    if status.suspended == Some(true) {
        return None;
    }
    let planned = status.plan.as_ref().filter(|_| reason == stack_reason::AWAITING_APPROVAL);
    let since = planned.and_then(|plan| plan.created.as_ref()).unwrap_or(&cause.last_transition_time);
    Some(Wait { reason, since: since.0 })
}

/// Returns the status that records the run `current`. The caller must write this status before it creates the run's
/// Update. `wait` is the reason why the run will wait for a slot.
pub fn started(stack: &Stack, current: &CurrentUpdate, wait: Option<&SlotWait>, now: Timestamp) -> StackStatus {
    let mut status = with_state(stack, &State::Working(queued_message(current, wait)), now);
    status.attempts = Some(status.attempts.unwrap_or_default() + 1);
    status.last_attempted_revision = current.commit.clone();
    status.current_update = Some(Box::new(current.clone()));
    // The plan remains in the status only during the run that executes the plan. Any other run removes the plan.
    status.plan = status.plan.filter(|_| current.plan.is_some());
    status.handled_resolve = annotations::handled_resolution(stack).or(status.handled_resolve);
    status
}

/// Returns the status in which `current` replaces the record of the open run.
pub fn with_current_update(stack: &Stack, current: CurrentUpdate) -> StackStatus {
    StackStatus { current_update: Some(Box::new(current)), ..stack.status.clone().unwrap_or_default() }
}

/// Returns the status without the recorded run. If the run has not started, the next run can apply the user's decision
/// about the last run. A started run may have applied the decision, so no other run applies it.
pub fn without_current_update(stack: &Stack, has_started: bool) -> StackStatus {
    let mut status = StackStatus { current_update: None, ..stack.status.clone().unwrap_or_default() };
    if !has_started {
        annotations::restore_resolution(&mut status);
    }
    status
}

/// Returns the status without a run whose result the controller ignores, because a user has created or changed its
/// Update. A started run may have executed the plan. A started `up` may also have changed resources: the deletion of
/// the Stack must destroy these resources, and the next run must check for pending creates.
pub fn without_discarded_run(stack: &Stack, update: &Update, now: Timestamp) -> StackStatus {
    let result = update.status.clone().unwrap_or_default();
    let mut status = without_current_update(stack, result.run.is_some());
    let current = stack.status.as_ref().and_then(|status| status.current_update.as_deref());
    let Some(current) = current.filter(|_| result.run.is_some()) else { return status };
    status.plan = None;
    // The changed spec can name another Pulumi stack. The resources of this Pulumi stack do not belong to the Stack.
    let is_of_stack = current.pulumi_stack.as_ref().is_none_or(|expected| expected.name == update.spec.stack_name);
    if is_of_stack && identity::may_have_changed(update) {
        let (before, is_confirmed) = (identity::recorded(stack), identity::confirms_state(update));
        let applied = Some(identity::applied_by(stack, identity::reported(stack, current, &result)));
        identity::record_applied(&mut status, before, applied, is_confirmed, current, now);
        if let Some(last) = &mut status.last_update {
            last.pending_creates.get_or_insert(PendingCreates::Stop);
        }
    }
    status
}

/// Returns the status for a recorded run without an Update that the controller creates again. The run may already have
/// started: a user can have removed the finalizers of its Update. The record is then the only evidence that an `up` may
/// have changed resources. The Update must therefore check for pending creates. Returns `None` if the status already
/// contains this evidence.
pub fn of_possible_run(stack: &Stack, current: &CurrentUpdate, now: Timestamp) -> Option<StackStatus> {
    if current.kind != UpdateKind::Up || current.pending_creates.is_some() || current.rejected == Some(true) {
        return None;
    }
    let before = identity::recorded(stack);
    let applied = identity::applied_by(stack, identity::of_run(stack, current));
    let is_new = before.as_ref().is_none_or(|before| identity::differ(before, &applied));
    let current = CurrentUpdate {
        first_spec_digest: current.spec_digest.clone(),
        pending_creates: Some(PendingCreates::Stop),
        create_stack: if is_new { Some(true) } else { current.create_stack },
        ..current.clone()
    };
    let mut status = with_current_update(stack, current.clone());
    identity::record_applied(&mut status, before, Some(applied), false, &current, now);
    Some(status)
}

/// Returns an Update with the result of a recorded run whose Update no longer exists. The run may have started, so its
/// result is the same as that of an interrupted run.
///
/// # Errors
///
/// Returns an error if `updateTemplate` is invalid.
pub fn lost_update(stack: &Stack, current: &CurrentUpdate, now: Timestamp) -> Result<Update, StackSpecError> {
    let mut update = build_update::update(stack, current)?;
    let message = format!(
        "Update {} no longer exists, and its run may have started: the run may have changed resources, and may still be in progress",
        current.name
    );
    let mut conditions = Vec::new();
    for kind in [conditions::COMPLETE, conditions::FAILED] {
        let condition =
            ConditionUpdate { kind, status: Status::True, reason: update_reason::ABORTED, message: &message };
        conditions::set(&mut conditions, &condition, 0, now);
    }
    update.status = Some(UpdateStatus {
        conditions,
        message: Some(message),
        interrupted: Some(true),
        termination_evidence: Some(TerminationEvidence::User),
        ..UpdateStatus::default()
    });
    Ok(update)
}

/// Returns the status that records the handled value of the annotation `pulumi.com/cancel`.
pub fn with_handled_cancel(stack: &Stack, value: String) -> StackStatus {
    StackStatus { handled_cancel: Some(value), ..stack.status.clone().unwrap_or_default() }
}

/// Returns the status with the initial hashes of Secrets and ConfigMaps. The controller compares later hashes with
/// these hashes.
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

/// Returns the status with a repacked archive instead of the archive of the last run.
pub fn with_repacked_archive(stack: &Stack, inputs: &RunInputs) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    if let Some(last) = &mut status.last_update {
        last.inputs.digest.clone_from(&inputs.digest);
        last.inputs.content_id.clone_from(&inputs.content_id);
        last.inputs.workspace_hash.clone_from(&inputs.workspace_hash);
    }
    status
}

/// Returns the status with another hash of the desired Workspace in the record of the last run.
pub fn with_workspace_hash(stack: &Stack, hash: &str) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    if let Some(last) = &mut status.last_update {
        last.inputs.workspace_hash = Some(hash.to_owned());
    }
    status
}

#[cfg(test)]
mod tests;
