//! The store index: the artifacts on disk, with their pins and grants.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::digest::Digest;

/// An error that the artifact store returns.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to prepare the artifact store {path}: {cause}")]
    Prepare { path: PathBuf, cause: io::Error },
    #[error("artifact store {path} is in use by another process: use a separate directory")]
    InUse { path: PathBuf },
    #[error(
        "artifact store is full: {needed} more bytes exceed its capacity of {capacity} bytes ({in_use} in use, {incoming} \
         incoming): increase --storage-size"
    )]
    Full { capacity: u64, needed: u64, in_use: u64, incoming: u64 },
    #[error("artifact of {bytes} bytes has digest {found}, not {expected}")]
    Mismatch { expected: Digest, found: Digest, bytes: u64 },
    #[error("failed to read artifact {digest} from the store: {cause}")]
    Read { digest: Digest, cause: io::Error },
    #[error("failed to write {path} to the artifact store: {cause}")]
    Write { path: PathBuf, cause: io::Error },
    #[error("failed to remove {path} from the artifact store: {cause}")]
    Remove { path: PathBuf, cause: io::Error },
}

/// An artifact in the store. While a clone of this value exists, the store does not evict the artifact.
#[derive(Clone, Debug)]
pub struct Pinned {
    pub(super) blob: Arc<Blob>,
}

impl Pinned {
    pub fn digest(&self) -> &Digest {
        &self.blob.digest
    }

    /// Returns the size of the archive, in bytes.
    pub fn size(&self) -> u64 {
        self.blob.size
    }

    /// Returns the path of the archive. The path remains valid while this value exists.
    pub fn path(&self) -> &Path {
        &self.blob.path
    }

    /// Opens the archive for reading.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn file(&self) -> Result<File, StoreError> {
        File::open(&self.blob.path).map_err(|cause| StoreError::Read { digest: self.blob.digest.clone(), cause })
    }
}

/// State that all clones of a store share. The store locks the mutex to update the state, rename a file or remove a
/// file. The store never copies or hashes content while the mutex is locked.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) complete: PathBuf,
    pub(super) incoming: PathBuf,
    pub(super) grants: PathBuf,
    pub(super) capacity: u64,
    pub(super) state: Mutex<State>,
    pub(super) lock: File,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) entries: HashMap<Digest, Entry>,
    pub(super) complete_bytes: u64,
    pub(super) incoming_bytes: u64,
    clock: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// Reference to the artifact. Each [`Pinned`] holds another reference. The store can evict the artifact if this
    /// entry holds the only reference.
    pub(super) blob: Arc<Blob>,
    last_used: u64,
    /// Whether this process has verified the digest. If an earlier process stored the artifact, the initial value is
    /// `false`.
    pub(super) verified: bool,
    pub(super) grants: Grants,
    /// URLs from which this process downloaded the artifact, oldest first.
    pub(super) urls: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    pub(super) path: PathBuf,
    pub(super) size: u64,
}

impl Index {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Ignores a poisoned mutex, because no code can panic while the state is inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins an artifact. Also returns whether this process has verified the artifact.
    pub(super) fn pin(&self, digest: &Digest) -> Option<(Pinned, bool)> {
        let mut state = self.lock();
        state.clock += 1;
        let now = state.clock;
        let entry = state.entries.get_mut(digest)?;
        entry.last_used = now;
        Some((Pinned { blob: Arc::clone(&entry.blob) }, entry.verified))
    }

    pub(super) fn mark_verified(&self, blob: &Arc<Blob>) {
        let mut state = self.lock();
        if let Some(entry) = state.entries.get_mut(&blob.digest).filter(|entry| Arc::ptr_eq(&entry.blob, blob)) {
            entry.verified = true;
        }
    }

    /// Removes the artifact `blob`, unless a newer artifact with the same digest has replaced it.
    pub(super) fn forget(&self, blob: &Arc<Blob>) -> Result<(), StoreError> {
        let mut state = self.lock();
        match state.entries.get(&blob.digest) {
            Some(entry) if Arc::ptr_eq(&entry.blob, blob) => state.remove(&blob.digest),
            _ => Ok(()),
        }
    }

    /// Evicts the least recently used artifacts until `needed` more bytes fit.
    pub(super) fn free_space(&self, state: &mut State, needed: u64) -> Result<(), StoreError> {
        loop {
            let used = state.complete_bytes.saturating_add(state.incoming_bytes);
            if used.saturating_add(needed) <= self.capacity {
                return Ok(());
            }
            let Some(digest) = state.least_recently_used() else {
                return Err(StoreError::Full {
                    capacity: self.capacity,
                    needed,
                    in_use: state.complete_bytes,
                    incoming: state.incoming_bytes,
                });
            };
            state.remove(&digest)?;
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // Unlocks explicitly. A child process that is starting can hold a copy of the file descriptor, so closing the
        // file might not release the lock.
        if let Err(cause) = self.lock.unlock() {
            tracing::debug!(%cause, "failed to unlock the artifact store");
        }
    }
}

impl State {
    pub(super) fn insert(&mut self, blob: Blob, verified: bool, grants: Grants) -> Arc<Blob> {
        self.clock += 1;
        self.complete_bytes = self.complete_bytes.saturating_add(blob.size);
        let blob = Arc::new(blob);
        let entry = Entry { blob: Arc::clone(&blob), last_used: self.clock, verified, grants, urls: Vec::new() };
        self.entries.insert(blob.digest.clone(), entry);
        blob
    }

