//! Why a repository could not be read, for people. No credential is in any of it.

use std::time::Duration;

use crate::artifact::{PackError, StoreError};

/// Why a repository could not be read.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    #[error("{what} took longer than {} s", limit.as_secs())]
    TimedOut { what: &'static str, limit: Duration },
    #[error(
        "the server asks for credentials ({0}), and none are given: name them in spec.gitAuth or spec.gitAuthSecret of the Stack, \
         or in spec.git.auth of the Workspace. Some servers say so of a repository that does not exist, too"
    )]
    CredentialsMissing(String),
    #[error(
        "the server refuses these credentials ({0}): they are wrong, have expired, or may not read this repository"
    )]
    CredentialsRefused(String),
    #[error("there is no such repository, or these credentials may not see it ({0})")]
    NotFound(String),
    #[error("the server answered with HTTP status {0}")]
    Status(u16),
    #[error("the server asks for patience ({status}): it is asked again after {} s", after.as_secs())]
    Busy { status: u16, after: Duration },
    #[error("{0}")]
    HostKey(String),
    /// Something is wrong with what a Secret holds, or it cannot be read.
    #[error("{0}")]
    Credentials(String),
    #[error("{0}")]
    Reference(String),
    #[error("the repository is empty: nothing has been pushed to it yet")]
    Empty,
    #[error("{what} is larger than {limit} bytes, which is the most that is read")]
    TooLarge { what: &'static str, limit: u64 },
    #[error("the server's answer is not what Git's protocol says: {0}")]
    Protocol(String),
    #[error("the files of commit {commit} make no artifact: {why}")]
    Content { commit: String, why: String },
    #[error(transparent)]
    Pack(#[from] PackError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot work in {directory}: {cause}")]
    Disk { directory: String, cause: std::io::Error },
}

impl GitError {
    /// Whether it may be gone in a few seconds, without anybody doing anything.
    pub fn is_passing(&self) -> bool {
        match self {
            GitError::Unreachable(_) | GitError::TimedOut { .. } => true,
            GitError::Status(status) => *status >= 500,
            _ => false,
        }
    }

    /// How long the server asks to be left alone.
    pub fn patience(&self) -> Option<Duration> {
        match self {
            GitError::Busy { after, .. } => Some(*after),
            _ => None,
        }
    }
}

/// An error with all its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}
