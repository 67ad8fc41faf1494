//! Writes artifacts to the store, and computes each digest during the write. Readers can open an artifact only after
//! the store has verified the complete file.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use tempfile::NamedTempFile;

use super::super::digest::{Algorithm, Digest, Hasher};
use super::index::{Blob, Grants, Index, Pinned, State, StoreError, file_name};

/// An incomplete artifact. Dropping this value without a commit removes the file.
#[derive(Debug)]
pub struct Incoming {
    // Rust drops the fields in declaration order. The file must come first, so that the file is removed before the
    // reserved space is released.
    file: NamedTempFile,
    reservation: Reservation,
    hasher: Hasher,
    size: u64,
}

impl Incoming {
    pub(super) fn begin(index: Arc<Index>, algorithm: Algorithm) -> Result<Self, StoreError> {
        let file = NamedTempFile::new_in(&index.incoming)
            .map_err(|cause| StoreError::Write { path: index.incoming.clone(), cause })?;
        Ok(Self { file, reservation: Reservation { index, bytes: 0 }, hasher: Hasher::new(algorithm), size: 0 })
    }

    /// Appends bytes. Evicts older artifacts if the store needs space.
    ///
    /// # Errors
    /// Fails if artifacts in use fill the store, or if writing fails.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.reservation.reserve(count)?;
        self.file
            .write_all(bytes)
            .map_err(|cause| StoreError::Write { path: self.reservation.index.incoming.clone(), cause })?;
        self.hasher.update(bytes);
        self.size += count;
        Ok(())
    }

    /// Returns the path of the file, so that a child process can write the file. After the child process has written
    /// the file, the caller must call [`Incoming::hash_file`].
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Hashes the bytes that another process wrote to the file, and reserves space for the bytes. Evicts older
    /// artifacts if the store needs space.
    ///
    /// # Errors
    /// Fails if the file is larger than `max_bytes` bytes, if artifacts in use fill the store, or if reading fails.
    pub fn hash_file(&mut self, max_bytes: u64) -> Result<(), StoreError> {
        let failed = |cause| StoreError::Write { path: self.file.path().to_owned(), cause };
        let mut file = self.file.as_file();
        file.rewind().map_err(failed)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = file.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                return Ok(());
            }
            let bytes = u64::try_from(count).unwrap_or(u64::MAX);
            if self.size.saturating_add(bytes) > max_bytes {
                return Err(failed(io::ErrorKind::FileTooLarge.into()));
            }
            self.reservation.reserve(bytes)?;
            self.hasher.update(buffer.get(..count).unwrap_or_default());
            self.size += bytes;
        }
    }

    /// Returns the number of bytes received so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Completes the artifact, and adds the artifact to the store if its digest is `expected`.
    ///
    /// # Errors
    /// Fails if the digest is not `expected` or if writing to disk fails. In both cases, discards the artifact.
    pub fn commit(self, expected: &Digest) -> Result<Pinned, StoreError> {
        let found = self.hasher.clone().finish();
        if !expected.verify(&found) {
            return Err(StoreError::Mismatch { expected: expected.clone(), found, bytes: self.size });
        }
        self.store(found)
    }

    /// Completes an artifact that the controller built, and adds the artifact to the store under the digest of its
    /// content.
    ///
    /// # Errors
    /// Fails if writing to disk fails. If so, discards the artifact.
    pub fn commit_as_is(self) -> Result<Pinned, StoreError> {
        let digest = self.hasher.clone().finish();
        self.store(digest)
    }

    fn store(self, digest: Digest) -> Result<Pinned, StoreError> {
        let Self { file, mut reservation, size, .. } = self;
        let index = Arc::clone(&reservation.index);
        let path = index.complete.join(file_name(&digest));
        let failed = |cause| StoreError::Write { path: path.clone(), cause };
        // Syncs the content before the rename. Otherwise, a crash could leave an incomplete file under the final name.
        file.as_file().sync_all().map_err(failed)?;
        let mut state = index.lock();
        if let Some(entry) = state.entries.get(&digest).filter(|entry| entry.verified) {
            return Ok(Pinned { blob: Arc::clone(&entry.blob) });
        }
        // Replaces a file that an earlier process stored, because this process has not verified that file. Also removes
        // the file's grants. If the earlier file was corrupted, its grants do not apply to the new content.
        state.remove(&digest)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        reservation.release(&mut state);
        let grants = Grants::read(index.grants.join(file_name(&digest)));
        let blob = state.insert(Blob { digest, path: path.clone(), size }, true, grants);
        drop(state);
        File::open(&index.complete).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(Pinned { blob })
    }
}

/// Allows callers to pack an archive directly into the store.
impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Space in the store that is reserved for an incoming artifact.
#[derive(Debug)]
struct Reservation {
    index: Arc<Index>,
    bytes: u64,
}

impl Reservation {
    fn reserve(&mut self, count: u64) -> Result<(), StoreError> {
        let mut state = self.index.lock();
        self.index.free_space(&mut state, count)?;
        state.incoming_bytes = state.incoming_bytes.saturating_add(count);
        self.bytes += count;
        Ok(())
    }

    /// Releases the reserved space. The caller holds the lock on `state`.
    fn release(&mut self, state: &mut State) {
        state.incoming_bytes = state.incoming_bytes.saturating_sub(self.bytes);
        self.bytes = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let index = Arc::clone(&self.index);
            self.release(&mut index.lock());
        }
    }
}
