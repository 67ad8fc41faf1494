//! Packs artifacts from a directory or from individual entries. The same content always results in the same archive,
//! and [`super::unpack()`] accepts every archive that this module creates.
//!
//! The entries of an archive are sorted by name. The times, owner IDs and group IDs of all entries are zero. The modes
//! are the same as in Flux archives: 0600 for files, 0700 for executable files and 0750 for directories.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::quote::quoted_bytes;
use super::rules::{Content, EntryName, Limits, LinkError, NameError};

/// The number and total size of the files in a packed archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Number of regular files.
    pub files: u64,
    /// Total uncompressed size of the files, in bytes.
    pub bytes: u64,
}

/// The reason why packing failed. After a failure, the output is not a valid archive.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("failed to pack {path}: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    #[error("failed to pack {path}: the file changed during packing")]
    Changed { path: PathBuf },
    #[error("failed to pack {name}: name {why}")]
    Name { name: String, why: NameError },
    #[error("failed to pack symbolic link {name} to {target}: target {why}")]
    Link { name: String, target: String, why: LinkError },
    #[error("failed to pack {path}: must be a file, a directory or a symbolic link")]
    Kind { path: PathBuf },
    #[error("failed to pack {path}: limit of {limit} entries exceeded")]
    TooManyEntries { path: PathBuf, limit: u64 },
    #[error("failed to pack: the files exceed the limit of {limit} bytes in total (--artifact-max-unpacked-size)")]
    TooManyBytes { limit: u64 },
    #[error("failed to write {path} to the archive: {cause}")]
    Write { path: PathBuf, cause: io::Error },
}

/// Packs the content of a directory as a gzip-compressed tar archive. Names and links must be within the default
/// [`Limits`], which apply when the archive is unpacked.
///
/// # Errors
/// Fails if a file cannot be read, if a file or its name is not allowed in an archive, or if writing fails.
pub fn pack(directory: &Path, into: impl Write) -> Result<Packed, PackError> {
    let builder = Builder::new(GzEncoder::new(into, Compression::default()));
    let mut packing = Packing::new(Content::Source, directory, builder, Limits::default());
    packing.append_content(Path::new(""))?;
    packing.finish()
}

/// Packs directories with installed dependencies. The paths of the directories are relative to `root`. The archive
/// contains the modification times of files, and symbolic links with any target. Uses a fast compression level, because
/// packing lengthens an installation.
///
/// # Errors
/// Fails in the same cases as [`pack`], and if the files exceed the limits.
pub fn pack_dependencies(
    root: &Path,
    directories: &[PathBuf],
    into: impl Write,
    limits: &Limits,
) -> Result<Packed, PackError> {
    let builder = Builder::new(GzEncoder::new(into, Compression::fast()));
    let mut packing = Packing::new(Content::Dependencies, root, builder, limits.clone());
    for directory in directories {
        packing.append_entry(directory)?;
    }
    packing.finish()
}

/// Packs one file from memory. Does not compress the archive, because the digest of a compressed archive depends on the
/// compressor version.
///
/// # Errors
/// Fails if the name is not valid in a tar archive.
pub fn pack_file(name: &str, content: &[u8]) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::none()));
    let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
    builder.append_data(&mut header(EntryType::Regular, 0o600, size), name, content)?;
    builder.into_inner().and_then(GzEncoder::finish)
}

struct Packing<'root, W: Write> {
    content: Content,
    root: &'root Path,
    builder: Builder<GzEncoder<W>>,
    limits: Limits,
    entries: u64,
    packed: Packed,
}

impl<'root, W: Write> Packing<'root, W> {
    fn new(content: Content, root: &'root Path, builder: Builder<GzEncoder<W>>, limits: Limits) -> Self {
        Packing { content, root, builder, limits, entries: 0, packed: Packed { files: 0, bytes: 0 } }
    }

    fn finish(self) -> Result<Packed, PackError> {
        let failed = |cause| PackError::Write { path: self.root.to_owned(), cause };
        let mut into = self.builder.into_inner().and_then(GzEncoder::finish).map_err(failed)?;
        into.flush().map_err(failed)?;
        Ok(self.packed)
    }

    /// Packs the content of a directory recursively. The maximum name length limits the recursion depth.
    fn append_content(&mut self, relative: &Path) -> Result<(), PackError> {
        let path = self.root.join(relative);
        let failed = |cause| PackError::Read { path: path.clone(), cause };
        let content = fs::read_dir(&path).map_err(failed)?;
        let names: io::Result<Vec<OsString>> = content.map(|entry| entry.map(|entry| entry.file_name())).collect();
        let mut names = names.map_err(failed)?;
        names.sort();
        for name in names {
            self.append_entry(&relative.join(name))?;
        }
        Ok(())
    }

