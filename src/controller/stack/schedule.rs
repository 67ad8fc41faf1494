//! Decides whether a run is due, and when the next run is due. The decisions match those of the Pulumi Kubernetes
//! Operator v2, with three exceptions. The number of retries is unlimited. A new artifact resets the backoff. The
//! revision and the digest together identify an artifact.

use jiff::{SignedDuration, Timestamp};

use crate::api::auto::UpdateKind;
use crate::api::conditions::{stack_reason, update_reason};
use crate::api::duration;
use crate::api::pulumi::{LastUpdate, RunInputs};
use crate::api::resolve::Decision;
use crate::artifact::Digest;
use crate::controller::stack::backoff::{self, StackBackoff};
use crate::controller::stack::run::{self, DueRun, PlanUse, RunCandidate};
use crate::controller::stack::{annotations, pko_migration, run_spec};

/// Prefix of the message for a run at the interval.
const RESYNC: &str = "Resync time elapsed";
/// Prefix of the message for a retry after a failure.
const BACKOFF: &str = "Backoff time elapsed";
/// Prefix of the message for a retry after a run that found another update's lock.
const CONFLICT_RETRY: &str = "Retry after update conflict";
/// Prefix of the message for a retry after an interrupted run.
const INTERRUPTION_RETRY: &str = "Retry after interruption";

/// Decision about the next run of a Stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// A run is due. Contains the cause, which becomes the message of the Update.
    Now(String),
    /// The last run failed. Contains the time until the retry.
    After(SignedDuration),
    /// The Pulumi Kubernetes Operator stopped retrying the last run. Only a changed input triggers another run.
    FailedPermanently,
    /// The last run could not start, because the spec is invalid. Contains the error message. Only a change to the spec
    /// resolves the error.
    Invalid(String),
    /// The last run requires a decision or another action of a user. Contains the reason. Only a changed input, a request
    /// or the annotation `pulumi.com/resolve` triggers another run.
    DecisionRequired(&'static str),
    /// A user abandoned the last run. Only a changed input triggers another run.
    Abandoned,
    /// A user canceled the last run. Only a changed input triggers another run.
    Canceled,
    /// The last run succeeded with the current inputs. Contains the time until the next run at the interval, or `None`
    /// without an interval.
    Done(Option<SignedDuration>),
}

/// Decides whether a run of the type `kind` is due. `decision` is the user's decision about the last run.
pub fn due(
    last: Option<&LastUpdate>,
    decision: Option<Decision>,
    candidate: &RunCandidate,
    kind: UpdateKind,
    backoff: &StackBackoff,
    now: Timestamp,
) -> Due {
    let Some(last) = last else { return Due::Now("Initial stack update".to_owned()) };
    let inputs = &candidate.inputs;
    if let Some(reason) = changed_request(last, inputs, kind) {
        return Due::Now(reason);
    }
    // A destroy uses the artifact in the pod, so a newer artifact does not trigger another destroy.
    if kind != UpdateKind::Destroy && !is_same_source(last, candidate) {
        let digest = || inputs.digest.as_ref().map(Digest::to_string).unwrap_or_default();
        let name = if candidate.revision.is_empty() { digest() } else { candidate.revision.clone() };
        return Due::Now(format!("New commit detected: \"{name}\""));
    }
    if let Some(reason) = run::changed_input(last, inputs).filter(|_| kind != UpdateKind::Destroy) {
        return Due::Now(reason);
    }
    let again =
        backoff.resync.filter(|_| kind != UpdateKind::Destroy).map(|every| resync(last, every, backoff.jitter, now));
    match (last.state.as_deref(), decision) {
        (Some("succeeded"), _) => match again {
            Some(Due::After(wait)) => Due::Done(Some(wait)),
            Some(due) => due,
            None => Due::Done(None),
        },
        (_, Some(Decision::Retry | Decision::Create | Decision::Clear)) => {
            Due::Now("Retry requested by user".to_owned())
        }
        (_, Some(Decision::Abandon)) => Due::Abandoned,
        (_, None) if last.canceled_by_user.unwrap_or_default() => Due::Canceled,
        (_, None) => match last.reason.as_deref() {
            Some(reason) if let Some(pending) = annotations::pending_reason(reason) => Due::DecisionRequired(pending),
            _ if inputs.reset_at.is_some() && last.inputs.reset_at != inputs.reset_at => {
                Due::Now(format!("Failure count reset at: \"{}\"", inputs.reset_at.as_deref().unwrap_or_default()))
            }
            Some(update_reason::SPEC_INVALID) => Due::Invalid(last.message.clone().unwrap_or_default()),
            _ if pko_migration::has_failed_permanently(last) && kind != UpdateKind::Destroy => {
                again.unwrap_or(Due::FailedPermanently)
            }
            _ => retry(last, backoff, now),
        },
    }
}

