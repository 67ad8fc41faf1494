//! The result of resolving a source: its artifact, or the reason why it has none.

use crate::artifact::{Digest, Directory};
use crate::source::git::Origin as GitOrigin;
use std::sync::Arc;

/// The current artifact of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Where the bytes of the artifact come from.
    pub origin: Origin,
    /// Revision of the source, such as `main@sha1:…`.
    pub revision: String,
    /// The revision from which the artifact was built, if the source reports it, for example the commit of an artifact pushed to a
    /// registry.
    pub origin_revision: Option<String>,
    /// Digest of the archive.
    pub digest: Digest,
    /// Directory of the project in the archive.
    pub directory: Directory,
    /// Equal for two archives of the same revision with the same files. `None` if only the digest identifies the files.
    pub content_id: Option<String>,
}

impl Resolved {
    /// Returns the digest of the files that `spec.paths` matches, if the Stack sets it.
    pub fn selection(&self) -> Option<&str> {
        match &self.origin {
            Origin::Git(origin) => origin.selection.as_deref(),
            Origin::Url(_) | Origin::Made(_) | Origin::InPod => None,
        }
    }
}

/// Where the bytes of an artifact come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// URL of a server. The URL can become stale at any time; the digest cannot.
    Url(String),
    /// Bytes that the controller created from the source object.
    Made(Arc<[u8]>),
    /// Bytes fetched from a repository and packed directly into the store.
    Git(Box<GitOrigin>),
    /// No bytes: the files are already in the pod.
    InPod,
}

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
