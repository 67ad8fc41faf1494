//! Estimated start times of queued runs. The status of the Stack, or of an Update that no Stack owns, displays them.
//!
//! Each change to a displayed estimate requires an API write. The controller therefore computes the estimate for a run
//! at most once every few minutes, or every minute if the run is near the head of the queue. A new estimate replaces the
//! displayed estimate only if they differ considerably, and only a few times per run.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Threshold for the time until the start. Beyond the threshold, the message includes the date.
const WITH_DATE: SignedDuration = SignedDuration::from_hours(12);

/// Maximum value of the minimum interval between two computations of an estimate, in minutes.
const MAX_INTERVAL: u32 = 4;
/// Requeue interval of a queued run for each minute of the minimum interval, in seconds. The requeue interval is
/// longer, so each requeue can compute a new estimate.
const REQUEUE_SECONDS: u64 = 75;
/// Number of runs of each namespace that are near the head of the queue.
const NEAR: usize = 10;
/// Maximum number of queued runs with which runs are near the head of the queue. Each requeue of a queued run reads a
/// few objects from the API server.
const MAX_NEAR: usize = 64;
/// Tolerance for start times. A new estimate never replaces the displayed estimate if they differ by less than this
/// duration.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(5);
/// Maximum number of displayed estimates per run. Removing a start time that has passed does not increase the number.
const MAX_DISPLAYED: u32 = 6;
/// Maximum number of runs with recorded estimates. The messages of further runs contain no estimate.
const MAX_RECORDED: usize = 8192;
/// Maximum age of a recorded estimate. The controller regularly computes the estimate of each queued run again, so an
/// older record belongs to a run that is no longer queued.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// Estimated start of a queued run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Number of the namespace's queued runs that start before this run.
    pub ahead: usize,
    /// Estimated start time, rounded up to a minute. `None` if the start time is unknown.
    pub start: Option<Timestamp>,
    /// Whether the run is [near the head of the queue](is_near).
    pub is_near: bool,
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
        // The message contains the start time instead of the remaining duration, because a remaining duration in the
        // status would soon be wrong.
        let format = if start.duration_since(self.made) < WITH_DATE { "%H:%M UTC" } else { "%Y-%m-%d %H:%M UTC" };
        write!(formatter, "; estimated start at {}", start.strftime(format))
    }
}

/// Displayed estimate of a queued run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Displayed {
    estimate: Estimate,
    /// Time of the last computation, even if the computed estimate is not displayed.
    computed: Timestamp,
    /// Number of estimates that the run status has displayed.
    count: u32,
}

impl Displayed {
    fn first(estimate: Estimate) -> Self {
        Displayed { estimate, computed: estimate.made, count: 1 }
    }

    fn interval(&self) -> u32 {
        interval(self.estimate.is_near, self.count)
    }

    /// Returns whether the caller must compute a new estimate.
    fn is_outdated(&self, now: Timestamp) -> bool {
        now.duration_since(self.computed) >= SignedDuration::from_mins(self.interval().into()) || self.is_past(now)
    }

    fn is_past(&self, now: Timestamp) -> bool {
        self.estimate.start.is_some_and(|start| start <= now)
    }

    /// Replaces the displayed estimate if it differs considerably from the new estimate.
    fn update(self, new: Estimate) -> Self {
        let estimate = Estimate { is_near: new.is_near, ..self.estimate };
        let kept = Displayed { estimate, computed: new.made, ..self };
        if self.count >= MAX_DISPLAYED {
            // The run has reached the maximum number of estimates, but a start time in the past would be misleading.
            let without = Estimate { start: None, ..new };
            return if self.is_past(new.made) { Displayed { estimate: without, ..kept } } else { kept };
        }
        match differs(&self.estimate, &new) || self.is_past(new.made) {
            true => Displayed { estimate: new, computed: new.made, count: self.count + 1 },
            false => kept,
        }
    }
}

/// Returns whether a run is near the head of the queue. `ahead` is the number of the namespace's queued runs that start
/// before this run, and `queued` is the number of all queued runs.
pub fn is_near(ahead: usize, queued: usize) -> bool {
    ahead < NEAR && queued <= MAX_NEAR
}

/// Returns the minimum interval between two computations of an estimate, in minutes. `count` is the number of
/// estimates that the run status has displayed. The interval increases with this number, so that a run whose estimate
/// changes often does not reach the maximum number of estimates within a few minutes.
fn interval(is_near: bool, count: u32) -> u32 {
    if is_near { count.clamp(1, MAX_INTERVAL) } else { MAX_INTERVAL }
}

/// Returns whether the displayed estimate differs considerably from a new estimate. The minimum difference
/// increases with the remaining time.
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

/// Displayed estimates of all queued runs, by Update UID.
#[derive(Debug, Default)]
pub struct Estimates(HashMap<String, Displayed>);

impl Estimates {
    /// Returns whether the caller must compute a new estimate for a queued run.
    pub fn is_outdated(&self, uid: &str, now: Timestamp) -> bool {
        self.0.get(uid).is_none_or(|displayed| displayed.is_outdated(now))
    }

    /// Returns the displayed estimate of a queued run. `new` is the new estimate, or `None` if the caller has computed
    /// no new estimate.
    pub fn display(&mut self, uid: &str, new: Option<Estimate>) -> Option<Estimate> {
        let before = self.0.get(uid).copied();
        let displayed = match (before, new) {
            (Some(before), Some(new)) => before.update(new),
            (None, Some(new)) => Displayed::first(new),
            (before, None) => before?,
        };
        if let Some(new) = new.filter(|_| self.0.len() >= MAX_RECORDED) {
            self.0.retain(|_, displayed| new.made.duration_since(displayed.computed) < MAX_AGE);
        }
        if self.0.len() >= MAX_RECORDED && before.is_none() {
            return None;
        }
        self.0.insert(uid.to_owned(), displayed);
        Some(displayed.estimate)
    }

    /// Returns the displayed estimate of a queued run.
    pub fn get(&self, uid: &str) -> Option<Estimate> {
        self.0.get(uid).map(|displayed| displayed.estimate)
    }

    /// Returns the interval after which the caller must requeue a queued run to update its message.
    pub fn requeue_interval(&self, uid: &str) -> Duration {
        let minutes = self.0.get(uid).map_or(MAX_INTERVAL, Displayed::interval);
        Duration::from_secs(REQUEUE_SECONDS * u64::from(minutes))
    }

    /// Removes the estimate of a run that is no longer queued.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests;
