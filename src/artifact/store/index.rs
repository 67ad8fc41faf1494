//! Artifacts on disk, and the index of the store.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::digest::Digest;
use super::error::StoreError;
use super::grants::Grants;

/// An artifact in the store. It cannot be evicted while a clone of this value exists.
#[derive(Clone, Debug)]
pub struct Pinned {
    pub(super) blob: Arc<Blob>,
}

impl Pinned {
    pub fn digest(&self) -> &Digest {
        &self.blob.digest
    }

    /// Size of the archive, in bytes.
    pub fn size(&self) -> u64 {
        self.blob.size
    }

    /// Path of the archive. It is valid while this value exists.
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

/// State that all clones of a store share. The mutex is held for bookkeeping, a rename or a removal, but never while bytes are
/// copied or hashed.
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
    /// Every pin holds a reference too. If this is the only reference, the artifact can be evicted.
    pub(super) blob: Arc<Blob>,
    last_used: u64,
    /// False for an artifact of an earlier process until its digest is verified.
    pub(super) verified: bool,
    pub(super) grants: Grants,
    /// URLs from which this process downloaded the artifact, newest last.
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
        // Ignoring poison is safe: no code panics between two changes of the state, except on allocation failure.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins an artifact and returns whether this process has verified it.
    pub(super) fn take(&self, digest: &Digest) -> Option<(Pinned, bool)> {
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

    /// Removes this artifact unless a newer one with the same digest has replaced it.
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
        // A child process that is starting may hold a copy of the descriptor, so closing this one would not release the lock.
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
        // Grants are removed before the file: a file without grants is readable by no namespace.
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
    /// Returns whether the content of the file matches its digest. For a verified file, only the size is checked.
    pub(super) fn is_intact(&self, verified: bool) -> io::Result<bool> {
        if verified {
            return Ok(fs::metadata(&self.path)?.len() == self.size);
        }
        let found = Digest::of_reader(self.digest.algorithm(), File::open(&self.path)?)?;
        Ok(self.digest.verify(&found))
    }
}

/// Returns the file name of an artifact: its digest with `-` instead of `:`, which some volumes do not allow.
pub(super) fn file_name(digest: &Digest) -> String {
    format!("{}-{}", digest.algorithm(), digest.hex())
}
