//! The reason why a source has no artifact.

/// The reason why a source has no artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The source is not ready yet or cannot be read at the moment. A retry can succeed.
    #[error("{0}")]
    NotYet(String),
    /// The source does not exist or cannot be used as it is. A user has to create or change an object, or push another commit; the
    /// next retry detects that.
    #[error("{0}")]
    Stalled(String),
    /// The lookup is in progress. The Stack is woken when there is a result.
    #[error("{0}")]
    Looking(String),
    /// Only a change of the Stack or of the source object can resolve this.
    #[error("{0}")]
    Invalid(String),
    /// The source is in another namespace, and this controller denies cross-namespace references.
    #[error("{0}")]
    Denied(String),
}
