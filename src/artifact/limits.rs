//! What an artifact may cost: every bound on bytes, entries and names in one place.

use serde::{Deserialize, Serialize};

/// 1 MiB, in bytes.
const MEBIBYTE: u64 = 1 << 20;

/// The bounds that a download and an archive are held to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The largest archive that is downloaded, in bytes as they arrive (compressed). Default 256 MiB.
    pub download_bytes: u64,
    /// The largest archive once decompressed, in bytes really decompressed, headers included. Default 1 GiB.
    pub unpacked_bytes: u64,
    /// The most files, directories and links, directories that no entry names included. Default 200,000.
    pub entries: u64,
    /// The deepest nesting: `a/b/c` has depth 3. Default 64.
    pub depth: usize,
    /// The longest path of an entry, or target of a link, in bytes. Default 1,024.
    pub name_bytes: usize,
    /// The longest single name in a path, in bytes. Default 255, as Linux file systems have it.
    pub component_bytes: usize,
    /// How many bytes one compressed byte may become. Default 200; text reaches 10, DEFLATE could 1,032.
    pub ratio: u64,
    /// The first decompressed bytes, which the ratio does not hold for: small archives of zeros are harmless.
    /// Default 10 MiB.
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
