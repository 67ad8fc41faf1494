//! Decides whether a run is due and when the next one is. Follows the Pulumi Kubernetes Operator v2, with these differences: retries have
//! no limit, a new artifact resets the backoff, and an artifact is identified by both its revision and its digest.

use jiff::{SignedDuration, Timestamp};

use crate::api::auto::UpdateKind;
use crate::api::conditions::{stack_reason, update_reason};
use crate::api::duration;
use crate::api::pulumi::LastUpdate;
use crate::api::resolve::Answer;
use crate::controller::stack::backoff::{self, StackBackoff};
use crate::controller::stack::run::{self, Inputs};
use crate::controller::stack::{annotations, pko_migration};

/// Decision about the next run of a Stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// A run is due. The text is the reason and becomes the message of the Update.
    Now(String),
    /// The last run failed. Retry after this time.
    After(SignedDuration),
    /// The Pulumi Kubernetes Operator stopped retrying the last run. Only a changed input triggers another run.
    GivenUp,
    /// The last run could not start because of this error. Only a change of the spec resolves it.
    Invalid(String),
    /// The last run ended for this reason. Only a changed input or the annotation `pulumi.com/resolve` triggers another run.
    Unanswered(&'static str),
    /// The last run was abandoned by a user. Only a changed input triggers another run.
    Abandoned,
    /// The last run was canceled by a user. Only a changed input triggers another run.
    Canceled,
    /// The last run succeeded with these inputs. Contains the time until the next run, if the Stack runs at an interval.
    Done(Option<SignedDuration>),
}

/// Decides whether a run of this type is due, given the last run and the user's decision about it.
pub fn due(
    last: Option<&LastUpdate>,
    answer: Option<Answer>,
    inputs: &Inputs,
    kind: UpdateKind,
    backoff: &StackBackoff,
    now: Timestamp,
) -> Due {
    let Some(last) = last else { return Due::Now("Initial stack update".to_owned()) };
    if let Some(reason) = changed_request(last, inputs, kind) {
        return Due::Now(reason);
    }
    // A destroy uses the artifact in the pod. A newer artifact does not trigger another destroy.
    if kind != UpdateKind::Destroy && !is_same_source(last, inputs) {
        let name = if inputs.revision.is_empty() { &inputs.digest } else { &inputs.revision };
        return Due::Now(format!("New commit detected: \"{name}\""));
    }
    if let Some(reason) = run::changed_input(last, inputs).filter(|_| kind != UpdateKind::Destroy) {
        return Due::Now(reason);
    }
    let again =
        backoff.resync.filter(|_| kind != UpdateKind::Destroy).map(|every| resync(last, every, backoff.spread, now));
    match (last.state.as_deref(), answer) {
        (Some("succeeded"), _) => match again {
            Some(Due::After(wait)) => Due::Done(Some(wait)),
            Some(due) => due,
            None => Due::Done(None),
        },
        (_, Some(Answer::Retry | Answer::Clear)) => Due::Now("Retry requested by user".to_owned()),
        (_, Some(Answer::Abandon)) => Due::Abandoned,
        (_, None) if last.canceled_by_user.unwrap_or_default() => Due::Canceled,
        (_, None) => match last.reason.as_deref() {
            Some(reason) if let Some(pending) = annotations::pending_reason(reason) => Due::Unanswered(pending),
            _ if inputs.reset_at.is_some() && last.reset_at != inputs.reset_at => {
                Due::Now(format!("Failure count reset at: \"{}\"", inputs.reset_at.as_deref().unwrap_or_default()))
            }
            Some(update_reason::SPEC_INVALID) => Due::Invalid(last.message.clone().unwrap_or_default()),
            _ if pko_migration::has_given_up(last) && kind != UpdateKind::Destroy => again.unwrap_or(Due::GivenUp),
            _ => retry(last, backoff, now),
        },
    }
}

/// Returns the message of a run that a change of the Stack or its annotations triggers, if any.
fn changed_request(last: &LastUpdate, inputs: &Inputs, kind: UpdateKind) -> Option<String> {
    if kind == UpdateKind::Destroy && last.kind.as_deref() != Some(UpdateKind::Destroy.as_str()) {
        return Some("Stack marked for deletion".to_owned());
    }
    if last.generation != inputs.generation {
        return Some(format!("New stack generation: {}", inputs.generation));
    }
    if inputs.reconcile_request.is_some() && last.reconcile_request != inputs.reconcile_request {
        return Some(format!("Sync request: \"{}\"", inputs.reconcile_request.as_deref().unwrap_or_default()));
    }
    if inputs.force_at.is_some() && last.force_at != inputs.force_at {
        return Some(format!("Forced at: \"{}\"", inputs.force_at.as_deref().unwrap_or_default()));
    }
    if inputs.requested_at.is_some() && last.requested_at != inputs.requested_at {
        return Some(format!("Requested at: \"{}\"", inputs.requested_at.as_deref().unwrap_or_default()));
    }
    None
}