    pub(super) fn remove(&mut self, digest: &Digest) -> Result<(), StoreError> {
        let Some(entry) = self.entries.remove(digest) else { return Ok(()) };
        self.complete_bytes = self.complete_bytes.saturating_sub(entry.blob.size);
        // Removes the grants before the file. If a crash occurs between these steps, no namespace may read the
        // remaining file.
        let failed = |cause| StoreError::Remove { path: entry.blob.path.clone(), cause };
        entry.grants.remove().map_err(failed)?;
        match fs::remove_file(&entry.blob.path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(failed(cause)),
            _ => Ok(()),
        }
    }

    fn least_recently_used(&self) -> Option<Digest> {
        let free = self.entries.values().filter(|entry| Arc::strong_count(&entry.blob) == 1);
        free.min_by_key(|entry| entry.last_used).map(|entry| entry.blob.digest.clone())
    }
}

impl Blob {
    /// Returns whether the file's content matches the digest. If `verified` is true, compares only the size.
    pub(super) fn is_intact(&self, verified: bool) -> io::Result<bool> {
        if verified {
            return Ok(fs::metadata(&self.path)?.len() == self.size);
        }
        let found = Digest::of_reader(self.digest.algorithm(), File::open(&self.path)?)?;
        Ok(self.digest.verify(&found))
    }
}

/// Returns the file name of an artifact: its digest with `-` instead of `:`, because some file systems do not allow
/// `:`.
pub(super) fn file_name(digest: &Digest) -> String {
    format!("{}-{}", digest.algorithm(), digest.hex())
}

/// Maximum number of namespaces that may read one artifact. Once an artifact has this number of grants, a new grant
/// replaces the oldest grant. The namespace that loses its grant must download the artifact again.
const MAX_NAMESPACES: usize = 1024;

/// The namespaces that may read one artifact. In each of the namespaces, a source has produced the artifact. A digest
/// is not secret, so knowledge of the digest does not grant access. A file with one namespace per line preserves the
/// grants across restarts.
#[derive(Debug)]
pub(super) struct Grants {
    path: PathBuf,
    namespaces: Vec<String>,
}

impl Grants {
    /// Reads the grants that an earlier process wrote. Returns no grants if the file is missing or unreadable.
    pub(super) fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        // Ignores the text after the last newline, because an interrupted write can leave an incomplete line.
        let whole = text.rsplit_once('\n').map(|(lines, _)| lines).unwrap_or_default();
        let namespaces =
            whole.lines().filter(|line| !line.is_empty()).take(MAX_NAMESPACES).map(str::to_owned).collect();
        Grants { path, namespaces }
    }

    pub(super) fn has(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|granted| granted == namespace)
    }

    /// Adds a grant for a namespace, first to the file and then in memory.
    pub(super) fn add(&mut self, namespace: &str) -> io::Result<()> {
        if self.has(namespace) {
            return Ok(());
        }
        if self.namespaces.len() >= MAX_NAMESPACES {
            self.namespaces.remove(0);
            self.namespaces.push(namespace.to_owned());
            return fs::write(
                &self.path,
                self.namespaces.iter().map(|granted| format!("{granted}\n")).collect::<String>(),
            );
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(format!("{namespace}\n").as_bytes())?;
        self.namespaces.push(namespace.to_owned());
        Ok(())
    }

    /// Removes all grants of the artifact.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(cause),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_kept_after_a_restart_except_for_a_truncated_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sha256-1");
        let mut grants = Grants::read(path.clone());
        assert!(!grants.has("team-a"));
        for namespace in ["team-a", "team-b", "team-a"] {
            grants.add(namespace).expect("written");
        }
        assert_eq!(fs::read_to_string(&path).expect("a file"), "team-a\nteam-b\n");
        fs::write(&path, "team-a\nteam-bc").expect("written");
        let again = Grants::read(path.clone());
        assert_eq!([again.has("team-a"), again.has("team-b"), again.has("team-bc")], [true, false, false]);
        again.remove().expect("removed");
        assert!(!Grants::read(path).has("team-a"));
        again.remove().expect("a second removal succeeds");
    }

    #[test]
    fn the_oldest_grant_is_evicted_when_the_limit_is_reached() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sha256-1");
        let mut grants = Grants::read(path.clone());
        (0..=MAX_NAMESPACES).for_each(|number| grants.add(&format!("n{number}")).expect("written"));
        for grants in [grants, Grants::read(path)] {
            assert_eq!((grants.namespaces.len(), grants.has("n0"), grants.has("n1024")), (MAX_NAMESPACES, false, true));
        }
    }
}