    fn append_entry(&mut self, relative: &Path) -> Result<(), PackError> {
        let path = self.root.join(relative);
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(PackError::TooManyEntries { path, limit: self.limits.entries });
        }
        let raw = relative.as_os_str().as_bytes();
        let refused = |why| PackError::Name { name: quoted_bytes(raw), why };
        let name = EntryName::parse(raw, &self.limits).map_err(refused)?;
        let metadata = fs::symlink_metadata(&path).map_err(|cause| PackError::Read { path: path.clone(), cause })?;
        if metadata.is_dir() {
            let written = self.builder.append_data(&mut header(EntryType::Directory, 0o750, 0), relative, io::empty());
            written.map_err(|cause| PackError::Write { path: path.clone(), cause })?;
            self.append_content(relative)
        } else if metadata.is_symlink() {
            self.append_link(&name, &path)
        } else if metadata.is_file() {
            self.append_file(relative, &path)
        } else {
            Err(PackError::Kind { path })
        }
    }

    fn append_link(&mut self, name: &EntryName, path: &Path) -> Result<(), PackError> {
        let target = fs::read_link(path).map_err(|cause| PackError::Read { path: path.to_owned(), cause })?;
        let raw = target.as_os_str().as_bytes();
        name.check_link_in(self.content, raw, &self.limits).map_err(|why| PackError::Link {
            name: quoted_bytes(name.path().as_os_str().as_bytes()),
            target: quoted_bytes(raw),
            why,
        })?;
        let written = self.builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), name.path(), &target);
        written.map_err(|cause| PackError::Write { path: path.to_owned(), cause })
    }

    fn append_file(&mut self, relative: &Path, path: &Path) -> Result<(), PackError> {
        let failed = |cause| PackError::Read { path: path.to_owned(), cause };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let size = metadata.len();
        let mut header = header(EntryType::Regular, mode(&metadata), size);
        if self.content == Content::Dependencies {
            if self.packed.bytes.saturating_add(size) > self.limits.unpacked_bytes {
                return Err(PackError::TooManyBytes { limit: self.limits.unpacked_bytes });
            }
            header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or_default());
        }
        let mut content = CountingReader { inner: file.take(size), count: 0 };
        let written = self.builder.append_data(&mut header, relative, &mut content);
        written.map_err(|cause| PackError::Write { path: path.to_owned(), cause })?;
        if content.count != size {
            return Err(PackError::Changed { path: path.to_owned() });
        }
        self.packed.files += 1;
        self.packed.bytes = self.packed.bytes.saturating_add(size);
        Ok(())
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn mode(metadata: &Metadata) -> u32 {
    if metadata.permissions().mode() & 0o111 == 0 { 0o600 } else { 0o700 }
}

/// A reader that counts bytes. The caller uses the count to detect a file that shrank after its header was written.
struct CountingReader<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count = self.count.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(count)
    }
}

/// An archive built from individual entries, for content that is not in a directory on disk.
///
/// The archive is not compressed. With compression, a new compressor version would change the digests of all such
/// archives and trigger a run of every Stack that uses one.
pub struct Archive<W: Write> {
    builder: Builder<GzEncoder<W>>,
    limits: Limits,
    entries: u64,
    packed: Packed,
}

impl<W: Write> fmt::Debug for Archive<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").field("packed", &self.packed).finish_non_exhaustive()
    }
}

impl<W: Write> Archive<W> {
    /// Creates an empty archive.
    pub fn new(into: W, limits: Limits) -> Self {
        let builder = Builder::new(GzEncoder::new(into, Compression::none()));
        Self { builder, limits, entries: 0, packed: Packed { files: 0, bytes: 0 } }
    }

    /// Adds a directory. The caller must add parent directories first.
    ///
    /// # Errors
    /// Fails if the name is not allowed in an archive, if the archive has too many entries, or if writing fails.
    pub fn append_directory(&mut self, name: &[u8]) -> Result<(), PackError> {
        let name = self.name(name)?;
        let written = self.builder.append_data(&mut header(EntryType::Directory, 0o750, 0), name.path(), io::empty());
        written.map_err(|cause| failed(name.path(), cause))
    }

    /// Adds a file.
    ///
    /// # Errors
    /// Fails if the name is not allowed in an archive, if a limit on entries or bytes is exceeded, or if writing fails.
    pub fn append_file(&mut self, name: &[u8], executable: bool, content: &[u8]) -> Result<(), PackError> {
        let name = self.name(name)?;
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        self.packed.files += 1;
        self.packed.bytes = self.packed.bytes.saturating_add(size);
        if self.packed.bytes > self.limits.unpacked_bytes {
            return Err(PackError::TooManyBytes { limit: self.limits.unpacked_bytes });
        }
        let mode = if executable { 0o700 } else { 0o600 };
        let written = self.builder.append_data(&mut header(EntryType::Regular, mode, size), name.path(), content);
        written.map_err(|cause| failed(name.path(), cause))
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// Fails if the name or the target is not allowed in an archive, if the archive has too many entries, or if writing
    /// fails.
    pub fn append_link(&mut self, name: &[u8], target: &[u8]) -> Result<(), PackError> {
        let name = self.name(name)?;
        let refused = |why: LinkError| PackError::Link {
            name: quoted_bytes(name.path().as_os_str().as_bytes()),
            target: quoted_bytes(target),
            why,
        };
        name.check_link(target, &self.limits).map_err(refused)?;
        let target = Path::new(OsStr::from_bytes(target));
        let written = self.builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), name.path(), target);
        written.map_err(|cause| failed(name.path(), cause))
    }

    /// Finishes the archive and returns the writer.
    ///
    /// # Errors
    /// Fails if writing fails.
    pub fn finish(self) -> Result<(W, Packed), PackError> {
        let failed = |cause| failed(Path::new("the end-of-archive marker"), cause);
        let mut into = self.builder.into_inner().and_then(GzEncoder::finish).map_err(failed)?;
        into.flush().map_err(failed)?;
        Ok((into, self.packed))
    }

    fn name(&mut self, raw: &[u8]) -> Result<EntryName, PackError> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(PackError::TooManyEntries { path: quoted_bytes(raw).into(), limit: self.limits.entries });
        }
        EntryName::parse(raw, &self.limits).map_err(|why: NameError| PackError::Name { name: quoted_bytes(raw), why })
    }
}

fn failed(path: &Path, cause: io::Error) -> PackError {
    PackError::Write { path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests;
