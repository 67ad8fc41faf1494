//! Errors of writes.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// Reason with which the API server rejects new objects in a terminating namespace.
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

/// Describes a write in error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptedWrite {
    pub verb: &'static str,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for AttemptedWrite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "failed to {} {} {}/{}", self.verb, self.kind, self.namespace, self.name)
    }
}

/// Error of a write. The write failed, or its result is unknown.
#[derive(Debug, Error)]
pub enum WriteError {
    #[error("{attempt}: this process does not hold the Lease")]
    NotLeader { attempt: Box<AttemptedWrite> },
    #[error("{attempt}: API server did not respond within {} s", limit.as_secs())]
    Timeout { attempt: Box<AttemptedWrite>, limit: Duration },
    /// The API server rejected the request.
    #[error("{attempt}: {message} ({reason}, {code})")]
    Refused { attempt: Box<AttemptedWrite>, code: u16, reason: String, message: String },
    #[error("{attempt}")]
    Request { attempt: Box<AttemptedWrite>, source: Box<kube::Error> },
    #[error("{attempt}: cannot be encoded as JSON")]
    Encode { attempt: Box<AttemptedWrite>, source: serde_json::Error },
    #[error("{attempt}: object has no name or no namespace")]
    Nameless { attempt: Box<AttemptedWrite> },
}

impl WriteError {
    /// Returns whether the object has changed since the controller read it, or another object with the same name exists
    /// instead.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Returns whether the namespace is terminating. The API server rejects new objects in a terminating namespace.
    pub fn is_namespace_terminating(&self) -> bool {
        matches!(self, WriteError::Refused { reason, .. } if reason == NAMESPACE_TERMINATING)
    }

    /// Returns whether the API server rejected the content as invalid. A server-side apply that contains unknown
    /// fields, values of the wrong type or duplicate keys fails with status code 500.
    pub fn is_invalid(&self) -> bool {
        let untyped = ["field not declared in schema", "failed to create typed patch object"];
        let is_untyped = |message: &str| untyped.iter().any(|words| message.contains(words));
        matches!(self.code(), Some(400 | 422)) || self.server_message().is_some_and(is_untyped)
    }

    /// Returns whether an admission webhook or policy denied the write. A retry with the same object may succeed later.
    pub fn is_denied_by_admission(&self) -> bool {
        let denied = |message: &str| message.contains("denied the request") || message.contains("denied request");
        (self.is_invalid() || self.is_forbidden()) && self.server_message().is_some_and(denied)
    }

    /// Returns whether the API server reported an internal error.
    pub fn is_internal(&self) -> bool {
        self.code() == Some(500)
    }

    /// Returns whether the object exceeds the size limit of the API server.
    pub fn is_too_large(&self) -> bool {
        self.code() == Some(413)
    }

    /// Returns whether the API server or its storage rejected the content. The API server would also reject a retry
    /// with the same content.
    pub fn is_content_rejected(&self) -> bool {
        // If an object is too large for etcd, the API server responds with status code 500.
        let too_large = ["request is too large", "larger than max"];
        let is_size_error = |message: &str| too_large.iter().any(|words| message.contains(words));
        self.is_invalid() || self.is_too_large() || self.server_message().is_some_and(is_size_error)
    }

    /// Returns whether the API server may have applied the write despite the error, for example because only the
    /// response was lost.
    pub fn may_be_applied(&self) -> bool {
        match self {
            WriteError::Timeout { .. } | WriteError::Request { .. } => true,
            // The API server also responds with such a code if its storage does not respond in time.
            WriteError::Refused { code, .. } => *code >= 500 && !self.is_content_rejected(),
            WriteError::NotLeader { .. } | WriteError::Encode { .. } | WriteError::Nameless { .. } => false,
        }
    }

    /// Returns whether this process is not the leader.
    pub fn is_not_leader(&self) -> bool {
        matches!(self, WriteError::NotLeader { .. })
    }

    /// Returns the API server's message without the description of the write, for use in conditions.
    pub fn server_message(&self) -> Option<&str> {
        match self {
            WriteError::Refused { message, .. } => Some(message),
            WriteError::NotLeader { .. }
            | WriteError::Timeout { .. }
            | WriteError::Request { .. }
            | WriteError::Encode { .. }
            | WriteError::Nameless { .. } => None,
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            WriteError::Refused { code, .. } => Some(*code),
            WriteError::NotLeader { .. }
            | WriteError::Timeout { .. }
            | WriteError::Request { .. }
            | WriteError::Encode { .. }
            | WriteError::Nameless { .. } => None,
        }
    }

    /// Returns the same error for a JSON patch whose `test` operations compare the object with the version that the
    /// controller has read. The API server responds with status code 422 if such an operation fails.
    pub(super) fn of_tests(self) -> Self {
        match self {
            WriteError::Refused { attempt, code: 422, message, .. } if !self.is_denied_by_admission() => {
                WriteError::conflict(attempt, message)
            }
            other => other,
        }
    }

    fn conflict(attempt: Box<AttemptedWrite>, message: String) -> Self {
        WriteError::Refused { attempt, code: 409, reason: "Conflict".to_owned(), message }
    }

    pub(super) fn from_kube(attempt: Box<AttemptedWrite>, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                // `status.reason` does not distinguish a terminating namespace from other causes of a rejection. Only
                // the list of causes contains `NAMESPACE_TERMINATING`.
                let causes = || status.details.iter().flat_map(|details| &details.causes);
                let mut terminating = causes().filter(|cause| cause.reason == NAMESPACE_TERMINATING);
                let reason = terminating.next().map_or(&status.reason, |cause| &cause.reason).clone();
                let message = status.message.clone();
                // The API server compares the UID in a merge patch with the object like an immutable field.
                if status.code == 422 && causes().any(|cause| cause.field == "metadata.uid") {
                    return WriteError::conflict(attempt, message);
                }
                WriteError::Refused { attempt, code: status.code, reason, message }
            }
            other => WriteError::Request { attempt, source: Box::new(other) },
        }
    }
}
