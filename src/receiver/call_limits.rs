//! Limits for webhook calls: rate limits for calls per receiver and per namespace, rate limits for events and Secret
//! reads per receiver, and a maximum number of delayed responses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::api::pulumi::{NoToken, ReceiverToken};

/// Minimum interval between two events for a receiver. The interval prevents callers from flooding the API server with
/// events.
pub(super) const EVENT_INTERVAL: Duration = Duration::from_secs(60);

/// The limits for calls to a receiver, with their state. A change to the StackReceiver does not reset the state. Hold
/// the mutexes only for short critical sections, and never across an `.await`.
#[derive(Debug)]
pub struct CallLimits {
    calls: RateLimit,
    /// Rate limit that all receivers of the namespace share.
    calls_of_namespace: Arc<RateLimit>,
    last_event: Mutex<Option<Instant>>,
    pub token_reads: TokenReads,
}

impl CallLimits {
    pub fn new(calls_of_namespace: Arc<RateLimit>, now: Instant) -> Self {
        CallLimits {
            calls: RateLimit::new(RECEIVER_RATE, now),
            calls_of_namespace,
            last_event: Mutex::default(),
            token_reads: TokenReads::default(),
        }
    }

    /// Counts an authenticated call.
    ///
    /// # Errors
    /// Returns an error if the rate limit of the receiver does not permit the call.
    pub fn count_call(&self, now: Instant) -> Result<(), RateExceeded> {
        self.calls.take(now).then_some(()).ok_or(RateExceeded::Receiver)
    }

    /// Counts an authenticated call that requests runs. An ignored event causes neither a list nor a write, so the
    /// ignored events of one receiver must not exhaust the rate limit that all receivers of the namespace share.
    ///
    /// # Errors
    /// Returns an error if the rate limit of the namespace does not permit the call.
    pub fn count_run_request(&self, now: Instant) -> Result<(), RateExceeded> {
        self.calls_of_namespace.take(now).then_some(()).ok_or(RateExceeded::Namespace)
    }

    /// Returns whether the handler may publish an event now. The handler may publish the next event [`EVENT_INTERVAL`]
    /// after the last event.
    pub fn may_publish(&self, now: Instant) -> bool {
        let mut last = self.last_event.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = last.is_none_or(|last| now.saturating_duration_since(last) >= EVENT_INTERVAL);
        if is_time {
            *last = Some(now);
        }
        is_time
    }
}

/// Rate limit that a call exceeds.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RateExceeded {
    #[error("rate limit exceeded: 1 call per second with a burst of {}", RECEIVER_RATE.burst)]
    Receiver,
    #[error("rate limit of the namespace exceeded: 5 calls per second with a burst of {}", NAMESPACE_RATE.burst)]
    Namespace,
}

/// Burst and constant rate of a rate limit.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Maximum number of calls in a burst.
    burst: u32,
    /// Interval at which the rate limit permits an additional call.
    interval: Duration,
}

/// Rate of the calls to one receiver. The burst permits, for example, a push of several branches.
const RECEIVER_RATE: Rate = Rate { burst: 20, interval: Duration::from_secs(1) };
/// Rate of the calls to all receivers of a namespace that request runs. The number of receivers is not limited.
const NAMESPACE_RATE: Rate = Rate { burst: 100, interval: Duration::from_millis(200) };

/// Rate limit for calls, with a burst and a constant rate. Hold the mutex only for short critical sections, and never
/// across an `.await`.
#[derive(Debug)]
pub struct RateLimit {
    rate: Rate,
    state: Mutex<RateState>,
}

#[derive(Debug)]
struct RateState {
    remaining: u32,
    refilled: Instant,
}

impl RateLimit {
    /// Creates the rate limit that all receivers of a namespace share.
    pub fn of_namespace(now: Instant) -> Self {
        Self::new(NAMESPACE_RATE, now)
    }

