//! Cache of installed dependencies on a volume that the pods of a namespace share. A new pod restores the dependencies
//! of its source from the cache if an earlier pod has installed dependencies with the same inputs: see [`key`].
//!
//! The directory `v1` of the volume contains:
//! - `entries/<key>.json`: an [`Entry`], which lists the archives with the dependencies.
//! - `archives/<sha256>.tar.gz`: an archive, whose file name is the digest of its content. The agent verifies the
//!   digest while it unpacks the archive.
//! - `locks/<key>`: an empty file that exists while an agent is storing the entry.
//! - `temporary`: incomplete files.
//!
//! The agent writes each file to `temporary`, syncs it, and then renames it. The agent writes the archives before the
//! entry, so that a crash leaves no incomplete entry. Each pod in the namespace can write to the volume, so the pods
//! must trust each other.

mod eviction;
pub mod key;
pub mod selection;
mod store;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
use serde::{Deserialize, Serialize};

use super::carry::is_directory;
use crate::agent::durable;
use crate::agent::layout::Layout;
use crate::artifact::{Algorithm, Digest, Hasher, Limits, PackError, UnpackError, unpack_dependencies};
use crate::pulumi::install::go::Module;

/// Directory on the volume for this version of the format.
const FORMAT: &str = "v1";
/// Maximum size of an entry file in bytes.
const MAX_ENTRY_BYTES: u64 = 1024 * 1024;
/// Maximum number of archives in an entry.
const MAX_PARTS: usize = 64;
/// Maximum number of archives that the agent unpacks concurrently.
const CONCURRENT_PARTS: usize = 4;
/// Maximum length of a plugin name in bytes.
const MAX_PLUGIN_NAME: usize = 255;

/// Reason why the agent could not use the cache. After a failed restoration, the agent installs the dependencies. After
/// a failure to store dependencies, the cache lacks the entry.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("failed to {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the entry {} is damaged: {why}", path.display())]
    Entry { path: PathBuf, why: String },
    #[error("the archive {} does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("the archive {} is damaged: its digest is {found}", path.display())]
    Digest { path: PathBuf, found: String },
    #[error("failed to unpack the archive {}: {source}", path.display())]
    Unpack { path: PathBuf, source: UnpackError },
    #[error("failed to pack the dependencies: {0}")]
    Pack(#[from] PackError),
    #[error("{} already exists", path.display())]
    Occupied { path: PathBuf },
    /// The controller has requested another source, the agent is shutting down, or the timeout has expired.
    #[error("the restoration was canceled or exceeded its timeout")]
    Stopped,
}

impl CacheError {
    /// Returns whether a write failed because the volume is full.
    fn is_volume_full(&self) -> bool {
        let cause = match self {
            CacheError::Io { source, .. } => source,
            CacheError::Pack(PackError::Write { cause, .. }) => cause,
            _ => return false,
        };
        matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// Function that returns whether a restoration must end.
pub type IsStopped<'a> = &'a (dyn Fn() -> bool + Sync);

/// Returns a function for `map_err` that converts an I/O error.
fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CacheError {
    move |source| CacheError::Io { action, path: path.to_owned(), source }
}

/// Directories in the pod that contain a project's dependencies.
#[derive(Clone, Debug)]
pub struct Places {
    /// Root of the source.
    pub source: PathBuf,
    /// Directories with dependencies, relative to the root of the source.
    pub trees: Vec<PathBuf>,
    /// Directory of the CLI plugins.
    pub plugins: PathBuf,
    /// Names of the plugin directories that the agent stores.
    pub stored_plugins: Vec<String>,
    /// Go's module cache, if the project is a Go project.
    pub go_modules: Option<PathBuf>,
    /// Modules and toolchains that the agent stores.
    pub stored_modules: BTreeSet<Module>,
    /// Key of the environment in which the dependencies are installed: see [`key::of_environment`].
    pub environment: String,
}

/// Cache entry, which lists the archives with the dependencies of an installation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    parts: Vec<Part>,
}

/// Archive, with the destination of its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    place: Place,
    archive: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Place {
    /// Root of the source.
    Source,
    /// Module cache of Go.
    GoModules,
    /// CLI plugin with this directory name.
    Plugin(String),
}

/// Cache of installed dependencies.
#[derive(Clone, Debug)]
pub struct DependencyCache {
    root: PathBuf,
    /// Directory of Go's build cache on the same volume.
    go_build: PathBuf,
    /// Maximum total size of the archives in bytes. The same limit applies to Go's build cache.
    max_bytes: u64,
}

impl DependencyCache {
    /// Returns the cache of a workspace, or `None` if the workspace has no cache volume.
    pub fn open(layout: &Layout, max_bytes: u64) -> Option<Self> {
        let (root, go_build) = (layout.cache().join(FORMAT), layout.shared_go_build_cache());
        layout.cache().is_dir().then_some(DependencyCache { root, go_build, max_bytes })
    }

