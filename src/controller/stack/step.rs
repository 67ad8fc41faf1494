//! Completes a reconciliation step: writes the status, and then continues the reconciliation or requeues the Stack.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::names;
use crate::api::pulumi::{Stack, StackStatus};
use crate::controller::stack::context::Context;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::status::{self, State};
use crate::controller::stack::{drift, ignored_settings};
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::writes::WriteError;

/// Requeue interval for a Stack that waits until an object changes. Normally, a watch event requeues the Stack earlier.
pub const WATCHED_RETRY: Duration = Duration::from_secs(60);
/// Time between the creation of an Update and the first check of the reason why its run has not started. No watch event
/// follows if the run waits for a slot. A shorter wait is not reported (`controller/first_report.rs`).
pub const FIRST_START_CHECK: Duration = Duration::from_secs(2);
/// Retry interval for a write that the API server has forbidden. The controller retries periodically, because no watch
/// event occurs when an administrator grants the permission.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// Retry interval for a write that the API server has rejected as invalid, for example because of an admission policy.
pub const REJECTED_RETRY: Duration = Duration::from_secs(3 * 60);

/// Result of a reconciliation step. Determines whether another step follows.
#[derive(Debug)]
pub enum Next {
    /// Starts the next step immediately with this version of the Stack.
    Again(Box<Stack>),
    /// Ends the reconciliation. The controller requeues the Stack after this time, unless a watch event requeues the
    /// Stack earlier.
    Rest(Option<Duration>),
}

/// Writes the status. If the write changes the Stack, returns the Stack from the API server's response.
pub async fn write(stack: &Stack, status: &StackStatus, context: &Context) -> Result<Option<Stack>, WriteError> {
    let written = context.writer.status(stack, status).await?;
    drift::invalid_event(stack, status).into_iter().for_each(|event| context.events.publish(event));
    let namespace = stack.namespace().unwrap_or_default();
    context.metrics.record_stack(&namespace, &stack.name_any(), status::stack_state(status));
    ignored_settings::event(stack, status).into_iter().for_each(|event| context.events.publish(event));
    Ok(written)
}

/// Writes the status. The next step uses the Stack from the API server's response.
pub async fn next_step(stack: &Stack, status: &StackStatus, context: &Context) -> Result<Next, ReconcileError> {
    let written = write(stack, status, context).await?;
    Ok(Next::Again(Box::new(written.unwrap_or_else(|| stack.clone()))))
}

/// Returns the state of a suspended Stack. A duplicate would not run after the suspension.
pub fn suspended(observed: &Observed) -> State {
    State::Suspended(observed.duplicate.as_ref().map(ToString::to_string))
}

/// Writes the state's conditions. Requeues the Stack after `known`. If `known` is `None`, uses the state's default
/// interval.
pub async fn requeue(
    stack: &Stack,
    state: &State,
    known: Option<Duration>,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    write(stack, &status::with_state(stack, state, now), context).await?;
    Ok(Next::Rest(requeue_interval(state, known, context.requeue_dependency)))
}

/// Handles a failed write of an Update or a Workspace. The API server can reject a write because of a quota, an
/// admission policy or missing RBAC permissions. The controller reports such a rejection and retries the write, because
/// the cause can be outside the Stack. `recorded` is the status to which the controller adds the conditions.
pub async fn write_rejected(
    stack: &Stack,
    recorded: StackStatus,
    error: WriteError,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let Some(retry) = retry_after_rejection(&error) else { return Err(error.into()) };
    tracing::warn!(
        error = &error as &dyn std::error::Error,
        "API server rejected a Workspace or an Update of the Stack"
    );
    let state = match error.is_namespace_terminating() {
        true => State::NamespaceTerminating(format!(
            "{error}. Runs cannot start in a terminating namespace. To delete the resources of the stack, run `pulumi destroy`. \
             Then remove the finalizer {} from the Stack",
            names::STACK_FINALIZER
        )),
        false => State::WorkspaceFailed(error.to_string()),
    };
    let rejected = Stack { status: Some(recorded), ..stack.clone() };
    write(stack, &status::with_state(&rejected, &state, now), context).await?;
    Ok(Next::Rest(Some(retry)))
}

/// Returns the interval before the next retry of a rejected write. Returns `None` for errors other than rejections,
/// such as a lost connection.
fn retry_after_rejection(error: &WriteError) -> Option<Duration> {
    match error {
        error if error.is_invalid() || error.is_denied_by_admission() => Some(REJECTED_RETRY),
        error if error.is_forbidden() => Some(REFUSED_RETRY),
        _ => None,
    }
}

