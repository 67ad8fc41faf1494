//! Creates the index for a fetched pack. Checks the sum of the declared object sizes before resolving deltas, because a
//! pack of one megabyte can decode to terabytes.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use flate2::bufread::ZlibDecoder;
use gix_pack::data::input::{BytesToEntriesIter, Entry, EntryDataMode, Mode};
use gix_pack::data::{self, EntryRange};
use gix_pack::{Bundle, MMap, index};
use gix_utils::progress::Discard;

use crate::source::git::budget::one_line;
use crate::source::git::error::GitError;
use crate::source::git::request::Limits;

/// Name of the pack file in a fetch directory.
pub const PACK: &str = "fetched.pack";
/// Name of the index file in a fetch directory.
const INDEX: &str = "fetched.idx";
/// Decoding work limit for an empty pack, in decoded bytes.
const BASE_WORK_LIMIT: u64 = 1 << 30;
/// Number of decoded bytes that each byte of the pack adds to the decoding work limit. Source code compresses to about
/// a fifth of its size, and deltas are smaller.
const WORK_LIMIT_RATIO: u64 = 100;
/// Maximum size of a delta header, in bytes. The header contains two 64-bit numbers, encoded in groups of seven bits.
const DELTA_HEADER: u64 = 20;

/// The decoding work that the controller may still perform for a pack, in decoded bytes.
#[derive(Debug)]
pub struct WorkLimit {
    limit: u64,
    left: u64,
}

impl WorkLimit {
    pub fn for_pack(bytes: u64) -> Self {
        let limit = BASE_WORK_LIMIT.saturating_add(bytes.saturating_mul(WORK_LIMIT_RATIO));
        Self { limit, left: limit }
    }

    /// # Errors
    /// Fails if the work exceeds the limit.
    pub fn take(&mut self, bytes: u64) -> Result<(), GitError> {
        let limit = self.limit;
        let too_large = || GitError::TooLarge { what: "decoded size of the pack".into(), limit };
        self.left = self.left.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }
}

/// Creates the index for the pack in a directory.
pub fn make(directory: &Path, hash: gix_hash::Kind, limits: &Limits) -> Result<Bundle, GitError> {
    let failed = |cause: std::io::Error| GitError::disk(directory, &cause);
    let (pack_path, index_path) = (directory.join(PACK), directory.join(INDEX));
    let largest = usize::try_from(limits.file_bytes).ok();
    let mut pack = data::File::at(&pack_path, hash).map_err(|error| broken(&error))?;
    // Up to three objects are in memory at the same time: a base object and the results of two deltas.
    pack.alloc_limit_bytes = largest.and_then(|largest| largest.checked_mul(3));
    if pack.num_objects() > limits.objects {
        return Err(GitError::TooManyObjects { found: pack.num_objects(), limit: limits.objects });
    }
    // Does not verify the pack checksum, because the library computes the hashes in the index from the objects.
    let reader = BufReader::with_capacity(64 << 10, File::open(&pack_path).map_err(failed)?);
    let entries = BytesToEntriesIter::new_from_header(reader, Mode::AsIs, EntryDataMode::Crc32, hash);
    let mut entries = Metered {
        entries: entries.map_err(|error| broken(&error))?,
        pack: &pack,
        largest: limits.file_bytes,
        work: WorkLimit::for_pack(u64::try_from(pack.data_len()).unwrap_or(u64::MAX)),
        failure: None,
    };
    let mut file = BufWriter::new(File::create(&index_path).map_err(failed)?);
    let written = index::write_data_iter_to_stream(
        index::Version::default(),
        || Ok((slice, data::File::at(&pack_path, hash).map_err(std::io::Error::other)?)),
        &mut entries,
        Some(1),
        &mut Discard,
        &mut file,
        &AtomicBool::new(false),
        hash,
        largest,
        pack.version(),
    );
    if let Some(failure) = entries.failure.take() {
        return Err(failure);
    }
    written.map_err(|error| too_large(&error, limits).unwrap_or_else(|| broken(&error)))?;
    file.flush().map_err(failed)?;
    drop(file);
    let index = index::File::at(&index_path, hash).map_err(|error| broken(&error))?;
    Ok(Bundle { pack, index })
}

