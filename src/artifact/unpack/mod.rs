//! Unpacks archives. The same rules apply to archives from all sources, because every archive can be malicious.
//!
//! An archive is a gzip-compressed tar stream of regular files, directories, and symbolic links whose targets are
//! inside the tree. Any other kind of entry is an error. The limits apply to the number of bytes that unpacking
//! actually decompresses and writes, not to the sizes that the headers declare.

mod extended;
#[cfg(test)]
mod tests;
mod tree;

use std::cell::Cell;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use super::quote::{quoted, quoted_bytes};
use super::rules::{Content, EntryName, Limits};
use extended::{Extended, Member};
use tree::{FileError, FileProperties, TreeWriter};

pub use tree::UnpackError;

/// The result of unpacking an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Number of regular files.
    pub files: u64,
    /// Number of bytes written to files.
    pub bytes: u64,
}

/// Unpacks an archive into an existing empty directory. Ignores owners, times, attributes and modes, except for the
/// executable bit. The mode of a file is 0644 or 0755, and the mode of a directory is 0755, minus the umask.
///
/// # Errors
/// Fails if the archive is malformed, violates a rule or exceeds a limit, or if writing fails. After a failure, the
/// directory may contain part of the archive.
pub fn unpack(reader: impl Read, into: &Path, limits: &Limits) -> Result<Unpacked, UnpackError> {
    unpack_content(Content::Source, reader, into, limits)
}

/// Unpacks an archive that [`pack_dependencies`](super::pack_dependencies) created into an existing empty directory.
/// Unlike [`unpack()`], keeps the modification times of files, and creates symbolic links with any target.
///
/// # Errors
/// Fails in the same cases as [`unpack()`].
pub fn unpack_dependencies(reader: impl Read, into: &Path, limits: &Limits) -> Result<Unpacked, UnpackError> {
    unpack_content(Content::Dependencies, reader, into, limits)
}

fn unpack_content(content: Content, reader: impl Read, into: &Path, limits: &Limits) -> Result<Unpacked, UnpackError> {
    let root = open_empty(into)?;
    let (mut archive, meter) = open(reader, limits);
    let tree = TreeWriter::new(root, limits);
    let mut unpacking = Unpacking { content, limits, meter, tree, place: String::new() };
    unpacking.unpack_entries(&mut archive)?;
    unpacking.end(archive.into_inner())?;
    Ok(Unpacked { files: unpacking.tree.files, bytes: unpacking.tree.bytes })
}

/// Reads a complete archive and checks its limits without creating files. If an archive has too many entries or bytes,
/// creating and removing its files can take minutes. Therefore, callers survey an archive before they unpack it.
///
/// # Errors
/// Fails if the archive exceeds a limit. Ignores other faults of the archive, because [`unpack()`] reports these faults
/// in more detail.
pub fn survey(reader: impl Read, limits: &Limits) -> Result<(), UnpackError> {
    let (mut archive, meter) = open(reader, limits);
    let mut place = String::new();
    let mut count = 0_u64;
    for entry in archive.entries().into_iter().flat_map(|entries| entries.raw(true)).map_while(Result::ok) {
        if !extended::is_extension(entry.header().entry_type()) {
            count += 1;
        }
        // An entry for the archive root does not count toward the limit.
        if count > limits.entries.saturating_add(1) {
            return Err(UnpackError::TooManyEntries { limit: limits.entries });
        }
        place = entry_place(&entry.path_bytes());
    }
    meter.breach().map_or(Ok(()), |breach| Err(limit_error(breach, limits, &place)))
}

/// Returns a reader for the archive, and the meter that counts the bytes.
fn open<R: Read>(reader: R, limits: &Limits) -> (Archive<LimitedReader<MultiGzDecoder<CountingReader<R>>>>, Rc<Meter>) {
    let meter = Rc::new(Meter::default());
    let compressed = CountingReader { inner: reader, meter: Rc::clone(&meter) };
    let inner = MultiGzDecoder::new(compressed);
    (Archive::new(LimitedReader { inner, meter: Rc::clone(&meter), limits: limits.clone() }), meter)
}

fn entry_place(name: &[u8]) -> String {
    format!("in entry {}", quoted_bytes(name))
}

