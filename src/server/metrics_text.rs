//! Encodes the metrics for `/metrics`. Any client in the network can request the metrics without authentication, and
//! the text contains several series for each Stack. Concurrent requests therefore share one text.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::telemetry::metrics::Metrics;

/// Time for which new requests receive the last text.
const KEPT: Duration = Duration::from_secs(1);
/// Maximum number of texts in memory. While slow clients read this number of texts, further requests receive the newest
/// of these texts.
const MAX_TEXTS: usize = 2;

/// Reason why the metrics could not be encoded.
#[derive(Debug, thiserror::Error)]
pub(super) enum EncodeError {
    #[error(transparent)]
    Format(#[from] std::fmt::Error),
    #[error("the task that encodes the metrics failed")]
    Task,
}

/// Encodes the metrics, one request at a time. Cheap to clone.
#[derive(Clone)]
pub(super) struct MetricsText {
    metrics: Metrics,
    /// Permits for the texts in memory.
    permits: Arc<Semaphore>,
    last: Arc<Mutex<Last>>,
}

/// The last text. The lock is held while the metrics are encoded.
#[derive(Default)]
struct Last {
    /// The last text for the duration [`KEPT`], even if no client reads it.
    kept: Option<Arc<Text>>,
    /// The last text while a client reads it.
    newest: Weak<Text>,
}

/// The text and its permit.
struct Text {
    content: Box<str>,
    _permit: OwnedSemaphorePermit,
}

/// A client's reference to a text.
struct Shared(Arc<Text>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.content.as_bytes()
    }
}

impl MetricsText {
    pub(super) fn new(metrics: Metrics) -> Self {
        MetricsText { metrics, permits: Arc::new(Semaphore::new(MAX_TEXTS)), last: Arc::default() }
    }

    /// Returns the metrics as OpenMetrics text. All clients that receive the same text share one buffer.
    pub(super) async fn read(&self) -> Result<Bytes, EncodeError> {
        Ok(Bytes::from_owner(Shared(self.text().await?)))
    }

    async fn text(&self) -> Result<Arc<Text>, EncodeError> {
        let mut last = self.last.clone().lock_owned().await;
        if let Some(kept) = &last.kept {
            return Ok(kept.clone());
        }
        let permit = match (last.newest.upgrade(), self.permits.clone().try_acquire_owned()) {
            (_, Ok(permit)) => permit,
            (Some(newest), Err(_)) => return Ok(newest),
            // The newest text is being dropped, so its permit becomes free immediately.
            (None, Err(_)) => self.permits.clone().acquire_owned().await.map_err(|_| EncodeError::Task)?,
        };
        let (metrics, shared) = (self.metrics.clone(), self.last.clone());
        // The thread holds the lock, because the encoding continues even if the client closes the connection.
        let encode = tokio::task::spawn_blocking(move || {
            let text = Arc::new(Text { content: metrics.encode()?.into_boxed_str(), _permit: permit });
            (last.kept, last.newest) = (Some(text.clone()), Arc::downgrade(&text));
            tokio::spawn(async move {
                tokio::time::sleep(KEPT).await;
                shared.lock().await.kept = None;
            });
            Ok::<_, EncodeError>(text)
        });
        encode.await.unwrap_or(Err(EncodeError::Task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until the last text is no longer kept.
    async fn outdate() {
        tokio::time::sleep(KEPT + Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_and_immediately_following_requests_share_one_text() {
        let metrics = Metrics::default();
        metrics.runs().count(1, 0);
        let texts = MetricsText::new(metrics.clone());
        let concurrent = futures::future::join_all((0..32).map(|_| texts.text())).await;
        let first = texts.text().await.unwrap();
        assert!(concurrent.iter().all(|text| Arc::ptr_eq(text.as_ref().unwrap(), &first)));
        metrics.runs().count(2, 0);
        outdate().await;
        let content = texts.read().await.unwrap();
        assert!(content.ends_with(b"# EOF\n"));
        assert!(String::from_utf8_lossy(&content).contains("pulumi_controller_runs_open 2\n"));
        assert!(first.content.contains("pulumi_controller_runs_open 1\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_clients_hold_a_limited_number_of_texts() {
        let texts = MetricsText::new(Metrics::default());
        let oldest = texts.text().await.unwrap();
        outdate().await;
        let newest = texts.text().await.unwrap();
        assert!(!Arc::ptr_eq(&oldest, &newest));
        outdate().await;
        for _ in 0..3 {
            assert!(Arc::ptr_eq(&texts.text().await.unwrap(), &newest));
        }
        drop(oldest);
        let next = texts.text().await.unwrap();
        assert!(!Arc::ptr_eq(&next, &newest));
        drop((newest, next));
        outdate().await;
        assert_eq!(texts.permits.available_permits(), MAX_TEXTS, "no text stays in memory");
    }

    #[tokio::test(start_paused = true)]
    async fn a_canceled_request_does_not_permit_a_concurrent_encoding() {
        let texts = MetricsText::new(Metrics::default());
        for _ in 0..5 {
            let mut canceled = Box::pin(texts.text());
            let _ = futures::poll!(&mut canceled);
        }
        texts.text().await.unwrap();
        assert_eq!(texts.permits.available_permits(), MAX_TEXTS - 1, "only one text exists");
    }
}
