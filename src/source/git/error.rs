//! Errors of repository reads. The errors contain no credentials.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::artifact::{PackError, StoreError};
use crate::subprocess::Failure;

/// The reason why reading a repository failed. Child processes return this error in their responses.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum GitError {
    #[error("server is unreachable: {0}")]
    Unreachable(String),
    #[error("{what} timed out after {} s", limit.as_secs())]
    TimedOut { what: Cow<'static, str>, limit: Duration },
    #[error("server is too slow: it sent less than {bytes} bytes in {} s", window.as_secs())]
    TooSlow { bytes: u64, window: Duration },
    #[error(
        "server requires credentials ({0}): set spec.gitAuth or spec.gitAuthSecret of the Stack, or spec.git.auth of the \
         Workspace; some servers also require credentials if the repository does not exist"
    )]
    CredentialsMissing(String),
    #[error(
        "server rejected the credentials ({0}): they are invalid, have expired, or do not allow reading the repository"
    )]
    CredentialsRefused(String),
    #[error(
        "server rejected the access token ({0}): it is invalid, has expired, or does not allow reading the repository; \
         some servers also require a user name or a bearer token: set spec.gitAuth.basicAuth, or username and password, \
         or bearerToken in the Secret of spec.gitAuthSecret"
    )]
    TokenRefused(String),
    #[error("repository not found, or not accessible with these credentials ({0})")]
    NotFound(String),
    #[error("server responded with HTTP status {0}")]
    Status(u16),
    #[error("server limits the rate of requests (HTTP {status}): retrying after {} s", after.as_secs())]
    Busy { status: u16, after: Duration },
    #[error("{0}")]
    HostKey(String),
    /// The server has a loopback, link-local or unspecified address, or the host name of a proxy.
    #[error("{0}")]
    Address(String),
    /// The credentials are invalid or do not exist, or the controller has no permission to read the Secret.
    #[error("{0}")]
    Credentials(String),
    /// The controller temporarily cannot read a Secret or get a token.
    #[error("{0}")]
    CredentialsUnavailable(String),
    #[error("{0}")]
    Reference(String),
    #[error("repository is empty: push a commit")]
    Empty,
    #[error("{what} exceeds the limit of {limit} bytes")]
    TooLarge { what: Cow<'static, str>, limit: u64 },
    #[error("artifact exceeds the limit of {limit} bytes (--artifact-max-size)")]
    ArtifactTooLarge { limit: u64 },
    #[error(
        "repository has {found} objects, which exceeds the limit of {limit}: set spec.shallow to true, or split the repository"
    )]
    TooManyObjects { found: u32, limit: u32 },
    #[error("Git protocol error: {0}")]
    Protocol(String),
    #[error("failed to pack commit {commit}: {why}")]
    Content { commit: String, why: String },
    #[error("{0}")]
    Pack(String),
    #[error("failed to access {directory}: {cause}")]
    Disk { directory: String, cause: String },
    #[error(
        "queue for fetch slots is full: {waiting} other repositories of the same namespace are waiting; retrying with backoff"
    )]
    NoSlot { waiting: usize },
    /// The controller aborted the task, because another namespace was waiting for a slot.
    #[error(
        "{what} was stopped after {} s{} because other namespaces wait for a slot; retrying with backoff",
        after.as_secs(), at_rate(*bytes, *after)
    )]
    Ended { what: Cow<'static, str>, after: Duration, bytes: Option<u64> },
    /// The child process exited without a response.
    #[error("{what} was stopped: {failure}")]
    #[serde(skip)]
    Child { what: Cow<'static, str>, failure: Failure },
    #[error(transparent)]
    #[serde(skip)]
    Store(#[from] StoreError),
}

impl From<PackError> for GitError {
    fn from(error: PackError) -> Self {
        GitError::Pack(error.to_string())
    }
}

impl GitError {
    /// Returns the error that reports a failed file operation in a directory.
    pub fn disk(directory: &Path, cause: &std::io::Error) -> Self {
        GitError::Disk { directory: directory.display().to_string(), cause: cause.to_string() }
    }

    /// Returns whether the error is transient: a retry can succeed within seconds without user action.
    pub fn is_transient(&self) -> bool {
        match self {
            GitError::Unreachable(_)
            | GitError::TimedOut { .. }
            | GitError::TooSlow { .. }
            | GitError::CredentialsUnavailable(_)
            | GitError::NoSlot { .. }
            | GitError::Ended { .. } => true,
            GitError::Child { failure, .. } => !failure.is_caused_by_input(),
            GitError::Status(status) => *status >= 500,
            _ => false,
        }
    }

    /// Returns whether the error persists until a user changes an object, the repository or the server configuration.
    pub fn is_stalled(&self) -> bool {
        match self {
            GitError::CredentialsMissing(_)
            | GitError::CredentialsRefused(_)
            | GitError::TokenRefused(_)
            | GitError::NotFound(_)
            | GitError::HostKey(_)
            | GitError::Address(_)
            | GitError::Credentials(_)
            | GitError::Reference(_)
            | GitError::Empty
            | GitError::TooLarge { .. }
            | GitError::ArtifactTooLarge { .. }
            | GitError::TooManyObjects { .. }
            | GitError::Content { .. }
            | GitError::Pack(_) => true,
            GitError::Child { failure, .. } => failure.is_caused_by_input(),
            GitError::Unreachable(_)
            | GitError::TimedOut { .. }
            | GitError::TooSlow { .. }
            | GitError::Status(_)
            | GitError::Busy { .. }
            | GitError::CredentialsUnavailable(_)
            | GitError::Protocol(_)
            | GitError::Disk { .. }
            | GitError::NoSlot { .. }
            | GitError::Ended { .. }
            | GitError::Store(_) => false,
        }
    }

    /// Returns the retry delay that the server specifies, if any.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            GitError::Busy { after, .. } => Some(*after),
            _ => None,
        }
    }
}

