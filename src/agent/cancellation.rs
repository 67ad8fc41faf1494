//! Cancels a run with signals to the CLI, first gracefully and then forcefully.
//!
//! The CLI handles a signal as a cancellation request only while its engine is running. Before the engine starts, a
//! signal kills the CLI, and the stack lock remains. The agent therefore delays the first SIGINT until the engine emits
//! its first event, but for at most [`MAX_SIGINT_DELAY`].
//!
//! After the second SIGINT, the CLI abandons the resource operations in flight, and their outcome is unknown. The agent
//! sends the second SIGINT in these cases:
//! - The grace period of the cancellation ends: see [`cancellation_grace`].
//! - The engine has had no resource operation in flight for [`IDLE_GRACE`]. The CLI is then waiting for a program or a
//!   compiler that ignores the cancellation.
//!
//! If the engine has not started within [`KILL_GRACE`] after the first SIGINT, the agent sends SIGKILL instead of the
//! second SIGINT.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::journal;
use crate::pulumi::failure::CANCELED;

/// Maximum time that the agent waits for the engine's first event before it sends the first SIGINT.
pub const MAX_SIGINT_DELAY: Duration = Duration::from_secs(15);
/// Delay before the second SIGINT if the engine has no resource operation in flight. The delay starts with the first
/// SIGINT or with the end of the last resource operation, whichever is later.
pub const IDLE_GRACE: Duration = Duration::from_secs(30);
/// Delay before the agent sends SIGKILL to the CLI and all its descendants. The delay starts with the second SIGINT or
/// at the time of the forced cancellation, whichever is later. During the delay, the CLI can finish writing the state.
pub const KILL_GRACE: Duration = Duration::from_secs(30);
/// Maximum duration of each of the two phases at the end of the termination grace period. The first phase is the forced
/// cancellation, which starts with the second SIGINT and ends when all CLI descendants have exited. In the second
/// phase, the agent reports the result, waits until the controller has recorded the result, and exits.
const RESERVE: Duration = Duration::from_secs(60);
/// Divisor that limits each phase to a quarter of the termination grace period.
const RESERVED_PART: u32 = 4;

/// Returns the duration of the last phase, during which the agent reports the result.
pub fn reserve(termination_grace: Duration) -> Duration {
    RESERVE.min(termination_grace / RESERVED_PART)
}

/// Returns the cancellation grace period, which is the time between a graceful cancellation and the forced
/// cancellation. This time depends on the pod's termination grace period.
pub fn cancellation_grace(termination_grace: Duration) -> Duration {
    termination_grace.saturating_sub(reserve(termination_grace) * 2)
}

/// Reason why the agent cancels a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A client called `Cancel`.
    Requested,
    /// The pod is being terminated.
    Terminated,
    /// The run exceeded this timeout.
    Timeout(Duration),
    /// The run has made no progress and printed no output for this duration.
    Idle(Duration),
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Requested => formatter.write_str(CANCELED),
            Cause::Terminated => write!(formatter, "the pod was terminated and the run was canceled"),
            Cause::Timeout(limit) => {
                write!(formatter, "the run exceeded its timeout of {} and was canceled", HumanDuration(*limit))
            }
            Cause::Idle(limit) => write!(
                formatter,
                "the run exceeded its idle timeout of {} without progress or output and was canceled",
                HumanDuration(*limit)
            ),
        }
    }
}

/// Displays a duration in the form `1h30m`.
struct HumanDuration(Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
        let text: String =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
        formatter.write_str(if text.is_empty() { "0s" } else { &text })
    }
}

/// Requested cancellation, with the times of the graceful and the forced cancellation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelRequest {
    /// Time of the graceful cancellation.
    pub graceful_at: Option<Instant>,
    /// Time of the forced cancellation. From this time on, the CLI abandons the resource operations in flight.
    pub forced_at: Option<Instant>,
    /// Cause of the first request.
    pub cause: Option<Cause>,
}

impl CancelRequest {
    /// Cancels the run gracefully at `now` and forcefully at `forced_at`. If the run is already being canceled, the
    /// function keeps the cause and the time of the graceful cancellation. The forced cancellation then happens at the
    /// earlier of the two times. A repeated call with the same grace period therefore has no effect.
    pub fn cancel(&mut self, cause: Cause, now: Instant, forced_at: Instant) {
        self.cause.get_or_insert(cause);
        self.graceful_at.get_or_insert(now);
        self.forced_at = Some(self.forced_at.map_or(forced_at, |earlier| earlier.min(forced_at)));
    }

    pub fn is_requested(&self) -> bool {
        self.graceful_at.is_some()
    }
}

/// Timeouts of a run. `None` means that the run has no such timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub timeout: Option<Duration>,
    pub idle: Option<Duration>,
}

