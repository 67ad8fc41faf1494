//! Errors of unpacking.

use std::io;
use std::path::PathBuf;

use super::super::entry_name::{LinkError, NameError};

/// The reason why an archive was not unpacked completely. The caller removes the files written before the error.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("failed to unpack into {path}: {why}")]
    Destination { path: PathBuf, why: String },
    #[error("invalid archive: entry name {name} {why}")]
    Name { name: String, why: NameError },
    #[error("invalid archive: symbolic link {name} to {target}: target {why}")]
    Link { name: String, target: String, why: LinkError },
    #[error("invalid archive: entry {name} is {kind}: only files, directories and symbolic links are supported")]
    Kind { name: String, kind: String },
    #[error("invalid archive: entry {name} has the same name as an earlier entry, which is {kind}")]
    Occupied { name: String, kind: &'static str },
    #[error("invalid archive: entry {name} is below {through}, which is {kind}")]
    Through { name: String, through: String, kind: &'static str },
    #[error("archive exceeds the limit of {limit} entries, including implied directories")]
    TooManyEntries { limit: u64 },
    #[error("archive exceeds the limit of {limit} decompressed bytes (--artifact-max-unpacked-size) {place}")]
    TooLarge { limit: u64, place: String },
    #[error("archive decompresses to more than {ratio} times its size {place}: possible decompression bomb")]
    TooCompressed { ratio: u64, place: String },
    #[error("invalid archive: extension header of {size} bytes exceeds the limit of {limit}")]
    HeaderTooLarge { size: u64, limit: u64 },
    #[error("invalid archive: not a valid tar.gz: {cause}")]
    Broken { cause: String },
    #[error("invalid archive: truncated before the end mark")]
    Truncated,
    #[error("failed to write {name}: {cause}")]
    Write { name: String, cause: io::Error },
}
