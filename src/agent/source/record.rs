//! Record of the current source on disk. It is written before each step of an exchange.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::agent::durable;
use crate::agent::layout::Layout;
use crate::pulumi::install::Installed;

/// A source that was put in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentSource {
    /// Digest of the archive as `algorithm:hex`.
    pub digest: String,
    /// The project's directory in the archive.
    pub directory: String,
    /// Random for each exchange, even with the same archive.
    pub tree: String,
    /// Boot ID of the node during the exchange. After a reboot the source is not used, because a power loss may have
    /// damaged it.
    #[serde(default)]
    pub boot_id: String,
    /// Whether the dependencies are not installed yet. Until then, the source is not usable.
    #[serde(default)]
    pub awaits_install: bool,
    /// The installation of the source; `None` if there was nothing to install.
    #[serde(default)]
    pub installed: Option<Installed>,
}

/// A source that has replaced another one on trial. If it fails, the other one is restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Inode of its directory, which distinguishes it from the other one after any step.
    pub inode: u64,
    /// Path where it was unpacked and where the other one is during the trial, relative to the share volume.
    pub beside: PathBuf,
    /// Directories that were moved into it from the other one.
    pub carried: Vec<PathBuf>,
}

/// State of the source that survives a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The current source; during a trial, the previous one.
    pub current_source: Option<CurrentSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

impl Record {
    /// Returns the last record; empty if it is missing or unreadable.
    pub fn read(layout: &Layout) -> Record {
        let record = std::fs::read(layout.source_record()).ok();
        record.and_then(|record| serde_json::from_slice(&record).ok()).unwrap_or_default()
    }

    /// Writes the record durably.
    pub fn write(&self, layout: &Layout) -> io::Result<()> {
        durable::write_atomically(&layout.source_record(), &serde_json::to_vec_pretty(self)?)
    }
}
