//! Where the artifact of a Git repository comes from.

use std::sync::Arc;

use crate::source::git::spec::Key;

/// Where the artifact of a Git repository comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub key: Arc<Key>,
    /// Hash of the commit.
    pub commit: String,
    /// Digest of the files that `spec.paths` matches, if the Stack sets it.
    pub selection: Option<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}
