//! Rules for archives: limits, valid entry names, and valid symbolic link targets.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const MEBIBYTE: u64 = 1 << 20;

/// Limits that apply to a download and to the content of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum size of a downloaded, compressed archive, in bytes. Default: 256 MiB.
    pub download_bytes: u64,
    /// Maximum size of the decompressed archive including headers, in bytes. Unpacking enforces this limit while it
    /// decompresses the archive. Default: 1 GiB.
    pub unpacked_bytes: u64,
    /// Maximum number of files, directories and links, including parent directories without an entry in the archive.
    /// Default: 200,000.
    pub entries: u64,
    /// Maximum nesting depth: `a/b/c` has depth 3. Default: 64.
    pub depth: usize,
    /// Maximum length of an entry path or a link target, in bytes. Default: 1,024.
    pub name_bytes: usize,
    /// Maximum length of one path component, in bytes. Default: 255, which is the limit in Linux file systems.
    pub component_bytes: usize,
    /// Maximum compression ratio: decompressed bytes divided by compressed bytes. Default: 200. Text usually has a
    /// ratio of about 10. DEFLATE can reach a ratio of 1,032.
    pub ratio: u64,
    /// Number of decompressed bytes above which `ratio` applies. Smaller archives may have any ratio, because a small
    /// archive of zeros is harmless. Default: 10 MiB.
    pub ratio_free_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            download_bytes: 256 * MEBIBYTE,
            unpacked_bytes: 1024 * MEBIBYTE,
            entries: 200_000,
            depth: 64,
            name_bytes: 1024,
            component_bytes: 255,
            ratio: 200,
            ratio_free_bytes: 10 * MEBIBYTE,
        }
    }
}

/// The kind of an archive's content. Some rules differ between the kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Source of a program. Symbolic links must lead to files in the archive. Unpacking ignores modification times.
    Source,
    /// Installed dependencies. Symbolic links may have any target, because virtual environments contain links to
    /// programs in the image. Unpacking keeps the modification times, because Python and package managers use these
    /// times to detect outdated files.
    Dependencies,
}

/// The normalized name of an archive entry: a relative path without `.` and `..`. The root of the archive is the empty
/// path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryName(PathBuf);

/// The rule that an entry name violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must not be empty")]
    Empty,
    #[error("must not contain a NUL character")]
    Nul,
    #[error("must not contain a backslash")]
    Backslash,
    #[error("must not be absolute")]
    Absolute,
    #[error("must not contain \"..\"")]
    Parent,
    #[error("must not exceed {limit} bytes, but has {length}")]
    TooLong { length: usize, limit: usize },
    #[error("must not have a component of more than {limit} bytes, but has a component of {length}")]
    ComponentTooLong { length: usize, limit: usize },
    #[error("must not be more than {limit} levels deep, but has {depth}")]
    TooDeep { depth: usize, limit: usize },
}

/// The rule that a symbolic link's target violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("must not be empty")]
    Empty,
    #[error("must not contain a NUL character")]
    Nul,
    #[error("must not contain a backslash")]
    Backslash,
    #[error("must not be absolute")]
    Absolute,
    #[error("must not leave the archive")]
    Outside,
    #[error("must not contain \"..\" after a name, which can be a link")]
    ParentAfterName,
    #[error("must not exceed {limit} bytes, but has {length}")]
    TooLong { length: usize, limit: usize },
}

