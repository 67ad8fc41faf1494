//! Remembers `Retry-After` responses by URL.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use url::Url;

use super::error::FetchError;

/// Upper bound for `Retry-After`, so that a server cannot block downloads for days.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Maximum number of remembered URLs. Beyond that, the URL with the earliest retry time is forgotten.
const MAX_URLS: usize = 1024;

/// URLs that must not be requested before a given time. Until then, callers receive the original error of the server.
#[derive(Debug, Default)]
pub(super) struct RetryAfter {
    requests: Mutex<HashMap<Url, ServerRequest>>,
}

#[derive(Clone, Debug)]
struct ServerRequest {
    until: Instant,
    error: FetchError,
}

impl RetryAfter {
    /// Records the error if it contains a `Retry-After` time.
    pub(super) fn note(&self, url: &Url, error: &FetchError) {
        let Some(wait) = error.retry_after().filter(|wait| !wait.is_zero()) else { return };
        let now = Instant::now();
        let mut requests = self.lock();
        requests.retain(|_, request| request.until > now);
        if requests.len() >= MAX_URLS {
            let first = requests.iter().min_by_key(|(_, request)| request.until).map(|(url, _)| url.clone());
            first.map(|url| requests.remove(&url));
        }
        requests.insert(url.clone(), ServerRequest { until: now + wait.min(MAX_RETRY_AFTER), error: error.clone() });
    }

    /// Returns the recorded error if the URL must not be requested yet.
    pub(super) fn refusal(&self, url: &Url) -> Option<FetchError> {
        let mut requests = self.lock();
        let request = requests.get(url)?;
        let left = request.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            requests.remove(url);
            return None;
        }
        Some(FetchError::Postponed { error: Box::new(request.error.clone()), left })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Url, ServerRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(number: usize) -> Url {
        format!("http://source/{number}").parse().unwrap()
    }

    fn busy(seconds: u64) -> FetchError {
        let retry_after = Some(Duration::from_secs(seconds));
        FetchError::Status { url: "http://source/".to_owned(), status: 503, retry_after }
    }

    #[tokio::test(start_paused = true)]
    async fn a_url_is_not_requested_until_its_bounded_retry_after_has_passed() {
        let postponed = RetryAfter::default();
        postponed.note(&url(1), &busy(30));
        postponed.note(&url(2), &busy(100_000));
        tokio::time::advance(Duration::from_secs(10)).await;
        let error = postponed.refusal(&url(1)).unwrap();
        assert_eq!(error.to_string(), busy(30).to_string(), "the message does not change over time");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(20)));
        assert_eq!(postponed.refusal(&url(2)).and_then(|error| error.retry_after()), Some(Duration::from_secs(590)));
        assert_eq!(postponed.refusal(&url(3)), None);
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(postponed.refusal(&url(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_urls_is_bounded() {
        let postponed = RetryAfter::default();
        for number in 0..=MAX_URLS {
            postponed.note(&url(number), &busy(10 + number as u64 / 4));
        }
        assert_eq!(postponed.lock().len(), MAX_URLS);
        assert!(postponed.refusal(&url(MAX_URLS)).is_some());
        tokio::time::advance(MAX_RETRY_AFTER).await;
        postponed.note(&url(0), &busy(1));
        assert_eq!(postponed.lock().len(), 1, "expired entries are removed");
    }
}
