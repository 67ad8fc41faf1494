//! Packs the files of a commit into an archive. Reads the Git objects directly, without a working copy. The same commit
//! always produces the same archive. This module runs in a child process, because it parses data from the server.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use gix_hash::{ObjectId, oid};
use gix_object::tree::EntryKind;
use gix_object::{CommitRefIter, Kind, TreeRefIter};
use gix_pack::Bundle;
use gix_pack::data::decode::entry::ResolvedBase;

use crate::api::auto::SourceMetadata;
use crate::artifact::{Archive, PackError};
use crate::source::git::budget::one_line;
use crate::source::git::error::GitError;
use crate::source::git::metadata;
use crate::source::git::pack_index::WorkLimit;
use crate::source::git::paths::{Rules, Selection};
use crate::source::git::request::{Pack, Packed};
use crate::source::git::wildcards::{Exhausted, Steps};

/// Name of the file with the patterns that exclude files.
const IGNORE_FILE: &[u8] = b".sourceignore";
/// Maximum size of a `.sourceignore` file, in bytes.
const MAX_IGNORE_FILE: usize = 256 << 10;
/// The prefix and the maximum size, in bytes, of a Git LFS pointer file.
const LFS_POINTER: (&[u8], usize) = (b"version https://git-lfs.github.com/spec/v1\n", 1024);
/// Maximum number of names that a warning lists.
const MAX_LISTED: usize = 5;
/// Maximum nesting depth of directories, which equals the default depth limit for entry names in an archive.
const MAX_DEPTH: usize = 64;
/// Maximum number of matching steps for all `.sourceignore` files in a commit. The same maximum applies to the path
/// lists of all Stacks together. Matching with this number of steps takes several seconds.
const MAX_STEPS: u64 = 4_000_000_000;
/// Maximum number of matching steps for one path list. The maximum prevents one Stack from delaying the other Stacks
/// that use the repository.
const MAX_STEPS_PER_CHOICE: u64 = 200_000_000;
/// Additional decoding work for each step in an object's delta chain, in bytes.
const DELTA_STEP_COST: u64 = 256;

/// Packs the files of a commit into an archive.
pub fn make(bundle: &Bundle, request: &Pack) -> Result<Packed, GitError> {
    let commit = request.commit.as_str();
    let id = ObjectId::from_hex(commit.as_bytes()).map_err(|error| GitError::Protocol(error.to_string()))?;
    let largest = request.archive_limits.download_bytes;
    let failed = |cause: io::Error| GitError::disk(&request.archive, &cause);
    let file = File::options().write(true).truncate(true).open(&request.archive).map_err(failed)?;
    let file = BufWriter::with_capacity(64 << 10, LimitedFile { file, left: largest });
    let choices = u64::try_from(request.choices.len()).unwrap_or(u64::MAX).max(1);
    let mut walk = Walk {
        objects: Objects {
            bundle,
            commit,
            work: WorkLimit::for_pack(u64::try_from(bundle.pack.data_len()).unwrap_or(0)),
        },
        archive: Archive::new(file, request.archive_limits.clone()),
        entries_left: request.limits.tree_entries,
        kept_left: request.archive_limits.entries,
        entry_limit: request.archive_limits.entries,
        ignore: Rules::default(),
        ignore_steps: Steps::new(MAX_STEPS),
        selections: request
            .choices
            .iter()
            .map(|paths| paths.selection(MAX_STEPS_PER_CHOICE.min(MAX_STEPS / choices)))
            .collect(),
        warnings: Warnings::default(),
    };
    walk.commit(&id).and_then(|metadata| walk.finish(metadata)).map_err(|error| match error {
        // The archive exceeds its maximum size. A workspace would reject such an archive.
        Stopped::Archive(PackError::Write { cause, .. }) if cause.kind() == io::ErrorKind::FileTooLarge => {
            GitError::ArtifactTooLarge { limit: largest }
        }
        Stopped::Archive(error) => error.into(),
        Stopped::Repository(error) => error,
    })
}

/// The reason why packing stopped.
enum Stopped {
    Archive(PackError),
    Repository(GitError),
}

impl From<PackError> for Stopped {
    fn from(error: PackError) -> Self {
        Stopped::Archive(error)
    }
}

impl From<GitError> for Stopped {
    fn from(error: GitError) -> Self {
        Stopped::Repository(error)
    }
}

/// A file with a maximum size.
struct LimitedFile {
    file: File,
    left: u64,
}

impl Write for LimitedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The fetched Git objects.
struct Objects<'a> {
    bundle: &'a Bundle,
    commit: &'a str,
    work: WorkLimit,
}

