//! Tasks for the child processes that parse data from Git servers. The response to a task is a `Result` whose error
//! type is [`GitError`](crate::source::git::error::GitError).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::auto::SourceMetadata;
use crate::http_client::Proxies;
use crate::source::git::budget::{MinRate, Terms};
use crate::source::git::paths::Paths;
use crate::source::git::reference::Reference;
use crate::source::git::slots::Slots;
use crate::source::git::url::RepositoryUrl;

/// A task for a child process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Resolves a reference to a commit. The response is a [`Tip`](crate::source::git::reference::Tip).
    List(List),
    /// Fetches a commit into a directory. The response is empty.
    Download(Download),
    /// Packs the files of a commit that an earlier fetch wrote to a directory. The response is [`Packed`].
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
    /// The file for the archive. The file must exist and be empty.
    pub archive: PathBuf,
    pub limits: Limits,
    pub archive_limits: crate::artifact::Limits,
    pub choices: Vec<Paths>,
}

/// The result of packing a commit.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Warnings about content that is not in the archive.
    pub warnings: Vec<String>,
    /// For each path list, the digest of the matching files, or the reason why the digest is missing. The entries have
    /// the same order as the path lists in the request.
    pub selections: Vec<Result<String, String>>,
    /// The commit's author, committer and message.
    pub metadata: SourceMetadata,
}

/// The data that a connection to a server requires.
#[derive(Serialize, Deserialize)]
pub enum Access {
    /// Credentials, CA certificates to trust in addition to the system certificates, and proxies.
    Http { login: Option<HttpLogin>, authorities: Vec<String>, proxies: Proxies },
    /// A private key, and lists of trusted host keys in order of precedence.
    Ssh { key: String, passphrase: Option<String>, known_hosts: Vec<String> },
}

/// Credentials for an HTTP server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HttpLogin {
    /// An access token without a user name.
    Token(String),
    Basic {
        user: String,
        password: String,
    },
    /// A token for the authentication scheme `Bearer`.
    Bearer(String),
}

impl fmt::Debug for HttpLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HttpLogin::Token(_) => "Token",
            HttpLogin::Basic { .. } => "Basic",
            HttpLogin::Bearer(_) => "Bearer",
        })
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// Limits for listing, fetching and packing a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum compressed size of a pack, in bytes.
    pub pack_bytes: u64,
    /// Maximum number of objects in a pack.
    pub objects: u32,
    /// Maximum size of a file, in bytes.
    pub file_bytes: u64,
    /// Maximum number of entries in all directories, including entries that are not packed.
    pub tree_entries: u64,
    /// Timeout for listing the references.
    pub list_time: Duration,
    /// Minimum data rate while the server sends references.
    pub list_min_rate: MinRate,
    /// Timeout for a fetch, including listing the references.
    pub fetch_time: Duration,
    /// Minimum data rate while the server sends a pack. The rate does not apply while the server assembles the pack,
    /// which can take a minute.
    pub fetch_min_rate: MinRate,
    /// Whether a server may have a loopback or link-local address. Only tests may set this field, because a server with
    /// such an address runs in the controller's pod or on the pod's node.
    pub local_addresses: bool,
}

impl Limits {
    pub(super) fn listing(&self) -> Terms {
        Terms { time: self.list_time, min_rate: self.list_min_rate, local_addresses: self.local_addresses }
    }

    pub(super) fn fetching(&self) -> Terms {
        Terms { time: self.fetch_time, min_rate: self.fetch_min_rate, local_addresses: self.local_addresses }
    }

    /// Returns the maximum size of a pack index, in bytes. The index contains a table, two hashes, and an ID, a
    /// checksum and an offset for each object.
    pub(super) fn index_bytes(&self) -> u64 {
        u64::from(self.objects) * (32 + 4 + 4) + 4096
    }

    /// Returns the maximum number of bytes that concurrent fetches use on the volume for packs, indexes and archives
    /// that are not yet in the store. `archive` is the maximum size of an archive, in bytes.
    pub fn volume_bytes(&self, archive: u64) -> u64 {
        Slots::volume_bytes(self.pack_bytes + self.index_bytes() + archive)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pack_bytes: 512 << 20,
            objects: 2_000_000,
            file_bytes: 128 << 20,
            tree_entries: 1_000_000,
            list_time: Duration::from_secs(60),
            list_min_rate: MinRate { bytes: 8 << 10, window: Duration::from_secs(15) },
            fetch_time: Duration::from_secs(10 * 60),
            fetch_min_rate: MinRate { bytes: 256 << 10, window: Duration::from_secs(60) },
            local_addresses: false,
        }
    }
}
