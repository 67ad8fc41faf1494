//! Displayed estimates of the start of queued runs.
//!
//! The status of a queued run contains its estimate. Each change costs two API writes, one for the Update and one for its
//! Stack. An estimate is therefore computed at most every few minutes, and a new estimate replaces the displayed one only
//! if it differs considerably, and only a few times for each run.

use std::collections::HashMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// Start times that are further away include the date.
const WITH_DATE: SignedDuration = SignedDuration::from_hours(12);

/// Minimum time between two computations of an estimate. The time is shorter than the requeue interval of a queued run.
const MIN_AGE: SignedDuration = SignedDuration::from_mins(4);
/// Difference by which a start time may always differ from the displayed start time.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(5);
/// Maximum number of estimates that are displayed for a run, without the removal of the last start time.
const MAX_DISPLAYED: u32 = 6;
/// Maximum number of runs whose estimates are recorded. The messages of further runs contain no estimate.
const MAX_RECORDED: usize = 8192;
/// Age of the last computation after which a run is certainly no longer queued.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// When a queued run starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Number of queued runs of the namespace that start first.
    pub ahead: usize,
    /// Estimated start, in whole minutes. `None` if it is unknown.
    pub start: Option<Timestamp>,
    /// Time of the computation.
    pub made: Timestamp,
}

impl fmt::Display for Estimate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ahead {
            0 => {}
            1 => formatter.write_str("; 1 run of this namespace is ahead")?,
            ahead => write!(formatter, "; {ahead} runs of this namespace are ahead")?,
        }
        let Some(start) = self.start else { return Ok(()) };
        // The message stays in the status, so it contains no duration from now.
        let format = if start.duration_since(self.made) < WITH_DATE { "%H:%M UTC" } else { "%Y-%m-%d %H:%M UTC" };
        write!(formatter, "; estimated start at {}", start.strftime(format))
    }
}

/// Displayed estimate of a queued run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Displayed {
    estimate: Estimate,
    /// Time of the last computation, whose estimate may not be displayed.
    computed: Timestamp,
    /// Number of estimates that were displayed.
    count: u32,
}

impl Displayed {
    fn first(estimate: Estimate) -> Self {
        Displayed { estimate, computed: estimate.made, count: 1 }
    }

    /// Returns whether a new estimate must be computed.
    fn is_outdated(&self, now: Timestamp) -> bool {
        now.duration_since(self.computed) >= MIN_AGE || self.is_past(now)
    }

    fn is_past(&self, now: Timestamp) -> bool {
        self.estimate.start.is_some_and(|start| start <= now)
    }

    /// Replaces the displayed estimate if a new estimate differs considerably.
    fn update(self, new: Estimate) -> Self {
        let kept = Displayed { computed: new.made, ..self };
        if self.count >= MAX_DISPLAYED {
            // A start time in the past would be misleading. No further estimate is displayed.
            let without = Estimate { start: None, ..new };
            return if self.is_past(new.made) { Displayed { estimate: without, ..kept } } else { kept };
        }
        match differs(&self.estimate, &new) || self.is_past(new.made) {
            true => Displayed { estimate: new, computed: new.made, count: self.count + 1 },
            false => kept,
        }
    }
}

/// Returns whether a new estimate differs considerably from the displayed one. The longer the remaining time, the larger
/// the difference.
fn differs(old: &Estimate, new: &Estimate) -> bool {
    match (old.start, new.start) {
        (Some(old_start), Some(new_start)) => {
            let remaining = new_start.duration_since(new.made);
            new_start.duration_since(old_start).abs() > TOLERANCE.max(remaining / 4)
        }
        (None, None) => new.ahead <= old.ahead / 2 && old.ahead > 0 || new.ahead / 2 > old.ahead,
        _ => true,
    }
}

/// Displayed estimates of all queued runs, by UID.
#[derive(Debug, Default)]
pub struct Estimates(HashMap<String, Displayed>);

impl Estimates {
    /// Returns whether the estimate of a queued run must be computed.
    pub fn is_outdated(&self, uid: &str, now: Timestamp) -> bool {
        self.0.get(uid).is_none_or(|displayed| displayed.is_outdated(now))
    }

    /// Returns the displayed estimate of a queued run. `new` is its new estimate, if it was computed.
    pub fn display(&mut self, uid: &str, new: Option<Estimate>) -> Option<Estimate> {
        let before = self.0.get(uid).copied();
        let displayed = match (before, new) {
            (Some(before), Some(new)) => before.update(new),
            (None, Some(new)) => Displayed::first(new),
            (before, None) => before?,
        };
        if let Some(new) = new.filter(|_| self.0.len() >= MAX_RECORDED) {
            // Each queued run computes its estimate regularly.
            self.0.retain(|_, displayed| new.made.duration_since(displayed.computed) < MAX_AGE);
        }
        if self.0.len() >= MAX_RECORDED && before.is_none() {
            return None;
        }
        self.0.insert(uid.to_owned(), displayed);
        Some(displayed.estimate)
    }

    /// Removes the estimate of a run that is no longer queued.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests;
