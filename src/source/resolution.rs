//! The result of resolving a source: its artifact, or the reason why no artifact is available.

use crate::api::auto::SourceMetadata;
use crate::artifact::{Digest, Directory};
use crate::source::git::Origin as GitOrigin;
use crate::source::program::conversion::Interpolated;
use std::sync::Arc;

/// The current artifact of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The origin of the artifact's content.
    pub origin: Origin,
    /// The revision of the source, for example `main@sha1:…`.
    pub revision: String,
    /// The revision from which the artifact was built, for example the Git commit for an OCI artifact. `None` if the
    /// source does not report this revision.
    pub origin_revision: Option<String>,
    /// The Git metadata of the source. `None` if the source does not report metadata.
    pub metadata: Option<SourceMetadata>,
    /// The digest of the archive.
    pub digest: Digest,
    /// The directory of the Pulumi project in the archive.
    pub directory: Directory,
    /// An identifier that is equal for all archives of the same revision with the same files. `None` if only the digest
    /// identifies the files.
    pub content_id: Option<String>,
}

impl Resolved {
    /// Returns the digest of the files that match the Stack's `spec.paths`, if `spec.paths` is set.
    pub fn selection(&self) -> Option<&str> {
        match &self.origin {
            Origin::Git(origin) => origin.selection.as_deref(),
            Origin::Url(_) | Origin::Made(_) | Origin::Program { .. } | Origin::InPod => None,
        }
    }
}

/// The origin of an artifact's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The URL at which an artifact server provides the archive. The URL can become invalid at any time.
    Url(String),
    /// An archive that the controller built from the source object.
    Made(Arc<[u8]>),
    /// An archive that the controller built from a Program, and the config keys whose values the Program inserts into
    /// strings.
    Program { bytes: Arc<[u8]>, interpolated: Arc<Interpolated> },
    /// A commit that the controller fetches from a repository and packs directly into the store.
    Git(Box<GitOrigin>),
    /// The files are already in the pod, so no archive exists.
    InPod,
}

/// The reason why a source's artifact is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The source is not ready yet, or the controller temporarily cannot read it. A retry can succeed.
    #[error("{0}")]
    NotYet(String),
    /// The source does not exist, or the controller cannot use the source as it currently is. A user must create or
    /// change an object, or push another commit. The controller detects the change when it retries.
    #[error("{0}")]
    Stalled(String),
    /// The controller is querying the repository or fetching a commit, and then reconciles the Stack or Workspace.
    #[error("{0}")]
    Resolving(String),
    /// The Stack or the source object is invalid. A user must change the invalid object.
    #[error("{0}")]
    Invalid(String),
    /// The source is in another namespace, and the controller denies cross-namespace references.
    #[error("{0}")]
    Denied(String),
}
