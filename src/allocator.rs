//! Memory allocator settings. Without these settings, the controller's memory usage would remain at the peak of the
//! last load, because glibc keeps freed memory in its arenas.
//!
//! Only this module may contain unsafe code, because glibc has no safe interface for its settings.
#![allow(unsafe_code, reason = "calls two functions of glibc without pointers")]

use std::convert::Infallible;
use std::time::Duration;

use procfs::process::Process;

/// Maximum number of arenas. By default, glibc creates up to eight arenas per CPU, one for each new thread. A trim
/// returns free memory at the end of the first arena to the kernel, but not at the end of the other arenas.
const MAX_ARENAS: libc::c_int = 1;
/// Minimum size of an allocation outside the arenas, in bytes. glibc returns such an allocation to the kernel when the
/// program frees it. By default, glibc increases this size up to 32 MiB when the program frees large allocations.
const MIN_SEPARATE: libc::c_int = 128 * 1024;
/// Interval between two memory checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Minimum memory growth that causes a trim, in KiB. The growth is relative to the lowest memory usage since the last
/// trim.
const MIN_GROWTH: u64 = 4 * 1024;
/// Maximum change in memory usage between two checks, in KiB, at which the usage is steady.
const STEADY: u64 = 1024;

/// Limits the amount of freed memory that the allocator keeps. The caller must call this function before other threads
/// start, because a thread keeps its arena. If glibc rejects a setting, the process uses more memory, but works
/// correctly.
pub fn limit_arenas() {
    // SAFETY: `mallopt` takes no pointers, and glibc protects the settings with a lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, MAX_ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MIN_SEPARATE);
    }
}

/// Returns freed memory to the kernel after each load.
pub async fn trim_after_load() -> Infallible {
    let mut growth = Growth::default();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(now) = anonymous_memory() else { continue };
        if growth.is_trim_due(now) {
            // The trim blocks the allocations of other threads for a few milliseconds, and uses CPU time.
            drop(tokio::task::spawn_blocking(trim).await);
            let after = anonymous_memory().unwrap_or(now);
            growth.trimmed(after);
            tracing::debug!(before_kib = now, after_kib = after, "returned freed memory to the kernel");
        }
    }
}

/// Returns all free pages to the kernel, including free pages between used pages.
fn trim() {
    // SAFETY: `malloc_trim` takes no pointers, and glibc protects the arenas with locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the anonymous resident memory of this process in KiB.
fn anonymous_memory() -> Option<u64> {
    Process::myself().ok()?.status().ok()?.rssanon
}

/// Memory growth, which determines when a trim is due. Values are in KiB.
#[derive(Debug, Default)]
struct Growth {
    /// Memory usage at the last check.
    last: u64,
    /// Lowest memory usage since the last trim.
    lowest: u64,
}

impl Growth {
    /// Returns whether a trim is due. A trim is due when the memory usage has grown and is now steady, because a steady
    /// usage indicates that the load has ended. Under load, a trim would be useless, because the process would need the
    /// memory again.
    fn is_trim_due(&mut self, now: u64) -> bool {
        self.lowest = self.lowest.min(now);
        let is_steady = now.abs_diff(self.last) <= STEADY;
        self.last = now;
        is_steady && now - self.lowest >= MIN_GROWTH
    }

    /// Records the memory after a trim.
    fn trimmed(&mut self, after: u64) {
        (self.last, self.lowest) = (after, after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_is_due_once_after_each_load() {
        let mut growth = Growth::default();
        // Columns: the check, the memory at the check in MiB, and the memory after the trim in MiB if a trim is due.
        let checks = [
            ("the first check", 12, None),
            ("after the start", 12, Some(8)),
            ("idle", 8, None),
            ("little growth", 11, None),
            ("load", 30, None),
            ("more load", 43, None),
            ("after the load", 43, Some(10)),
            ("used memory stays", 10, None),
            ("memory falls without a trim", 7, None),
            ("growth since the lowest value", 11, None),
            ("after this growth", 11, Some(11)),
            ("nothing was free", 11, None),
        ];
        for (name, memory, trimmed) in checks {
            let is_due = growth.is_trim_due(memory * 1024);
            assert_eq!(is_due, trimmed.is_some(), "{name}");
            if let Some(after) = trimmed {
                growth.trimmed(after * 1024);
            }
        }
    }

    #[test]
    fn a_trim_returns_free_memory_between_used_memory() {
        let mut blocks: Vec<Vec<u8>> = (0..16_384).map(|_| vec![1; 4096]).collect();
        // Every 64th block and the last block remain allocated, so that glibc keeps the memory of the other blocks
        // after the test frees them.
        let mut number = 0;
        blocks.retain(|_| {
            number += 1;
            number % 64 == 0
        });
        let before = anonymous_memory().unwrap();
        trim();
        let after = anonymous_memory().unwrap();
        assert!(after + 32 * 1024 < before, "{before} KiB before the trim, {after} KiB afterwards");
        assert_eq!(blocks.len(), 256);
    }
}
