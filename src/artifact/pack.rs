//! Packs a directory into an artifact. The same content produces the same bytes.
//!
//! Names are sorted; times, owners and groups are zero; modes are those of Flux archives: 0600, 0700 for executables, 0750 for
//! directories. [`super::unpack()`] accepts the result.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::entry_name::{EntryName, LinkError, NameError};
use super::limits::Limits;
use super::quote::quoted_bytes;

/// Content of a packed archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Number of regular files.
    pub files: u64,
    /// Total size of the files, uncompressed, in bytes.
    pub bytes: u64,
}

/// The reason why packing failed. The output written before the failure is not a valid archive.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("failed to pack {path}: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    #[error("failed to pack {path}: file changed during reading")]
    Changed { path: PathBuf },
    #[error("failed to pack {name}: name {why}")]
    Name { name: String, why: NameError },
    #[error("failed to pack symbolic link {name} to {target}: target {why}")]
    Link { name: String, target: String, why: LinkError },
    #[error("failed to pack {path}: must be a file, a directory or a symbolic link")]
    Kind { path: PathBuf },
    #[error("failed to pack {path}: limit of {limit} entries exceeded")]
    TooManyEntries { path: PathBuf, limit: u64 },
    #[error("failed to pack: files exceed the limit of {limit} bytes")]
    TooManyBytes { limit: u64 },
    #[error("failed to write {path} to the archive: {cause}")]
    Write { path: PathBuf, cause: io::Error },
}

/// Packs the content of a directory as a gzip-compressed tar archive. Names and links must meet the default [`Limits`] for
/// unpacking.
///
/// # Errors
/// Fails if something cannot be read or is not allowed in an archive, or if writing fails.
pub fn pack(directory: &Path, into: impl Write) -> Result<Packed, PackError> {
    let builder = Builder::new(GzEncoder::new(into, Compression::default()));
    let limits = Limits::default();
    let mut packing = Packing { root: directory, builder, limits, entries: 0, packed: Packed { files: 0, bytes: 0 } };
    packing.directory(Path::new(""))?;
    let failed = |cause| PackError::Write { path: directory.to_owned(), cause };
    let mut into = packing.builder.into_inner().and_then(GzEncoder::finish).map_err(failed)?;
    into.flush().map_err(failed)?;
    Ok(packing.packed)
}

/// Packs one file from memory. The archive is stored uncompressed, so that the digest does not depend on the version of the
/// compressor.
///
/// # Errors
/// Fails if the name does not fit into an archive.
pub fn pack_file(name: &str, content: &[u8]) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::none()));
    let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
    builder.append_data(&mut header(EntryType::Regular, 0o600, size), name, content)?;
    builder.into_inner().and_then(GzEncoder::finish)
}

struct Packing<'root, W: Write> {
    root: &'root Path,
    builder: Builder<GzEncoder<W>>,
    limits: Limits,
    entries: u64,
    packed: Packed,
}

