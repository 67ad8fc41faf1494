//! Evicts the least recently used files of the cache. The agent updates an archive's modification time on each use, and
//! Go updates the modification times in its build cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::store::{MAX_LOCK_AGE, is_older};
use super::{CacheError, DependencyCache, failed};
use crate::agent::durable;

/// Maximum number of archives.
const MAX_ARCHIVES: usize = 1_000;
/// Maximum number of files in Go's build cache.
const MAX_BUILD_FILES: usize = 100_000;
/// Maximum age of a temporary file. An older file is the remainder of a write by an agent that was killed.
const MAX_TEMPORARY_AGE: Duration = Duration::from_secs(2 * 60 * 60);
/// Maximum share of the file system that the archives can use, in percent. This limit prevents a small volume from
/// becoming full.
const MAX_SHARE: u64 = 80;
/// Maximum number of files and directories that the agent lists in a directory tree.
const MAX_LISTED: usize = 200_000;

/// A file in the cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CachedFile {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

impl DependencyCache {
    /// Removes the least recently used archives, and the least recently used files of Go's build cache, until both are
    /// below their limits. The eviction also removes entries with missing archives, and the temporary files and locks
    /// of killed agents.
    pub fn evict(&self) -> Result<(), CacheError> {
        let limit = self.limit();
        remove_all(surplus(list(&self.archives())?, limit, MAX_ARCHIVES))?;
        remove_all(surplus(list(&self.go_build)?, limit, MAX_BUILD_FILES))?;
        self.remove_entries_without_archives()?;
        let is_left = |file: &CachedFile, age| is_older(&file.path, age);
        let temporary = list(&self.root.join("temporary"))?.into_iter().filter(|file| is_left(file, MAX_TEMPORARY_AGE));
        let locks = list(&self.root.join("locks"))?.into_iter().filter(|file| is_left(file, MAX_LOCK_AGE));
        remove_all(temporary.chain(locks).map(|file| file.path).collect())
    }

    /// Returns the maximum size of the archives in bytes.
    fn limit(&self) -> u64 {
        let share = rustix::fs::statvfs(&self.root)
            .map_or(u64::MAX, |volume| volume.f_blocks.saturating_mul(volume.f_frsize) / 100 * MAX_SHARE);
        self.max_bytes.min(share)
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

/// Returns the least recently used files that the agent must remove to keep the other files within the limits.
fn surplus(mut files: Vec<CachedFile>, max_bytes: u64, max_files: usize) -> Vec<PathBuf> {
    files.sort();
    let mut bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
    let mut count = files.len();
    let mut removed = Vec::new();
    for file in files {
        if bytes <= max_bytes && count <= max_files {
            break;
        }
        bytes = bytes.saturating_sub(file.bytes);
        count -= 1;
        removed.push(file.path);
    }
    removed
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
                Ok(used) => files.push(CachedFile { used, bytes: metadata.len(), path: entry.path() }),
                Err(_) => {}
            }
        }
    }
    Ok(files)
}

fn remove_all(paths: Vec<PathBuf>) -> Result<(), CacheError> {
    paths.iter().try_for_each(|path| durable::remove(path).map_err(failed("remove", path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_files_are_removed() {
        let file = |name: &str, second: u64, bytes: u64| CachedFile {
            used: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
            bytes,
            path: PathBuf::from(name),
        };
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
            let removed = surplus(files.to_vec(), max_bytes, max_files);
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(removed, expected, "{max_bytes} {max_files}");
        }
    }
}
