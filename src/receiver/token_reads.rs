//! Reads of the Secret of a receiver. Any client that knows the path can cause a read, so concurrent calls share one read, and
//! reads have a minimum interval. A read starts after all calls that it serves have arrived, so the token is never outdated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::time::Instant;

use crate::api::pulumi::{NoToken, ReceiverToken};

/// Minimum time between the starts of two reads.
const INTERVAL: Duration = Duration::from_millis(50);

type TokenResult = Result<ReceiverToken, NoToken>;

/// Reads of one receiver. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TokenReads(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The next read, which has not started yet.
    next: Option<Shared<BoxFuture<'static, TokenResult>>>,
    last_start: Option<Instant>,
}

impl TokenReads {
    /// Reads the token, sharing the read with other waiting calls. `read` is called at most once.
    pub async fn read<F>(&self, read: impl FnOnce() -> F + Send + 'static) -> TokenResult
    where
        F: Future<Output = TokenResult> + Send + 'static,
    {
        let next = {
            let mut state = self.lock();
            let start = state.last_start.map_or_else(Instant::now, |last| last + INTERVAL);
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_calls_share_one_read_that_starts_after_them() {
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
        assert_eq!(begin.elapsed(), Duration::from_millis(10), "the first one does not wait");
        let shared = futures::future::join_all((0..100).map(|_| read())).await;
        assert!(shared.iter().all(|result| *result == token(2)), "{}", count.load(Ordering::Relaxed));
        let first = tokio::spawn(read());
        tokio::time::sleep(Duration::from_millis(55)).await;
        // The third read is in progress; its result may be older than this call.
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
        assert!(gone.is_err(), "it waits for the interval");
        let read = tokio::time::timeout(Duration::from_secs(1), reads.read(result)).await;
        assert!(matches!(read, Ok(Err(NoToken::Unreadable(_)))), "{read:?}");
    }
}