/// Formats a task's average data rate. Returns an empty string if the number of received bytes is unknown.
fn at_rate(bytes: Option<u64>, after: Duration) -> String {
    let kibibytes = |bytes: u64| bytes / 1024 / after.as_secs().max(1);
    bytes.map(|bytes| format!(" at {} KiB/s", kibibytes(bytes))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_keeps_the_messages_of_child_process_errors() {
        let seconds = Duration::from_secs;
        let errors = [
            GitError::Unreachable("refused".to_owned()),
            GitError::TimedOut { what: "fetching".into(), limit: seconds(60) },
            GitError::TooSlow { bytes: 8, window: seconds(15) },
            GitError::CredentialsMissing("HTTP 401".to_owned()),
            GitError::Status(500),
            GitError::Busy { status: 429, after: seconds(77) },
            GitError::Empty,
            GitError::TooLarge { what: "the pack".into(), limit: 9 },
            GitError::TooManyObjects { found: 9, limit: 8 },
            GitError::Content { commit: "c".to_owned(), why: "broken".to_owned() },
            GitError::from(PackError::TooManyBytes { limit: 9 }),
            GitError::Ended { what: "fetching".into(), after: seconds(12), bytes: Some(96 << 10) },
            GitError::disk(Path::new("/work"), &std::io::Error::other("full")),
        ];
        for error in errors {
            let received: GitError = serde_json::from_slice(&serde_json::to_vec(&error).unwrap()).unwrap();
            assert_eq!(received.to_string(), error.to_string());
            assert_eq!(
                (received.is_transient(), received.retry_after()),
                (error.is_transient(), error.retry_after()),
                "{error}"
            );
        }
    }

    #[test]
    fn the_early_end_of_a_task_is_a_transient_error_with_its_data_rate() {
        let of = |bytes| GitError::Ended { what: "fetching the commit".into(), after: Duration::from_secs(12), bytes };
        let rows = [
            (
                Some(96 << 10),
                "fetching the commit was stopped after 12 s at 8 KiB/s because other namespaces wait for a slot",
            ),
            (None, "fetching the commit was stopped after 12 s because other namespaces wait for a slot"),
        ];
        for (bytes, expected) in rows {
            let error = of(bytes);
            assert_eq!(error.to_string(), format!("{expected}; retrying with backoff"));
            assert!(error.is_transient() && !error.is_stalled());
        }
    }

    #[test]
    fn a_kill_is_a_transient_error_but_an_exceeded_limit_is_not() {
        let of = |failure| GitError::Child { what: "packing".into(), failure };
        assert!(!of(Failure::Memory { limit: 1 << 20 }).is_transient());
        assert!(of(Failure::Killed).is_transient());
        let message = of(Failure::Memory { limit: 1 << 20 }).to_string();
        assert_eq!(message, "packing was stopped: memory limit of 1Mi exceeded");
    }
}
