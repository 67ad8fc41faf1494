//! Stores installed dependencies in the cache.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;

use super::{
    CacheError, DependencyCache, Entry, MAX_PARTS, Part, Place, Places, failed, key, limits, selection, touch,
};
use crate::agent::durable;
use crate::artifact::{Algorithm, Digest, Hasher, pack_dependencies};
use crate::runtime::failpoint;

/// Maximum age of a lock. Agents ignore an older lock, because the agent that created the lock has been killed.
pub(super) const MAX_LOCK_AGE: Duration = Duration::from_secs(30 * 60);
/// Mode of the files on the volume. The pods that share the volume can run as different users.
const FILE_MODE: u32 = 0o664;
/// Mode of the directories on the volume. New files in a directory have the group of the directory.
const DIRECTORY_MODE: u32 = 0o2775;
const BUFFER: usize = 256 * 1024;

/// Exclusive lock that an agent holds while it stores an entry. The lock only prevents duplicate work, because two
/// agents that store the same entry write the same content.
struct Lock {
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = durable::remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove a lock of the dependency cache");
        }
    }
}

impl DependencyCache {
    /// Stores the dependencies in `places` as the entry `key`, and then evicts archives that exceed the limits. Returns
    /// `false` if the cache already contains the entry, or if another agent is storing the entry.
    ///
    /// The function also evicts files after an error. Otherwise, a full volume would stay full.
    pub fn store(&self, key: &str, places: &Places) -> Result<bool, CacheError> {
        let stored = self.store_entry(key, places);
        let evicted = match &stored {
            Ok(false) => return stored,
            Err(error) if error.is_volume_full() => self.evict_from_full_volume(),
            _ => self.evict(),
        };
        stored.and_then(|stored| evicted.map(|()| stored))
    }

    fn store_entry(&self, key: &str, places: &Places) -> Result<bool, CacheError> {
        self.create_directories()?;
        if self.is_complete(key) {
            return Ok(false);
        }
        let Some(_lock) = self.lock(key)? else { return Ok(false) };
        let mut parts = Vec::new();
        if !places.trees.is_empty() {
            parts.push(Part { place: Place::Source, archive: self.pack(&places.source, &places.trees)? });
        }
        if let Some(modules) = places.go_modules.as_deref().filter(|modules| modules.is_dir()) {
            let content = selection::in_module_cache(modules, &places.stored_modules)?;
            parts.push(Part { place: Place::GoModules, archive: self.pack(modules, &content)? });
        }
        for name in places.stored_plugins.iter().take(MAX_PARTS.saturating_sub(parts.len())) {
            parts.push(self.plugin(places, name.clone())?);
        }
        failpoint::hit("dependency-cache-archives");
        self.write_entry(key, &Entry { parts })?;
        failpoint::hit("dependency-cache-entry");
        Ok(true)
    }

    fn create_directories(&self) -> Result<(), CacheError> {
        for name in ["entries", "archives", "locks", "temporary"] {
            let directory = self.root.join(name);
            if directory.is_dir() {
                continue;
            }
            fs::create_dir_all(&directory).map_err(failed("create", &directory))?;
            // Ignores errors, because a directory that belongs to another user already has the correct mode.
            let _ = fs::set_permissions(&self.root, Permissions::from_mode(DIRECTORY_MODE));
            let _ = fs::set_permissions(&directory, Permissions::from_mode(DIRECTORY_MODE));
        }
        Ok(())
    }

    /// Returns whether the cache contains an entry and all its archives, and updates the modification times of the
    /// archives.
    fn is_complete(&self, key: &str) -> bool {
        let Ok(Some(entry)) = self.entry(key) else { return false };
        entry.parts.iter().all(|part| durable::open_file(&self.archive(&part.archive)).map(|file| touch(&file)).is_ok())
    }

