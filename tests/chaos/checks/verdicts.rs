//! Checks that the results in the Updates agree with the provider events.

use jiff::{SignedDuration, Timestamp};

use super::life;
use crate::facts::{Facts, Run, RunOutcome, called, name_of, resources_of};

/// Resolution of the timestamps in a status.
const PRECISION: SignedDuration = SignedDuration::from_secs(1);
/// Maximum time between a fault and the creation of an Update. A later Update must not fail because of the fault.
const FAULT_EFFECT_TIME: SignedDuration = SignedDuration::from_secs(60);

/// Failure reasons that need no fault during the run, because the run either detects the effects of an earlier run or
/// never starts.
const EXPLAINED_REASONS: [&str; 4] = ["UpdateConflict", "PendingCreates", "RunRefused", "RunOutcomeUnknown"];

/// Error message of a provider that could not write an event to the provider log because of a fault in the scene. The
/// run then fails even if no fault has affected its Stack.
const NOT_REPORTED: &str = "to the provider log at";

/// Returns a description of each existing Update that has no result.
pub(super) fn missing(facts: &Facts) -> Vec<String> {
    let silent = facts.runs.iter().filter(|run| run.exists && run.outcome.is_none());
    silent.map(|run| format!("{} has not ended", run.update)).collect()
}

/// Returns a description of each Update whose result contradicts the provider events.
pub(super) fn wrong(facts: &Facts) -> Vec<String> {
    facts.runs.iter().filter_map(|run| contradiction(facts, run)).collect()
}

fn contradiction(facts: &Facts, run: &Run) -> Option<String> {
    let end = run.ended.unwrap_or(run.created);
    match run.outcome.as_ref()? {
        RunOutcome::Succeeded => {
            missing_change(facts, run, end).map(|what| format!("{} has succeeded, but {what}", run.update))
        }
        RunOutcome::Failed { reason, .. } if EXPLAINED_REASONS.contains(&reason.as_str()) => None,
        // The controller cancels a queued run when a newer revision replaces this run.
        RunOutcome::Failed { reason, .. } if reason == "Canceled" && !run.has_begun => None,
        RunOutcome::Failed { message, .. } if message.contains(NOT_REPORTED) => None,
        RunOutcome::Failed { reason, message } => (!was_hit(facts, run))
            .then(|| format!("{} has failed ({reason}: {message}), but no fault affected it", run.update)),
    }
}

/// Describes a change that a successful run has not made. Returns `None` if the run has made all changes.
fn missing_change(facts: &Facts, run: &Run, end: Timestamp) -> Option<String> {
    let remaining = life::existing(facts, Some(end + PRECISION));
    let names = if run.is_destroy { Vec::new() } else { resources_of(run.number).to_vec() };
    for name in &names {
        let expected = called(name, run.number);
        let found = remaining.iter().find(|(urn, _)| name_of(urn) == name).map(|(_, called)| *called);
        if found != Some(expected.as_str()) {
            return Some(format!("{expected} was not created before the end of the run: {found:?} existed"));
        }
    }
    let left = remaining.iter().find(|(urn, _)| !names.iter().any(|name| name == name_of(urn)));
    left.map(|(_, called)| format!("{called} still existed"))
}

/// Returns whether a fault that affected the Stack can explain the run's failure.
pub fn was_hit(facts: &Facts, run: &Run) -> bool {
    let end = run.ended.unwrap_or(Timestamp::MAX - PRECISION);
    facts.hits.iter().any(|hit| *hit >= run.created - FAULT_EFFECT_TIME && *hit <= end + PRECISION)
}
