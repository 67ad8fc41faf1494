//! Fetches, verifies, stores, packs and unpacks artifacts. No other module opens archives.
//!
//! [`Fetcher`] downloads the artifact of a source, [`Store`] keeps verified artifacts, and [`unpack`] extracts one into a
//! workspace. [`pack`] and [`Archive`] build artifacts for sources that have none.

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
