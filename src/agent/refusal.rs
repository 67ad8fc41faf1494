//! Why a call is refused, and the word that gRPC has for it.

use std::io;

use tonic::{Code, Status};

/// A call that is not obeyed, with a sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The call itself is wrong: it will be as wrong the next time.
    #[error("{0}")]
    Invalid(String),
    /// The pod is not in the state that the call needs.
    #[error("{0}")]
    Precondition(String),
    #[error("operation {0} is not in the journal")]
    UnknownOperation(String),
    /// The source that came is not the one that was announced.
    #[error("{0}")]
    DataLoss(String),
    #[error("{0}")]
    TooLate(String),
    #[error("{action}: {source}")]
    System { action: String, source: io::Error },
}

impl Refusal {
    /// For `map_err` after a call of the system.
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