    fn new(rate: Rate, now: Instant) -> Self {
        RateLimit { rate, state: Mutex::new(RateState { remaining: rate.burst, refilled: now }) }
    }

    /// Counts a call. Returns `false` if the call exceeds the rate limit.
    fn take(&self, now: Instant) -> bool {
        let Rate { burst, interval } = self.rate;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(state.refilled).as_millis() / interval.as_millis();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        // Keeps the elapsed part of the current interval, so that this time counts toward the next permit.
        state.refilled += interval * passed;
        state.remaining = state.remaining.saturating_add(passed).min(burst);
        let allowed = state.remaining > 0;
        state.remaining -= u32::from(allowed);
        allowed
    }
}

/// Minimum interval between the starts of two Secret reads.
const READ_INTERVAL: Duration = Duration::from_millis(50);

type TokenResult = Result<ReceiverToken, NoToken>;

/// Limits how often the handler reads a receiver's Secret, because any client that knows the path can cause reads.
/// Concurrent calls share a read. The interval between the starts of two reads is at least `READ_INTERVAL`. A shared
/// read starts after all its calls have arrived, so no call uses an outdated token. Clones are cheap and share the
/// state.
#[derive(Clone, Debug, Default)]
pub struct TokenReads(Arc<Mutex<PendingReads>>);

#[derive(Debug, Default)]
struct PendingReads {
    /// The next read, which has not started yet.
    next: Option<Shared<BoxFuture<'static, TokenResult>>>,
    last_start: Option<Instant>,
}