/// Returns the requeue interval for a state. Returns `None` if only a watch event requeues the Stack. `known` is a more
/// precise interval, for example the time until the next run or the `Retry-After` value that a server sent.
fn requeue_interval(state: &State, known: Option<Duration>, requeue_dependency: Duration) -> Option<Duration> {
    match state {
        // In these states, only a watch event triggers a reconciliation, because a periodic retry would find the same
        // state.
        State::Denied(_)
        | State::FailedPermanently
        | State::DecisionRequired(_)
        | State::Abandoned
        | State::Canceled
        | State::AwaitingApproval(_)
        | State::PlanRejected(_)
        | State::DestroyUnconfirmed(_)
        | State::Suspended(_)
        | State::DeletionSuspended => None,
        State::Done | State::Failed | State::Invalid(_) | State::AwaitingPermission(..) => known,
        State::SourceUnavailable(_) | State::SourceStalled(_) | State::PrerequisiteNotSatisfied(_) => {
            known.or(Some(requeue_dependency))
        }
        State::NamespaceTerminating(_) => known.or(Some(REFUSED_RETRY)),
        State::Working(_)
        | State::WorkspaceFailed(_)
        | State::VersionTooLow(_)
        | State::Conflict(_)
        | State::OutcomeUnknown(..) => known.or(Some(WATCHED_RETRY)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::writes::AttemptedWrite;

    #[test]
    fn creating_an_update_is_retried_after_admission_rejects_it() {
        let denied = "admission webhook \"freeze.example.com\" denied the request: no changes today";
        let rows = [
            (400, denied, Some(180)),
            (403, denied, Some(180)),
            (
                422,
                "updates.auto.pulumi.com \"web-1\" is forbidden: ValidatingAdmissionPolicy denied request",
                Some(180),
            ),
            (422, "spec.type: Unsupported value", Some(180)),
            (403, "exceeded quota: updates", Some(30)),
            (409, "the object has been modified", None),
            (500, "etcdserver: request timed out", None),
        ];
        for (code, message, expected) in rows {
            let (kind, namespace, name) = ("Update".to_owned(), "apps".to_owned(), "web-1".to_owned());
            let attempt = Box::new(AttemptedWrite { verb: "create", kind, namespace, name });
            let error = WriteError::Refused { attempt, code, reason: "Reason".to_owned(), message: message.to_owned() };
            assert_eq!(retry_after_rejection(&error).map(|retry| retry.as_secs()), expected, "{code} {message}");
        }
    }

    #[test]
    fn the_requeue_interval_depends_on_the_state() {
        let why = || "why".to_owned();
        let reason = "RunOutcomeUnknown";
        // Columns: the state, the known time in seconds, and the expected requeue interval in seconds.
        let rows = [
            (State::SourceUnavailable(why()), None, Some(7)),
            (State::SourceUnavailable(why()), Some(120), Some(120)),
            (State::SourceStalled(why()), None, Some(7)),
            (State::SourceStalled(why()), Some(120), Some(120)),
            (State::PrerequisiteNotSatisfied(why()), None, Some(7)),
            (State::Invalid(why()), None, None),
            (State::Invalid(why()), Some(180), Some(180)),
            (State::Denied(why()), None, None),
            (State::FailedPermanently, None, None),
            (State::DecisionRequired(reason), None, None),
            (State::Abandoned, None, None),
            (State::Canceled, None, None),
            (State::Suspended(None), None, None),
            (State::DeletionSuspended, None, None),
            (State::Done, None, None),
            (State::Done, Some(3600), Some(3600)),
            (State::Failed, Some(10), Some(10)),
            (State::Working(why()), None, Some(60)),
            (State::Working(why()), Some(3), Some(3)),
            (State::WorkspaceFailed(why()), None, Some(60)),
            (State::VersionTooLow(why()), None, Some(60)),
            (State::WorkspaceFailed(why()), Some(30), Some(30)),
            (State::Conflict(why()), None, Some(60)),
            (State::OutcomeUnknown(reason, why()), None, Some(60)),
            (State::NamespaceTerminating(why()), None, Some(30)),
        ];
        for (state, known, expected) in rows {
            let interval = requeue_interval(&state, known.map(Duration::from_secs), Duration::from_secs(7));
            assert_eq!(interval.map(|interval| interval.as_secs()), expected, "{state:?}");
        }
    }
}
