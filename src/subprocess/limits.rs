//! Resource limits of a child process.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Resource limits of a child process. The kernel enforces all except `wall` and `answer`, which the parent enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Private writable memory in bytes: heap and stacks of threads. Files mapped for reading do not count.
    pub memory: u64,
    /// Address space in bytes: memory, the binary and mapped files.
    pub address_space: u64,
    /// Stack of the main thread in bytes.
    pub stack: u64,
    /// CPU time in whole seconds.
    pub cpu: Duration,
    /// Nice value, from 0 (normal priority) to 19 (lowest priority). For work that takes many seconds.
    pub nice: u8,
    /// Maximum time from the start to the answer.
    pub wall: Duration,
    /// Maximum size of a written file in bytes; 0 to forbid writing files.
    pub file_size: u64,
    /// Maximum number of open file descriptors, including the three pipes.
    pub open_files: u64,
    /// Whether the child can start threads. Without threads it cannot start processes either, unless it runs as root.
    pub threads: bool,
    /// Maximum size of the answer in bytes.
    pub answer: u64,
}

impl Limits {
    /// Returns the first line of the child's input.
    pub(super) fn header(&self) -> Vec<u8> {
        let mut header = serde_json::to_vec(self).unwrap_or_default();
        header.push(b'\n');
        header
    }

    pub(super) fn parse(header: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(header)
    }
}