impl Limits {
    /// Creates timeouts from seconds. The value 0 disables a timeout.
    pub fn from_seconds(timeout: u64, idle: u64) -> Self {
        let limit = |seconds: u64| Some(Duration::from_secs(seconds)).filter(|limit| !limit.is_zero());
        Limits { timeout: limit(timeout), idle: limit(idle) }
    }

    /// Returns the timeout that a run has exceeded, if any. `since_begin` is the time since the start of the run, and
    /// `silent` is the time since the last activity of the run.
    pub fn exceeded(&self, since_begin: Duration, silent: Duration) -> Option<Cause> {
        let timeout = self.timeout.filter(|limit| since_begin >= *limit).map(Cause::Timeout);
        timeout.or_else(|| self.idle.filter(|limit| silent >= *limit).map(Cause::Idle))
    }

    /// Returns whether a run is idle. A run becomes idle when it has had no activity for half of its idle timeout.
    pub fn is_idle(&self, silent: Duration) -> bool {
        self.idle.is_some_and(|limit| silent >= limit / 2)
    }
}

/// Signal to send to the CLI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// SIGINT for the CLI process only. If necessary, the CLI forwards the signal to its children.
    Interrupt,
    /// SIGKILL for all processes of the run.
    Kill,
}

/// Last signal that the agent sent to the CLI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sent {
    #[default]
    Nothing,
    First {
        at: Instant,
    },
    Second {
        at: Instant,
    },
    Kill,
}

/// Decides which signals the agent sends to a CLI process, and when. Each CLI process needs its own instance.
#[derive(Debug, Default)]
pub struct Cancellation {
    engine_began: bool,
    /// Start of the current period without a resource operation in flight.
    idle_since: Option<Instant>,
    sent: Sent,
}

impl Cancellation {
    /// Records that the engine has emitted its first event.
    pub fn engine_began(&mut self) {
        self.engine_began = true;
    }

    /// Records whether the engine has resource operations in flight.
    pub fn observe_operations(&mut self, in_flight: bool, now: Instant) {
        match in_flight {
            true => self.idle_since = None,
            false => drop(self.idle_since.get_or_insert(now)),
        }
    }

    /// Returns whether the agent has sent the second SIGINT or a SIGKILL. After such a signal, the outcome of resource
    /// operations can be unknown.
    pub fn was_forced(&self) -> bool {
        matches!(self.sent, Sent::Second { .. } | Sent::Kill)
    }

    /// Returns the signal that the caller must send now, if any, and records this signal as sent.
    pub fn next_signal(&mut self, cancel_request: &CancelRequest, now: Instant) -> Option<Step> {
        let has_passed = |at: Option<Instant>, grace: Duration| at.is_some_and(|at| now >= at + grace);
        let (sent, step) = match self.sent {
            Sent::Nothing if has_passed(cancel_request.graceful_at, self.sigint_delay()) => {
                (Sent::First { at: now }, Step::Interrupt)
            }
            // Without an engine, no resource operation can be in flight, so the CLI has no reason to continue.
            Sent::First { at } if !self.engine_began && has_passed(Some(at), KILL_GRACE) => (Sent::Kill, Step::Kill),
            Sent::First { at }
                if has_passed(cancel_request.forced_at, Duration::ZERO)
                    || has_passed(self.idle_since.map(|since| since.max(at)), IDLE_GRACE) =>
            {
                (Sent::Second { at: now }, Step::Interrupt)
            }
            Sent::Second { at } if has_passed(cancel_request.forced_at.map(|forced| forced.max(at)), KILL_GRACE) => {
                (Sent::Kill, Step::Kill)
            }
            _ => return None,
        };
        self.sent = sent;
        Some(step)
    }

    /// Returns the delay between the cancellation request and the first SIGINT.
    fn sigint_delay(&self) -> Duration {
        if self.engine_began { Duration::ZERO } else { MAX_SIGINT_DELAY }
    }
}

/// Time of a run's last activity. The tasks that read the output and the events update this time. The idle timeout
/// check reads it.
#[derive(Debug)]
pub struct Liveness {
    begun: Instant,
    /// Time of the last activity in milliseconds since the start of the run.
    last: AtomicU64,
    /// Time of the last activity in milliseconds since the Unix epoch, for display.
    last_time: AtomicI64,
}

impl Liveness {
    pub fn begin() -> Self {
        Liveness { begun: Instant::now(), last: AtomicU64::new(0), last_time: AtomicI64::new(journal::now()) }
    }

    /// Records the current time as the time of the last activity.
    pub fn record(&self) {
        let since = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
        self.last_time.store(journal::now(), Ordering::Relaxed);
    }

    pub fn since_begin(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the time since the last activity.
    pub fn idle_time(&self) -> Duration {
        self.since_begin().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }

    /// Returns the time of the last activity in milliseconds since the Unix epoch.
    pub fn last_time(&self) -> i64 {
        self.last_time.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
