//! The files of a commit as an artifact: packed straight from Git's objects, without a working copy. The same commit gives the same
//! bytes.

use std::collections::BTreeMap;

use gix_hash::{ObjectId, oid};
use gix_object::tree::EntryKind;
use gix_object::{CommitRefIter, Kind, TreeRefIter};
use gix_pack::Bundle;

use crate::artifact::{Archive, Digest, Incoming, PackError, Pinned};
use crate::source::git::error::GitError;
use crate::source::git::paths::{self, Paths, Selection};

/// The file that says what is left out.
const IGNORE_FILE: &[u8] = b".sourceignore";
/// How a file begins that only stands for one in Git LFS, and how long such a file is at most.
const LFS_POINTER: (&[u8], usize) = (b"version https://git-lfs.github.com/spec/v1\n", 1024);
/// How many names a warning lists.
const LISTED: usize = 5;
/// How deep directories may be nested; the names in an archive have the same limit.
const DEEPEST: usize = 64;

/// An artifact that was made of a commit.
#[derive(Clone, Debug)]
pub struct Content {
    pub artifact: Pinned,
    /// What is not as people may expect it.
    pub warnings: Vec<String>,
    /// Of each choice of paths, the digest of what it matches.
    pub selections: BTreeMap<Paths, String>,
}

impl Content {
    pub fn digest(&self) -> &Digest {
        self.artifact.digest()
    }
}

/// Packs the files of a commit into the store.
pub fn make(
    bundle: &Bundle,
    commit: &str,
    incoming: Incoming,
    limits: crate::artifact::Limits,
    choices: &[Paths],
) -> Result<Content, GitError> {
    let id = ObjectId::from_hex(commit.as_bytes()).map_err(|error| GitError::Protocol(error.to_string()))?;
    let largest = limits.download_bytes;
    let mut walk = Walk {
        objects: Objects { bundle, commit },
        archive: Archive::new(incoming, limits),
        ignore: gix_ignore::Search::default(),
        selections: choices.iter().map(|paths| (paths.clone(), paths.selection())).collect(),
        remarks: Remarks::default(),
    };
    let mut data = Vec::new();
    walk.objects.read(&id, Kind::Commit, &mut data)?;
    let tree = CommitRefIter::from_bytes(&data, id.kind()).tree_id();
    let tree = tree.map_err(|error| walk.objects.broken(&format!("the commit cannot be read: {error}")))?;
    walk.directory(&tree, &[], 0)?;
    let (incoming, _) = walk.archive.finish()?;
    // No workspace takes a larger one.
    if incoming.size() > largest {
        return Err(GitError::TooLarge { what: "the artifact of the repository", limit: largest });
    }
    let selections = walk.selections.into_iter().map(|(paths, selection)| (paths, selection.digest())).collect();
    Ok(Content { artifact: incoming.commit_as_is()?, warnings: walk.remarks.sentences(), selections })
}

/// Git's objects, as they were fetched.
struct Objects<'a> {
    bundle: &'a Bundle,
    commit: &'a str,
}

impl Objects<'_> {
    fn read(&self, id: &oid, kind: Kind, into: &mut Vec<u8>) -> Result<(), GitError> {
        let mut inflate = gix_zlib::Inflate::default();
        let found = self.bundle.find(id, into, &mut inflate, &mut gix_pack::cache::Never);
        let found = found.map_err(|error| self.broken(&format!("object {id} cannot be read: {error}")))?;
        match found.map(|(data, _)| data.kind) {
            Some(found) if found == kind => Ok(()),
            Some(found) => Err(self.broken(&format!("object {id} is a {found} and no {kind}"))),
            None => Err(self.broken(&format!("the server did not send object {id}"))),
        }
    }

    fn broken(&self, why: &str) -> GitError {
        GitError::Content { commit: self.commit.to_owned(), why: why.to_owned() }
    }
}

/// A walk through the files of a commit.
struct Walk<'a> {
    objects: Objects<'a>,
    archive: Archive<Incoming>,
    ignore: gix_ignore::Search,
    selections: Vec<(Paths, Selection)>,
    remarks: Remarks,
}

/// An entry of a directory.
struct Entry {
    kind: EntryKind,
    path: Vec<u8>,
    id: ObjectId,
}

