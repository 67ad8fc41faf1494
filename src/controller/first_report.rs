//! Delays the first report of a state. The states are the progress of a run, the wait for a run slot, and the wait of a
//! Stack for its Workspace. These states often last for less than a second, so their reports would cause writes to the
//! API server that no client can use.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::auto::{Update, Workspace};
use crate::api::conditions;
use crate::api::pulumi::{Stack, StackStatus};
use crate::controller::stack::has_new_request;
use crate::runtime::field_managers;

/// Minimum age of a reported state. The API server rounds times down to whole seconds, so the controller reports a
/// state one to two seconds after its start.
const MIN_AGE: SignedDuration = SignedDuration::from_secs(2);
/// Maximum time between the apply of a Workspace and the first report of the wait. An earlier apply belongs to an
/// earlier run.
const MAX_UNREPORTED: SignedDuration = SignedDuration::from_secs(5);

/// Returns the remaining delay before the first report of a state that began at `since`. Returns `None` if the report
/// is due. The clocks of two processes can differ slightly, so `since` can be in the near future. If the difference is
/// larger, the age is unknown, and the report is due.
fn delay(since: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let age = now.duration_since(since);
    (age.abs() < MIN_AGE).then(|| MIN_AGE - age.max(SignedDuration::ZERO))
}

/// Returns the remaining delay before the first report of the progress of a run.
pub fn delay_of_run(update: &Update, now: Timestamp) -> Option<SignedDuration> {
    delay(update.status.as_ref()?.start_time.as_ref()?.0, now)
}

/// Returns the remaining delay before the first report that a run waits for a slot. Returns `None` if the status of the
/// Update already contains a report.
pub fn delay_of_slot_wait(update: &Update, now: Timestamp) -> Option<SignedDuration> {
    let is_new = update.status.as_ref().is_none_or(|status| status.conditions.is_empty());
    delay(update.metadata.creation_timestamp.as_ref()?.0, now).filter(|_| is_new)
}

/// Returns the remaining delay before the Stack reports that it waits for its applied Workspace. The delay applies only
/// if the Stack is ready with its current spec, because a running pod often installs a new source within a second. The
/// delay does not apply to a requested run. If a user requests a run during another run, the status contains the
/// request together with the result of that run, and a client could regard the requested run as completed.
pub fn delay_of_workspace_wait(stack: &Stack, workspace: &Workspace, now: Timestamp) -> Option<SignedDuration> {
    let applied = field_managers::last_apply(workspace)?;
    delay(applied, now).filter(|_| is_ready(stack) && !has_new_request(stack))
}

/// Returns whether the controller has just applied the Workspace, so that its conditions can describe an earlier spec.
pub fn is_just_applied(workspace: &Workspace, now: Timestamp) -> bool {
    field_managers::last_apply(workspace).is_some_and(|applied| delay(applied, now).is_some())
}

/// Returns whether the Stack is ready with its current spec.
fn is_ready(stack: &Stack) -> bool {
    stack.status.as_ref().is_some_and(|status| {
        let is_current = status.observed_generation == stack.metadata.generation;
        is_current && conditions::is_true(&status.conditions, conditions::READY)
    })
}

/// Returns a new status with the time at which the run became due. The run of a ready Stack became due when the
/// controller applied the Workspace. Because of the [delay](delay_of_workspace_wait), the status does not contain this
/// time yet.
pub fn with_due_time(stack: &Stack, workspace: Option<&Workspace>, status: StackStatus, now: Timestamp) -> StackStatus {
    let is_unreported = is_ready(stack) && stack.status.as_ref().is_some_and(|before| before.pending_since.is_none());
    let applied = workspace.and_then(field_managers::last_apply).filter(|_| is_unreported);
    let due = applied.filter(|applied| now.duration_since(*applied) < MAX_UNREPORTED).map(|due| Time(due.min(now)));
    StackStatus { pending_since: due.or(status.pending_since), ..status }
}

/// Returns the remaining delay before the report after an apply of the Workspace. `before` is the Workspace before the
/// apply. If another client reverts each apply, each further apply would restart the delay, and the Stack would never
/// report the wait.
pub fn delay_after_apply(
    stack: &Stack,
    before: Option<&Workspace>,
    applied: &Workspace,
    now: Timestamp,
) -> Option<SignedDuration> {
    let is_repeated = before.is_some_and(|before| delay_of_workspace_wait(stack, before, now).is_some());
    delay_of_workspace_wait(stack, applied, now).filter(|_| !is_repeated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{UpdateSpec, UpdateStatus};
    use crate::api::conditions::{ConditionUpdate, PROGRESSING, Status};

    #[test]
    fn a_state_is_reported_when_it_has_lasted_for_two_seconds() {
        let at = |millisecond: i64| Timestamp::from_millisecond(millisecond).unwrap();
        let left = |now: i64| delay(at(10_000), at(now)).map(|left| left.as_millis());
        let rows = [
            (8_000, None),
            (8_500, Some(2000)),
            (10_000, Some(2000)),
            (11_500, Some(500)),
            (12_000, None),
            (99_000, None),
        ];
        for (now, expected) in rows {
            assert_eq!(left(now), expected, "{now}");
        }
    }

    #[test]
    fn only_the_first_report_of_a_wait_is_delayed() {
        let now = Timestamp::from_second(10).unwrap();
        let mut update = Update::new("app-1", UpdateSpec::default());
        update.metadata.creation_timestamp = Some(Time(now));
        assert!(delay_of_slot_wait(&update, now).is_some());
        let mut status = UpdateStatus::default();
        let condition = ConditionUpdate { kind: PROGRESSING, status: Status::False, reason: "Queued", message: "" };
        conditions::set(&mut status.conditions, &condition, 1, now);
        update.status = Some(status);
        assert_eq!(delay_of_slot_wait(&update, now), None, "a changed reason is reported immediately");
    }
}