fn slice(range: EntryRange, pack: &data::File<MMap>) -> Option<&[u8]> {
    pack.entry_slice(range)
}

/// An iterator over the entries of a pack. Limits the total decoded size of the entries.
struct Metered<'a, Entries> {
    entries: Entries,
    pack: &'a data::File<MMap>,
    largest: u64,
    work: WorkLimit,
    /// The error that ended the iteration. This field keeps the original error, because the library returns errors only
    /// as strings.
    failure: Option<GitError>,
}

impl<Entries: Iterator<Item = gix_error::Result<Entry>>> Iterator for Metered<'_, Entries> {
    type Item = gix_error::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = match self.entries.next()? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error)),
        };
        match self.meter(&entry) {
            Ok(()) => Some(Ok(entry)),
            Err(failure) => {
                let stopped = gix_error::Error::from_error(std::io::Error::other(failure.to_string()));
                self.failure = Some(failure);
                Some(Err(stopped))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl<Entries> Metered<'_, Entries> {
    fn meter(&mut self, entry: &Entry) -> Result<(), GitError> {
        let result = if entry.header.is_delta() { self.delta_result_size(entry)? } else { 0 };
        if entry.decompressed_size.max(result) > self.largest {
            return Err(object_too_large(self.largest));
        }
        self.work.take(entry.decompressed_size.saturating_add(result))
    }

    /// Returns the size of the object to which a delta resolves.
    fn delta_result_size(&self, entry: &Entry) -> Result<u64, GitError> {
        let start = entry.pack_offset + u64::from(entry.header_size);
        let compressed = self.pack.entry_slice(start..start + entry.compressed_size).unwrap_or_default();
        let mut header = Vec::new();
        let read = ZlibDecoder::new(compressed).take(DELTA_HEADER).read_to_end(&mut header);
        let (_, after_base_size) = read.ok().and_then(|_| size(&header)).ok_or_else(truncated)?;
        size(after_base_size).map(|(result, _)| result).ok_or_else(truncated)
    }
}

fn truncated() -> GitError {
    GitError::Protocol("invalid delta in the pack: missing sizes".to_owned())
}

/// Parses a number that is encoded in groups of seven bits, least significant group first. Returns the number and the
/// remaining bytes.
fn size(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut size = 0_u64;
    for (index, byte) in bytes.iter().enumerate() {
        let shift = u32::try_from(index).ok()?.checked_mul(7).filter(|shift| *shift < u64::BITS)?;
        size |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((size, bytes.get(index + 1..)?));
        }
    }
    None
}

fn broken(error: &gix_error::Error) -> GitError {
    GitError::Protocol(one_line(&format!("failed to read the pack: {error:#}")))
}

/// Converts the error with which the library reports that an object or an object list exceeds the memory limit. Returns
/// `None` for other errors.
fn too_large(error: &gix_error::Error, limits: &Limits) -> Option<GitError> {
    let text = format!("{error:#}");
    let limit = limits.file_bytes;
    if text.contains("delta tree is too large to fit in memory") {
        return Some(GitError::TooLarge { what: "list of all Git objects".into(), limit });
    }
    text.contains("too large to fit in memory").then(|| object_too_large(limit))
}

fn object_too_large(limit: u64) -> GitError {
    GitError::TooLarge { what: "Git object (usually a file)".into(), limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_sizes_are_decoded_from_groups_of_seven_bits() {
        assert_eq!(size(&[0x05, 9]), Some((5, &[9][..])));
        assert_eq!(size(&[0x80, 0x01]), Some((128, &[][..])));
        assert_eq!(size(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Some((u64::from(u32::MAX), &[][..])));
        assert_eq!(size(&[0x80]), None, "truncated");
        assert_eq!(size(&[0x80; 11]), None, "more than 64 bits");
    }

    #[test]
    fn the_work_to_decode_a_pack_is_bounded_by_its_size() {
        let mut work = WorkLimit::for_pack(1 << 20);
        assert!(work.take(1 << 30).is_ok());
        assert!(work.take(100 << 20).is_ok());
        assert!(matches!(work.take(1), Err(GitError::TooLarge { limit, .. }) if limit == (1 << 30) + (100 << 20)));
    }
}
