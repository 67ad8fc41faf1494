//! Counts the compressed and the decompressed bytes of an archive and stops reading at the limits.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use super::super::limits::Limits;

/// The limit that stopped a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    TooLarge,
    TooCompressed,
}

/// Byte counters of one archive.
#[derive(Debug, Default)]
pub(super) struct Meter {
    compressed: Cell<u64>,
    unpacked: Cell<u64>,
    ended: Cell<bool>,
    breach: Cell<Option<Breach>>,
}

impl Meter {
    /// Returns the limit that stopped the stream, if any.
    pub(super) fn breach(&self) -> Option<Breach> {
        self.breach.get()
    }

    /// Returns whether the decompressed stream was read to its end.
    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }
}

/// Reader that counts compressed bytes.
pub(super) struct Compressed<R> {
    pub(super) inner: R,
    pub(super) meter: Rc<Meter>,
}

impl<R: Read> Read for Compressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        add(&self.meter.compressed, count);
        Ok(count)
    }
}

/// Reader that counts decompressed bytes and enforces the limits.
pub(super) struct Decompressed<R> {
    pub(super) inner: R,
    pub(super) meter: Rc<Meter>,
    pub(super) limits: Limits,
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            self.meter.ended.set(true);
        }
        let unpacked = add(&self.meter.unpacked, count);
        let most = self.meter.compressed.get().saturating_mul(self.limits.ratio);
        if unpacked > self.limits.unpacked_bytes {
            return Err(self.stop(Breach::TooLarge));
        }
        if unpacked > self.limits.ratio_free_bytes && unpacked > most {
            return Err(self.stop(Breach::TooCompressed));
        }
        Ok(count)
    }
}

impl<R> Decompressed<R> {
    /// Records the breach in the meter, because the layers above discard the error.
    fn stop(&self, breach: Breach) -> io::Error {
        self.meter.breach.set(Some(breach));
        io::Error::other("archive exceeds a limit")
    }
}

fn add(counter: &Cell<u64>, count: usize) -> u64 {
    let sum = counter.get().saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    counter.set(sum);
    sum
}
