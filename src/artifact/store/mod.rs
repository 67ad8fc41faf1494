//! The content-addressed store: verified artifacts on disk, by digest, within a bound.
//!
//! Files arrive under `incoming/` and are renamed to `complete/` once they are whole and verified, so what lies in
//! `complete/` is what its name says. The least recently used ones go when room is needed; those in use never do. `grants/` says
//! which namespaces may have which artifact.

mod error;
mod grants;
mod incoming;
mod shelf;
#[cfg(test)]
mod tests;

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex};

use grants::Grants;
use shelf::{Blob, Shelf, State, file_name};

pub use error::StoreError;
pub use incoming::Incoming;
pub use shelf::Pinned;

use super::digest::{Algorithm, Digest};

/// The most URLs that are remembered of an artifact.
const MAX_URLS: usize = 64;

/// A store of artifacts. Clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    shelf: Arc<Shelf>,
}

/// What the store holds at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Complete artifacts.
    pub artifacts: usize,
    /// Their bytes.
    pub complete_bytes: u64,
    /// Bytes of artifacts that are just arriving.
    pub incoming_bytes: u64,
}

impl Store {
    /// Opens the store in a directory, which is made where it is missing, and keeps it under `capacity_bytes`.
    /// Half-written files of an earlier process are removed; complete ones are kept, and verified again before their
    /// first use.
    ///
    /// # Errors
    /// The directory cannot be prepared, or another process has the store open.
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
        for blob in left_over(&complete).map_err(failed)? {
            let grants = Grants::read(grants.join(file_name(&blob.digest)));
            state.insert(blob, false, grants);
        }
        remove_orphans(&grants, &state).map_err(failed)?;
        let shelf = Shelf { complete, incoming, grants, capacity: capacity_bytes, state: Mutex::new(state), lock };
        shelf.make_room(&mut shelf.lock(), 0)?;
        Ok(Self { shelf: Arc::new(shelf) })
    }

    /// Whether the store has the artifact. What an earlier process left may yet turn out damaged when it is opened.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.shelf.lock().entries.contains_key(digest)
    }

    /// Takes the artifact out for reading, if the store has it. The first time after a start this reads all of it, to
    /// verify it; a damaged or missing file counts as not there.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open_artifact(&self, digest: &Digest) -> Result<Option<Pinned>, StoreError> {
        let Some((pinned, verified)) = self.shelf.take(digest) else { return Ok(None) };
        let read = |cause| StoreError::Read { digest: digest.clone(), cause };
        let sound = match pinned.blob.is_sound(verified) {
            Ok(sound) => sound,
            Err(cause) if cause.kind() == ErrorKind::NotFound => false,
            Err(cause) => return Err(read(cause)),
        };
        if !sound {
            self.shelf.forget(&pinned.blob)?;
            return Ok(None);
        }
        self.shelf.mark_verified(&pinned.blob);
        Ok(Some(pinned))
    }

    /// From now on the namespace may have the artifact, also after a restart, as long as the store has it: call it only once a
    /// source of the namespace has produced these bytes. False when the store does not have it.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn grant(&self, digest: &Digest, namespace: &str) -> Result<bool, StoreError> {
        let mut state = self.shelf.lock();
        let Some(entry) = state.entries.get_mut(digest) else { return Ok(false) };
        let failed = |cause| StoreError::Write { path: self.shelf.grants.clone(), cause };
        entry.grants.add(namespace).map_err(failed)?;
        Ok(true)
    }

    /// Whether the store has the artifact, and this namespace may have it.
    pub fn is_granted(&self, digest: &Digest, namespace: &str) -> bool {
        self.shelf.lock().entries.get(digest).is_some_and(|entry| entry.grants.has(namespace))
    }

    /// Takes the artifact out for reading, if the store has it and this namespace may have it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open_granted(&self, digest: &Digest, namespace: &str) -> Result<Option<Pinned>, StoreError> {
        if self.is_granted(digest, namespace) { self.open_artifact(digest) } else { Ok(None) }
    }

    /// Notes that the artifact was downloaded from this URL.
    pub(super) fn note_url(&self, digest: &Digest, url: &str) {
        let mut state = self.shelf.lock();
        let Some(entry) = state.entries.get_mut(digest).filter(|entry| !entry.urls.iter().any(|known| known == url))
        else {
            return;
        };
        if entry.urls.len() >= MAX_URLS {
            entry.urls.remove(0);
        }
        entry.urls.push(url.to_owned());
    }

    /// Whether this process has downloaded the artifact from this URL, and still has it.
    pub(super) fn came_from(&self, digest: &Digest, url: &str) -> bool {
        let state = self.shelf.lock();
        state.entries.get(digest).is_some_and(|entry| entry.urls.iter().any(|known| known == url))
    }

    /// Begins to take in an artifact whose digest is of this algorithm.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn begin(&self, algorithm: Algorithm) -> Result<Incoming, StoreError> {
        Incoming::begin(Arc::clone(&self.shelf), algorithm)
    }

    /// Throws an artifact away, for example because a reader found it damaged. Pins of it lose their file.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn discard(&self, digest: &Digest) -> Result<(), StoreError> {
        match self.shelf.take(digest) {
            Some((pinned, _)) => self.shelf.forget(&pinned.blob),
            None => Ok(()),
        }
    }

    /// What the store holds now.
    pub fn usage(&self) -> Usage {
        let state = self.shelf.lock();
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

/// Removes the grants of artifacts that are not there any more.
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

/// The complete files of an earlier process, oldest first. Files of other names are nobody's business.
fn left_over(complete: &Path) -> io::Result<Vec<Blob>> {
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