impl EntryName {
    /// Validates and normalizes the name of an entry.
    pub(super) fn parse(raw: &[u8], limits: &Limits) -> Result<Self, NameError> {
        if raw.is_empty() {
            return Err(NameError::Empty);
        }
        if raw.len() > limits.name_bytes {
            return Err(NameError::TooLong { length: raw.len(), limit: limits.name_bytes });
        }
        if raw.contains(&0) {
            return Err(NameError::Nul);
        }
        if raw.contains(&b'\\') {
            return Err(NameError::Backslash);
        }
        if raw.starts_with(b"/") {
            return Err(NameError::Absolute);
        }
        let mut path = PathBuf::new();
        let mut depth = 0;
        for component in components(raw) {
            if component == b".." {
                return Err(NameError::Parent);
            }
            if component.len() > limits.component_bytes {
                return Err(NameError::ComponentTooLong { length: component.len(), limit: limits.component_bytes });
            }
            path.push(OsStr::from_bytes(component));
            depth += 1;
        }
        if depth > limits.depth {
            return Err(NameError::TooDeep { depth, limit: limits.depth });
        }
        Ok(Self(path))
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.as_os_str().is_empty()
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns an error unless an archive with this kind of content may contain a symbolic link with this name and
    /// `target`.
    ///
    /// An archive of dependencies may contain links with any target. Such links add no risk, because unpacking never
    /// writes a file through a link. The program in the pod can create the same links anyway.
    pub(super) fn check_link_in(&self, content: Content, target: &[u8], limits: &Limits) -> Result<(), LinkError> {
        match content {
            Content::Source => self.check_link(target, limits),
            Content::Dependencies => check_target(target, limits),
        }
    }

    /// Returns an error unless the target of a symbolic link with this name is inside the tree.
    ///
    /// All `..` components must be at the beginning of the target. The link must have at least as many parent
    /// directories as the target has `..` components. The parent directories of a link are never links themselves, so
    /// the `..` components lead to a directory inside the tree. The remaining components lead through directories or
    /// through links that satisfy the same rule. Therefore, no chain of links leaves the tree.
    pub(super) fn check_link(&self, target: &[u8], limits: &Limits) -> Result<(), LinkError> {
        check_target(target, limits)?;
        if target.contains(&b'\\') {
            return Err(LinkError::Backslash);
        }
        if target.starts_with(b"/") {
            return Err(LinkError::Absolute);
        }
        let steps_up = components(target).take_while(|component| *component == b"..").count();
        if components(target).skip(steps_up).any(|component| component == b"..") {
            return Err(LinkError::ParentAfterName);
        }
        let depth = self.0.parent().map_or(0, |parent| parent.components().count());
        if steps_up > depth { Err(LinkError::Outside) } else { Ok(()) }
    }
}

/// Checks the rules that apply to the target of every symbolic link, regardless of the kind of content.
fn check_target(target: &[u8], limits: &Limits) -> Result<(), LinkError> {
    if target.is_empty() {
        return Err(LinkError::Empty);
    }
    if target.len() > limits.name_bytes {
        return Err(LinkError::TooLong { length: target.len(), limit: limits.name_bytes });
    }
    if target.contains(&0) { Err(LinkError::Nul) } else { Ok(()) }
}

/// Returns the components of a path, without empty components and `.`.
fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { name_bytes: 40, component_bytes: 20, depth: 4, ..Limits::default() }
    }

    #[test]
    fn a_valid_entry_name_is_normalized() {
        let table: [(&[u8], &str); 6] =
            [(b"a", "a"), (b"./a/b", "a/b"), (b"a//b/", "a/b"), (b".", ""), (b"./", ""), (b"..a/...", "..a/...")];
        for (raw, normal) in table {
            assert_eq!(EntryName::parse(raw, &limits()).unwrap().path(), Path::new(normal));
        }
        let not_utf8 = EntryName::parse(b"a/\xff", &limits()).unwrap();
        assert_eq!(not_utf8.path().as_os_str().as_bytes(), b"a/\xff");
    }

    #[test]
    fn the_error_for_a_hostile_entry_name_states_the_reason() {
        let table: [(&[u8], NameError); 11] = [
            (b"", NameError::Empty),
            (b"/", NameError::Absolute),
            (b"/etc/passwd", NameError::Absolute),
            (b"..", NameError::Parent),
            (b"../a", NameError::Parent),
            (b"a/../../b", NameError::Parent),
            (b"a/..", NameError::Parent),
            (b"a\\b", NameError::Backslash),
            (b"a\0b", NameError::Nul),
            (b"a/b/c/d/e", NameError::TooDeep { depth: 5, limit: 4 }),
            (b"aaaaaaaaaaaaaaaaaaaaa", NameError::ComponentTooLong { length: 21, limit: 20 }),
        ];
        for (raw, error) in table {
            assert_eq!(EntryName::parse(raw, &limits()), Err(error));
        }
        assert_eq!(EntryName::parse(&[b'/'; 41], &limits()), Err(NameError::TooLong { length: 41, limit: 40 }));
    }

    #[test]
    fn the_error_for_a_link_out_of_the_archive_states_the_reason() {
        type CheckResult = Result<(), LinkError>;
        let table: [(&[u8], &[u8], CheckResult); 15] = [
            (b"l", b"a", Ok(())),
            (b"l", b".", Ok(())),
            (b"l", b"./a/b", Ok(())),
            (b"d/l", b"../a", Ok(())),
            (b"d/e/l", b"../../a", Ok(())),
            (b"d/e/l", b"../..", Ok(())),
            (b"l", b"..", Err(LinkError::Outside)),
            (b"d/l", b"../../a", Err(LinkError::Outside)),
            (b"d/l", b".././../a", Err(LinkError::Outside)),
            (b"l", b"/etc/passwd", Err(LinkError::Absolute)),
            (b"d/l", b"a/../b", Err(LinkError::ParentAfterName)),
            (b"l", b"a/..", Err(LinkError::ParentAfterName)),
            (b"l", b"", Err(LinkError::Empty)),
            (b"l", b"a\\b", Err(LinkError::Backslash)),
            (b"l", b"a\0b", Err(LinkError::Nul)),
        ];
        for (name, target, expected) in table {
            let name = EntryName::parse(name, &limits()).unwrap();
            assert_eq!(name.check_link(target, &limits()), expected, "{name:?} -> {}", String::from_utf8_lossy(target));
        }
    }
}
