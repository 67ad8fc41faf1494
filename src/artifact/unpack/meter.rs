//! Counts what an archive really is, on both sides of the decompression, and stops it at the limits.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use super::super::limits::Limits;

/// Why a stream was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    TooLarge,
    TooCompressed,
}

/// The counters of one archive.
#[derive(Debug, Default)]
pub(super) struct Meter {
    compressed: Cell<u64>,
    unpacked: Cell<u64>,
    ended: Cell<bool>,
    breach: Cell<Option<Breach>>,
}

impl Meter {
    /// Why the stream was stopped, if it was.
    pub(super) fn breach(&self) -> Option<Breach> {
        self.breach.get()
    }

    /// Whether the decompressed stream was read to its very end.
    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }
}

/// The compressed side.
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

/// The decompressed side.
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
    /// The error itself is lost in the layers above; they ask the meter.
    fn stop(&self, breach: Breach) -> io::Error {
        self.meter.breach.set(Some(breach));
        io::Error::other("the archive exceeds a limit")
    }
}

fn add(counter: &Cell<u64>, count: usize) -> u64 {
    let sum = counter.get().saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    counter.set(sum);
    sum
}