    /// Restores the dependencies of the entry `key`. `staging` is an empty directory in the file system of the source.
    /// Returns `false` if the cache does not contain the entry.
    ///
    /// Moves the directories to their final paths only after the agent has verified all archives, and only if
    /// `is_stopped` returns `false`. The function removes a damaged entry.
    pub fn restore(
        &self,
        key: &str,
        places: &Places,
        staging: &Path,
        is_stopped: IsStopped<'_>,
    ) -> Result<bool, CacheError> {
        let Some(entry) = self.entry(key)? else { return Ok(false) };
        let restored = self.restore_entry(&entry, places, staging, is_stopped);
        if let Err(error) = &restored
            && matches!(error, CacheError::Digest { .. } | CacheError::Unpack { .. } | CacheError::Missing { .. })
        {
            tracing::warn!(%error, "removing a damaged entry of the dependency cache");
            self.remove_entry(key, error);
        }
        restored.map(|()| true)
    }

    fn restore_entry(
        &self,
        entry: &Entry,
        places: &Places,
        staging: &Path,
        is_stopped: IsStopped<'_>,
    ) -> Result<(), CacheError> {
        let has_modules = entry.parts.iter().any(|part| part.place == Place::GoModules);
        if let Some(path) = places.go_modules.as_ref().filter(|modules| has_modules && has_entries(modules)) {
            // Returns the error before the agent unpacks all archives.
            return Err(CacheError::Occupied { path: path.clone() });
        }
        let source = staging.join("source");
        fs::create_dir(&source).map_err(failed("create", &source))?;
        let mut restored = Vec::new();
        for parts in entry.parts.chunks(CONCURRENT_PARTS) {
            restored.append(&mut self.unpack_parts(parts, places, &source, is_stopped)?);
        }
        if is_stopped() {
            return Err(CacheError::Stopped);
        }
        restored.into_iter().try_for_each(|(content, target)| content.place(&target))?;
        for tree in &places.trees {
            let (from, to) = (source.join(tree), places.source.join(tree));
            if is_directory(&from) {
                fs::rename(&from, &to).map_err(failed("create", &to))?;
            }
        }
        Ok(())
    }

    /// Unpacks archives concurrently. Returns the unpacked directories with their final paths.
    fn unpack_parts(
        &self,
        parts: &[Part],
        places: &Places,
        source: &Path,
        is_stopped: IsStopped<'_>,
    ) -> Result<Vec<(Restored, PathBuf)>, CacheError> {
        let panicked = || failed("unpack archives into", source)(io::Error::other("a thread panicked"));
        std::thread::scope(|scope| {
            let threads: Vec<_> = parts
                .iter()
                .map(|part| scope.spawn(move || self.unpack_part(part, places, source, is_stopped)))
                .collect();
            let mut restored = Vec::new();
            for thread in threads {
                restored.extend(thread.join().unwrap_or_else(|_| Err(panicked()))?);
            }
            Ok(restored)
        })
    }

    /// Unpacks an archive. Returns the unpacked directory and its final path. Returns `None` if the content is part of
    /// the source, or if the final path already exists.
    fn unpack_part(
        &self,
        part: &Part,
        places: &Places,
        source: &Path,
        is_stopped: IsStopped<'_>,
    ) -> Result<Option<(Restored, PathBuf)>, CacheError> {
        let target = match &part.place {
            Place::Source => return self.unpack(part, source, is_stopped).map(|()| None),
            Place::GoModules => places.go_modules.clone(),
            Place::Plugin(name) => Some(places.plugins.join(name)).filter(|plugin| !plugin.exists()),
        };
        let unpack = |target: PathBuf| self.unpack_beside(part, &target, is_stopped).map(|content| (content, target));
        target.map(unpack).transpose()
    }

    /// Unpacks an archive next to `target`, in the same file system.
    fn unpack_beside(&self, part: &Part, target: &Path, is_stopped: IsStopped<'_>) -> Result<Restored, CacheError> {
        let parent = target.parent().unwrap_or(target);
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
        let directory = tempfile::Builder::new().prefix(".restored-").tempdir_in(parent);
        let directory = directory.map_err(failed("create a directory in", parent))?;
        let restored = Restored { path: directory.path().join("content"), _directory: directory };
        fs::create_dir(&restored.path).map_err(failed("create", &restored.path))?;
        self.unpack(part, &restored.path, is_stopped)?;
        Ok(restored)
    }

    /// Unpacks an archive into an empty directory and verifies its digest.
    fn unpack(&self, part: &Part, into: &Path, is_stopped: IsStopped<'_>) -> Result<(), CacheError> {
        let path = self.archive(&part.archive);
        let file = durable::open_file(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CacheError::Missing { path: path.clone() },
            _ => failed("read", &path)(source),
        })?;
        let mut reader = HashingReader { inner: &file, hasher: Hasher::new(Algorithm::Sha256), is_stopped };
        let unpacked = unpack_dependencies(&mut reader, into, &limits());
        // Reads the rest of the archive even after an error, because the digest must cover the complete archive.
        let copied = io::copy(&mut reader, &mut io::sink());
        if is_stopped() {
            return Err(CacheError::Stopped);
        }
        copied.map_err(failed("read", &path))?;
        let found = reader.hasher.finish();
        if !part.archive.verify(&found) {
            return Err(CacheError::Digest { path, found: found.to_string() });
        }
        unpacked.map_err(|source| match source {
            // The archive can be valid despite a write error, for example if the pod's disk is full.
            UnpackError::Write { cause, .. } => failed("unpack", &path)(cause),
            source => CacheError::Unpack { path: path.clone(), source },
        })?;
        touch(&file);
        Ok(())
    }

