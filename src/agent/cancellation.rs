//! How a run is cancelled: gracefully, then harder, as the CLI has it; and when the agent does so by itself.
//!
//! The CLI takes a signal as a request to stop only while its engine runs; before, it dies of it and leaves its lock behind.
//! So the first SIGINT is held back until the engine's first event, but not for ever. The second makes the CLI leave what it is
//! at, so that nobody knows what came of it: it comes when the pod has no more time to give, or when somebody asks again.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// How long the first SIGINT waits for the engine's first event.
pub const HOLD_BACK: Duration = Duration::from_secs(15);
/// How long the CLI has after the second SIGINT, before it and all its descendants are killed.
pub const KILL_GRACE: Duration = Duration::from_secs(30);
/// What is left of the pod's grace for the verdict, the lingering and the exit. The CLI is made to end as long before that:
/// from the second SIGINT to SIGKILL, and to the end of all that it started, it takes its time.
const RESERVE: Duration = Duration::from_secs(60);
/// No more than this part of a short grace is reserved.
const RESERVED_PART: u32 = 4;

/// What is left of a pod's grace for the verdict.
pub fn reserve(termination_grace: Duration) -> Duration {
    RESERVE.min(termination_grace / RESERVED_PART)
}

/// How long a run has to end gracefully, whoever ends it, in a pod with this grace.
pub fn patience(termination_grace: Duration) -> Duration {
    termination_grace.saturating_sub(reserve(termination_grace) * 2)
}

/// Why a run is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody called to cancel it.
    Requested,
    /// The pod is being terminated.
    Terminated,
    /// It took longer than this.
    Timeout(Duration),
    /// It neither went on nor said anything for this long.
    Idle(Duration),
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Requested => write!(formatter, "the run was cancelled"),
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

/// A time as people write it: `1h30m`.
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

/// What was asked for, and when it is to take effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelRequest {
    /// To end gracefully.
    pub gracefully: Option<Instant>,
    /// To end without waiting for the steps in flight.
    pub harder: Option<Instant>,
    /// The first reason.
    pub cause: Option<Cause>,
    /// Whether somebody called to cancel.
    called: bool,
}

impl CancelRequest {
    /// Another call to cancel: the first is graceful, the second is harder, more change nothing.
    pub fn escalate(&mut self, now: Instant, patience: Duration) {
        let harder = if self.called { now } else { now + patience };
        self.called = true;
        self.end(Cause::Requested, now, harder);
    }

    /// Gracefully now, and harder later. Takes nothing back that was asked for before.
    pub fn end(&mut self, cause: Cause, now: Instant, harder: Instant) {
        self.cause.get_or_insert(cause);
        self.gracefully.get_or_insert(now);
        self.harder = Some(self.harder.map_or(harder, |earlier| earlier.min(harder)));
    }

    pub fn is_made(&self) -> bool {
        self.gracefully.is_some()
    }
}

/// After what time a run is ended; none for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub timeout: Option<Duration>,
    pub idle: Option<Duration>,
}

impl Limits {
    /// From seconds, of which none are no limit.
    pub fn from_seconds(timeout: u64, idle: u64) -> Self {
        let limit = |seconds: u64| Some(Duration::from_secs(seconds)).filter(|limit| !limit.is_zero());
        Limits { timeout: limit(timeout), idle: limit(idle) }
    }

    /// Why a run is to be ended that began and was last seen or heard of so long ago.
    pub fn exceeded(&self, since_begin: Duration, silent: Duration) -> Option<Cause> {
        let timeout = self.timeout.filter(|limit| since_begin >= *limit).map(Cause::Timeout);
        timeout.or_else(|| self.idle.filter(|limit| silent >= *limit).map(Cause::Idle))
    }

    /// Whether so long a silence is worth a word: at half of the time after which the run is ended.
    pub fn is_idle(&self, silent: Duration) -> bool {
        self.idle.is_some_and(|limit| silent >= limit / 2)
    }
}

/// What is to be done to the CLI now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// SIGINT to the CLI alone: it passes it on as it sees fit.
    Interrupt,
    /// SIGKILL to all processes of the run.
    Kill,
}

/// What was done to the CLI so far.
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

/// Decides what is due; one for each process of the CLI.
#[derive(Debug, Default)]
pub struct Cancellation {
    engine_began: bool,
    sent: Sent,
}

impl Cancellation {
    /// The engine's first event has come.
    pub fn engine_began(&mut self) {
        self.engine_began = true;
    }

    /// Whether the CLI was told to leave what it was at.
    pub fn was_hard(&self) -> bool {
        matches!(self.sent, Sent::Second { .. } | Sent::Kill)
    }

    /// What is due now. Each step is given once.
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

    /// What is sent, by the second, when `calls` come at the given seconds and the engine begins at `began`.
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
    fn signals_come_in_order_and_the_first_waits_for_the_engine_and_the_second_for_the_grace() {
        use Step::{Interrupt, Kill};
        for (calls, began, wanted) in [
            (&[][..], Some(1), vec![]),
            (&[5][..], Some(1), vec![(5, Interrupt), (65, Interrupt), (95, Kill)]),
            (&[1][..], Some(6), vec![(6, Interrupt), (61, Interrupt), (91, Kill)]),
            (&[1][..], None, vec![(16, Interrupt), (61, Interrupt), (91, Kill)]),
            (&[5, 8][..], Some(1), vec![(5, Interrupt), (8, Interrupt), (38, Kill)]),
            (&[5, 8, 9, 10][..], Some(1), vec![(5, Interrupt), (8, Interrupt), (38, Kill)]),
            (&[1, 2][..], Some(4), vec![(4, Interrupt), (4, Interrupt), (34, Kill)]),
            // After the second step came by itself another call changes nothing.
            (&[5, 70][..], Some(1), vec![(5, Interrupt), (65, Interrupt), (95, Kill)]),
        ] {
            assert_eq!(sent(calls, began, 200), wanted, "{calls:?} {began:?}");
        }
    }

    #[test]
    fn no_step_before_the_grace_is_over_is_hard() {
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
    fn no_reason_takes_back_what_was_asked_for_before() {
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
            // What ends a run by itself is no call: the first one is still graceful.
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
    fn a_run_is_ended_after_its_time_and_after_a_silence_and_a_word_is_said_before() {
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
    fn causes_are_told_with_times_as_people_write_them() {
        for (seconds, words) in [(0, "0s"), (45, "45s"), (600, "10m"), (5400, "1h30m"), (3601, "1h1s")] {
            let said = Cause::Timeout(Duration::from_secs(seconds)).to_string();
            assert_eq!(said, format!("the run took longer than its timeout of {words} and was ended"));
        }
    }

    #[test]
    fn of_the_pods_grace_there_is_time_left_for_the_verdict() {
        for (grace, expected) in [(600, 480.0), (240, 120.0), (30, 15.0), (0, 0.0)] {
            assert_eq!(patience(Duration::from_secs(grace)).as_secs_f64(), expected, "{grace}");
        }
    }
}
