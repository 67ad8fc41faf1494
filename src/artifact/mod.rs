//! Artifacts: digests, fetching, verifying, storing, unpacking. It opens archives; nothing else does.
//!
//! The way of the bytes: [`Fetcher`] downloads what a source names, [`Store`] keeps what was verified, [`unpack`]
//! opens it in the workspace. [`pack`] and [`Archive`] make artifacts of sources that have none of their own.

mod archive;
mod digest;
mod directory;
mod entry_name;
mod fetch;
mod in_pod;
mod limits;
mod pack;
mod quote;
mod revision;
mod store;
mod unpack;

pub use archive::Archive;
pub use digest::{Algorithm, Digest, DigestError, Hasher};
pub use directory::{Directory, DirectoryError};
pub use entry_name::{LinkError, NameError};
pub use fetch::{AllowedHosts, FetchError, FetchSettings, Fetched, Fetcher, InvalidHost};
pub use in_pod::InPod;
pub use limits::Limits;
pub use pack::{PackError, Packed, pack, pack_file};
pub use revision::Revision;
pub use store::{Incoming, Pinned, Store, StoreError, Usage};
pub use unpack::{UnpackError, Unpacked, survey, unpack};
