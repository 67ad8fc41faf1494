//! Errors that the agent returns when it rejects a call, and their gRPC status codes.

use std::io;

use tonic::{Code, Status};

/// Reason why the agent rejects a call, with a message for users.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The call is invalid, so a retry fails in the same way.
    #[error("{0}")]
    Invalid(String),
    /// The pod is not in the state that the call requires.
    #[error("{0}")]
    Precondition(String),
    #[error("operation {0} not found in the journal")]
    UnknownOperation(String),
    /// The journal does not contain the operation yet, so a retry can succeed.
    #[error("operation {0} is still starting")]
    Starting(String),
    /// The size or the digest of the received source differs from the value in the header.
    #[error("{0}")]
    DataLoss(String),
    #[error("{0}")]
    TooLate(String),
    #[error("{action}: {source}")]
    System { action: String, source: io::Error },
}

impl Refusal {
    /// Returns a function for `map_err` that converts the error of a system call.
    pub fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Refusal {
        let action = action.into();
        move |source| Refusal::System { action, source }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let code = match &refusal {
            Refusal::Invalid(_) => Code::InvalidArgument,
            Refusal::Precondition(_) => Code::FailedPrecondition,
            Refusal::UnknownOperation(_) => Code::NotFound,
            Refusal::Starting(_) => Code::Unavailable,
            Refusal::DataLoss(_) => Code::DataLoss,
            Refusal::TooLate(_) => Code::DeadlineExceeded,
            Refusal::System { source, .. } if source.kind() == io::ErrorKind::StorageFull => Code::ResourceExhausted,
            Refusal::System { .. } => Code::Internal,
        };
        Status::new(code, refusal.to_string())
    }
}
