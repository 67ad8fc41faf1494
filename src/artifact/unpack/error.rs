//! Errors of unpacking.

use std::io;
use std::path::PathBuf;

use super::super::entry_name::{LinkError, NameError};

/// The reason why an archive was not unpacked completely. The caller removes the files written before the error.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("cannot unpack into {path}: {why}")]
    Destination { path: PathBuf, why: String },
    #[error("the archive has an entry whose name is refused, {name}: {why}")]
    Name { name: String, why: NameError },
    #[error("the archive has a symbolic link that is refused, {name} to {target}: {why}")]
    Link { name: String, target: String, why: LinkError },
    #[error(
        "the archive has an entry that is refused, {name}: it is {kind}; only files, directories and links are taken"
    )]
    Kind { name: String, kind: String },
    #[error("the archive has entry {name} where {kind} of the same name came before")]
    Occupied { name: String, kind: &'static str },
    #[error("the archive has entry {name} below {through}, which is {kind}")]
    Through { name: String, through: String, kind: &'static str },
    #[error("the archive has more than {limit} entries, directories that it only implies included")]
    TooManyEntries { limit: u64 },
    #[error(
        "the archive is larger than {limit} bytes when decompressed (--artifact-max-unpacked-size), reached {place}"
    )]
    TooLarge { limit: u64, place: String },
    #[error("the archive decompresses to more than {ratio} times its size, reached {place}: it looks like a bomb")]
    TooCompressed { ratio: u64, place: String },
    #[error("the archive has an extension header of {size} bytes, the most is {limit}")]
    HeaderTooLarge { size: u64, limit: u64 },
    #[error("the archive is not a sound tar.gz: {cause}")]
    Broken { cause: String },
    #[error("the archive is cut short: it ends before its end mark")]
    Truncated,
    #[error("cannot write {name} of the archive: {cause}")]
    Write { name: String, cause: io::Error },
}
