//! Delays the report that a Stack waits for its Workspace. A run that starts within this delay needs no such report, which
//! saves a write.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::auto::Workspace;
use crate::api::conditions;
use crate::api::pulumi::{Stack, StackStatus};
use crate::controller::first_report;
use crate::controller::stack::annotations;
use crate::runtime::field_managers;

/// Maximum time between the apply of a Workspace and the first report of the wait. An earlier apply belongs to an
/// earlier run.
const MAX_UNREPORTED: SignedDuration = SignedDuration::from_secs(5);

/// Returns the remaining delay before the Stack reports that it waits for its applied Workspace. The delay applies only
/// if the Stack is ready with its current spec, because a running pod often installs a new source within a second. The
/// delay does not apply to a requested run. If a user requests a run during another run, the status contains the
/// request together with the result of that run, and a client could regard the requested run as completed.
pub fn report_delay(stack: &Stack, workspace: &Workspace, now: Timestamp) -> Option<SignedDuration> {
    let applied = field_managers::last_apply(workspace)?;
    first_report::delay(applied, now).filter(|_| is_ready(stack) && !annotations::has_new_request(stack))
}

/// Returns whether the Stack is ready with its current spec.
fn is_ready(stack: &Stack) -> bool {
    stack.status.as_ref().is_some_and(|status| {
        let is_current = status.observed_generation == stack.metadata.generation;
        is_current && conditions::is_true(&status.conditions, conditions::READY)
    })
}

/// Returns a new status with the time at which the run became due. The run of a ready Stack became due when the
/// controller applied the Workspace. Because of the [delay](report_delay), the status does not contain this time yet.
pub fn with_due_time(stack: &Stack, workspace: Option<&Workspace>, status: StackStatus, now: Timestamp) -> StackStatus {
    let is_unreported = is_ready(stack) && stack.status.as_ref().is_some_and(|before| before.pending_since.is_none());
    let applied = workspace.and_then(field_managers::last_apply).filter(|_| is_unreported);
    let due = applied.filter(|applied| now.duration_since(*applied) < MAX_UNREPORTED).map(|due| Time(due.min(now)));
    StackStatus { pending_since: due.or(status.pending_since), ..status }
}

/// Returns the remaining delay before the report after an apply of the Workspace. `before` is the Workspace before the
/// apply. If another client reverts each apply, each further apply would restart the delay, and the Stack would never
/// report the wait.
pub fn report_delay_after_apply(
    stack: &Stack,
    before: Option<&Workspace>,
    applied: &Workspace,
    now: Timestamp,
) -> Option<SignedDuration> {
    let is_repeated = before.is_some_and(|before| report_delay(stack, before, now).is_some());
    report_delay(stack, applied, now).filter(|_| !is_repeated)
}
