//! Exchanges the source in place with one that was unpacked beside it.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};

use super::InPlace;
use crate::agent::durable;
use crate::agent::layout::Layout;
use crate::agent::refusal::Refusal;
use crate::artifact::Directory;

/// What is in place, as far as it is certain: without a record, or without the tree that it speaks of, nothing is.
pub(super) fn read_record(layout: &Layout) -> Option<InPlace> {
    let record = std::fs::read(layout.source_record()).ok()?;
    let in_place = serde_json::from_slice(&record).ok()?;
    (layout.source().is_dir() && layout.workspace().is_dir()).then_some(in_place)
}

/// Puts `tree` in place. While it happens there is no record, so that an agent that dies in between knows of no source and
/// is given one anew. When the exchange fails the old source is in place as before.
pub(super) fn swap(
    layout: &Layout,
    tree: &Path,
    directory: &Directory,
    before: Option<&InPlace>,
    next: &InPlace,
) -> Result<(), Refusal> {
    durable::remove(&layout.source_record()).map_err(Refusal::system("cannot exchange the source"))?;
    if let Err(error) = exchange(layout, tree) {
        restore_record(layout, before);
        return Err(Refusal::system("cannot exchange the source")(error));
    }
    if let Err(error) = point(layout, directory) {
        // Back to the old tree; the link was not changed.
        if exchange(layout, tree).is_ok() {
            restore_record(layout, before);
        }
        return Err(Refusal::system("cannot point to the project in the source")(error));
    }
    write_record(layout, next).map_err(Refusal::system("cannot record which source is in place"))?;
    keep_previous(layout, tree);
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

/// Makes the link to the project, relative so that it holds wherever the volume is mounted.
fn point(layout: &Layout, directory: &Directory) -> io::Result<()> {
    let beside = layout.staging().join("workspace");
    durable::remove(&beside)?;
    std::os::unix::fs::symlink(directory.under(Path::new("source")), &beside)?;
    std::fs::rename(&beside, layout.workspace())?;
    durable::sync_directory(layout.root())
}

pub(super) fn write_record(layout: &Layout, in_place: &InPlace) -> io::Result<()> {
    durable::write_atomically(&layout.source_record(), &serde_json::to_vec_pretty(in_place)?)
}

/// Without it the next agent asks for the source again, which costs time and nothing else.
fn restore_record(layout: &Layout, before: Option<&InPlace>) {
    let Some(before) = before else { return };
    if let Err(error) = write_record(layout, before) {
        tracing::warn!(%error, "cannot record which source is in place");
    }
}

/// The tree that was exchanged is kept until the next time; the one that was kept until now takes its place, to be removed
/// with it. That it cannot be kept is no failure of the new source.
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
        tracing::warn!(%error, "cannot keep the previous source");
    }
}
