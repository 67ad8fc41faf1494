//! What the controller asks its child process for: three kinds of work on what a server has sent. The answer is a `Result` with a
//! [`GitError`](crate::source::git::error::GitError).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::source::git::limits::Limits;
use crate::source::git::paths::Paths;
use crate::source::git::reference::Reference;
use crate::source::git::remote::Access;
use crate::source::git::url::RepositoryUrl;

/// Work for a child process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Which commit is meant. The answer is a [`Tip`](crate::source::git::reference::Tip).
    List(List),
    /// Fetches a commit into a directory. The answer is empty.
    Download(Download),
    /// Packs the files of a commit that was fetched into that directory. The answer is [`Packed`].
    Pack(Pack),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct List {
    pub repository: RepositoryUrl,
    pub access: Access,
    pub reference: Reference,
    pub limits: Limits,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Download {
    pub repository: RepositoryUrl,
    pub access: Access,
    pub commit: String,
    pub full_history: bool,
    pub directory: PathBuf,
    pub limits: Limits,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Pack {
    pub commit: String,
    pub directory: PathBuf,
    /// The file that the archive is written to. It is there and empty.
    pub archive: PathBuf,
    pub limits: Limits,
    pub archive_limits: crate::artifact::Limits,
    pub choices: Vec<Paths>,
}

/// A commit that was packed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// What is not as people may expect it.
    pub warnings: Vec<String>,
    /// Of each choice of paths, in the order of the request, the digest of what it matches, or why there is none.
    pub selections: Vec<Result<String, String>>,
}