impl Objects<'_> {
    fn read(&mut self, id: &oid, kind: Kind, into: &mut Vec<u8>) -> Result<(), GitError> {
        let unreadable = |error: gix_error::Error| self.broken(&format!("failed to read object {id}: {error}"));
        let Bundle { pack, index } = self.bundle;
        let Some(position) = index.lookup(id) else {
            return Err(self.broken(&format!("object {id} is missing from the response of the server")));
        };
        let base = |id: &oid, _: &mut Vec<u8>| {
            let entry = |position| pack.entry(index.pack_offset_at_index(position)).map(ResolvedBase::InPack);
            index.lookup(id).map(entry).transpose()
        };
        let entry = pack.entry(index.pack_offset_at_index(position)).map_err(unreadable)?;
        let mut inflate = gix_zlib::Inflate::default();
        let found = pack.decode_entry(entry, into, &mut inflate, &base, &mut gix_pack::cache::Never);
        let found = found.map_err(unreadable)?;
        // Each read counts toward the limit. Many directories can contain the same object, whose delta chain can be
        // long.
        let steps = u64::from(found.num_deltas) + 1;
        self.work.take(steps.saturating_mul(found.object_size.saturating_add(DELTA_STEP_COST)))?;
        match found.kind {
            found if found == kind => Ok(()),
            found => Err(self.broken(&format!("object {id} is a {found}, not a {kind}"))),
        }
    }

    fn broken(&self, why: &str) -> GitError {
        GitError::Content { commit: self.commit.to_owned(), why: why.to_owned() }
    }
}

/// A traversal of the files in a commit.
struct Walk<'a> {
    objects: Objects<'a>,
    archive: Archive<BufWriter<LimitedFile>>,
    entries_left: u64,
    /// Number of further entries that the commit may contain. Ignored entries do not count toward this number, but
    /// submodules and omitted links do.
    kept_left: u64,
    entry_limit: u64,
    ignore: Rules,
    ignore_steps: Steps,
    selections: Vec<Selection>,
    warnings: Warnings,
}

/// An entry of a directory.
struct Entry {
    kind: EntryKind,
    path: Vec<u8>,
    id: ObjectId,
}

