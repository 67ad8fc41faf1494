//! Detects changes to mounted files, such as TLS certificates, known hosts, and the keys of Secrets and ConfigMaps.
//!
//! The kubelet replaces the files of a volume with a rename in the volume's directory, so a watch on this directory
//! detects each change. A network file system does not report changes by other hosts, so a cached value expires after
//! [`MAX_AGE`].
//!
//! On each node, the kernel limits the number of inotify instances per user, and all pods with the same user share this
//! limit. If no instance or no watch is available, the process does not cache the content of files, and reads the files
//! on each use.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::{Event, EventKind};
use notify::{Config, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::time::Instant;

/// Maximum age of a cached value. The age is limited because network file systems do not report changes that other
/// hosts make.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Watches directories of mounted files. Clones share the watches.
#[derive(Clone, Debug)]
pub struct FileWatch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Directory watcher, or `None` if no inotify instance is available.
    watcher: Option<Mutex<RecommendedWatcher>>,
    /// Number of detected changes in all directories.
    changes: Arc<AtomicU64>,
}

/// Version of the files in the watched directories. If two calls to [`FileWatch::version`] return equal versions, the
/// watch has detected no change between the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

impl FileWatch {
    /// Creates a watch without directories. If no inotify instance is available, [`FileWatch::version`] always returns
    /// `None`.
    pub fn new() -> Self {
        let changes = Arc::new(AtomicU64::default());
        let counter = Arc::clone(&changes);
        let count = move |event: notify::Result<Event>| {
            if may_be_change(&event) {
                counter.fetch_add(1, Ordering::AcqRel);
            }
        };
        let watcher = RecommendedWatcher::new(count, Config::default()).inspect_err(|error| {
            tracing::warn!(%error, "failed to create a file watch; mounted files are read at each use");
        });
        Self(Arc::new(Shared { watcher: watcher.ok().map(Mutex::new), changes }))
    }

    /// Watches these directories, and returns the version of their files. The caller must call this function before it
    /// reads the files. The caller can then use the content until the version changes. Returns `None` if a directory
    /// cannot be watched.
    pub fn version<'a>(&self, directories: impl IntoIterator<Item = &'a Path>) -> Option<Version> {
        let mut watcher = self.0.watcher.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        for directory in directories {
            // Call `watch` even for a directory that is already watched, because another directory may have replaced
            // it. A repeated call for the same directory is cheap.
            let added = watcher.watch(directory, RecursiveMode::NonRecursive);
            if let Err(error) = added {
                tracing::debug!(directory = %directory.display(), %error, "failed to watch the directory");
                return None;
            }
        }
        Some(Version(self.0.changes.load(Ordering::Acquire)))
    }
}

impl Default for FileWatch {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns whether the event indicates that a file may have changed. Read access is not a change. Returns `true` for an
/// error, because the watch may have lost events.
fn may_be_change(event: &notify::Result<Event>) -> bool {
    event.as_ref().map_or(true, |event| event.need_rescan() || !matches!(event.kind, EventKind::Access(_)))
}

/// Cache for a value that depends on mounted files.
#[derive(Debug)]
pub struct Cached<V>(Mutex<Option<Entry<V>>>);

#[derive(Debug)]
struct Entry<V> {
    version: Version,
    since: Instant,
    value: V,
}

impl<V> Default for Cached<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V: Clone> Cached<V> {
    /// Returns the cached value if the value belongs to this version of the files and is not older than [`MAX_AGE`].
    pub fn find(&self, version: Option<Version>) -> Option<V> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |entry: &&Entry<V>| Some(entry.version) == version && entry.since.elapsed() < MAX_AGE;
        cached.as_ref().filter(is_current).map(|entry| entry.value.clone())
    }

    /// Caches a value, unless `version` is `None`. The caller must get `version` from [`FileWatch::version`] before it
    /// reads the files.
    pub fn keep(&self, version: Option<Version>, value: V) {
        let entry = version.map(|version| Entry { version, since: Instant::now(), value });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = entry;
    }
}

#[cfg(test)]
mod tests;
