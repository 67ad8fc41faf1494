//! What a follower of a repository asks.

use crate::artifact::Digest;

/// Namespace and name of a Stack, or of a Workspace.
pub type Follower = (String, String);

/// The artifact of the last run of a Stack. Its digest is known without a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The revision, or only the hash of the commit.
    pub revision: String,
    pub digest: Digest,
    pub selection: Option<String>,
}

/// What a Stack passes when it looks at its repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The last request of a user.
    pub request: Option<String>,
    /// Whether no run has handled the request yet.
    pub is_new: bool,
    pub known: Option<Known>,
}