impl Walk<'_> {
    /// Packs the files of a commit. Returns the commit metadata.
    fn commit(&mut self, id: &oid) -> Result<SourceMetadata, Stopped> {
        let mut data = Vec::new();
        self.objects.read(id, Kind::Commit, &mut data)?;
        let tree = CommitRefIter::from_bytes(&data, id.kind()).tree_id();
        let tree = tree.map_err(|error| self.objects.broken(&format!("failed to parse the commit: {error}")))?;
        self.directory(&tree, &[], 0)?;
        Ok(metadata::of_commit(&data, id.kind()))
    }

    fn finish(self, metadata: SourceMetadata) -> Result<Packed, Stopped> {
        let too_long = |_: Exhausted| {
            "matching the patterns against all files takes too many steps: use fewer or simpler patterns".to_owned()
        };
        let selections = self.selections.into_iter().map(|selection| selection.digest().map_err(too_long)).collect();
        self.archive.finish()?;
        Ok(Packed { warnings: self.warnings.sentences(), selections, metadata })
    }

    /// Packs a directory. `path` is empty for the root.
    fn directory(&mut self, id: &oid, path: &[u8], depth: usize) -> Result<(), Stopped> {
        if depth > MAX_DEPTH {
            return Err(self
                .objects
                .broken(&format!("{} is nested more than {MAX_DEPTH} levels deep", shown(path)))
                .into());
        }
        let entries = self.entries(id, path)?;
        self.read_ignore_file(&entries, path)?;
        for entry in entries {
            if self.is_ignored(&entry)? {
                continue;
            }
            self.count(&entry)?;
            match entry.kind {
                EntryKind::Tree => {
                    self.archive.append_directory(&entry.path)?;
                    self.selections.iter_mut().for_each(|selection| selection.enter(&entry.path));
                    self.directory(&entry.id, &entry.path, depth + 1)?;
                    self.selections.iter_mut().for_each(Selection::leave);
                }
                EntryKind::Commit => {
                    self.select(&entry);
                    self.warnings.submodules.add(&entry.path);
                }
                EntryKind::Link => self.link(&entry)?,
                EntryKind::Blob | EntryKind::BlobExecutable => self.file(&entry)?,
            }
        }
        Ok(())
    }

    /// Counts an entry. Unlike the archive's counter, this counter includes submodules and omitted links.
    fn count(&mut self, entry: &Entry) -> Result<(), PackError> {
        let limit = self.entry_limit;
        let left = self.kept_left.checked_sub(1);
        self.kept_left = left.ok_or_else(|| PackError::TooManyEntries { path: shown(&entry.path).into(), limit })?;
        Ok(())
    }

    fn is_ignored(&mut self, entry: &Entry) -> Result<bool, GitError> {
        let is_directory = entry.kind == EntryKind::Tree;
        let decision = self.ignore.decision(&entry.path, is_directory, &mut self.ignore_steps);
        let too_long = |_: Exhausted| {
            self.objects.broken(
                "matching the patterns of .sourceignore against all files takes too many steps: use fewer or simpler \
                 patterns",
            )
        };
        Ok(decision.map_err(too_long)? == Some(true))
    }

    /// Returns the entries of a directory. All entries count toward the limit, even if they are not packed, because a
    /// tree can contain millions of entries.
    fn entries(&mut self, id: &oid, path: &[u8]) -> Result<Vec<Entry>, GitError> {
        let mut data = Vec::new();
        self.objects.read(id, Kind::Tree, &mut data)?;
        let mut entries = Vec::new();
        for entry in TreeRefIter::from_bytes(&data, id.kind()) {
            let entry = entry
                .map_err(|error| self.objects.broken(&format!("failed to parse directory {}: {error}", shown(path))))?;
            let left = self.entries_left.checked_sub(1);
            self.entries_left = left.ok_or_else(|| self.objects.broken("too many directory entries"))?;
            let name: &[u8] = entry.filename;
            if name.is_empty() || name.contains(&b'/') || name.eq_ignore_ascii_case(b".git") {
                return Err(self.objects.broken(&format!("invalid name {} in directory {}", shown(name), shown(path))));
            }
            let path = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
            entries.push(Entry { kind: entry.mode.kind(), path, id: entry.oid.to_owned() });
        }
        Ok(entries)
    }

    fn read_ignore_file(&mut self, entries: &[Entry], path: &[u8]) -> Result<(), GitError> {
        let is_file = |entry: &&Entry| matches!(entry.kind, EntryKind::Blob | EntryKind::BlobExecutable);
        let named = |entry: &&Entry| entry.path.rsplit(|byte| *byte == b'/').next() == Some(IGNORE_FILE);
        let Some(file) = entries.iter().filter(is_file).find(named) else { return Ok(()) };
        let mut data = Vec::new();
        self.objects.read(&file.id, Kind::Blob, &mut data)?;
        if data.len() > MAX_IGNORE_FILE {
            let path = shown(&file.path);
            return Err(self.objects.broken(&format!("{path} exceeds the limit of {MAX_IGNORE_FILE} bytes")));
        }
        self.ignore.add(&data, path);
        Ok(())
    }

    fn file(&mut self, entry: &Entry) -> Result<(), Stopped> {
        let mut data = Vec::new();
        self.objects.read(&entry.id, Kind::Blob, &mut data)?;
        if data.len() <= LFS_POINTER.1 && data.starts_with(LFS_POINTER.0) {
            self.warnings.pointers.add(&entry.path);
        }
        self.select(entry);
        Ok(self.archive.append_file(&entry.path, entry.kind == EntryKind::BlobExecutable, &data)?)
    }

    /// Packs a symbolic link. Omits a link whose target is outside the repository, because such a link could point to
    /// any file in the workspace.
    fn link(&mut self, entry: &Entry) -> Result<(), Stopped> {
        let mut target = Vec::new();
        self.objects.read(&entry.id, Kind::Blob, &mut target)?;
        self.select(entry);
        match self.archive.append_link(&entry.path, &target) {
            Err(PackError::Link { .. }) => self.warnings.links.add(&entry.path),
            other => other?,
        }
        Ok(())
    }

    fn select(&mut self, entry: &Entry) {
        for selection in &mut self.selections {
            selection.file(&entry.path, entry.kind.as_octal_str(), entry.id.as_slice());
        }
    }
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { "root".to_owned() } else { String::from_utf8_lossy(path).escape_debug().to_string() }
}

/// Names of the files and directories whose content the artifact omits. The warnings about a commit list these names.
#[derive(Default)]
struct Warnings {
    submodules: Names,
    pointers: Names,
    links: Names,
}

/// The first names of a list, and the total number of names.
#[derive(Default)]
struct Names {
    first: Vec<String>,
    count: usize,
}

impl Names {
    fn add(&mut self, path: &[u8]) {
        self.count += 1;
        if self.first.len() < MAX_LISTED {
            self.first.push(one_line(&shown(path)));
        }
    }
}

impl Warnings {
    fn sentences(&self) -> Vec<String> {
        let kinds = [
            (&self.submodules, "submodules are not fetched; omitted directories"),
            (&self.pointers, "files in Git LFS are not fetched; the artifact contains only their pointers"),
            (&self.links, "symbolic links that leave the repository are omitted"),
        ];
        let present = kinds.into_iter().filter(|(names, _)| names.count > 0);
        present.map(|(names, what)| format!("{what}: {}", enumerated(names))).collect()
    }
}

fn enumerated(names: &Names) -> String {
    let shown = names.first.join(", ");
    match names.count.saturating_sub(names.first.len()) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_about_files_are_summarized_in_short_sentences() {
        assert!(Warnings::default().sentences().is_empty());
        let mut warnings = Warnings::default();
        (0..7).for_each(|n| warnings.pointers.add(format!("f{n}").as_bytes()));
        assert_eq!(
            warnings.sentences(),
            [
                "files in Git LFS are not fetched; the artifact contains only their pointers: f0, f1, f2, f3, f4 and 2 more"
            ]
        );
    }
}
