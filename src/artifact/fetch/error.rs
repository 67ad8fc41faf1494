//! Errors of fetching an artifact. Messages contain the URL without user, password and query, which can be secret.

use std::time::Duration;

use super::super::digest::Digest;

/// The reason why an artifact could not be fetched. Callers that share one download share its error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("failed to set up artifact downloads: {why}")]
    Settings { why: String },
    #[error("invalid artifact URL {url}: {why}")]
    Url { url: String, why: String },
    #[error(
        "refused to fetch {url}: {host} is neither a Service in the controller's namespace nor allowed by --artifact-hosts"
    )]
    RefusedHost { url: String, host: String },
    #[error(
        "refused to fetch {url} for namespace {namespace}: the artifact belongs to a source in another namespace, and \
         --no-cross-namespace-refs is set"
    )]
    ForeignArtifact { url: String, namespace: String },
    #[error(
        "failed to fetch {url}: not found (HTTP 404): the source no longer serves the artifact, or does not serve it yet"
    )]
    NotFound { url: String },
    #[error("failed to fetch {url}: HTTP status {status}{}", explain(*status, *retry_after))]
    Status { url: String, status: u16, retry_after: Option<Duration> },
    /// The server sent `Retry-After`, and that time is not reached yet.
    #[error("{error}")]
    Postponed { error: Box<FetchError>, left: Duration },
    /// The message omits the digest of the received bytes: a caller that may not read an artifact must not learn its digest.
    #[error("failed to verify {url}: its {bytes} bytes do not match the digest {expected}")]
    DigestMismatch { url: String, expected: Digest, bytes: u64 },
    #[error("failed to fetch {url}: it exceeds the limit of {limit} bytes (--artifact-max-size)")]
    TooLarge { url: String, limit: u64 },
    #[error("failed to fetch {url}: connection failed: {cause}")]
    Connect { url: String, cause: String },
    #[error("failed to fetch {url}: {what} timed out after {limit:?}")]
    Timeout { url: String, what: &'static str, limit: Duration },
    #[error("failed to fetch {url}: connection closed after {received} bytes: {cause}")]
    Truncated { url: String, received: u64, cause: String },
    #[error("failed to store artifact {digest}: {cause}")]
    Store { digest: Digest, cause: String },
}

impl FetchError {
    /// Remaining time until the server accepts a retry, if it sent `Retry-After`.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            FetchError::Status { retry_after, .. } => *retry_after,
            FetchError::Postponed { left, .. } => Some(*left),
            _ => None,
        }
    }

    /// Returns whether the server sent a complete response that does not match the source. A retry is unlikely to succeed.
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