impl Walk<'_> {
    /// Packs a directory; the root has an empty path.
    fn directory(&mut self, id: &oid, path: &[u8], depth: usize) -> Result<(), GitError> {
        if depth > DEEPEST {
            return Err(self.objects.broken(&format!("{} is nested too deeply", shown(path))));
        }
        let entries = self.entries(id, path)?;
        self.read_ignore_file(&entries, path)?;
        for entry in entries {
            let is_directory = entry.kind == EntryKind::Tree;
            if paths::verdict(&self.ignore, &entry.path, is_directory) == Some(true) {
                continue;
            }
            match entry.kind {
                EntryKind::Tree => {
                    self.archive.directory(&entry.path)?;
                    self.selections.iter_mut().for_each(|(_, selection)| selection.enter(&entry.path));
                    self.directory(&entry.id, &entry.path, depth + 1)?;
                    self.selections.iter_mut().for_each(|(_, selection)| selection.leave());
                }
                EntryKind::Commit => {
                    self.select(&entry);
                    self.remarks.submodules.push(shown(&entry.path));
                }
                EntryKind::Link => self.link(&entry)?,
                EntryKind::Blob | EntryKind::BlobExecutable => self.file(&entry)?,
            }
        }
        Ok(())
    }

    fn entries(&self, id: &oid, path: &[u8]) -> Result<Vec<Entry>, GitError> {
        let mut data = Vec::new();
        self.objects.read(id, Kind::Tree, &mut data)?;
        let mut entries = Vec::new();
        for entry in TreeRefIter::from_bytes(&data, id.kind()) {
            let entry =
                entry.map_err(|error| self.objects.broken(&format!("{} cannot be read: {error}", shown(path))))?;
            let name: &[u8] = entry.filename;
            if name.is_empty() || name.contains(&b'/') || name.eq_ignore_ascii_case(b".git") {
                return Err(self.objects.broken(&format!(
                    "{} in {} is no name that Git allows",
                    shown(name),
                    shown(path)
                )));
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
        paths::add(&mut self.ignore, &data, &String::from_utf8_lossy(path));
        Ok(())
    }

    fn file(&mut self, entry: &Entry) -> Result<(), GitError> {
        let mut data = Vec::new();
        self.objects.read(&entry.id, Kind::Blob, &mut data)?;
        if data.len() <= LFS_POINTER.1 && data.starts_with(LFS_POINTER.0) {
            self.remarks.pointers.push(shown(&entry.path));
        }
        self.select(entry);
        Ok(self.archive.file(&entry.path, entry.kind == EntryKind::BlobExecutable, &data)?)
    }

    /// Links that lead out of the repository are left out: they would lead anywhere in the workspace.
    fn link(&mut self, entry: &Entry) -> Result<(), GitError> {
        let mut target = Vec::new();
        self.objects.read(&entry.id, Kind::Blob, &mut target)?;
        self.select(entry);
        match self.archive.link(&entry.path, &target) {
            Err(PackError::Link { .. }) => self.remarks.links.push(shown(&entry.path)),
            other => other?,
        }
        Ok(())
    }

    fn select(&mut self, entry: &Entry) {
        for (_, selection) in &mut self.selections {
            selection.file(&entry.path, entry.kind.as_octal_str(), entry.id.as_slice());
        }
    }
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { "the root".to_owned() } else { String::from_utf8_lossy(path).escape_debug().to_string() }
}

/// What is not as people may expect it.
#[derive(Default)]
struct Remarks {
    submodules: Vec<String>,
    pointers: Vec<String>,
    links: Vec<String>,
}

impl Remarks {
    fn sentences(&self) -> Vec<String> {
        let kinds = [
            (&self.submodules, "submodules are not fetched; their directories are missing"),
            (&self.pointers, "files in Git LFS are not fetched; these hold their pointers only"),
            (&self.links, "symbolic links that lead out of the repository are left out"),
        ];
        let said = kinds.into_iter().filter(|(names, _)| !names.is_empty());
        said.map(|(names, what)| format!("{what}: {}", enumerated(names))).collect()
    }
}

fn enumerated(names: &[String]) -> String {
    let shown = names.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_short_sentences() {
        assert!(Remarks::default().sentences().is_empty());
        let names: Vec<String> = (0..7).map(|n| format!("f{n}")).collect();
        let remarks = Remarks { pointers: names, ..Remarks::default() };
        assert_eq!(
            remarks.sentences(),
            ["files in Git LFS are not fetched; these hold their pointers only: f0, f1, f2, f3, f4 and 2 more"]
        );
    }
}
