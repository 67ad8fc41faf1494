//! Tasks of the child process, which parses data from Git servers. The response is a `Result` with a
//! [`GitError`](crate::source::git::error::GitError).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::source::git::limits::Limits;
use crate::source::git::paths::Paths;
use crate::source::git::reference::Reference;
use crate::source::git::remote::Access;
use crate::source::git::url::RepositoryUrl;

/// A task of a child process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Resolves the reference to a commit. The response is a [`Tip`](crate::source::git::reference::Tip).
    List(List),
    /// Fetches a commit into a directory. The response is empty.
    Download(Download),
    /// Packs the files of a commit that was fetched into the directory. The response is [`Packed`].
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
    /// The file to write the archive to. It must exist and be empty.
    pub archive: PathBuf,
    pub limits: Limits,
    pub archive_limits: crate::artifact::Limits,
    pub choices: Vec<Paths>,
}

/// The result of packing a commit.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Warnings about omitted content.
    pub warnings: Vec<String>,
    /// For each choice of paths, in the order of the request: the digest of the matching files, or the reason why there is none.
    pub selections: Vec<Result<String, String>>,
}
