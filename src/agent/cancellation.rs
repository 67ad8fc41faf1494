//! Cancels a run: gracefully first, then forcefully, following the signal handling of the CLI.
//!
//! The CLI handles a signal as a cancellation request only while its engine runs. Before that, a signal kills the CLI,
//! which leaves its lock behind. The agent therefore delays the first SIGINT until the engine's first event, for at
//! most [`HOLD_BACK`]. The second SIGINT makes the CLI abandon the operations in flight, whose outcome is then unknown.
//! The agent sends it only if the client repeats its request or the time for a graceful end has passed.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::pulumi::failure::CANCELED;

/// Maximum time that the first SIGINT waits for the engine's first event.
pub const HOLD_BACK: Duration = Duration::from_secs(15);
/// Time between the second SIGINT and the SIGKILL for the CLI and all its descendants.
pub const KILL_GRACE: Duration = Duration::from_secs(30);
/// Part of the termination grace period that is reserved for reporting the result, waiting until the controller records
/// it, and exiting. A second part of the same length precedes it: the CLI needs time between the second SIGINT and
/// SIGKILL, and until all its descendants have ended.
const RESERVE: Duration = Duration::from_secs(60);
/// A reserve takes at most a quarter of a short grace period.
const RESERVED_PART: u32 = 4;

/// Returns the part of the termination grace period that is reserved for reporting the result.
pub fn reserve(termination_grace: Duration) -> Duration {
    RESERVE.min(termination_grace / RESERVED_PART)
}

/// Returns the time that a run has to end gracefully in a pod with this termination grace period.
pub fn patience(termination_grace: Duration) -> Duration {
    termination_grace.saturating_sub(reserve(termination_grace) * 2)
}

/// Cause of the cancellation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A client called `Cancel`.
    Requested,
    /// The pod is being terminated.
    Terminated,
    /// The run exceeded this timeout.
    Timeout(Duration),
    /// The run made no progress and printed nothing for this time.
    Idle(Duration),
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Requested => formatter.write_str(CANCELED),
            Cause::Terminated => write!(formatter, "the pod was terminated, and the run was ended"),
            Cause::Timeout(limit) => {
                write!(formatter, "the run took longer than its timeout of {} and was ended", Words(*limit))
            }
            Cause::Idle(limit) => write!(
                formatter,
                "the run neither went on nor printed anything for {}, its idle timeout, and was ended",
                Words(*limit)
            ),
        }
    }
}

/// Displays a duration in the form `1h30m`.
struct Words(Duration);

impl fmt::Display for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
        let said: String =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
        formatter.write_str(if said.is_empty() { "0s" } else { &said })
    }
}

/// A requested cancellation and the times of its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelRequest {
    /// Time of the graceful cancellation.
    pub gracefully: Option<Instant>,
    /// Time from which the CLI no longer waits for the steps in flight.
    pub harder: Option<Instant>,
    /// Cause of the first request.
    pub cause: Option<Cause>,
    /// Whether a client has called `Cancel`.
    called: bool,
}

impl CancelRequest {
    /// Handles a `Cancel` call: the first call cancels gracefully, the second call forcefully. Further calls change
    /// nothing.
    pub fn escalate(&mut self, now: Instant, patience: Duration) {
        let harder = if self.called { now } else { now + patience };
        self.called = true;
        self.end(Cause::Requested, now, harder);
    }

    /// Cancels gracefully at `now` and forcefully at `harder`. Earlier times and the first cause stay in force.
    pub fn end(&mut self, cause: Cause, now: Instant, harder: Instant) {
        self.cause.get_or_insert(cause);
        self.gracefully.get_or_insert(now);
        self.harder = Some(self.harder.map_or(harder, |earlier| earlier.min(harder)));
    }

    pub fn is_made(&self) -> bool {
        self.gracefully.is_some()
    }
}

/// Timeouts of a run. `None` disables a timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub timeout: Option<Duration>,
    pub idle: Option<Duration>,
}

impl Limits {
    /// Creates limits from seconds. 0 disables a timeout.
    pub fn from_seconds(timeout: u64, idle: u64) -> Self {
        let limit = |seconds: u64| Some(Duration::from_secs(seconds)).filter(|limit| !limit.is_zero());
        Limits { timeout: limit(timeout), idle: limit(idle) }
    }

