//! Limits of reading a repository.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::source::git::budget::{Pace, Terms};
use crate::source::git::slots::Slots;

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
