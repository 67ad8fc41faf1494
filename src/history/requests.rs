//! Limits the duration of storage requests, and the number of threads that a volume can block.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::sync::Semaphore;

use super::error::HistoryError;

/// Timeout of each request, including its retries.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent operations on a volume per set of permits. The maximum exceeds the number of runs and
/// files that the controller transfers concurrently.
const MAX_OPERATIONS: usize = 16;

/// Sends requests to the storage. Clones share the permits.
#[derive(Clone, Default)]
pub(super) struct Requests {
    /// Permits for operations on a volume. `None` for object storage.
    operations: Option<Arc<Semaphore>>,
}

impl Requests {
    /// Creates an instance for a volume. A file system operation cannot be canceled. If the volume does not respond,
    /// the operation blocks its thread even after the timeout.
    pub(super) fn of_volume() -> Self {
        Requests { operations: Some(Arc::new(Semaphore::new(MAX_OPERATIONS))) }
    }

    /// Creates an instance for the same storage with separate permits, so that the operations of one instance cannot
    /// use all permits of the other instance.
    pub(super) fn with_separate_permits(&self) -> Self {
        if self.operations.is_some() { Requests::of_volume() } else { Requests::default() }
    }

    /// Sends a request. On a volume, the request holds a permit until the file system operation completes, even after
    /// the timeout. If no permit is free, returns the timeout error immediately.
    pub(super) async fn send<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, HistoryError> {
        let timeout = || HistoryError::Timeout(TIMEOUT);
        let Some(operations) = &self.operations else {
            return tokio::time::timeout(TIMEOUT, request).await.map_err(|_| timeout());
        };
        let permit = operations.clone().try_acquire_owned().map_err(|_| timeout())?;
        let operation = tokio::spawn(async move {
            let _permit = permit;
            request.await
        });
        // An operation returns no result before the timeout only if the operation panics or the process exits.
        match tokio::time::timeout(TIMEOUT, operation).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) | Err(_) => Err(timeout()),
        }
    }

    /// Returns the stream's next item and the rest of the stream, or `None` at the end of the stream.
    pub(super) async fn next<S>(&self, mut stream: S) -> Result<Option<(S::Item, S)>, HistoryError>
    where
        S: Stream<Item: Send + 'static> + Send + Unpin + 'static,
    {
        let next = async move {
            let item = stream.next().await?;
            Some((item, stream))
        };
        self.send(next).await
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_limited_number_of_operations_blocks_threads_of_a_volume() {
        for (requests, is_limited) in [(Requests::of_volume(), true), (Requests::default(), false)] {
            let (release, released) = watch::channel(false);
            for _ in 0..MAX_OPERATIONS {
                let mut released = released.clone();
                let hung = requests.send(async move { released.wait_for(|is_released| *is_released).await.is_ok() });
                assert!(matches!(hung.await, Err(HistoryError::Timeout(_))));
            }
            let started = Instant::now();
            assert_eq!(requests.send(async {}).await.is_err(), is_limited);
            assert_eq!(requests.clone().send(async {}).await.is_err(), is_limited, "clones share the permits");
            requests.with_separate_permits().send(async {}).await.unwrap();
            assert_eq!(started.elapsed(), Duration::ZERO);
            release.send_replace(true);
            tokio::time::sleep(Duration::from_secs(1)).await;
            requests.send(async {}).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_stream_is_read_item_by_item() {
        for requests in [Requests::of_volume(), Requests::default()] {
            let (mut stream, mut items) = (futures::stream::iter(1..=50), Vec::new());
            while let Some((item, rest)) = requests.next(stream).await.unwrap() {
                items.push(item);
                stream = rest;
            }
            assert_eq!(items, (1..=50).collect::<Vec<i32>>());
        }
    }
}
