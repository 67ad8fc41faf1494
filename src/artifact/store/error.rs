//! Errors of the artifact store.

use std::io;
use std::path::PathBuf;

use super::super::digest::Digest;

/// An error of the artifact store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot prepare the artifact store at {path}: {cause}")]
    Prepare { path: PathBuf, cause: io::Error },
    #[error("the artifact store at {path} is in use by another process: each needs a directory of its own")]
    InUse { path: PathBuf },
    #[error(
        "the artifact store of {capacity} bytes is full: {needed} more bytes are needed, {in_use} are in use and \
         {arriving} are arriving; give it more room, or allow fewer transfers at a time"
    )]
    Full { capacity: u64, needed: u64, in_use: u64, arriving: u64 },
    #[error("the artifact of {bytes} bytes has digest {found}, wanted is {wanted}")]
    Mismatch { wanted: Digest, found: Digest, bytes: u64 },
    #[error("cannot read artifact {digest} in the store: {cause}")]
    Read { digest: Digest, cause: io::Error },
    #[error("cannot write an artifact to the store at {path}: {cause}")]
    Write { path: PathBuf, cause: io::Error },
    #[error("cannot remove {path} from the artifact store: {cause}")]
    Remove { path: PathBuf, cause: io::Error },
}
