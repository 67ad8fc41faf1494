//! The current source: its record on disk, and its exchange with a tree that was unpacked next to it. Each step is
//! recorded before it happens, so that a restarted agent finds and restores the valid source.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use serde::{Deserialize, Serialize};

use crate::agent::durable;
use crate::agent::install::carry;
use crate::agent::layout::{Layout, SOURCE_DIRECTORY};
use crate::artifact::Directory;
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

/// Records that an unpacked tree is about to replace the source, with `carried` directories of the previous source.
/// Nothing else has changed yet, so an error leaves the current source valid.
pub(super) fn announce(
    layout: &Layout,
    before: Option<&CurrentSource>,
    tree: &Path,
    carried: Vec<PathBuf>,
) -> io::Result<Trial> {
    let beside = tree.strip_prefix(layout.root()).map_err(io::Error::other)?.to_owned();
    let trial = Trial { inode: std::fs::symlink_metadata(tree)?.ino(), beside, carried };
    Record { current_source: before.cloned(), trial: Some(trial.clone()) }.write(layout)?;
    Ok(trial)
}

/// Puts the announced tree in place. After an error, [`restore`] must follow.
pub(super) fn enter(layout: &Layout, trial: &Trial, directory: &Directory) -> io::Result<()> {
    let tree = layout.root().join(&trial.beside);
    carry::move_all(&layout.source(), &tree, &trial.carried)?;
    exchange(layout, &tree)?;
    point(layout, directory)
}

/// Makes the source on trial the current one. Keeps the previous source until the next exchange.
pub(super) fn confirm(layout: &Layout, next: &CurrentSource, trial: &Trial) -> io::Result<()> {
    Record { current_source: Some(next.clone()), trial: None }.write(layout)?;
    keep_previous(layout, &layout.root().join(&trial.beside));
    Ok(())
}

/// Restores the previous source with all its directories, at any step of the trial. Can be repeated.
pub(super) fn restore(layout: &Layout, before: Option<&CurrentSource>, trial: &Trial) -> io::Result<()> {
    let (source, beside) = (layout.source(), layout.root().join(&trial.beside));
    let is_there = std::fs::symlink_metadata(&source).is_ok_and(|metadata| metadata.ino() == trial.inode);
    if is_there && beside.exists() {
        exchange(layout, &beside)?;
    } else if is_there {
        std::fs::rename(&source, &beside)?;
        durable::sync_directory(layout.root())?;
    }
    carry::move_all(&beside, &source, &trial.carried)?;
    match before.map(|before| before.directory.parse::<Directory>()) {
        Some(Ok(directory)) => point(layout, &directory)?,
        // Before the first source, the container's working directory is an empty directory.
        _ if source.is_dir() => point(layout, &Directory::root())?,
        _ => durable::remove(&layout.workspace())?,
    }
    if let Err(error) = (Record { current_source: before.cloned(), trial: None }).write(layout) {
        // The next agent repeats the restore, which has no effect then.
        tracing::warn!(%error, "failed to record the restored source");
    }
    Ok(())
}

fn exchange(layout: &Layout, tree: &Path) -> io::Result<()> {
    let source = layout.source();
    if source.exists() {
        rustix::fs::renameat_with(CWD, tree, CWD, &source, RenameFlags::EXCHANGE)?;
    } else {
        std::fs::rename(tree, &source)?;
    }
    durable::sync_directory(layout.root())
}

/// Creates the link to the project. It is relative, so that it is valid wherever the volume is mounted.
fn point(layout: &Layout, directory: &Directory) -> io::Result<()> {
    let beside = layout.staging().join("workspace");
    durable::remove(&beside)?;
    std::os::unix::fs::symlink(directory.under(Path::new(SOURCE_DIRECTORY)), &beside)?;
    // The container runtime creates a directory if the container's working directory is missing.
    if layout.workspace().symlink_metadata().is_ok_and(|found| found.is_dir()) {
        std::fs::remove_dir(layout.workspace())?;
    }
    std::fs::rename(&beside, layout.workspace())?;
    durable::sync_directory(layout.root())
}

/// Keeps the replaced tree until the next exchange. The previously kept tree takes its path and is removed with it.
/// Errors are only logged, because they do not affect the new source.
fn keep_previous(layout: &Layout, tree: &Path) {
    if !tree.exists() {
        return;
    }
    let previous = layout.previous();
    let kept = if previous.exists() {
        rustix::fs::renameat_with(CWD, tree, CWD, &previous, RenameFlags::EXCHANGE).map_err(io::Error::from)
    } else {
        std::fs::rename(tree, &previous)
    };
    if let Err(error) = kept {
        tracing::warn!(%error, "failed to keep the previous source");
    }
}

#[cfg(test)]
mod tests;