    /// Returns the timeout that a run has exceeded, given the time since its start and since its last activity.
    pub fn exceeded(&self, since_begin: Duration, silent: Duration) -> Option<Cause> {
        let timeout = self.timeout.filter(|limit| since_begin >= *limit).map(Cause::Timeout);
        timeout.or_else(|| self.idle.filter(|limit| silent >= *limit).map(Cause::Idle))
    }

    /// Returns whether a run without activity for this time is reported as idle: after half of the idle timeout.
    pub fn is_idle(&self, silent: Duration) -> bool {
        self.idle.is_some_and(|limit| silent >= limit / 2)
    }
}

/// Signal to send to the CLI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// SIGINT to the process of the CLI only. The CLI forwards it to its children as needed.
    Interrupt,
    /// SIGKILL to all processes of the run.
    Kill,
}

/// Signals sent to the CLI so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sent {
    #[default]
    Nothing,
    First,
    Second {
        at: Instant,
    },
    Kill,
}

/// Decides which signal is due. Each process of the CLI needs its own instance.
#[derive(Debug, Default)]
pub struct Cancellation {
    engine_began: bool,
    sent: Sent,
}

impl Cancellation {
    /// Records that the engine has emitted its first event.
    pub fn engine_began(&mut self) {
        self.engine_began = true;
    }

    /// Returns whether the CLI has received the second SIGINT, which makes it abandon the operations in flight.
    pub fn was_hard(&self) -> bool {
        matches!(self.sent, Sent::Second { .. } | Sent::Kill)
    }