impl TokenReads {
    /// Returns the receiver's token. Joins the next read, or calls `read` after the minimum interval.
    pub async fn read<F>(&self, read: impl FnOnce() -> F + Send + 'static) -> TokenResult
    where
        F: Future<Output = TokenResult> + Send + 'static,
    {
        let next = {
            let mut state = self.lock();
            let start = state.last_start.map_or_else(Instant::now, |last| last + READ_INTERVAL);
            state.next.get_or_insert_with(|| self.clone().start_at(start, read).boxed().shared()).clone()
        };
        next.await
    }

    async fn start_at<F>(self, start: Instant, read: impl FnOnce() -> F + Send) -> TokenResult
    where
        F: Future<Output = TokenResult> + Send,
    {
        tokio::time::sleep_until(start).await;
        {
            let mut state = self.lock();
            state.next = None;
            state.last_start = Some(Instant::now());
        }
        read().await
    }

    fn lock(&self) -> MutexGuard<'_, PendingReads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum number of delayed responses. The listener accepts more connections than this maximum, so that delayed
/// responses cannot occupy all connections.
pub(super) const MAX_DELAYED_REFUSALS: usize = 64;

/// Delays the responses to rejected calls. While the maximum number of responses is waiting, the handler sends further
/// responses immediately.
#[derive(Debug)]
pub struct DelayedRefusals(Semaphore);

impl Default for DelayedRefusals {
    fn default() -> Self {
        DelayedRefusals(Semaphore::new(MAX_DELAYED_REFUSALS))
    }
}

impl DelayedRefusals {
    /// Waits until the time `response`. Returns immediately if the maximum number of responses is already waiting.
    pub async fn wait_until(&self, response: Instant) {
        if let Ok(_permit) = self.0.try_acquire() {
            tokio::time::sleep_until(response).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn twenty_calls_are_allowed_immediately_and_then_one_call_per_second() {
        let begin = Instant::now();
        let limit = RateLimit::new(RECEIVER_RATE, begin);
        let take = |milliseconds: u64| limit.take(begin + Duration::from_millis(milliseconds));
        assert!((0..20).all(|_| take(0)));
        let rows = [(0, false), (999, false), (1000, true), (1900, false), (2000, true), (2000, false), (2999, false)];
        for (milliseconds, expected) in rows {
            assert_eq!(take(milliseconds), expected, "after {milliseconds} ms");
        }
        assert!((0..20).all(|_| take(3_600_000)), "an hour restores the full burst");
        assert!(!take(3_600_000), "the burst is limited");
    }

    #[test]
    fn the_receivers_of_a_namespace_share_a_rate_limit() {
        let begin = Instant::now();
        let namespace = Arc::new(RateLimit::of_namespace(begin));
        let receivers: Vec<CallLimits> = (0..6).map(|_| CallLimits::new(namespace.clone(), begin)).collect();
        let (last, others) = receivers.split_last().expect("not empty");
        let request =
            |limits: &CallLimits, now: Instant| limits.count_call(now).and_then(|()| limits.count_run_request(now));
        for receiver in others {
            assert!((0..20).all(|_| request(receiver, begin).is_ok()));
            assert_eq!(request(receiver, begin), Err(RateExceeded::Receiver));
        }
        let at = |milliseconds: u64| request(last, begin + Duration::from_millis(milliseconds));
        let exceeded = Err(RateExceeded::Namespace);
        let rows = [(0, exceeded), (199, exceeded), (200, Ok(())), (399, exceeded), (600, Ok(())), (600, Ok(()))];
        for (milliseconds, expected) in rows {
            assert_eq!(at(milliseconds), expected, "after {milliseconds} ms");
        }
        let other = CallLimits::new(Arc::new(RateLimit::of_namespace(begin)), begin);
        assert_eq!(request(&other, begin), Ok(()), "another namespace has its own rate limit");
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_calls_share_one_read_that_starts_after_their_arrival() {
        let (reads, count) = (TokenReads::default(), Arc::new(AtomicUsize::new(0)));
        let read = || {
            let (reads, count) = (reads.clone(), count.clone());
            let result = move || async move {
                let number = count.fetch_add(1, Ordering::Relaxed) + 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(ReceiverToken::from(number.to_string().as_bytes()))
            };
            async move { reads.read(result).await }
        };
        let token = |number: usize| Ok(ReceiverToken::from(number.to_string().as_bytes()));
        let begin = Instant::now();
        assert_eq!(read().await, token(1));
        assert_eq!(begin.elapsed(), Duration::from_millis(10), "the first read does not wait");
        let shared = futures::future::join_all((0..100).map(|_| read())).await;
        assert!(shared.iter().all(|result| *result == token(2)), "{}", count.load(Ordering::Relaxed));
        let first = tokio::spawn(read());
        tokio::time::sleep(Duration::from_millis(55)).await;
        // This call does not share the third read, because the third read is already in progress and can return an
        // outdated token.
        assert_eq!(read().await, token(4));
        assert_eq!(first.await.unwrap(), token(3));
        assert_eq!(begin.elapsed(), Duration::from_millis(3 * 50 + 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_canceled_caller_does_not_block_other_callers() {
        let reads = TokenReads::default();
        let result = || async { Err(NoToken::Unreadable("no".to_owned())) };
        drop(reads.read(result).await);
        let gone = tokio::time::timeout(Duration::from_millis(1), reads.read(result)).await;
        assert!(gone.is_err(), "the call waits for the interval");
        let read = tokio::time::timeout(Duration::from_secs(1), reads.read(result)).await;
        assert!(matches!(read, Ok(Err(NoToken::Unreadable(_)))), "{read:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_limited_number_of_rejected_calls_is_delayed() {
        let (delays, begin) = (DelayedRefusals::default(), Instant::now());
        let delay = Duration::from_millis(250);
        let calls = (0..MAX_DELAYED_REFUSALS + 10).map(|_| async {
            delays.wait_until(begin + delay).await;
            begin.elapsed()
        });
        let waited = futures::future::join_all(calls).await;
        assert_eq!(waited.iter().filter(|waited| **waited == delay).count(), MAX_DELAYED_REFUSALS);
        assert_eq!(waited.iter().filter(|waited| waited.is_zero()).count(), 10);
        delays.wait_until(Instant::now() + delay).await;
        assert_eq!(begin.elapsed(), 2 * delay, "the next call is delayed again");
    }
}