/// Checks whether the interval since the last run has elapsed.
fn resync(last: &LastUpdate, every: SignedDuration, spread: SignedDuration, now: Timestamp) -> Due {
    let pause = every.saturating_add(spread);
    match pause.saturating_sub(since(last, now).unwrap_or(pause)) {
        wait if wait.is_positive() => Due::After(wait),
        _ => Due::Now(format!("Resync time elapsed: {}", duration::display(every))),
    }
}

/// Returns the time since the result of the last run was recorded.
fn since(last: &LastUpdate, now: Timestamp) -> Option<SignedDuration> {
    last.last_resync_time.as_ref().map(|time| now.duration_since(time.0))
}

fn retry(last: &LastUpdate, backoff: &StackBackoff, now: Timestamp) -> Due {
    let wait = backoff.pause_after(last);
    let word = match last.reason.as_deref() {
        Some(stack_reason::UPDATE_CONFLICT) => "Retry after update conflict",
        Some(update_reason::ABORTED) => "Retry after interruption",
        _ => "Backoff time elapsed",
    };
    let since = since(last, now).unwrap_or(wait);
    if since >= wait {
        return Due::Now(format!("{word}: {}s", wait.as_secs()));
    }
    Due::After(wait - since)
}

/// Returns the number of interruptions in a row after a run that ended for this reason. Runs that found a lock or could not start in their
/// workspace neither increase nor reset the number.
pub fn interruptions_after(previous: Option<&LastUpdate>, current: &Inputs, reason: Option<&str>) -> i64 {
    let before = previous.filter(|last| had_inputs(last, current)).map_or(0, |last| last.interruptions);
    match reason {
        Some(update_reason::ABORTED) => before.saturating_add(1),
        Some(stack_reason::UPDATE_CONFLICT | update_reason::RUN_REFUSED) => before,
        _ => 0,
    }
}

/// Reasons that do not increase the failure count: interruptions, and failures that wait for a decision. Locks do not either, if the Stack
/// waits for them.
const UNCOUNTED: [&str; 4] = [
    update_reason::ABORTED,
    update_reason::PENDING_CREATES,
    update_reason::RUN_OUTCOME_UNKNOWN,
    update_reason::STACK_NOT_FOUND,
];

/// Returns the number of failures in a row after a run that failed for this reason. The count restarts after a changed input. Runs that
/// could not start are counted separately from runs that failed.
pub fn failures_after(previous: Option<&LastUpdate>, current: &Inputs, reason: &str, backoff: &StackBackoff) -> i64 {
    let same_kind = |last: &&LastUpdate| backoff::was_refused(last) == (reason == update_reason::RUN_REFUSED);
    let counts = match reason {
        update_reason::UPDATE_CONFLICT => !backoff.waits_for_locks,
        _ => !UNCOUNTED.contains(&reason),
    };
    let before = previous.filter(|last| had_inputs(last, current)).filter(same_kind);
    before.map_or(0, |last| last.failures).saturating_add(i64::from(counts))
}

/// Whether the run has the same inputs as the last one, so that it is scheduled or a retry.
pub fn is_repetition(last: Option<&LastUpdate>, inputs: &Inputs) -> bool {
    last.is_some_and(|last| had_inputs(last, inputs))
}

/// Whether the run had exactly these inputs.
fn had_inputs(last: &LastUpdate, inputs: &Inputs) -> bool {
    last.generation == inputs.generation
        && last.reconcile_request == inputs.reconcile_request
        && last.requested_at == inputs.requested_at
        && last.force_at == inputs.force_at
        && last.reset_at == inputs.reset_at
        && is_same_source(last, inputs)
        && run::changed_input(last, inputs).is_none()
}

/// Whether the run used this artifact, or one with the same selected files or content.
fn is_same_source(last: &LastUpdate, inputs: &Inputs) -> bool {
    let is_same_selection = inputs.selection.is_some() && last.paths_digest == inputs.selection;
    is_same_selection || is_same_artifact(last, inputs)
}

fn is_same_artifact(last: &LastUpdate, inputs: &Inputs) -> bool {
    pko_migration::is_same_artifact(last, &inputs.revision, &inputs.digest, inputs.content_id.as_deref())
}

/// Whether the source has another archive with the content of the last run. It is delivered without a run.
pub fn is_repacked(last: &LastUpdate, inputs: &Inputs) -> bool {
    last.digest.as_ref().is_some_and(|digest| *digest != inputs.digest) && is_same_artifact(last, inputs)
}

#[cfg(test)]
mod tests;
