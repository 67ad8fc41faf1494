//! Limits on the size of artifacts: bytes, entries and names.

use serde::{Deserialize, Serialize};

const MEBIBYTE: u64 = 1 << 20;

/// Limits that apply to a download and to an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum size of a downloaded archive (compressed), in bytes. Default 256 MiB.
    pub download_bytes: u64,
    /// Maximum size of the decompressed archive including headers, in bytes, measured while decompressing. Default 1 GiB.
    pub unpacked_bytes: u64,
    /// Maximum number of files, directories and links, including parent directories that have no entry. Default 200,000.
    pub entries: u64,
    /// Maximum nesting depth: `a/b/c` has depth 3. Default 64.
    pub depth: usize,
    /// Maximum length of the path of an entry and of the target of a link, in bytes. Default 1,024.
    pub name_bytes: usize,
    /// Maximum length of one path component, in bytes. Default 255, the limit of Linux file systems.
    pub component_bytes: usize,
    /// Maximum ratio of decompressed to compressed bytes. Default 200; text reaches 10, the maximum of DEFLATE is 1,032.
    pub ratio: u64,
    /// Number of decompressed bytes to which the ratio does not apply, because small archives of zeros are harmless. Default 10
    /// MiB.
    pub ratio_free_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            download_bytes: 256 * MEBIBYTE,
            unpacked_bytes: 1024 * MEBIBYTE,
            entries: 200_000,
            depth: 64,
            name_bytes: 1024,
            component_bytes: 255,
            ratio: 200,
            ratio_free_bytes: 10 * MEBIBYTE,
        }
    }
}
