//! Builds an archive entry by entry from content that is not in a directory. As in [`super::pack()`], the same entries produce the
//! same bytes, and [`super::unpack()`] accepts the result.
//!
//! The archive is stored uncompressed: otherwise a new version of the compressor would change digests and start a run of every
//! Stack.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType};

use super::entry_name::{EntryName, LinkError, NameError};
use super::limits::Limits;
use super::pack::{PackError, Packed, header};
use super::quote::quoted_bytes;

/// An archive that is being written.
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

    /// Adds a directory. Parent directories must be added before it.
    ///
    /// # Errors
    /// Fails if the name is not allowed in an archive, if there are too many entries, or if writing fails.
    pub fn directory(&mut self, name: &[u8]) -> Result<(), PackError> {
        let name = self.name(name)?;
        let written = self.builder.append_data(&mut header(EntryType::Directory, 0o750, 0), name.path(), io::empty());
        written.map_err(|cause| failed(name.path(), cause))
    }

    /// Adds a file.
    ///
    /// # Errors
    /// Fails if the name is not allowed in an archive, if a limit on entries or bytes is exceeded, or if writing fails.
    pub fn file(&mut self, name: &[u8], executable: bool, content: &[u8]) -> Result<(), PackError> {
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
    /// Fails if the name or the target is not allowed in an archive, if there are too many entries, or if writing fails.
    pub fn link(&mut self, name: &[u8], target: &[u8]) -> Result<(), PackError> {
        use std::os::unix::ffi::OsStrExt;
        let name = self.name(name)?;
        let refused = |why: LinkError| PackError::Link {
            name: quoted_bytes(name.path().as_os_str().as_bytes()),
            target: quoted_bytes(target),
            why,
        };
        name.check_link(target, &self.limits).map_err(refused)?;
        let target = Path::new(std::ffi::OsStr::from_bytes(target));
        let written = self.builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), name.path(), target);
        written.map_err(|cause| failed(name.path(), cause))
    }

    /// Finishes the archive and returns the writer.
    ///
    /// # Errors
    /// Fails if writing fails.
    pub fn finish(self) -> Result<(W, Packed), PackError> {
        let failed = |cause| failed(Path::new("the end mark"), cause);
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
mod tests {
    use tempfile::TempDir;

    use super::super::unpack::unpack;
    use super::*;

    fn made(limits: Limits) -> Result<Vec<u8>, PackError> {
        let mut archive = Archive::new(Vec::new(), limits);
        archive.directory(b"bin")?;
        archive.file(b"bin/run", true, b"#!")?;
        archive.file(b"Pulumi.yaml", false, b"name: app\n")?;
        archive.link(b"bin/again", b"run")?;
        Ok(archive.finish()?.0)
    }

    #[test]
    fn equal_entries_give_equal_bytes_that_unpack() {
        let archive = made(Limits::default()).unwrap();
        assert_eq!(archive, made(Limits::default()).unwrap());
        let to = TempDir::new().unwrap();
        unpack(&archive[..], to.path(), &Limits::default()).unwrap();
        assert_eq!(std::fs::read(to.path().join("bin/again")).unwrap(), b"#!");
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(to.path().join("bin/run")).unwrap().permissions().mode();
        assert_ne!(mode & 0o100, 0, "it can be executed");
    }

    #[test]
    fn entries_that_could_not_be_unpacked_are_rejected() {
        let mut archive = Archive::new(io::sink(), Limits::default());
        assert!(archive.file(b"../x", false, b"").unwrap_err().to_string().contains(".."));
        assert!(archive.link(b"a", b"/etc/passwd").unwrap_err().to_string().contains("must not be absolute"));
        let few = Limits { entries: 2, ..Limits::default() };
        assert!(made(few).unwrap_err().to_string().contains("limit of 2 entries"));
        let small = Limits { unpacked_bytes: 3, ..Limits::default() };
        assert!(made(small).unwrap_err().to_string().contains("limit of 3 bytes"));
    }
}
