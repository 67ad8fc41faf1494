//! Evicts the least recently used files of the cache. The agent updates an archive's modification time on each use, and
//! Go updates the modification times in its build cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::store::{MAX_LOCK_AGE, is_older_than};
use super::{CacheError, DependencyCache, failed};
use crate::agent::durable;

/// Maximum number of archives.
const MAX_ARCHIVES: usize = 1_000;
/// Maximum number of files in Go's build cache.
const MAX_BUILD_FILES: usize = 100_000;
/// Maximum age of a temporary file. An older file is the remainder of a write by an agent that was killed.
const MAX_TEMPORARY_AGE: Duration = Duration::from_secs(2 * 60 * 60);
/// Maximum share of the file system that the archives and Go's build cache can use together, in percent. This limit
/// prevents a small volume from becoming full.
const MAX_SHARE: u64 = 80;
/// Maximum share after a write failed because the volume is full. The next write then has enough space.
const MAX_SHARE_OF_FULL_VOLUME: u64 = 40;
/// Minimum age of a file in Go's build cache that the agent evicts. The Go command in another pod may be using a more
/// recent file, and fails if the file disappears. Go updates the modification time of a used file only if the time is
/// older than an hour.
const MIN_BUILD_FILE_AGE: Duration = Duration::from_secs(2 * 60 * 60);
/// Maximum number of files and directories that the agent lists in a directory tree.
const MAX_LISTED: usize = 200_000;

/// A file in the cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CachedFile {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
    /// Whether a build may be using the file, so that the agent must not remove the file.
    is_in_use: bool,
}

impl DependencyCache {
    /// Removes the least recently used archives, and the least recently used files of Go's build cache, until both are
    /// below their limits. The eviction also removes entries with missing archives, and the temporary files and locks
    /// of killed agents.
    pub fn evict(&self) -> Result<(), CacheError> {
        self.evict_to(MAX_SHARE)
    }

    /// Evicts files in the same way as [`Self::evict`], but with a lower limit.
    pub(super) fn evict_from_full_volume(&self) -> Result<(), CacheError> {
        self.evict_to(MAX_SHARE_OF_FULL_VOLUME)
    }

    /// Evicts files until the archives and Go's build cache use at most `max_share` percent of the volume. After an
    /// error, the function continues with the next step. Otherwise, a file that the agent cannot remove would disable
    /// the eviction.
    fn evict_to(&self, max_share: u64) -> Result<(), CacheError> {
        let evicted = self.evict_files(max_share);
        let cleaned = self.remove_entries_without_archives();
        let temporary = self.remove_older("temporary", MAX_TEMPORARY_AGE);
        let locks = self.remove_older("locks", MAX_LOCK_AGE);
        evicted.and(cleaned).and(temporary).and(locks)
    }

