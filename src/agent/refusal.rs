//! Reasons why the agent rejects a call, with their gRPC status codes.

use std::io;

use tonic::{Code, Status};

/// Reason for a rejected call, with a message for users.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The call itself is invalid, so a retry fails, too.
    #[error("{0}")]
    Invalid(String),
    /// The pod is not in the state that the call requires.
    #[error("{0}")]
    Precondition(String),
    #[error("operation {0} not found in the journal")]
    UnknownOperation(String),
    /// The size or the digest of the received source differs from the header.
    #[error("{0}")]
    DataLoss(String),
    #[error("{0}")]
    TooLate(String),
    #[error("{action}: {source}")]
    System { action: String, source: io::Error },
}

impl Refusal {
    /// Returns a conversion for `map_err` after a failed system call.
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
            Refusal::DataLoss(_) => Code::DataLoss,
            Refusal::TooLate(_) => Code::DeadlineExceeded,
            Refusal::System { source, .. } if source.kind() == io::ErrorKind::StorageFull => Code::ResourceExhausted,
            Refusal::System { .. } => Code::Internal,
        };
        Status::new(code, refusal.to_string())
    }
}
