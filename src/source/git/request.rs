//! Tasks of the child process, which parses data from Git servers. The response is a `Result` with a
//! [`GitError`](crate::source::git::error::GitError).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::source::git::budget::{Pace, Terms};
use crate::source::git::http_client::Proxies;
use crate::source::git::paths::Paths;
use crate::source::git::reference::Reference;
use crate::source::git::slots::Slots;
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

/// Everything needed to connect to a server.
#[derive(Serialize, Deserialize)]
pub enum Access {
    /// Credentials, certificate authorities in addition to the system ones, and proxies.
    Http { login: Option<(String, String)>, authorities: Vec<String>, proxies: Proxies },
    /// A private key, and lists of host keys in order of precedence.
    Ssh { key: String, passphrase: Option<String>, known_hosts: Vec<String> },
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// Limits of listing, fetching and packing a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum size of a pack in bytes, compressed.
    pub pack_bytes: u64,
    /// Maximum number of objects in a pack.
    pub objects: u32,
    /// Maximum size of a file in bytes.
    pub file_bytes: u64,
    /// Maximum number of entries in all directories, including entries that are not packed.
    pub tree_entries: u64,
    /// Timeout for listing the references.
    pub list_time: Duration,
    /// Minimum data rate of a server that sends references.
    pub list_pace: Pace,
    /// Timeout for a fetch, including its references.
    pub fetch_time: Duration,
    /// Minimum data rate of a server that sends a pack. It does not apply while the server assembles the pack, which can take a
    /// minute.
    pub fetch_pace: Pace,
    /// Whether servers at loopback and link-local addresses are allowed. Only for tests, because such a server is in the pod or on
    /// its node.
    pub local_addresses: bool,
}

impl Limits {
    pub(super) fn listing(&self) -> Terms {
        Terms { time: self.list_time, pace: self.list_pace, local_addresses: self.local_addresses }
    }

    pub(super) fn fetching(&self) -> Terms {
        Terms { time: self.fetch_time, pace: self.fetch_pace, local_addresses: self.local_addresses }
    }

    /// Maximum size of the index of a pack, in bytes: an ID, a checksum and an offset for each object, a table and two hashes.
    pub(super) fn index_bytes(&self) -> u64 {
        u64::from(self.objects) * (32 + 4 + 4) + 4096
    }

    /// Maximum number of bytes that concurrent fetches use on the volume in addition to the store: packs, their indexes, and
    /// archives of up to `archive` bytes that are not in the store yet.
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
            list_pace: Pace { bytes: 8 << 10, window: Duration::from_secs(15) },
            fetch_time: Duration::from_secs(10 * 60),
            fetch_pace: Pace { bytes: 256 << 10, window: Duration::from_secs(60) },
            local_addresses: false,
        }
    }
}
