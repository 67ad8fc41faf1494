//! Turns a reference to a source into an artifact, or says why there is none yet.

pub mod flux;
pub mod kinds;

use crate::artifact::{Digest, Directory};

/// An artifact that can be fetched: what a source has right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Where its bytes are. It may go stale at any time; the digest does not.
    pub url: String,
    /// The source's revision, such as `main@sha1:…`.
    pub revision: String,
    /// Digest of the archive.
    pub digest: Digest,
    /// The project's directory in the archive.
    pub directory: Directory,
}

/// Why there is no artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// A retry can mend it: the source is missing or not ready.
    #[error("{0}")]
    NotYet(String),
    /// Only a change of the Stack or of the source object can mend it.
    #[error("{0}")]
    Invalid(String),
}
