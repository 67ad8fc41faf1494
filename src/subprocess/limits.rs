//! What a child process may use.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a child process may use. The kernel enforces all but `wall` and `answer`, which the parent enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Private writable memory, in bytes: heap and stacks of threads. Files that are mapped for reading do not count.
    pub memory: u64,
    /// Address space, in bytes: memory, the binary itself, and files that are mapped.
    pub address_space: u64,
    /// The stack of the main thread, in bytes.
    pub stack: u64,
    /// CPU time, in whole seconds.
    pub cpu: Duration,
    /// By how much others go before it when they want the CPU as well: 0 not at all, 19 at most. For work of many seconds.
    pub nice: u8,
    /// Time from the start to the answer.
    pub wall: Duration,
    /// The largest file that may be written, in bytes; 0 if none may be written.
    pub file_size: u64,
    /// Open file descriptors, the three pipes included.
    pub open_files: u64,
    /// Whether threads may be started. Without them no process can be started either, unless the user is root.
    pub threads: bool,
    /// The largest answer, in bytes.
    pub answer: u64,
}

impl Limits {
    /// The first line of what a child reads.
    pub(super) fn header(&self) -> Vec<u8> {
        let mut header = serde_json::to_vec(self).unwrap_or_default();
        header.push(b'\n');
        header
    }

    pub(super) fn parse(header: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(header)
    }
}
