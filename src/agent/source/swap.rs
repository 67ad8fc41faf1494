//! Replaces the source with a new tree, and records the current source on disk. The agent records the replacement
//! before its first step, so that a restarted agent can restore the previous source.
//!
//! The replacement moves the previous source aside, and then moves the new tree to its path. An exchange of the two
//! directories in a single step would need `renameat2` flags, which NFS, FUSE and gVisor do not support.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::agent::durable;
use crate::agent::install::carry;
use crate::agent::layout::{Layout, SOURCE_DIRECTORY};
use crate::artifact::Directory;
use crate::pulumi::install::Installed;

/// A source that the agent has installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentSource {
    /// Digest of the archive as `algorithm:hex`.
    pub digest: String,
    /// Directory of the project in the archive.
    pub directory: String,
    /// Random ID of the unpacked tree. Two trees from the same archive have different IDs.
    pub tree: String,
    /// Boot ID of the node when the agent installed the source. The agent does not use the source after a reboot,
    /// because a power loss may have damaged the source.
    #[serde(default)]
    pub boot_id: String,
    /// Whether the agent synced the source to the disk before the agent exited. Another node can then use the source on
    /// a persistent volume.
    #[serde(default)]
    pub is_synced: bool,
    /// Whether dependencies are still missing. Runs wait for the installation of the dependencies.
    #[serde(default)]
    pub awaits_install: bool,
    /// If dependencies are missing, the header of the call that delivered the source, as hexadecimal digits. The header
    /// contains the environment for the installation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub header: String,
    /// Record of the installed dependencies. `None` if no dependencies are installed, or if the next source must not
    /// reuse the dependencies.
    #[serde(default)]
    pub installed: Option<Installed>,
    /// Reason why the dependency cache does not contain the dependencies. `None` if the cache contains them, or if the
    /// pod mounts no cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncached: Option<String>,
}

/// A source that replaces the previous source for a trial. If the trial fails, the agent restores the previous source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Path of the new source before the trial, relative to the share volume.
    pub staged: PathBuf,
    /// Directories that the trial moves from the previous source to the new source.
    pub carried: Vec<PathBuf>,
}

/// Source state on disk, which survives an agent restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Last source that the agent has installed without an error. During a trial, the source on disk is newer.
    pub current_source: Option<CurrentSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

impl Record {
    /// Returns the record on disk, or an empty record if the file is missing or unreadable.
    pub fn read(layout: &Layout) -> Record {
        let record = std::fs::read(layout.source_record()).ok();
        record.and_then(|record| serde_json::from_slice(&record).ok()).unwrap_or_default()
    }

    /// Writes the record durably.
    pub fn write(&self, layout: &Layout) -> io::Result<()> {
        durable::write_atomically(&layout.source_record(), &serde_json::to_vec_pretty(self)?)
    }
}

/// Records that an unpacked tree will replace the source, and that the trial will move the directories `carried` from
/// the previous source to the tree. The function changes nothing else, so the current source is still valid after an
/// error.
pub(super) fn record_trial(
    layout: &Layout,
    before: Option<&CurrentSource>,
    tree: &Path,
    carried: Vec<PathBuf>,
) -> io::Result<Trial> {
    let staged = tree.strip_prefix(layout.root()).map_err(io::Error::other)?.to_owned();
    let trial = Trial { staged, carried };
    Record { current_source: before.cloned(), trial: Some(trial.clone()) }.write(layout)?;
    Ok(trial)
}

/// Moves the unpacked tree to the path of the source. After an error, the caller must call [`restore`].
pub(super) fn install_tree(layout: &Layout, trial: &Trial, directory: &Directory) -> io::Result<()> {
    let tree = layout.root().join(&trial.staged);
    carry::move_all(&layout.source(), &tree, &trial.carried)?;
    set_aside(layout)?;
    durable::rename(&tree, &layout.source())?;
    durable::sync_directory(layout.root())?;
    link_project(layout, directory)
}

/// Makes the trial source the current source. The agent keeps the previous source until the next replacement.
pub(super) fn confirm(layout: &Layout, next: &CurrentSource, trial: &Trial) -> io::Result<()> {
    Record { current_source: Some(next.clone()), trial: None }.write(layout)?;
    keep_previous(layout, &layout.root().join(&trial.staged));
    Ok(())
}

/// Restores the previous source with all its directories. The caller can call this function after any step of the
/// trial. A second call has no effect.
pub(super) fn restore(layout: &Layout, before: Option<&CurrentSource>, trial: &Trial) -> io::Result<()> {
    let (source, replaced, staged) = (layout.source(), layout.replaced(), layout.root().join(&trial.staged));
    if replaced.exists() {
        if source.exists() && !staged.exists() {
            staged.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            durable::rename(&source, &staged)?;
        }
        // If the source still exists, the trial has not replaced it, and an earlier trial has left `replaced`.
        if !source.exists() {
            durable::rename(&replaced, &source)?;
        }
        durable::sync_directory(layout.root())?;
    }
    carry::move_all(&staged, &source, &trial.carried)?;
    match before.map(|before| before.directory.parse::<Directory>()) {
        Some(Ok(directory)) => link_project(layout, &directory)?,
        // Before the agent installs the first source, the container's working directory is a link to an empty
        // directory.
        _ if source.is_dir() => link_project(layout, &Directory::root())?,
        _ => durable::remove(&layout.workspace())?,
    }
    if let Err(error) = (Record { current_source: before.cloned(), trial: None }).write(layout) {
        // This error is not fatal: the next agent repeats the restoration, which then has no effect.
        tracing::warn!(%error, "failed to record the restored source");
    }
    Ok(())
}

/// Moves the source aside. Creates the source if it does not exist, so that during a trial the moved source always
/// exists. [`restore`] therefore detects from this path which steps to revert.
fn set_aside(layout: &Layout) -> io::Result<()> {
    let replaced = layout.replaced();
    durable::remove(&replaced)?;
    std::fs::create_dir_all(layout.source())?;
    durable::rename(&layout.source(), &replaced)
}

/// Creates the symbolic link to the project. The link is relative, so that the link is valid for any mount path of the
/// volume.
fn link_project(layout: &Layout, directory: &Directory) -> io::Result<()> {
    let staged = layout.staging().join("workspace");
    durable::remove(&staged)?;
    durable::symlink(&directory.under(Path::new(SOURCE_DIRECTORY)), &staged)?;
    // If the container's working directory is missing, the container runtime creates a directory at this path.
    if layout.workspace().symlink_metadata().is_ok_and(|found| found.is_dir()) {
        std::fs::remove_dir(layout.workspace())?;
    }
    durable::rename(&staged, &layout.workspace())?;
    durable::sync_directory(layout.root())
}

/// Keeps the replaced source as the previous source until the next replacement. The function moves the older previous
/// source to `older`, which the caller then removes. The function only logs errors, because an error does not affect the
/// new source.
pub(super) fn keep_previous(layout: &Layout, older: &Path) {
    let (replaced, previous) = (layout.replaced(), layout.previous());
    let keep = || {
        if previous.exists() {
            durable::rename(&previous, older)?;
        }
        durable::rename(&replaced, &previous)
    };
    if replaced.exists()
        && let Err(error) = keep()
    {
        tracing::warn!(%error, "failed to keep the previous source");
    }
}

#[cfg(test)]
mod tests;
