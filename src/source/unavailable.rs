//! Why a source has no artifact.

/// Why a source has no artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It is not ready yet, or cannot be read at the moment. A retry can succeed.
    #[error("{0}")]
    NotYet(String),
    /// It does not exist, or cannot be used as it is: a user has to create or change an object, or to push another commit. A retry notices
    /// that.
    #[error("{0}")]
    Stalled(String),
    /// The lookup is in progress. The Stack is woken when there is a result.
    #[error("{0}")]
    Looking(String),
    /// Only a change of the Stack or of the source object can fix it.
    #[error("{0}")]
    Invalid(String),
    /// It is in another namespace, and this controller denies references to other namespaces.
    #[error("{0}")]
    Denied(String),
}