    /// Returns an entry, or `None` if the cache does not contain it.
    fn entry(&self, key: &str) -> Result<Option<Entry>, CacheError> {
        let path = self.entry_path(key);
        let mut content = Vec::new();
        match durable::open_file(&path).and_then(|file| file.take(MAX_ENTRY_BYTES).read_to_end(&mut content)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        }
        let damaged = |why: String| CacheError::Entry { path: path.clone(), why };
        let entry = serde_json::from_slice::<Entry>(&content).map_err(|error| damaged(error.to_string()));
        let entry = entry.and_then(|entry| match entry.check() {
            Ok(()) => Ok(entry),
            Err(why) => Err(damaged(why)),
        });
        if let Err(error) = &entry {
            self.remove_entry(key, error);
        }
        entry.map(Some)
    }

    /// Removes an entry, so that the next installation stores the entry again. If the archive of the entry is damaged,
    /// the function also removes the archive.
    fn remove_entry(&self, key: &str, error: &CacheError) {
        let archive = match error {
            CacheError::Digest { path, .. } | CacheError::Unpack { path, .. } => Some(path.clone()),
            _ => None,
        };
        for path in std::iter::once(self.entry_path(key)).chain(archive) {
            if let Err(error) = durable::remove(&path) {
                tracing::warn!(path = %path.display(), %error, "failed to remove a damaged file of the dependency cache");
            }
        }
    }

    fn entry_path(&self, key: &str) -> PathBuf {
        self.root.join("entries").join(format!("{key}.json"))
    }

    fn archive(&self, digest: &Digest) -> PathBuf {
        self.archives().join(format!("{}.tar.gz", digest.hex()))
    }

    fn archives(&self) -> PathBuf {
        self.root.join("archives")
    }
}

impl Entry {
    /// Returns an error with the reason if an entry is invalid. Any agent in the namespace could have written the
    /// entry.
    fn check(&self) -> Result<(), String> {
        if self.parts.len() > MAX_PARTS {
            return Err(format!("it has more than {MAX_PARTS} archives"));
        }
        for (number, Part { place, archive }) in self.parts.iter().enumerate() {
            if self.parts.iter().take(number).any(|other| other.place == *place) {
                return Err("two archives have the same place".to_owned());
            }
            if archive.algorithm() != Algorithm::Sha256 {
                return Err(format!("the digest {archive} does not use SHA-256"));
            }
            if let Place::Plugin(name) = place
                && !is_plugin(name)
            {
                return Err(format!("{name:?} is not the name of a plugin"));
            }
        }
        Ok(())
    }
}

/// Returns whether `name` is the directory name of an installed plugin, such as `resource-random-v4.16.7`.
fn is_plugin(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'+');
    let is_kind =
        ["analyzer-", "converter-", "language-", "resource-", "tool-"].iter().any(|kind| name.starts_with(kind));
    is_kind && name.len() <= MAX_PLUGIN_NAME && name.bytes().all(is_plain) && !name.ends_with(".lock")
}

fn has_entries(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

/// Returns the limits for an archive of dependencies, which are higher than the limits for a source archive.
fn limits() -> Limits {
    let default = Limits::default();
    // The compression ratio can be high, because compiled files can contain long sequences of zeros.
    Limits { unpacked_bytes: 16 * default.unpacked_bytes, entries: 5 * default.entries, ratio: 1_100, ..default }
}

/// Sets the modification time of a file to the current time, because the agent evicts the files with the oldest
/// modification times. The function ignores errors, which occur only on a read-only volume. The agent evicts no files
/// from such a volume.
///
/// The function sets both times of the file to the time of the file system, because this requires only permission to
/// write the file. Only the owner of the file can set other times, and the owner can be the user of another pod.
fn touch(file: &File) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _ = rustix::fs::futimens(file, &Timestamps { last_access: now, last_modification: now });
}

/// Directory with the unpacked content of an archive, which the agent has not yet moved to its final path.
struct Restored {
    path: PathBuf,
    /// Removes the directory.
    _directory: tempfile::TempDir,
}

impl Restored {
    /// Moves the directory to its final path. The final path must not exist or must be an empty directory.
    fn place(self, target: &Path) -> Result<(), CacheError> {
        fs::rename(&self.path, target).map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                CacheError::Occupied { path: target.to_owned() }
            }
            _ => failed("create", target)(source),
        })
    }
}

/// Reader that computes a digest while it reads. Reading fails after `is_stopped` returns `true`.
struct HashingReader<'a, R> {
    inner: R,
    hasher: Hasher,
    is_stopped: IsStopped<'a>,
}

impl<R: Read> Read for HashingReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.is_stopped)() {
            return Err(io::Error::other("stopped"));
        }
        let count = self.inner.read(buffer)?;
        self.hasher.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
