//! Forecast of a run's start. A forecast simulates the queue with the expected run durations, and ignores runs
//! that become due later.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::runtime::fair_queue::FairQueue;
use crate::runtime::fair_queue::estimate::{Estimate, is_near};
use crate::runtime::fair_queue::run::Run;

/// Maximum number of queued runs in a simulation. Simulating a longer queue would require too much CPU time and produce
/// inaccurate results.
const MAX_QUEUED: usize = 256;
/// Expected remaining duration of an open run that has exceeded its expected duration.
const OVERDUE: SignedDuration = SignedDuration::from_mins(1);

/// Copy of the queue that simulates the start of one run.
pub struct Forecast {
    /// `None` if too many runs are queued.
    queue: Option<FairQueue<Run>>,
    /// UID of the run.
    target: String,
    /// Number of higher-ranked queued runs in the same namespace.
    ahead: usize,
    is_near: bool,
    /// Expected end times of the open runs. A run with an unknown duration has no entry and never ends in the
    /// simulation.
    ends: BTreeSet<(Timestamp, String)>,
    now: Timestamp,
}

impl Forecast {
    /// Returns the forecast for a run that is queued or will be queued. `now` is the current time.
    pub fn new<W>(queue: &FairQueue<W>, target: &Run, now: Timestamp) -> Self {
        let ends = queue.open_runs().filter_map(|run| Some((end(run, now)?, run.uid.clone()))).collect();
        let copy = (queue.queued() <= MAX_QUEUED).then(|| queue.simulated_with(target));
        let ahead = queue.ahead_of(target);
        let is_near = is_near(ahead, queue.queued());
        Forecast { queue: copy, target: target.uid.clone(), ahead, is_near, ends, now }
    }

    /// Returns the estimate. The number of open and queued runs limits the number of simulation steps.
    pub fn estimate(mut self) -> Estimate {
        let start = self.simulate().and_then(whole_minute);
        Estimate { ahead: self.ahead, start, is_near: self.is_near, made: self.now }
    }

    fn simulate(&mut self) -> Option<Timestamp> {
        let queue = self.queue.as_mut()?;
        // The simulated reservations never expire, because the simulation always passes the same instant to the queue.
        let instant = Instant::now();
        let mut time = self.now;
        loop {
            while let Some(run) = queue.next_requeue(instant) {
                if run.uid == self.target {
                    return Some(time);
                }
                queue.adopt(&run, instant);
                if let Some(end) = run.expected.and_then(|expected| time.checked_add(expected).ok()) {
                    self.ends.insert((end, run.uid));
                }
            }
            let (end, uid) = self.ends.pop_first()?;
            time = time.max(end);
            queue.close(&uid, instant);
        }
    }
}

impl fmt::Debug for Forecast {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Forecast").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Returns the expected end of an open run, or `None` if its duration is unknown.
fn end(run: &Run, now: Timestamp) -> Option<Timestamp> {
    let end = run.started.unwrap_or(now).checked_add(run.expected?).ok()?;
    Some(end.max(now.checked_add(OVERDUE).ok()?))
}

/// Rounds up to a whole minute.
fn whole_minute(time: Timestamp) -> Option<Timestamp> {
    let minutes = time.as_second().checked_add(59)?.div_euclid(60);
    Timestamp::from_second(minutes.checked_mul(60)?).ok()
}

#[cfg(test)]
mod tests;
