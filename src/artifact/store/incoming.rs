//! An artifact on its way into the store: hashed as it comes, and visible only when it is whole and verified.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use tempfile::NamedTempFile;

use super::super::digest::{Algorithm, Digest, Hasher};
use super::error::StoreError;
use super::grants::Grants;
use super::shelf::{Blob, Pinned, Shelf, State, file_name};

/// An artifact that is arriving. Dropped without a commit, it leaves nothing behind.
#[derive(Debug)]
pub struct Incoming {
    // Fields are dropped in this order: the file is gone before its room is given back.
    file: NamedTempFile,
    room: Room,
    hasher: Hasher,
    size: u64,
}

impl Incoming {
    pub(super) fn begin(shelf: Arc<Shelf>, algorithm: Algorithm) -> Result<Self, StoreError> {
        let file = NamedTempFile::new_in(&shelf.incoming)
            .map_err(|cause| StoreError::Write { path: shelf.incoming.clone(), cause })?;
        Ok(Self { file, room: Room { shelf, bytes: 0 }, hasher: Hasher::new(algorithm), size: 0 })
    }

    /// Appends bytes, evicting older artifacts where they need the room.
    ///
    /// # Errors
    /// The store is full of artifacts in use, or the disk refuses.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.room.reserve(count)?;
        self.file
            .write_all(bytes)
            .map_err(|cause| StoreError::Write { path: self.room.shelf.incoming.clone(), cause })?;
        self.hasher.update(bytes);
        self.size += count;
        Ok(())
    }

    /// The file, for another process to write it. [`Incoming::take_in`] takes in what it has written.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Takes in what another process has written to the file, evicting older artifacts where they need the room.
    ///
    /// # Errors
    /// There are more than `most` bytes, the store is full of artifacts in use, or the disk refuses.
    pub fn take_in(&mut self, most: u64) -> Result<(), StoreError> {
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
            if self.size.saturating_add(bytes) > most {
                return Err(failed(io::ErrorKind::FileTooLarge.into()));
            }
            self.room.reserve(bytes)?;
            self.hasher.update(buffer.get(..count).unwrap_or_default());
            self.size += bytes;
        }
    }

    /// How many bytes have come so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Ends the artifact, which must have this digest, and makes it part of the store.
    ///
    /// # Errors
    /// The bytes have another digest, or the disk refuses; nothing is kept then.
    pub fn commit(self, wanted: &Digest) -> Result<Pinned, StoreError> {
        let found = self.hasher.clone().finish();
        if !wanted.verify(&found) {
            return Err(StoreError::Mismatch { wanted: wanted.clone(), found, bytes: self.size });
        }
        self.keep(found)
    }

    /// Ends an artifact that was made here, whose digest is whatever its bytes give.
    ///
    /// # Errors
    /// The disk refuses; nothing is kept then.
    pub fn commit_as_is(self) -> Result<Pinned, StoreError> {
        let digest = self.hasher.clone().finish();
        self.keep(digest)
    }

    fn keep(self, digest: Digest) -> Result<Pinned, StoreError> {
        let Self { file, mut room, size, .. } = self;
        let shelf = Arc::clone(&room.shelf);
        let path = shelf.complete.join(file_name(&digest));
        let failed = |cause| StoreError::Write { path: path.clone(), cause };
        // The bytes reach the disk before the name does: a crash leaves no file that only looks complete.
        file.as_file().sync_all().map_err(failed)?;
        let mut state = shelf.lock();
        if let Some(entry) = state.entries.get(&digest).filter(|entry| entry.verified) {
            return Ok(Pinned { blob: Arc::clone(&entry.blob) });
        }
        // What an earlier process left under this digest is not verified; ours is. Nobody has it by an earlier grant: that was for
        // other bytes, if these were not sound.
        state.remove(&digest)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        room.release(&mut state);
        let grants = Grants::read(shelf.grants.join(file_name(&digest)));
        let blob = state.insert(Blob { digest, path: path.clone(), size }, true, grants);
        drop(state);
        File::open(&shelf.complete).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(Pinned { blob })
    }
}

/// So that an archive can be packed straight into the store.
impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Room in the store that is taken by bytes on their way in.
#[derive(Debug)]
struct Room {
    shelf: Arc<Shelf>,
    bytes: u64,
}

impl Room {
    fn reserve(&mut self, count: u64) -> Result<(), StoreError> {
        let mut state = self.shelf.lock();
        self.shelf.make_room(&mut state, count)?;
        state.incoming_bytes = state.incoming_bytes.saturating_add(count);
        self.bytes += count;
        Ok(())
    }

    /// Gives the room back under a lock that is already held.
    fn release(&mut self, state: &mut State) {
        state.incoming_bytes = state.incoming_bytes.saturating_sub(self.bytes);
        self.bytes = 0;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let shelf = Arc::clone(&self.shelf);
            self.release(&mut shelf.lock());
        }
    }
}