    fn evict_files(&self, max_share: u64) -> Result<(), CacheError> {
        let (mut kept, old_archives) = split(list(&self.archives())?, self.max_bytes, MAX_ARCHIVES);
        // Evicts archives even if the build cache is unreadable, for example because it belongs to another user.
        let (mut build, listed) = match list(&self.go_build) {
            Ok(build) => (build, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        for file in &mut build {
            file.is_in_use = !is_older_than(file.used, MIN_BUILD_FILE_AGE);
        }
        let (build, old_build) = split(build, self.max_bytes, MAX_BUILD_FILES);
        kept.extend(build);
        let (_, others) = split(kept, self.share_of_volume(max_share), usize::MAX);
        let removed = [old_archives, old_build, others].into_iter().map(remove_all).fold(Ok(()), Result::and);
        removed.and(listed)
    }

    fn remove_older(&self, directory: &str, age: Duration) -> Result<(), CacheError> {
        let mut files = list(&self.root.join(directory))?;
        files.retain(|file| is_older_than(file.used, age));
        remove_all(files)
    }

    /// Returns the maximum size of an archive in bytes. A larger archive would evict all other archives.
    pub(super) fn max_archive_bytes(&self) -> u64 {
        self.max_bytes.min(self.share_of_volume(MAX_SHARE))
    }

    /// Returns a share of the volume's size in bytes.
    fn share_of_volume(&self, percent: u64) -> u64 {
        rustix::fs::statvfs(&self.root)
            .map_or(u64::MAX, |volume| volume.f_blocks.saturating_mul(volume.f_frsize) / 100 * percent)
    }

    fn remove_entries_without_archives(&self) -> Result<(), CacheError> {
        for file in list(&self.root.join("entries"))? {
            let Some(key) = file.path.file_stem().and_then(|key| key.to_str()) else { continue };
            // Reading a damaged entry removes it.
            let Ok(Some(entry)) = self.entry(key) else { continue };
            if entry.parts.iter().any(|part| !self.archive(&part.archive).exists()) {
                durable::remove(&file.path).map_err(failed("remove", &file.path))?;
            }
        }
        Ok(())
    }
}

/// Returns the files that the agent keeps, and the least recently used files that the agent must remove to keep the
/// other files within the limits.
fn split(mut files: Vec<CachedFile>, max_bytes: u64, max_files: usize) -> (Vec<CachedFile>, Vec<CachedFile>) {
    files.sort();
    let mut bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
    let mut count = files.len();
    files.into_iter().partition(|file| {
        if file.is_in_use || (bytes <= max_bytes && count <= max_files) {
            return true;
        }
        bytes = bytes.saturating_sub(file.bytes);
        count -= 1;
        false
    })
}

/// Returns the files in a directory and its subdirectories. Returns no files if the directory does not exist.
fn list(directory: &Path) -> Result<Vec<CachedFile>, CacheError> {
    let (mut files, mut listed) = (Vec::new(), 0);
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("read", &directory)(error)),
        };
        for entry in entries.flatten().take(MAX_LISTED.saturating_sub(listed)) {
            listed += 1;
            // Another agent can remove the file concurrently.
            let Ok(metadata) = entry.metadata() else { continue };
            match metadata.modified() {
                _ if metadata.is_dir() => pending.push(entry.path()),
                Ok(used) => {
                    files.push(CachedFile { used, bytes: metadata.len(), path: entry.path(), is_in_use: false });
                }
                Err(_) => {}
            }
        }
    }
    Ok(files)
}

/// Removes all these files. Returns the first error.
fn remove_all(files: Vec<CachedFile>) -> Result<(), CacheError> {
    let removed = files.iter().map(|file| durable::remove(&file.path).map_err(failed("remove", &file.path)));
    removed.fold(Ok(()), Result::and)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: impl Into<PathBuf>, second: u64, bytes: u64) -> CachedFile {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        CachedFile { used, bytes, path: path.into(), is_in_use: false }
    }

    #[test]
    fn the_least_recently_used_files_are_removed() {
        let files = [file("b", 2, 20), file("a", 1, 10), file("d", 4, 40), file("c", 3, 30)];
        for (max_bytes, max_files, expected) in [
            (100, 4, &[][..]),
            (99, 4, &["a"]),
            (90, 4, &["a"]),
            (89, 4, &["a", "b"]),
            (100, 2, &["a", "b"]),
            (40, 4, &["a", "b", "c"]),
            (39, 4, &["a", "b", "c", "d"]),
            (0, 0, &["a", "b", "c", "d"]),
        ] {
            let (kept, removed) = split(files.to_vec(), max_bytes, max_files);
            let removed: Vec<PathBuf> = removed.into_iter().map(|file| file.path).collect();
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(removed, expected, "{max_bytes} {max_files}");
            assert_eq!(kept.len() + removed.len(), files.len());
        }
    }

    #[test]
    fn files_of_a_running_build_are_kept() {
        let in_use = CachedFile { is_in_use: true, ..file("b", 2, 20) };
        let (kept, removed) = split(vec![file("a", 1, 10), in_use.clone(), file("c", 3, 30)], 20, 3);
        assert_eq!((kept, removed), (vec![in_use], vec![file("a", 1, 10), file("c", 3, 30)]));
    }

    #[test]
    fn a_file_that_cannot_be_removed_does_not_prevent_the_removal_of_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "").unwrap();
        remove_all(vec![file("invalid\0name", 1, 1), file(&other, 2, 1)]).unwrap_err();
        assert!(!other.exists());
    }
}
