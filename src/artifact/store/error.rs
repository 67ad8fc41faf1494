//! Errors of the artifact store.

use std::io;
use std::path::PathBuf;

use super::super::digest::Digest;

/// An error of the artifact store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to prepare the artifact store {path}: {cause}")]
    Prepare { path: PathBuf, cause: io::Error },
    #[error("artifact store {path} is in use by another process: use a separate directory")]
    InUse { path: PathBuf },
    #[error(
        "artifact store is full: {needed} more bytes exceed its capacity of {capacity} bytes ({in_use} in use, {incoming} \
         incoming); increase the capacity or reduce concurrent transfers"
    )]
    Full { capacity: u64, needed: u64, in_use: u64, incoming: u64 },
    #[error("artifact of {bytes} bytes has digest {found}, not {expected}")]
    Mismatch { expected: Digest, found: Digest, bytes: u64 },
    #[error("failed to read artifact {digest} from the store: {cause}")]
    Read { digest: Digest, cause: io::Error },
    #[error("failed to write {path} to the artifact store: {cause}")]
    Write { path: PathBuf, cause: io::Error },
    #[error("failed to remove {path} from the artifact store: {cause}")]
    Remove { path: PathBuf, cause: io::Error },
}