/// Returns the error that reports an exceeded limit. `place` describes the current entry. Before the first entry,
/// `place` is empty.
fn limit_error(breach: Breach, limits: &Limits, place: &str) -> UnpackError {
    let place = if place.is_empty() { "before the first entry" } else { place }.to_owned();
    match breach {
        Breach::TooLarge => UnpackError::TooLarge { limit: limits.unpacked_bytes, place },
        Breach::TooCompressed => UnpackError::TooCompressed { ratio: limits.ratio, place },
    }
}

/// Opens the destination, which must be an empty directory. Rejects a symbolic link.
fn open_empty(into: &Path) -> Result<Dir, UnpackError> {
    let refused = |why: String| UnpackError::Destination { path: into.to_owned(), why };
    let metadata = fs::symlink_metadata(into).map_err(|cause| refused(cause.to_string()))?;
    if !metadata.is_dir() {
        return Err(refused("not a directory".to_owned()));
    }
    let root = Dir::open_ambient_dir(into, ambient_authority()).map_err(|cause| refused(cause.to_string()))?;
    let mut content = root.entries().map_err(|cause| refused(cause.to_string()))?;
    if content.next().is_some() {
        return Err(refused("not empty".to_owned()));
    }
    Ok(root)
}

struct Unpacking<'limits> {
    content: Content,
    limits: &'limits Limits,
    meter: Rc<Meter>,
    tree: TreeWriter<'limits>,
    /// Description of the current entry for error messages.
    place: String,
}

impl Unpacking<'_> {
    fn unpack_entries<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<(), UnpackError> {
        // Uses the raw mode. Otherwise, the library would read extension headers of unlimited size into memory.
        let entries = archive.entries().map_err(|cause| self.explain(&cause))?.raw(true);
        let mut extended = Extended::default();
        for entry in entries {
            let mut entry = entry.map_err(|cause| self.explain(&cause))?;
            if extended.absorb(&mut entry).map_err(|error| self.prefer_breach(error))? {
                continue;
            }
            let member = std::mem::take(&mut extended).into_member(&entry)?;
            self.unpack_entry(&member, &mut entry)?;
        }
        if extended.pending {
            return Err(UnpackError::Broken { cause: "ends after an extension header".to_owned() });
        }
        Ok(())
    }

    fn unpack_entry<R: Read>(&mut self, member: &Member, entry: &mut Entry<'_, R>) -> Result<(), UnpackError> {
        let quoted_name = quoted_bytes(&member.name);
        self.place = entry_place(&member.name);
        let name = EntryName::parse(&member.name, self.limits)
            .map_err(|why| UnpackError::Name { name: quoted_name.clone(), why })?;
        let kind = if member.sparse { EntryType::GNUSparse } else { member.kind };
        // Early tar formats have no entry type for directories. In these formats, an empty file whose name ends with a
        // slash denotes a directory.
        let slash = member.size == 0 && member.name.ends_with(b"/");
        match kind {
            EntryType::Directory => self.unpack_directory(&name),
            EntryType::Regular if slash => self.unpack_directory(&name),
            EntryType::Regular if name.is_root() || member.name.ends_with(b"/") => {
                Err(UnpackError::Misnamed { name: quoted_name, kind: "a file with the name of a directory" })
            }
            EntryType::Regular => self.unpack_file(&name, member, entry),
            EntryType::Symlink if name.is_root() => {
                Err(UnpackError::Misnamed { name: quoted_name, kind: "a link in place of the root" })
            }
            EntryType::Symlink => {
                let refused = |why| UnpackError::Link { name: quoted_name, target: quoted_bytes(&member.link), why };
                name.check_link_in(self.content, &member.link, self.limits).map_err(refused)?;
                self.tree.create_link(&name, &member.link)
            }
            other => Err(UnpackError::Kind { name: quoted_name, kind: describe(other) }),
        }
    }

    fn unpack_directory(&mut self, name: &EntryName) -> Result<(), UnpackError> {
        // The archive root corresponds to the destination directory, which already exists.
        if name.is_root() { Ok(()) } else { self.tree.create_directory(name) }
    }

    fn unpack_file<R: Read>(
        &mut self,
        name: &EntryName,
        member: &Member,
        entry: &mut Entry<'_, R>,
    ) -> Result<(), UnpackError> {
        let modified = member.modified.filter(|_| self.content == Content::Dependencies);
        let modified = modified.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        let properties = FileProperties { executable: member.executable, size: member.size, modified };
        match self.tree.write_file(name, properties, entry) {
            Ok(true) => Ok(()),
            Ok(false) => Err(UnpackError::Truncated),
            Err(FileError::Archive(cause)) => Err(self.explain(&cause)),
            Err(FileError::Refused(error)) => Err(error),
        }
    }

    /// Reads the rest of the stream, which must be an end-of-archive marker and zero padding. Reading to the end also
    /// verifies the gzip checksum.
    fn end(&self, mut rest: impl Read) -> Result<(), UnpackError> {
        if self.meter.is_at_end() {
            return Err(UnpackError::Truncated);
        }
        let mut buffer = [0; 8 * 1024];
        loop {
            match rest.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) if buffer.iter().take(count).all(|byte| *byte == 0) => {}
                Ok(_) => return Err(UnpackError::Broken { cause: "data after the end-of-archive marker".to_owned() }),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(self.explain(&cause)),
            }
        }
    }

    /// Determines the reason why a read failed. The library reports only the outermost reader's error, which can hide
    /// the original error.
    fn explain(&self, cause: &io::Error) -> UnpackError {
        let error = if cause.kind() == io::ErrorKind::UnexpectedEof || self.meter.is_at_end() {
            UnpackError::Truncated
        } else {
            UnpackError::Broken { cause: quoted(&cause.to_string()) }
        };
        self.prefer_breach(error)
    }

    fn prefer_breach(&self, error: UnpackError) -> UnpackError {
        self.meter.breach().map_or(error, |breach| limit_error(breach, self.limits, &self.place))
    }
}

