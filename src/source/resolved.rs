//! The artifact that a source resolves to.

use std::sync::Arc;

use crate::artifact::{Digest, Directory};
use crate::source::git::Origin as GitOrigin;

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
