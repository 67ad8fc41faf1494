//! Errors of artifact downloads, and a record of the URLs whose server sent a `Retry-After` time. Error messages omit
//! the user name, password and query of a URL, because these parts can be secret.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use url::Url;

use super::super::digest::Digest;
use crate::mutual_tls::Failure;

/// The reason why fetching an artifact failed. All callers that share a download receive the same error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("failed to set up artifact downloads: {why}")]
    Settings { why: String },
    #[error("invalid artifact URL {url}: {why}")]
    Url { url: String, why: String },
    #[error(
        "rejected artifact URL {url}: {host} is neither a Service in the controller's namespace nor allowed by --artifact-hosts"
    )]
    RefusedHost { url: String, host: String },
    #[error(
        "rejected artifact URL {url} for namespace {namespace}: the source of the artifact is in another namespace, and \
         --no-cross-namespace-refs is set"
    )]
    ForeignArtifact { url: String, namespace: String },
    #[error(
        "failed to fetch {url}: not found (HTTP 404): the server has deleted the artifact, or does not serve it yet"
    )]
    NotFound { url: String },
    #[error("failed to fetch {url}: HTTP status {status}{}", explain(*status, *retry_after))]
    Status { url: String, status: u16, retry_after: Option<Duration> },
    /// The controller sent no request, because the `Retry-After` time in an earlier response has not passed yet.
    #[error("{error}")]
    Postponed { error: Box<FetchError>, left: Duration },
    /// The message omits the digest of the received bytes. Otherwise, a caller without permission to read an artifact
    /// could learn the artifact's digest.
    #[error("failed to verify the artifact at {url}: its {bytes} bytes do not match the digest {expected}")]
    DigestMismatch { url: String, expected: Digest, bytes: u64 },
    #[error("failed to fetch {url}: artifact exceeds the limit of {limit} bytes (--artifact-max-size)")]
    TooLarge { url: String, limit: u64 },
    #[error("failed to fetch {url}: connection failed: {cause}")]
    Connect { url: String, cause: String },
    /// The server does not have an authorized SPIFFE ID, or the client and the server do not both use mutual TLS.
    #[error("failed to fetch {url}: {failure}")]
    MutualTls { url: String, failure: Failure },
    #[error("failed to fetch {url}: {what} timed out after {limit:?}")]
    Timeout { url: String, what: &'static str, limit: Duration },
    #[error("failed to fetch {url}: connection closed after {received} bytes: {cause}")]
    Truncated { url: String, received: u64, cause: String },
    #[error("failed to store artifact {digest}: {cause}")]
    Store { digest: Digest, cause: String },
}

impl FetchError {
    /// Returns the remaining time before a retry, or `None` if the server sent no `Retry-After` header.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            FetchError::Status { retry_after, .. } => *retry_after,
            FetchError::Postponed { left, .. } => Some(*left),
            _ => None,
        }
    }

    /// Returns whether the content of the response is wrong or too large. If so, a retry is unlikely to succeed.
    pub fn is_about_content(&self) -> bool {
        matches!(self, FetchError::DigestMismatch { .. } | FetchError::TooLarge { .. })
    }
}

fn explain(status: u16, retry_after: Option<Duration>) -> String {
    match (status, retry_after) {
        (300..=399, _) => ": redirects are not followed".to_owned(),
        (_, Some(wait)) => format!(", retrying after {wait:?}"),
        _ => String::new(),
    }
}

/// Maximum delay that the controller accepts from a `Retry-After` header. Without this maximum, a server could block
/// downloads for days.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Maximum number of URLs for which [`RetryAfter`] records an error. An additional URL replaces the URL with the
/// earliest retry time.
const MAX_URLS: usize = 1024;

/// Maps each URL whose `Retry-After` time has not passed yet to the error of the last request. Until the `Retry-After`
/// time passes, the fetcher returns this error and sends no request to the URL.
#[derive(Debug, Default)]
pub(super) struct RetryAfter {
    requests: Mutex<HashMap<Url, Postponement>>,
}

#[derive(Clone, Debug)]
struct Postponement {
    until: Instant,
    error: FetchError,
}

impl RetryAfter {
    /// Records `error` for `url` if the error contains a `Retry-After` time.
    pub(super) fn record(&self, url: &Url, error: &FetchError) {
        let Some(wait) = error.retry_after().filter(|wait| !wait.is_zero()) else { return };
        let now = Instant::now();
        let mut requests = self.lock();
        requests.retain(|_, request| request.until > now);
        if requests.len() >= MAX_URLS {
            let first = requests.iter().min_by_key(|(_, request)| request.until).map(|(url, _)| url.clone());
            first.map(|url| requests.remove(&url));
        }
        requests.insert(url.clone(), Postponement { until: now + wait.min(MAX_RETRY_AFTER), error: error.clone() });
    }

    /// Returns the recorded error if the `Retry-After` time for the URL has not passed yet.
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Url, Postponement>> {
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
    async fn no_url_is_requested_before_its_bounded_retry_after_expires() {
        let postponed = RetryAfter::default();
        postponed.record(&url(1), &busy(30));
        postponed.record(&url(2), &busy(100_000));
        tokio::time::advance(Duration::from_secs(10)).await;
        let error = postponed.refusal(&url(1)).unwrap();
        assert_eq!(error.to_string(), busy(30).to_string(), "the message does not change");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(20)));
        assert_eq!(postponed.refusal(&url(2)).and_then(|error| error.retry_after()), Some(Duration::from_secs(590)));
        assert_eq!(postponed.refusal(&url(3)), None);
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(postponed.refusal(&url(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_recorded_urls_is_bounded() {
        let postponed = RetryAfter::default();
        for number in 0..=MAX_URLS {
            postponed.record(&url(number), &busy(10 + number as u64 / 4));
        }
        assert_eq!(postponed.lock().len(), MAX_URLS);
        assert!(postponed.refusal(&url(MAX_URLS)).is_some());
        tokio::time::advance(MAX_RETRY_AFTER).await;
        postponed.record(&url(0), &busy(1));
        assert_eq!(postponed.lock().len(), 1, "expired entries are removed");
    }
}