fn describe(kind: EntryType) -> String {
    match kind {
        EntryType::Link => "a hard link".to_owned(),
        EntryType::Char => "a character device".to_owned(),
        EntryType::Block => "a block device".to_owned(),
        EntryType::Fifo => "a named pipe".to_owned(),
        EntryType::Continuous => "a contiguous file".to_owned(),
        EntryType::GNUSparse => "a sparse file".to_owned(),
        other => format!("of unknown type {:?}", char::from(other.as_byte())),
    }
}

/// The limit that the stream exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breach {
    TooLarge,
    TooCompressed,
}

/// Byte counters for one archive.
#[derive(Debug, Default)]
struct Meter {
    compressed: Cell<u64>,
    unpacked: Cell<u64>,
    is_at_end: Cell<bool>,
    breach: Cell<Option<Breach>>,
}

impl Meter {
    /// Returns the limit that the stream exceeded, if any.
    fn breach(&self) -> Option<Breach> {
        self.breach.get()
    }

    /// Returns whether the caller has read the decompressed stream to its end.
    fn is_at_end(&self) -> bool {
        self.is_at_end.get()
    }
}

/// A reader that counts compressed bytes.
struct CountingReader<R> {
    inner: R,
    meter: Rc<Meter>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        add(&self.meter.compressed, count);
        Ok(count)
    }
}

/// A reader that counts decompressed bytes and enforces the limits.
struct LimitedReader<R> {
    inner: R,
    meter: Rc<Meter>,
    limits: Limits,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            self.meter.is_at_end.set(true);
        }
        let unpacked = add(&self.meter.unpacked, count);
        let max_decompressed = self.meter.compressed.get().saturating_mul(self.limits.ratio);
        if unpacked > self.limits.unpacked_bytes {
            return Err(self.stop(Breach::TooLarge));
        }
        if unpacked > self.limits.ratio_free_bytes && unpacked > max_decompressed {
            return Err(self.stop(Breach::TooCompressed));
        }
        Ok(count)
    }
}

impl<R> LimitedReader<R> {
    /// Records the exceeded limit in the meter, because the libraries on top of this reader discard the error.
    fn stop(&self, breach: Breach) -> io::Error {
        self.meter.breach.set(Some(breach));
        io::Error::other("archive exceeds a limit")
    }
}

fn add(counter: &Cell<u64>, count: usize) -> u64 {
    let sum = counter.get().saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    counter.set(sum);
    sum
}