    /// Returns the step that is due. Returns each step once.
    pub fn due(&mut self, cancel_request: &CancelRequest, now: Instant) -> Option<Step> {
        let (sent, step) = match self.sent {
            Sent::Nothing if cancel_request.gracefully.is_some_and(|at| self.engine_began || now >= at + HOLD_BACK) => {
                (Sent::First, Step::Interrupt)
            }
            Sent::First if cancel_request.harder.is_some_and(|at| now >= at) => {
                (Sent::Second { at: now }, Step::Interrupt)
            }
            Sent::Second { at } if now >= at + KILL_GRACE => (Sent::Kill, Step::Kill),
            _ => return None,
        };
        self.sent = sent;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const GRACE_PERIOD: Duration = Duration::from_secs(60);

    /// Returns the signals and their times in seconds, for `Cancel` calls at `calls` and the engine's first event at
    /// `began`.
    fn sent(calls: &[u32], began: Option<u32>, seconds: u32) -> Vec<(u32, Step)> {
        let start = Instant::now();
        let (mut cancel_request, mut cancellation) = (CancelRequest::default(), Cancellation::default());
        let mut steps = Vec::new();
        for second in 0..seconds {
            let now = start + SECOND * second;
            calls.iter().filter(|call| **call == second).for_each(|_| cancel_request.escalate(now, GRACE_PERIOD));
            if began == Some(second) {
                cancellation.engine_began();
            }
            while let Some(step) = cancellation.due(&cancel_request, now) {
                steps.push((second, step));
            }
        }
        steps
    }

    #[test]
    fn signals_escalate_after_engine_start_and_grace_period() {
        use Step::{Interrupt, Kill};
        for (calls, began, wanted) in [
            (&[][..], Some(1), vec![]),
            (&[5][..], Some(1), vec![(5, Interrupt), (65, Interrupt), (95, Kill)]),
            (&[1][..], Some(6), vec![(6, Interrupt), (61, Interrupt), (91, Kill)]),
            (&[1][..], None, vec![(16, Interrupt), (61, Interrupt), (91, Kill)]),
            (&[5, 8][..], Some(1), vec![(5, Interrupt), (8, Interrupt), (38, Kill)]),
            (&[5, 8, 9, 10][..], Some(1), vec![(5, Interrupt), (8, Interrupt), (38, Kill)]),
            (&[1, 2][..], Some(4), vec![(4, Interrupt), (4, Interrupt), (34, Kill)]),
            // The second SIGINT was sent automatically, so a further call changes nothing.
            (&[5, 70][..], Some(1), vec![(5, Interrupt), (65, Interrupt), (95, Kill)]),
        ] {
            assert_eq!(sent(calls, began, 200), wanted, "{calls:?} {began:?}");
        }
    }

    #[test]
    fn no_step_within_the_grace_period_is_hard() {
        let start = Instant::now();
        let (mut cancel_request, mut cancellation) = (CancelRequest::default(), Cancellation::default());
        cancellation.engine_began();
        cancel_request.escalate(start, GRACE_PERIOD);
        assert_eq!(cancellation.due(&cancel_request, start), Some(Step::Interrupt));
        assert_eq!(cancellation.due(&cancel_request, start + GRACE_PERIOD - SECOND), None);
        assert!(!cancellation.was_hard());
        assert_eq!(cancellation.due(&cancel_request, start + GRACE_PERIOD), Some(Step::Interrupt));
        assert!(cancellation.was_hard());
    }

    #[test]
    fn a_later_cause_does_not_revert_an_earlier_cancellation() {
        let now = Instant::now();
        let later = |seconds: u32| now + SECOND * seconds;
        let timeout = Cause::Timeout(SECOND);
        type Call = fn(&mut CancelRequest, Instant);
        let ask: Call = |cancel_request, now| cancel_request.escalate(now, GRACE_PERIOD);
        let terminate: Call = |cancel_request, now| cancel_request.end(Cause::Terminated, now, now + SECOND * 400);
        let late: Call = |cancel_request, now| cancel_request.end(Cause::Timeout(SECOND), now, now + GRACE_PERIOD);
        for (calls, cause, harder) in [
            (vec![ask], Cause::Requested, later(60)),
            (vec![ask, ask], Cause::Requested, later(1)),
            (vec![ask, ask, terminate], Cause::Requested, later(1)),
            (vec![terminate], Cause::Terminated, later(400)),
            // Only `Cancel` calls count: the first call after a termination still cancels gracefully.
            (vec![terminate, ask], Cause::Terminated, later(61)),
            (vec![terminate, ask, ask], Cause::Terminated, later(2)),
            (vec![late, ask], timeout, later(60)),
            (vec![late, terminate], timeout, later(60)),
        ] {
            let mut cancel_request = CancelRequest::default();
            calls.iter().zip(0..).for_each(|(call, second)| call(&mut cancel_request, later(second)));
            assert_eq!(
                (cancel_request.gracefully, cancel_request.cause, cancel_request.harder),
                (Some(now), Some(cause), Some(harder))
            );
        }
    }

    #[test]
    fn a_run_ends_after_timeout_or_idle_timeout_with_an_earlier_idle_warning() {
        let limits = Limits::from_seconds(600, 60);
        let seconds = Duration::from_secs;
        for (limits, since_begin, silent, exceeded, is_idle) in [
            (limits, 599, 0, None, false),
            (limits, 600, 0, Some(Cause::Timeout(seconds(600))), false),
            (limits, 100, 29, None, false),
            (limits, 100, 30, None, true),
            (limits, 100, 59, None, true),
            (limits, 100, 60, Some(Cause::Idle(seconds(60))), true),
            (limits, 600, 60, Some(Cause::Timeout(seconds(600))), true),
            (Limits::from_seconds(0, 60), 100_000, 1, None, false),
            (Limits::from_seconds(600, 0), 1, 100_000, None, false),
            (Limits::default(), 100_000, 100_000, None, false),
        ] {
            let found = limits.exceeded(seconds(since_begin), seconds(silent));
            assert_eq!(
                (found, limits.is_idle(seconds(silent))),
                (exceeded, is_idle),
                "{limits:?} {since_begin} {silent}"
            );
        }
    }

    #[test]
    fn causes_show_durations_in_human_readable_form() {
        for (seconds, words) in [(0, "0s"), (45, "45s"), (600, "10m"), (5400, "1h30m"), (3601, "1h1s")] {
            let said = Cause::Timeout(Duration::from_secs(seconds)).to_string();
            assert_eq!(said, format!("the run took longer than its timeout of {words} and was ended"));
        }
    }

    #[test]
    fn patience_reserves_part_of_the_pod_grace_period_for_the_result() {
        for (grace, expected) in [(600, 480.0), (240, 120.0), (30, 15.0), (0, 0.0)] {
            assert_eq!(patience(Duration::from_secs(grace)).as_secs_f64(), expected, "{grace}");
        }
    }
}