/// Returns the message for the Update if a change to the Stack or its annotations triggers a run.
fn changed_request(last: &LastUpdate, inputs: &RunInputs, kind: UpdateKind) -> Option<String> {
    let is_of_destroy = is(last, UpdateKind::Destroy) || is_failed_preview_of_destroy(last, inputs);
    if kind == UpdateKind::Destroy && !is_of_destroy {
        return Some("Stack marked for deletion".to_owned());
    }
    if !run_spec::is_same(&last.inputs, inputs) {
        return Some(format!("New stack generation: {}", inputs.generation));
    }
    if inputs.reconcile_request.is_some() && last.inputs.reconcile_request != inputs.reconcile_request {
        return Some(format!("Sync request: \"{}\"", inputs.reconcile_request.as_deref().unwrap_or_default()));
    }
    if inputs.force_at.is_some() && last.inputs.force_at != inputs.force_at {
        return Some(format!("Forced at: \"{}\"", inputs.force_at.as_deref().unwrap_or_default()));
    }
    if inputs.refresh_at.is_some() && last.inputs.refresh_at != inputs.refresh_at {
        let requested = inputs.refresh_at.as_deref().unwrap_or_default();
        return Some(format!("Requested at: \"{requested}\", with a refresh"));
    }
    if inputs.requested_at.is_some() && last.inputs.requested_at != inputs.requested_at {
        return Some(format!("Requested at: \"{}\"", inputs.requested_at.as_deref().unwrap_or_default()));
    }
    None
}

/// Returns whether the last run of a deleted Stack is a failed preview of its destroy. Such a preview is retried like a
/// failed destroy. After a successful preview, the destroy is still due. The deletion increments the generation of the
/// Stack, so a preview with the current generation started after the deletion. A preview with an earlier generation can
/// be a preview of an `up`.
fn is_failed_preview_of_destroy(last: &LastUpdate, inputs: &RunInputs) -> bool {
    let has_failed = last.state.as_deref() == Some("failed");
    is(last, UpdateKind::Preview) && has_failed && last.inputs.generation == inputs.generation
}

fn is(last: &LastUpdate, kind: UpdateKind) -> bool {
    last.kind.as_deref() == Some(kind.as_str())
}

/// Returns `Due::Now` if the interval since the last run has elapsed. Otherwise, returns `Due::After` with the
/// remaining time.
fn resync(last: &LastUpdate, every: SignedDuration, jitter: SignedDuration, now: Timestamp) -> Due {
    let wait = every.saturating_add(jitter);
    match wait.saturating_sub(since(last, now).unwrap_or(wait)) {
        wait if wait.is_positive() => Due::After(wait),
        _ => Due::Now(format!("{RESYNC}: {}", duration::display(every))),
    }
}

/// Returns whether the message of an Update names the interval or a failure as the cause.
pub fn has_cause_without_change(message: &str) -> bool {
    [RESYNC, BACKOFF, CONFLICT_RETRY, INTERRUPTION_RETRY].iter().any(|cause| message.starts_with(cause))
}

/// Returns the time since the controller recorded the result of the last run in the status.
fn since(last: &LastUpdate, now: Timestamp) -> Option<SignedDuration> {
    last.last_resync_time.as_ref().map(|time| now.duration_since(time.0))
}

/// Decides when the last run is retried.
pub fn retry(last: &LastUpdate, backoff: &StackBackoff, now: Timestamp) -> Due {
    let wait = backoff.delay_after(last);
    let word = match last.reason.as_deref() {
        Some(stack_reason::UPDATE_CONFLICT) => CONFLICT_RETRY,
        Some(update_reason::ABORTED) => INTERRUPTION_RETRY,
        _ => BACKOFF,
    };
    let since = since(last, now).unwrap_or(wait);
    if since >= wait {
        return Due::Now(format!("{word}: {}s", wait.as_secs()));
    }
    // If the clock is set back, `since` is negative.
    Due::After(wait.saturating_sub(since))
}

/// Returns the number of consecutive interrupted runs after a run that ended for this reason. If the run found a lock,
/// or if the Workspace rejected the run, the number does not change.
pub fn interruptions_after(previous: Option<&LastUpdate>, current: &RunCandidate, reason: Option<&str>) -> i64 {
    let before = previous.filter(|last| keeps_counts(last, current)).map_or(0, |last| last.interruptions);
    match reason {
        Some(update_reason::ABORTED) => before.saturating_add(1),
        Some(stack_reason::UPDATE_CONFLICT | update_reason::RUN_REFUSED) => before,
        _ => 0,
    }
}

