//! Settings of the memory allocator. glibc keeps freed memory in its arenas, so the memory of a controller would stay at the
//! peak of its last load.
//!
//! glibc has no safe interface for its settings. Unsafe code is therefore allowed in this module, and in no other module.
#![allow(unsafe_code, reason = "calls two functions of glibc without pointers")]

use std::convert::Infallible;
use std::time::Duration;

use procfs::process::Process;

/// Maximum number of arenas. By default, glibc creates up to eight arenas per CPU, one for each new thread. A trim returns
/// the free memory at the end of the first arena to the kernel, but not of the others.
const MAX_ARENAS: libc::c_int = 1;
/// Minimum size in bytes of an allocation outside the arenas, which returns to the kernel when it is freed. By default,
/// glibc increases this size up to 32 MiB when large allocations are freed.
const MIN_SEPARATE: libc::c_int = 128 * 1024;
/// Interval between two checks of the memory.
const INTERVAL: Duration = Duration::from_secs(10);
/// Minimum growth of the memory in KiB since the last trim, or since the lowest value after it.
const MIN_GROWTH: u64 = 4 * 1024;
/// Maximum change of the memory in KiB between two checks without load.
const STEADY: u64 = 1024;

/// Limits the memory that the allocator keeps. Must be called before other threads start, because a thread keeps its arena.
/// If glibc rejects a setting, the process only uses more memory.
pub fn limit_arenas() {
    // SAFETY: `mallopt` has no pointers, and glibc locks the settings.
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
            // The trim blocks the allocations of other threads for a few milliseconds, and takes CPU time.
            drop(tokio::task::spawn_blocking(trim).await);
            let after = anonymous_memory().unwrap_or(now);
            growth.trimmed(after);
            tracing::debug!(before_kib = now, after_kib = after, "returned freed memory to the kernel");
        }
    }
}

/// Returns all free pages to the kernel, also those between used pages.
fn trim() {
    // SAFETY: `malloc_trim` has no pointers, and glibc locks the arenas.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the anonymous resident memory of this process in KiB.
fn anonymous_memory() -> Option<u64> {
    Process::myself().ok()?.status().ok()?.rssanon
}

/// Growth of the memory, which determines when a trim is due. Values are in KiB.
#[derive(Debug, Default)]
struct Growth {
    /// Memory at the last check.
    last: u64,
    /// Lowest memory since the last trim.
    lowest: u64,
}

impl Growth {
    /// Returns whether to trim: the memory has grown and is now steady, so the load has probably ended. Under load, a
    /// trim would be useless, because the process needs the memory again.
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
        // Memory at each check in MiB, and the memory after the trim if a trim is due.
        let checks = [
            ("the first check", 12, None),
            ("after the start", 12, Some(8)),
            ("at rest", 8, None),
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
        // Every 64th block and the last block stay, so glibc does not return the memory of the others when they are freed.
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
