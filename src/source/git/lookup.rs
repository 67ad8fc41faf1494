//! Parameters of a lookup by a follower of a repository.

use crate::artifact::Digest;

/// Namespace and name of a Stack, or of a Workspace.
pub type Follower = (String, String);

/// The artifact of the last run of a Stack, whose digest is known without a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The revision, or only the hash of the commit.
    pub revision: String,
    pub digest: Digest,
    pub selection: Option<String>,
}

/// Parameters that a Stack passes when it looks up its repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// The last reconcile request of a user.
    pub request: Option<String>,
    /// Whether no run has handled the request yet.
    pub is_new: bool,
    pub known: Option<Known>,
}