impl<W: Write> Packing<'_, W> {
    /// Packs the content of a directory recursively. The limit on names bounds the depth.
    fn directory(&mut self, relative: &Path) -> Result<(), PackError> {
        let path = self.root.join(relative);
        let failed = |cause| PackError::Read { path: path.clone(), cause };
        let content = fs::read_dir(&path).map_err(failed)?;
        let names: io::Result<Vec<OsString>> = content.map(|entry| entry.map(|entry| entry.file_name())).collect();
        let mut names = names.map_err(failed)?;
        names.sort();
        for name in names {
            self.entry(&relative.join(name))?;
        }
        Ok(())
    }

    fn entry(&mut self, relative: &Path) -> Result<(), PackError> {
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
            self.directory(relative)
        } else if metadata.is_symlink() {
            self.link(&name, &path)
        } else if metadata.is_file() {
            self.file(relative, &path)
        } else {
            Err(PackError::Kind { path })
        }
    }

    fn link(&mut self, name: &EntryName, path: &Path) -> Result<(), PackError> {
        let target = fs::read_link(path).map_err(|cause| PackError::Read { path: path.to_owned(), cause })?;
        let raw = target.as_os_str().as_bytes();
        name.check_link(raw, &self.limits).map_err(|why| PackError::Link {
            name: quoted_bytes(name.path().as_os_str().as_bytes()),
            target: quoted_bytes(raw),
            why,
        })?;
        let written = self.builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), name.path(), &target);
        written.map_err(|cause| PackError::Write { path: path.to_owned(), cause })
    }

    fn file(&mut self, relative: &Path, path: &Path) -> Result<(), PackError> {
        let failed = |cause| PackError::Read { path: path.to_owned(), cause };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let size = metadata.len();
        let mut header = header(EntryType::Regular, mode(&metadata), size);
        let mut content = Counted { inner: file.take(size), count: 0 };
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

pub(super) fn header(kind: EntryType, mode: u32, size: u64) -> Header {
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

/// Counts the bytes read, because a file can shrink after its header is written.
struct Counted<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count = self.count.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::super::unpack::unpack;
    use super::*;

    fn packed(directory: &Path) -> Vec<u8> {
        let mut archive = Vec::new();
        pack(directory, &mut archive).unwrap();
        archive
    }

    fn sample() -> TempDir {
        let directory = TempDir::new().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("b/deep")).unwrap();
        fs::write(root.join("b/deep/file"), "content").unwrap();
        fs::write(root.join("run"), "#!").unwrap();
        fs::set_permissions(root.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
        symlink("b/deep/file", root.join("a link")).unwrap();
        fs::write(root.join("long".repeat(50)), "").unwrap();
        symlink(format!("../{}", "long".repeat(50)), root.join("b/long link")).unwrap();
        directory
    }

    /// Describes each entry of a tree: its kind, executable bit, and content or target.
    fn describe(directory: &Path, root: &Path, into: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let description = if metadata.is_symlink() {
                format!("link {:?}", fs::read_link(&path).unwrap())
            } else if metadata.is_dir() {
                describe(&path, root, into);
                "directory".to_owned()
            } else {
                format!("file {} {:?}", metadata.permissions().mode() & 0o100, fs::read(&path).unwrap())
            };
            into.insert(path.strip_prefix(root).unwrap().to_owned(), description);
        }
    }

    fn description(root: &Path) -> BTreeMap<PathBuf, String> {
        let mut into = BTreeMap::new();
        describe(root, root, &mut into);
        into
    }

    #[test]
    fn equal_content_gives_equal_bytes() {
        let (one, other) = (sample(), sample());
        let file = File::open(other.path().join("run")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        fs::set_permissions(other.path().join("b/deep"), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(packed(one.path()), packed(other.path()));
        fs::write(other.path().join("run"), "!#").unwrap();
        assert_ne!(packed(one.path()), packed(other.path()));
    }

    #[test]
    fn a_packed_file_has_stable_bytes_and_unpacks() {
        let (archive, to) = (pack_file("Pulumi.yaml", b"name: app\n").unwrap(), TempDir::new().unwrap());
        assert_eq!(archive, pack_file("Pulumi.yaml", b"name: app\n").unwrap());
        unpack(&archive[..], to.path(), &Limits::default()).unwrap();
        assert_eq!(fs::read(to.path().join("Pulumi.yaml")).unwrap(), b"name: app\n");
    }

    #[test]
    fn entries_are_sorted_and_independent_of_the_machine() {
        let archive = packed(sample().path());
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&archive[..]));
        let mut names = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 0));
            let name = entry.path().unwrap().into_owned();
            names.push((name.to_string_lossy().into_owned(), header.mode().unwrap()));
        }
        let long = "long".repeat(50);
        let expected = [
            ("a link", 0o777),
            ("b", 0o750),
            ("b/deep", 0o750),
            ("b/deep/file", 0o600),
            ("b/long link", 0o777),
            (long.as_str(), 0o600),
            ("run", 0o700),
        ];
        assert_eq!(names, expected.map(|(name, mode)| (name.to_owned(), mode)));
    }

    #[test]
    fn a_packed_tree_unpacks_unchanged() {
        let (from, to) = (sample(), TempDir::new().unwrap());
        let mut archive = Vec::new();
        assert_eq!(pack(from.path(), &mut archive).unwrap(), Packed { files: 3, bytes: 9 });
        unpack(&archive[..], to.path(), &Limits::default()).unwrap();
        assert_eq!(description(from.path()), description(to.path()));
    }

    #[test]
    fn entries_that_could_not_be_unpacked_are_not_packed() {
        type Prepare = fn(&Path);
        let cases: [(Prepare, &str); 4] = [
            (
                |root| symlink("/etc/passwd", root.join("link")).unwrap(),
                "\"link\" to \"/etc/passwd\": target must not be absolute",
            ),
            (|root| symlink("..", root.join("link")).unwrap(), "must not leave the archive"),
            (|root| fs::write(root.join("a\\b"), "").unwrap(), "\"a\\\\b\": name must not contain a backslash"),
            (
                |root| drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap()),
                "socket: must be a file",
            ),
        ];
        for (prepare, message) in cases {
            let directory = TempDir::new().unwrap();
            prepare(directory.path());
            let error = pack(directory.path(), io::sink()).unwrap_err().to_string();
            assert!(error.contains(message), "expected {message}: {error}");
        }
        let error = pack(Path::new("/not/there"), io::sink()).unwrap_err().to_string();
        assert!(error.contains("failed to pack /not/there"), "{error}");
    }

    #[test]
    fn a_write_error_is_returned() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::other("no space left"))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = pack(sample().path(), Full).unwrap_err().to_string();
        assert!(error.contains("no space left"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_tree_survives_the_round_trip(
            files in prop::collection::btree_map("[a-zA-Z0-9 ä\n]{1,8}(/[a-z.]{3,60}){0,3}",
                (prop::collection::vec(any::<u8>(), 0..2000), any::<bool>()), 0..12)
        ) {
            let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
            for (name, (content, executable)) in &files {
                let path = from.path().join(name);
                // Skips files whose name contains ".." or is also the name of a directory.
                if name.contains("..") || fs::create_dir_all(path.parent().unwrap()).is_err() || path.is_dir() {
                    continue;
                }
                fs::write(&path, content).unwrap();
                let mode = if *executable { 0o755 } else { 0o640 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            let archive = packed(from.path());
            unpack(&archive[..], to.path(), &Limits::default()).unwrap();
            prop_assert_eq!(description(from.path()), description(to.path()));
            prop_assert_eq!(archive, packed(to.path()));
        }
    }
}