    /// Locks an entry. Returns `None` if another agent holds the lock.
    fn lock(&self, key: &str) -> Result<Option<Lock>, CacheError> {
        let path = self.root.join("locks").join(key);
        for _ in 0..2 {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => return Ok(Some(Lock { path })),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("create", &path)(error)),
            }
            if !is_older(&path, MAX_LOCK_AGE) {
                return Ok(None);
            }
            durable::remove(&path).map_err(failed("remove", &path))?;
        }
        Ok(None)
    }

    /// Returns the part of an entry that describes a plugin. All entries of an environment share the plugin's archive.
    fn plugin(&self, places: &Places, name: String) -> Result<Part, CacheError> {
        let key = key::of_plugin(&name, &places.environment);
        // Reading a damaged entry removes it.
        let known = self.entry(&key).ok().flatten();
        if let Some(known) = known.and_then(|entry| entry.parts.into_iter().next())
            && known.place == Place::Plugin(name.clone())
            && let Ok(archive) = durable::open_file(&self.archive(&known.archive))
        {
            touch(&archive);
            return Ok(known);
        }
        let plugin = places.plugins.join(&name);
        let archive = self.pack(&plugin, &selection::children(&plugin)?)?;
        let part = Part { place: Place::Plugin(name), archive };
        self.write_entry(&key, &Entry { parts: vec![part.clone()] })?;
        Ok(part)
    }

    /// Packs directories and files below `root` into an archive, and returns the archive's digest.
    fn pack(&self, root: &Path, content: &[PathBuf]) -> Result<Digest, CacheError> {
        let (temporary, left) = (self.temporary()?, self.max_archive_bytes());
        let mut writer = BufWriter::with_capacity(
            BUFFER,
            HashingWriter { inner: temporary.as_file(), hasher: Hasher::new(Algorithm::Sha256), left },
        );
        pack_dependencies(root, content, &mut writer, &limits())?;
        let hasher = match writer.into_inner() {
            Ok(writer) => writer.hasher,
            Err(error) => return Err(failed("write", temporary.path())(error.into_error())),
        };
        let digest = hasher.finish();
        persist(temporary, &self.archive(&digest))?;
        Ok(digest)
    }

    fn write_entry(&self, key: &str, entry: &Entry) -> Result<(), CacheError> {
        let (path, mut temporary) = (self.entry_path(key), self.temporary()?);
        let written = serde_json::to_vec(entry).map_err(io::Error::other).and_then(|entry| temporary.write_all(&entry));
        written.map_err(failed("write", &path))?;
        persist(temporary, &path)
    }

    fn temporary(&self) -> Result<NamedTempFile, CacheError> {
        let directory = self.root.join("temporary");
        NamedTempFile::new_in(&directory).map_err(failed("create a file in", &directory))
    }
}

/// Syncs a temporary file, and renames it to its final path. An existing file is replaced.
fn persist(temporary: NamedTempFile, path: &Path) -> Result<(), CacheError> {
    let file = temporary.as_file();
    let synced = file.set_permissions(Permissions::from_mode(FILE_MODE)).and_then(|()| file.sync_all());
    synced.map_err(failed("write", path))?;
    temporary.persist(path).map_err(|error| failed("create", path)(error.error))?;
    let parent = path.parent().unwrap_or(path);
    durable::sync_directory(parent).map_err(failed("sync", parent))
}

/// Returns whether a file was last modified longer than `age` ago. Returns `false` if the file does not exist.
fn is_older(path: &Path, age: Duration) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|modified| is_older_than(modified, age))
}

/// Returns whether a time was longer than `age` ago.
pub(super) fn is_older_than(time: SystemTime, age: Duration) -> bool {
    SystemTime::now().duration_since(time).is_ok_and(|found| found > age)
}

/// Writer that computes a digest while it writes, and rejects bytes that exceed a limit.
struct HashingWriter<W> {
    inner: W,
    hasher: Hasher,
    /// Maximum number of further bytes.
    left: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let fits = u64::try_from(buffer.len()).is_ok_and(|length| length <= self.left);
        if !fits {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the archive exceeds the maximum size of the dependency cache (--workspace-cache-size) or of its volume",
            ));
        }
        let count = self.inner.write(buffer)?;
        self.left = self.left.saturating_sub(count as u64);
        self.hasher.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
