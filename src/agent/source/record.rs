//! What is in place, as it is written down before each step.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::agent::durable;
use crate::agent::layout::Layout;
use crate::pulumi::install::Installed;

/// A source that was put in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentSource {
    /// `algorithm:hex` of the archive.
    pub digest: String,
    /// The project's directory in the archive.
    pub directory: String,
    /// Random for each source that is put in place, also for the same archive.
    pub tree: String,
    /// The boot of the node during which it was put in place. After another boot it is not in place any more: nobody knows
    /// what a power loss has left of it.
    #[serde(default)]
    pub boot_id: String,
    /// Its dependencies were not installed yet: before that it does not count as in place.
    #[serde(default)]
    pub awaits_install: bool,
    /// What was installed for it; none when there was nothing to install.
    #[serde(default)]
    pub installed: Option<Installed>,
}

/// A source that stands in the place of another one on trial: when it fails, the other one comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Tells its directory from the other one, wherever they are.
    pub inode: u64,
    /// Where it was unpacked, and where the other one is meanwhile. Relative to the share volume.
    pub beside: PathBuf,
    /// Directories that were moved into it from the other one.
    pub carried: Vec<PathBuf>,
}

/// All that is known after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The source that counts.
    pub current_source: Option<CurrentSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

impl Record {
    /// What was written last; nothing when there is no record, or none that can be read.
    pub fn read(layout: &Layout) -> Record {
        let record = std::fs::read(layout.source_record()).ok();
        record.and_then(|record| serde_json::from_slice(&record).ok()).unwrap_or_default()
    }

    /// Comes back when it is on the disk.
    pub fn write(&self, layout: &Layout) -> io::Result<()> {
        durable::write_atomically(&layout.source_record(), &serde_json::to_vec_pretty(self)?)
    }
}
