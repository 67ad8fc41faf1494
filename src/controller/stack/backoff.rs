//! Delays between the runs of a Stack. The backoff after failures has the same defaults as in the Pulumi Kubernetes
//! Operator v2.

use jiff::SignedDuration;
use sha2::{Digest as _, Sha256};

use crate::api::conditions::{stack_reason, update_reason};
use crate::api::duration;
use crate::api::pulumi::{LastUpdate, Stack, StackSpec};

/// Backoff after the first failure. Each further failure triples the backoff.
pub const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// Default maximum backoff.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_hours(24);
/// Delay after the first run that finds another update's lock. Each further run that finds the same lock doubles the
/// delay.
const FIRST_CONFLICT_RETRY: SignedDuration = SignedDuration::from_secs(30);
/// Maximum delay after a run that finds another update's lock.
const MAX_CONFLICT_RETRY: SignedDuration = SignedDuration::from_mins(5);
/// Delays after consecutive interruptions, starting with the first interruption. The last delay also applies after all
/// further interruptions.
const INTERRUPTION_DELAYS: [SignedDuration; 5] = [
    SignedDuration::ZERO,
    SignedDuration::from_secs(10),
    SignedDuration::from_secs(30),
    SignedDuration::from_secs(90),
    SignedDuration::from_mins(5),
];
/// Maximum delay after a run that did not start because the state backend was unavailable.
const MAX_UNAVAILABLE: SignedDuration = SignedDuration::from_mins(5);
/// Divisor that limits the jitter after an exceeded rate limit to a quarter of the delay.
const RETRY_SPREAD_DIVISOR: i32 = 4;
/// Minimum of the maximum jitter after an exceeded rate limit.
const MIN_RETRY_SPREAD: SignedDuration = SignedDuration::from_secs(30);
/// Minimum backoff after the state backend has rejected the access token. A changed Secret starts a run earlier.
const MIN_INVALID_TOKEN: SignedDuration = SignedDuration::from_mins(10);
/// Maximum backoff after a Workspace has rejected a run.
const MAX_REFUSAL: SignedDuration = SignedDuration::from_secs(60);
/// Minimum of `resyncFrequencySeconds`.
pub const MIN_RESYNC: i64 = 60;

/// Intervals and backoff of a Stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackBackoff {
    /// Interval between two runs with the same inputs.
    pub resync: Option<SignedDuration>,
    /// Jitter that the controller adds to `resync`, positive or negative. The jitter distributes the runs of Stacks
    /// that were created simultaneously.
    pub jitter: SignedDuration,
    /// Constant delay between a failed run and its retry. Replaces the exponential backoff.
    retry: Option<SignedDuration>,
    max_backoff: SignedDuration,
    /// If true, a run that finds another update's lock does not increase the failure count.
    pub waits_for_locks: bool,
}

impl StackBackoff {
    /// Returns the backoff of a Stack. A deleted Stack has no resync interval. The controller does not repeat a
    /// successful destroy, and retries a failed destroy with backoff.
    pub fn of_stack(stack: &Stack) -> StackBackoff {
        let backoff = StackBackoff::of(&stack.spec);
        match stack.metadata.deletion_timestamp {
            Some(_) => StackBackoff { resync: None, ..backoff },
            None => backoff,
        }
    }

    /// Returns the backoff of a spec. Ignores invalid durations, because `build_workspace::check_times` rejects them
    /// before a run.
    pub fn of(spec: &StackSpec) -> StackBackoff {
        let max_backoff = spec.retry_max_backoff_duration_seconds.map(SignedDuration::from_secs);
        StackBackoff {
            resync: interval(spec.interval.as_deref()).or_else(|| pko_resync(spec)),
            jitter: SignedDuration::ZERO,
            retry: interval(spec.retry_interval.as_deref()),
            max_backoff: max_backoff.unwrap_or(MAX_BACKOFF).max(FIRST_BACKOFF),
            waits_for_locks: spec.retry_on_update_conflict.unwrap_or(true),
        }
    }

    /// Sets the jitter, which is at most `percentage` percent of `spec.interval`. The jitter depends on the name of the
    /// last Update, so all reconciliations until the next run use the same jitter. `resyncFrequencySeconds` has no
    /// jitter.
    #[must_use]
    pub fn with_jitter(self, percentage: u8, spec: &StackSpec, last: Option<&LastUpdate>) -> StackBackoff {
        let name = last.and_then(|last| last.name.as_deref());
        let jitter = match (interval(spec.interval.as_deref()), name) {
            (Some(interval), Some(name)) => {
                let parts = i128::from(position(name)) * i128::from(percentage);
                let milliseconds = interval.as_millis() * parts / (100 * -i128::from(i16::MIN));
                SignedDuration::from_millis(i64::try_from(milliseconds).unwrap_or_default())
            }
            _ => SignedDuration::ZERO,
        };
        StackBackoff { jitter, ..self }
    }

