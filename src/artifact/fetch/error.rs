//! Why an artifact could not be fetched. Messages carry the URL without what may be secret in it.

use std::time::Duration;

use super::super::digest::Digest;

/// Why an artifact could not be fetched. Callers that waited for one download share its error.
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
    /// The server asked for patience and is not asked again before its time.
    #[error("{error}")]
    Postponed { error: Box<FetchError>, left: Duration },
    /// Not the digest that they have: who may not read an artifact shall not learn by what it can be had.
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
    /// How long the server still is to be left alone, where it asked for that.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            FetchError::Status { retry_after, .. } => *retry_after,
            FetchError::Postponed { left, .. } => Some(*left),
            _ => None,
        }
    }

    /// Whether the whole artifact was sent and is not what the source says: the next download will hardly be better.
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
