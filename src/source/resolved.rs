//! The artifact that a source resolves to.

use std::sync::Arc;

use crate::artifact::{Digest, Directory};
use crate::source::git::Origin as GitOrigin;

/// The current artifact of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Where its bytes come from.
    pub origin: Origin,
    /// The source's revision, such as `main@sha1:…`.
    pub revision: String,
    /// The revision that the artifact was made from, if its source reports it: the commit of what was pushed to a registry.
    pub origin_revision: Option<String>,
    /// Digest of the archive.
    pub digest: Digest,
    /// The project's directory in the archive.
    pub directory: Directory,
    /// Equal for two archives of one revision with the same files. None if only the digest identifies the files.
    pub content_id: Option<String>,
}

impl Resolved {
    /// Digest of the files that `spec.paths` matches, if the Stack has it.
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
    /// A server has them. Its URL can become stale at any time; the digest cannot.
    Url(String),
    /// They were created here from the content of the source object.
    Made(Arc<[u8]>),
    /// They were fetched from a repository and packed directly into the store.
    Git(Box<GitOrigin>),
    /// There are none: the artifact is in the pod already.
    InPod,
}