    /// Returns the delay after a failed run. If a server limits the number of requests, the delay contains a jitter,
    /// because the runs of other Stacks wait for the same time.
    pub fn delay_after(&self, last: &LastUpdate) -> SignedDuration {
        let delay = self.delay_after_reason(last);
        let Some(seconds) = last.retry_after_seconds else { return delay };
        let retry_after = SignedDuration::from_secs(seconds);
        let spread = (retry_after / RETRY_SPREAD_DIVISOR).max(MIN_RETRY_SPREAD).as_millis();
        let part = i128::from(position(last.name.as_deref().unwrap_or_default()).unsigned_abs());
        let jitter = spread * part / i128::from(i16::MIN.unsigned_abs());
        delay.max(retry_after + SignedDuration::from_millis(i64::try_from(jitter).unwrap_or_default()))
    }

    fn delay_after_reason(&self, last: &LastUpdate) -> SignedDuration {
        match last.reason.as_deref() {
            Some(stack_reason::UPDATE_CONFLICT) if self.waits_for_locks => delay_after_conflicts(last.conflicts),
            Some(update_reason::RUN_REFUSED) => self.backoff_after(last.failures).min(MAX_REFUSAL),
            // The Stack waits for another Stack, and not for the interval.
            Some(update_reason::DUPLICATE_STACK) => self.backoff_after(last.failures),
            Some(update_reason::ABORTED) => delay_after_interruptions(last.interruptions),
            Some(update_reason::BACKEND_UNAVAILABLE) => self.delay_after_failure(last.failures).min(MAX_UNAVAILABLE),
            Some(update_reason::INVALID_ACCESS_TOKEN) if self.retry.is_none() => {
                self.delay_after_failure(last.failures).max(MIN_INVALID_TOKEN)
            }
            _ => self.delay_after_failure(last.failures),
        }
    }

    fn delay_after_failure(&self, failures: i64) -> SignedDuration {
        match (self.retry, self.resync) {
            (Some(retry), _) => retry,
            // The interval is also the maximum backoff, so a failing Stack runs at least as often as a successful
            // Stack.
            (None, Some(resync)) => self.backoff_after(failures).min(resync),
            (None, None) => self.backoff_after(failures),
        }
    }

    /// Returns the backoff after this number of consecutive failures.
    fn backoff_after(&self, failures: i64) -> SignedDuration {
        let factor = u32::try_from(failures.saturating_sub(1).max(0))
            .ok()
            .and_then(|n| 3_i32.checked_pow(n))
            .unwrap_or(i32::MAX);
        let wait = FIRST_BACKOFF.checked_mul(factor).unwrap_or(self.max_backoff);
        wait.min(self.max_backoff)
    }
}

/// Returns a uniformly distributed number that depends only on the name of an Update.
fn position(name: &str) -> i16 {
    let [high, low, ..] = <[u8; 32]>::from(Sha256::digest(name));
    i16::from_be_bytes([high, low])
}

/// Parses a duration. Returns `None` if the duration is invalid or zero.
pub fn interval(text: Option<&str>) -> Option<SignedDuration> {
    let seconds = duration::seconds(text?).filter(|seconds| *seconds > 0)?;
    Some(SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX)))
}

/// Returns the resync interval from the fields that the Pulumi Kubernetes Operator also has.
fn pko_resync(spec: &StackSpec) -> Option<SignedDuration> {
    let seconds = spec.resync_frequency_seconds.unwrap_or_default().max(MIN_RESYNC);
    spec.continue_resync_on_commit_match.unwrap_or_default().then(|| SignedDuration::from_secs(seconds))
}

/// Returns whether the Workspace rejected the last run. A rejected run did not start.
pub fn was_refused(last: &LastUpdate) -> bool {
    last.reason.as_deref() == Some(update_reason::RUN_REFUSED)
}

/// Returns the delay after this number of consecutive runs that found the same lock.
fn delay_after_conflicts(conflicts: i64) -> SignedDuration {
    let doublings = u32::try_from(conflicts.saturating_sub(1).max(0)).unwrap_or(u32::MAX);
    let factor = 2_i32.checked_pow(doublings).unwrap_or(i32::MAX);
    let wait = FIRST_CONFLICT_RETRY.checked_mul(factor).unwrap_or(MAX_CONFLICT_RETRY);
    wait.min(MAX_CONFLICT_RETRY)
}

/// Returns the delay after this number of consecutive interruptions. The first retry is immediate, because a pod
/// eviction is not a program error. Later retries have a delay, so that repeated evictions of a pod do not overload the
/// cluster.
fn delay_after_interruptions(interruptions: i64) -> SignedDuration {
    let before = usize::try_from(interruptions.saturating_sub(1)).unwrap_or_default();
    let max_backoff = INTERRUPTION_DELAYS.last().copied().unwrap_or_default();
    INTERRUPTION_DELAYS.get(before).copied().unwrap_or(max_backoff)
}

#[cfg(test)]
mod tests;
