//! Writes archive entries to disk, and defines the errors that unpacking can return. Accesses all files through
//! directory handles, which prevent access to files outside the tree.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cap_std::fs::{Dir, DirBuilder, DirBuilderExt, File, FileType, OpenOptions, OpenOptionsExt};

use super::super::quote::quoted_bytes;
use super::super::rules::{EntryName, Limits, LinkError, NameError};

/// The reason why unpacking failed. The caller must remove the files that the destination already contains.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("failed to unpack into {path}: {why}")]
    Destination { path: PathBuf, why: String },
    #[error("invalid archive: entry name {name} {why}")]
    Name { name: String, why: NameError },
    #[error("invalid archive: symbolic link {name} to {target}: target {why}")]
    Link { name: String, target: String, why: LinkError },
    #[error(
        "invalid archive: entry {name} is {kind}: only regular files, directories and symbolic links are supported"
    )]
    Kind { name: String, kind: String },
    #[error("invalid archive: entry {name} is {kind}")]
    Misnamed { name: String, kind: &'static str },
    #[error("invalid archive: entry {name} has the same name as an earlier entry, which is {kind}")]
    Occupied { name: String, kind: &'static str },
    #[error("invalid archive: entry {name} is below {through}, which is {kind}")]
    Through { name: String, through: String, kind: &'static str },
    #[error("archive exceeds the limit of {limit} entries, including implied directories")]
    TooManyEntries { limit: u64 },
    #[error("archive exceeds the limit of {limit} decompressed bytes (--artifact-max-unpacked-size) {place}")]
    TooLarge { limit: u64, place: String },
    #[error("archive decompresses to more than {ratio} times its size {place}: possible decompression bomb")]
    TooCompressed { ratio: u64, place: String },
    #[error("invalid archive: extension header of {size} bytes exceeds the limit of {limit}")]
    HeaderTooLarge { size: u64, limit: u64 },
    #[error("invalid archive: not a valid tar.gz: {cause}")]
    Broken { cause: String },
    #[error("invalid archive: truncated before the end-of-archive marker")]
    Truncated,
    #[error("failed to write {name}: {cause}")]
    Write { name: String, cause: io::Error },
}

/// Buffer size for copying files, in bytes.
const BUFFER_SIZE: usize = 64 * 1024;

/// Properties of a file in an archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileProperties {
    pub(super) executable: bool,
    /// Expected size in bytes.
    pub(super) size: u64,
    /// Modification time, or `None` for the current time.
    pub(super) modified: Option<SystemTime>,
}

/// Writes the entries of an archive below a directory.
pub(super) struct TreeWriter<'limits> {
    limits: &'limits Limits,
    root: Dir,
    /// Paths of directories, excluding links. A path in this set remains a directory, because this module never
    /// replaces a directory.
    directories: HashSet<PathBuf>,
    /// Cached handle of the directory that was opened last. Archives usually list all files in one directory before the
    /// files in the next directory.
    current: Option<(PathBuf, Dir)>,
    buffer: Vec<u8>,
    pub(super) entries: u64,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

impl<'limits> TreeWriter<'limits> {
    pub(super) fn new(root: Dir, limits: &'limits Limits) -> Self {
        Self {
            limits,
            root,
            directories: HashSet::new(),
            current: None,
            buffer: vec![0; BUFFER_SIZE],
            entries: 0,
            files: 0,
            bytes: 0,
        }
    }

    /// Creates a directory if it does not exist.
    pub(super) fn create_directory(&mut self, name: &EntryName) -> Result<(), UnpackError> {
        self.count()?;
        self.ensure(name.path(), name)
    }

    /// Writes a file. Returns `false` if the archive ended before the file was complete.
    pub(super) fn write_file(
        &mut self,
        name: &EntryName,
        FileProperties { executable, size, modified }: FileProperties,
        content: impl Read,
    ) -> Result<bool, FileError> {
        self.count()?;
        let mut file = self.create(name, executable)?;
        match copy(content, &mut file, &mut self.buffer) {
            Ok(written) => {
                self.bytes = self.bytes.saturating_add(written);
                if let Some(modified) = modified {
                    file.into_std().set_modified(modified).map_err(|cause| write_error(name, cause))?;
                }
                Ok(written == size)
            }
            Err(CopyError::Read(cause)) => Err(FileError::Archive(cause)),
            Err(CopyError::Write(cause)) => Err(write_error(name, cause).into()),
        }
    }

    /// Creates a symbolic link. The caller must check the target first.
    pub(super) fn create_link(&mut self, name: &EntryName, target: &[u8]) -> Result<(), UnpackError> {
        self.count()?;
        let (parent, last) = self.parent(name)?;
        match parent.symlink_contents(OsStr::from_bytes(target), &last) {
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {
                let there = parent.symlink_metadata(&last).map_err(|cause| write_error(name, cause))?;
                Err(occupied(name, there.file_type()))
            }
            result => result.map_err(|cause| write_error(name, cause)),
        }
    }

    fn create(&mut self, name: &EntryName, executable: bool) -> Result<File, UnpackError> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(if executable { 0o755 } else { 0o644 });
        let (parent, last) = self.parent(name)?;
        let made = match parent.open_with(&last, &options) {
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {
                let there = parent.symlink_metadata(&last).map_err(|cause| write_error(name, cause))?;
                if !there.is_file() {
                    return Err(occupied(name, there.file_type()));
                }
                // The later of two entries with the same name takes precedence. Unlinks the earlier file instead of
                // overwriting its content.
                parent.remove_file(&last).and_then(|()| parent.open_with(&last, &options))
            }
            made => {
                self.files += u64::from(made.is_ok());
                made
            }
        };
        made.map_err(|cause| write_error(name, cause))
    }

    /// Opens the parent directory of an entry, and creates the parent directory if necessary. Returns the directory and
    /// the last component of the entry name.
    fn parent(&mut self, name: &EntryName) -> Result<(Dir, OsString), UnpackError> {
        let last = name.path().file_name().unwrap_or_default().to_owned();
        let path = name.path().parent().unwrap_or_else(|| Path::new(""));
        self.ensure(path, name)?;
        let directory = self.open(path).map_err(|cause| write_error(name, cause))?;
        Ok((directory, last))
    }

    fn open(&mut self, path: &Path) -> io::Result<Dir> {
        if path.as_os_str().is_empty() {
            return self.root.try_clone();
        }
        if let Some((current, directory)) = &self.current
            && current == path
        {
            return directory.try_clone();
        }
        let directory = self.root.open_dir(path)?;
        self.current = Some((path.to_owned(), directory.try_clone()?));
        Ok(directory)
    }

    /// Creates a directory and its missing parents. Neither the directory nor a parent may be a link.
    fn ensure(&mut self, path: &Path, entry: &EntryName) -> Result<(), UnpackError> {
        let mut missing: Vec<&Path> = path.ancestors().take_while(|above| !self.directories.contains(*above)).collect();
        missing.retain(|above| !above.as_os_str().is_empty());
        let mut builder = DirBuilder::new();
        builder.mode(0o755);
        for directory in missing.into_iter().rev() {
            match self.root.create_dir_with(directory, &builder) {
                // Parent directories without an entry in the archive also count toward the limit.
                Ok(()) if directory != entry.path() => self.count()?,
                Ok(()) => {}
                Err(cause) if cause.kind() == ErrorKind::AlreadyExists => self.check_directory(directory, entry)?,
                Err(cause) => return Err(write_error(entry, cause)),
            }
            self.directories.insert(directory.to_owned());
        }
        Ok(())
    }

    fn check_directory(&self, directory: &Path, entry: &EntryName) -> Result<(), UnpackError> {
        let there = self.root.symlink_metadata(directory).map_err(|cause| write_error(entry, cause))?;
        if there.is_dir() {
            return Ok(());
        }
        if directory == entry.path() {
            return Err(occupied(entry, there.file_type()));
        }
        Err(UnpackError::Through {
            name: quoted_path(entry.path()),
            through: quoted_path(directory),
            kind: kind_of(there.file_type()),
        })
    }

    fn count(&mut self) -> Result<(), UnpackError> {
        self.entries += 1;
        let limit = self.limits.entries;
        if self.entries > limit { Err(UnpackError::TooManyEntries { limit }) } else { Ok(()) }
    }
}

