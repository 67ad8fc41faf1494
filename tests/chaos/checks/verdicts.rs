//! Whether what the Updates say is what happened.

use jiff::{SignedDuration, Timestamp};

use super::life;
use crate::facts::{Facts, Run, RunOutcome, called, name_of, resources_of};

/// Times in a status are whole seconds.
const PRECISION: SignedDuration = SignedDuration::from_secs(1);
/// How long before a run was asked for something may have happened that makes it fail.
const AFTERMATH: SignedDuration = SignedDuration::from_secs(60);

/// What need not have been hit itself in order to fail: it found what an earlier one had left, or never began.
const OF_ANOTHERS_MAKING: [&str; 4] = ["UpdateConflict", "PendingCreates", "RunRefused", "RunOutcomeUnknown"];

/// What a provider says that could do its work but not report it, because the scene was broken at that place: it failed, and
/// nothing was done to its Stack.
const NOT_REPORTED: &str = "to the provider log at";

/// Updates that are there and say nothing.
pub(super) fn missing(facts: &Facts) -> Vec<String> {
    let silent = facts.runs.iter().filter(|run| run.is_there && run.verdict.is_none());
    silent.map(|run| format!("{} has not ended", run.update)).collect()
}

/// Updates that say what is not so.
pub(super) fn wrong(facts: &Facts) -> Vec<String> {
    facts.runs.iter().filter_map(|run| contradiction(facts, run)).collect()
}

fn contradiction(facts: &Facts, run: &Run) -> Option<String> {
    let end = run.ended.unwrap_or(run.created);
    match run.verdict.as_ref()? {
        RunOutcome::Succeeded => {
            undone(facts, run, end).map(|what| format!("{} has succeeded, but {what}", run.update))
        }
        RunOutcome::Failed { reason, .. } if OF_ANOTHERS_MAKING.contains(&reason.as_str()) => None,
        // Taken back while it waited for its turn: something newer was pushed.
        RunOutcome::Failed { reason, .. } if reason == "Canceled" && !run.has_begun => None,
        RunOutcome::Failed { message, .. } if message.contains(NOT_REPORTED) => None,
        RunOutcome::Failed { reason, message } => (!was_hit(facts, run))
            .then(|| format!("{} has failed ({reason}: {message}), but nothing was done to it", run.update)),
    }
}

/// What a run that has succeeded has not done.
fn undone(facts: &Facts, run: &Run, end: Timestamp) -> Option<String> {
    let there = life::there(facts, Some(end + PRECISION));
    let wanted = if run.is_destroy { Vec::new() } else { resources_of(run.number).to_vec() };
    for name in &wanted {
        let expected = called(name, run.number);
        let found = there.iter().find(|(urn, _)| name_of(urn) == name).map(|(_, called)| *called);
        if found != Some(expected.as_str()) {
            return Some(format!("{expected} was not made by then: {found:?} was there"));
        }
    }
    let left = there.iter().find(|(urn, _)| !wanted.iter().any(|name| name == name_of(urn)));
    left.map(|(_, called)| format!("{called} was still there"))
}

/// Whether something was done to its Stack that may be the cause.
pub fn was_hit(facts: &Facts, run: &Run) -> bool {
    let end = run.ended.unwrap_or(Timestamp::MAX - PRECISION);
    facts.hits.iter().any(|hit| *hit >= run.created - AFTERMATH && *hit <= end + PRECISION)
}