/// Failure reasons that do not increase the failure count: interruptions, and failures that require a user action.
const UNCOUNTED: [&str; 5] = [
    update_reason::ABORTED,
    update_reason::BACKEND_UPGRADE_REQUIRED,
    update_reason::PENDING_CREATES,
    update_reason::RUN_OUTCOME_UNKNOWN,
    update_reason::STACK_NOT_FOUND,
];

/// Returns the number of consecutive failures after a run that failed for this reason. A changed input resets the
/// number. If `waits_for_locks` is set, another update's lock does not increase the number. Runs that the Workspace
/// rejected and runs that started and failed have separate counts.
pub fn failures_after(
    previous: Option<&LastUpdate>,
    current: &RunCandidate,
    reason: &str,
    backoff: &StackBackoff,
) -> i64 {
    let same_kind = |last: &&LastUpdate| backoff::was_refused(last) == (reason == update_reason::RUN_REFUSED);
    let counts = match reason {
        update_reason::UPDATE_CONFLICT => !backoff.waits_for_locks,
        _ => !UNCOUNTED.contains(&reason),
    };
    let before = previous.filter(|last| keeps_counts(last, current)).filter(same_kind);
    before.map_or(0, |last| last.failures).saturating_add(i64::from(counts))
}

/// Returns whether the run has the same inputs as the last run, and no user has reset the failure count since the last
/// run. Such a run is a scheduled run or a retry.
pub fn is_repetition(last: Option<&LastUpdate>, candidate: &RunCandidate) -> bool {
    last.is_some_and(|last| keeps_counts(last, candidate))
}

/// Returns whether the candidate has the same inputs as the last run. A reset of the failure count is not an input: it
/// starts a run only after a failure, and changes neither a plan nor the result of a drift check.
pub fn has_same_inputs(last: Option<&LastUpdate>, candidate: &RunCandidate) -> bool {
    last.is_some_and(|last| had_inputs(last, candidate))
}

/// Returns whether a run is a background run. A background run has no new inputs: it is a drift check, or it repeats a
/// successful run, for example at the interval. No user waits for a background run, so the run starts after the other
/// queued runs in its namespace. A run that corrects drift, and a run with a requested refresh, are not background
/// runs.
pub fn is_background(last: Option<&LastUpdate>, run: &DueRun, candidate: &RunCandidate) -> bool {
    let has_succeeded = last.is_some_and(|last| last.state.as_deref() == Some("succeeded"));
    let is_plain = run.operation != UpdateKind::Destroy && run.plan == PlanUse::None && !run.refresh;
    run.operation == UpdateKind::Refresh || (is_plain && has_succeeded && is_repetition(last, candidate))
}

/// Returns whether the numbers of failures and interruptions of the last run also apply to the candidate.
fn keeps_counts(last: &LastUpdate, candidate: &RunCandidate) -> bool {
    had_inputs(last, candidate) && is_handled(&last.inputs.reset_at, &candidate.inputs.reset_at)
}

/// Returns whether the last run had the same inputs as the candidate.
fn had_inputs(last: &LastUpdate, candidate: &RunCandidate) -> bool {
    let (before, now) = (&last.inputs, &candidate.inputs);
    run_spec::is_same(before, now)
        && is_handled(&before.reconcile_request, &now.reconcile_request)
        && is_handled(&before.requested_at, &now.requested_at)
        && is_handled(&before.force_at, &now.force_at)
        && is_handled(&before.refresh_at, &now.refresh_at)
        && is_same_source(last, candidate)
        && run::changed_input(last, now).is_none()
}

/// Returns whether the last run handled the value `now` of an annotation. As in [`changed_request`], the removal of an
/// annotation is not a new request.
fn is_handled(before: &Option<String>, now: &Option<String>) -> bool {
    now.is_none() || before == now
}

/// Returns whether the last run used the candidate's artifact, or an artifact with the same selected files or the same
/// content.
fn is_same_source(last: &LastUpdate, candidate: &RunCandidate) -> bool {
    let selection = &candidate.inputs.paths_digest;
    (selection.is_some() && last.inputs.paths_digest == *selection) || pko_migration::is_same_artifact(last, candidate)
}

/// Returns whether the candidate's artifact is another archive with the same content as the artifact of the last run.
/// The controller delivers such an archive to the pod without a run.
pub fn is_repacked(last: &LastUpdate, candidate: &RunCandidate) -> bool {
    let (before, now) = (&last.inputs.digest, &candidate.inputs.digest);
    before.is_some() && before != now && pko_migration::is_same_artifact(last, candidate)
}

#[cfg(test)]
mod tests;
