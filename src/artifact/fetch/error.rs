//! Errors of fetching an artifact. Messages contain the URL without user, password and query, which can be secret.

use std::time::Duration;

use super::super::digest::Digest;

/// The reason why an artifact could not be fetched. Callers that share one download share its error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("cannot set up artifact downloads: {why}")]
    Settings { why: String },
    #[error("the artifact's URL {url} cannot be used: {why}")]
    Url { url: String, why: String },
    #[error(
        "refused to fetch {url}: {host} is neither a Service in the controller's namespace nor an allowed artifact host; \
         --artifact-hosts allows more"
    )]
    RefusedHost { url: String, host: String },
    #[error(
        "refused to fetch {url} for namespace {namespace}: it is the artifact of a source in another namespace, and this \
         controller runs with --no-cross-namespace-refs"
    )]
    ForeignArtifact { url: String, namespace: String },
    #[error("{url} was not found (404): the source no longer serves this artifact, or does not serve it yet")]
    NotFound { url: String },
    #[error("{url} answered with status {status}{}", explain(*status, *retry_after))]
    Status { url: String, status: u16, retry_after: Option<Duration> },
    /// The server sent `Retry-After`, and that time is not reached yet.
    #[error("{error}")]
    Postponed { error: Box<FetchError>, left: Duration },
    /// The message omits the digest of the received bytes: a caller that may not read an artifact must not learn its digest.
    #[error("the {bytes} bytes of {url} do not have the digest that the source says, {wanted}")]
    DigestMismatch { url: String, wanted: Digest, bytes: u64 },
    #[error("{url} is larger than {limit} bytes, the most that is downloaded (--artifact-max-size)")]
    TooLarge { url: String, limit: u64 },
    #[error("cannot connect to fetch {url}: {cause}")]
    Connect { url: String, cause: String },
    #[error("fetching {url} was given up: {what} took more than {limit:?}")]
    Timeout { url: String, what: &'static str, limit: Duration },
    #[error("the connection broke after {received} bytes of {url}: {cause}")]
    Truncated { url: String, received: u64, cause: String },
    #[error("cannot keep artifact {digest}: {cause}")]
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
        (_, Some(wait)) => format!(" and asks to try again in {wait:?}"),
        _ => String::new(),
    }
}