/// The reason why unpacking a file failed.
pub(super) enum FileError {
    /// Reading the archive failed. The caller determines the reason.
    Archive(io::Error),
    Refused(UnpackError),
}

impl From<UnpackError> for FileError {
    fn from(error: UnpackError) -> Self {
        FileError::Refused(error)
    }
}

fn copy(mut from: impl Read, to: &mut File, buffer: &mut [u8]) -> Result<u64, CopyError> {
    let mut written: u64 = 0;
    loop {
        let count = match from.read(buffer) {
            Ok(0) => return Ok(written),
            Ok(count) => count,
            Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
            Err(cause) => return Err(CopyError::Read(cause)),
        };
        to.write_all(buffer.get(..count).unwrap_or_default()).map_err(CopyError::Write)?;
        written = written.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn occupied(name: &EntryName, there: FileType) -> UnpackError {
    UnpackError::Occupied { name: quoted_path(name.path()), kind: kind_of(there) }
}

fn write_error(name: &EntryName, cause: io::Error) -> UnpackError {
    UnpackError::Write { name: quoted_path(name.path()), cause }
}

fn quoted_path(path: &Path) -> String {
    quoted_bytes(path.as_os_str().as_bytes())
}

fn kind_of(kind: FileType) -> &'static str {
    if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else {
        "a file"
    }
}
