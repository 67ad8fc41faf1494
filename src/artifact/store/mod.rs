//! A content-addressed store of verified artifacts on disk, with a limited capacity.
//!
//! The store writes a file to `incoming/`, verifies the file, and then moves it to `complete/`. The name of a file in
//! `complete/` is its digest. To make space, the store evicts the least recently used artifacts that no reader has
//! pinned. For each artifact, a file in `grants/` lists the namespaces that may read the artifact.

mod incoming;
mod index;
#[cfg(test)]
mod tests;

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex};

use index::{Blob, Grants, Index, State, file_name};

pub use incoming::Incoming;
pub use index::{Pinned, StoreError};

use super::digest::{Algorithm, Digest};

/// Maximum number of download URLs that the store records per artifact.
const MAX_URLS: usize = 64;

/// A store of artifacts. All clones share the same directory and state.
#[derive(Clone, Debug)]
pub struct Store {
    index: Arc<Index>,
}

/// The number and total size of the artifacts in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Number of complete artifacts.
    pub artifacts: usize,
    /// Total size of the complete artifacts, in bytes.
    pub complete_bytes: u64,
    /// Total size of the incomplete artifacts, in bytes.
    pub incoming_bytes: u64,
}

impl Store {
    /// Opens the store in a directory. Creates the directory if it does not exist. Removes the incomplete files of an
    /// earlier process. Keeps the complete files, and verifies each file before its first use. The total size of the
    /// artifacts never exceeds `capacity_bytes`.
    ///
    /// # Errors
    /// Fails if the directory cannot be prepared, or if another process has opened the store.
    pub fn open(directory: &Path, capacity_bytes: u64) -> Result<Self, StoreError> {
        let failed = |cause| StoreError::Prepare { path: directory.to_owned(), cause };
        let complete = directory.join("complete");
        let incoming = directory.join("incoming");
        let grants = directory.join("grants");
        fs::create_dir_all(&complete).map_err(failed)?;
        fs::create_dir_all(&grants).map_err(failed)?;
        let lock = File::create(directory.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse { path: directory.to_owned() }),
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        match fs::remove_dir_all(&incoming) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(failed(cause)),
            _ => {}
        }
        fs::create_dir_all(&incoming).map_err(failed)?;
        let mut state = State::default();
        for blob in leftover_files(&complete).map_err(failed)? {
            let grants = Grants::read(grants.join(file_name(&blob.digest)));
            state.insert(blob, false, grants);
        }
        remove_orphans(&grants, &state).map_err(failed)?;
        let index = Index { complete, incoming, grants, capacity: capacity_bytes, state: Mutex::new(state), lock };
        index.free_space(&mut index.lock(), 0)?;
        Ok(Self { index: Arc::new(index) })
    }

    /// Returns whether the store contains the artifact. Does not verify a file that an earlier process stored.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.index.lock().entries.contains_key(digest)
    }

    /// Pins the artifact for reading, if the store contains it. The first call after a restart reads and verifies the
    /// whole file. If the file is corrupted or missing, removes the artifact and returns `None`.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn open_artifact(&self, digest: &Digest) -> Result<Option<Pinned>, StoreError> {
        let Some((pinned, verified)) = self.index.pin(digest) else { return Ok(None) };
        let read = |cause| StoreError::Read { digest: digest.clone(), cause };
        let intact = match pinned.blob.is_intact(verified) {
            Ok(intact) => intact,
            Err(cause) if cause.kind() == ErrorKind::NotFound => false,
            Err(cause) => return Err(read(cause)),
        };
        if !intact {
            self.index.forget(&pinned.blob)?;
            return Ok(None);
        }
        self.index.mark_verified(&pinned.blob);
        Ok(Some(pinned))
    }

    /// Grants the namespace access to the artifact. The grant survives restarts, and ends when the store removes the
    /// artifact. The caller must first verify that a source in the namespace has produced the artifact. Returns `false`
    /// if the store does not contain the artifact.
    ///
    /// # Errors
    /// Fails if the grant cannot be written.
    pub fn grant(&self, digest: &Digest, namespace: &str) -> Result<bool, StoreError> {
        let mut state = self.index.lock();
        let Some(entry) = state.entries.get_mut(digest) else { return Ok(false) };
        let failed = |cause| StoreError::Write { path: self.index.grants.clone(), cause };
        entry.grants.add(namespace).map_err(failed)?;
        Ok(true)
    }

    /// Returns whether the store contains the artifact and the namespace may read it.
    pub fn is_granted(&self, digest: &Digest, namespace: &str) -> bool {
        self.index.lock().entries.get(digest).is_some_and(|entry| entry.grants.has(namespace))
    }

    /// Pins the artifact for reading if the store contains it and the namespace may read it.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn open_granted(&self, digest: &Digest, namespace: &str) -> Result<Option<Pinned>, StoreError> {
        if self.is_granted(digest, namespace) { self.open_artifact(digest) } else { Ok(None) }
    }

    /// Records that this process downloaded the artifact from this URL.
    pub(super) fn record_url(&self, digest: &Digest, url: &str) {
        let mut state = self.index.lock();
        let Some(entry) = state.entries.get_mut(digest).filter(|entry| !entry.urls.iter().any(|known| known == url))
        else {
            return;
        };
        if entry.urls.len() >= MAX_URLS {
            entry.urls.remove(0);
        }
        entry.urls.push(url.to_owned());
    }

    /// Returns whether this process downloaded the artifact from this URL and the store still contains it.
    pub(super) fn was_downloaded_from(&self, digest: &Digest, url: &str) -> bool {
        let state = self.index.lock();
        state.entries.get(digest).is_some_and(|entry| entry.urls.iter().any(|known| known == url))
    }

    /// Starts writing an artifact. `algorithm` is the hash algorithm of the artifact's digest.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn begin(&self, algorithm: Algorithm) -> Result<Incoming, StoreError> {
        Incoming::begin(Arc::clone(&self.index), algorithm)
    }

    /// Removes an artifact, for example after a reader has detected corruption. Removes the file even if the artifact
    /// is pinned.
    ///
    /// # Errors
    /// Fails if the file cannot be removed.
    pub fn discard(&self, digest: &Digest) -> Result<(), StoreError> {
        match self.index.pin(digest) {
            Some((pinned, _)) => self.index.forget(&pinned.blob),
            None => Ok(()),
        }
    }

    /// Returns the store's current usage.
    pub fn usage(&self) -> Usage {
        let state = self.index.lock();
        Usage {
            artifacts: state.entries.len(),
            complete_bytes: state.complete_bytes,
            incoming_bytes: state.incoming_bytes,
        }
    }
}

fn parse_file_name(name: &str) -> Option<Digest> {
    name.replacen('-', ":", 1).parse().ok()
}

/// Removes the grants of artifacts that the store no longer contains.
fn remove_orphans(grants: &Path, state: &State) -> io::Result<()> {
    for file in fs::read_dir(grants)? {
        let file = file?;
        let digest = file.file_name().to_str().and_then(parse_file_name);
        if digest.is_none_or(|digest| !state.entries.contains_key(&digest)) {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

/// Returns the complete files that an earlier process stored, oldest first. Ignores a file whose name is not a digest.
fn leftover_files(complete: &Path) -> io::Result<Vec<Blob>> {
    let mut found = Vec::new();
    for file in fs::read_dir(complete)? {
        let file = file?;
        let metadata = file.metadata()?;
        let digest = file.file_name().to_str().and_then(parse_file_name);
        if let Some(digest) = digest.filter(|_| metadata.is_file()) {
            let blob = Blob { digest, path: file.path(), size: metadata.len() };
            found.push((metadata.modified()?, blob));
        }
    }
    found.sort_by_key(|(modified, _)| *modified);
    Ok(found.into_iter().map(|(_, blob)| blob).collect())
}
