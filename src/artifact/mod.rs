//! Fetches, verifies, stores, packs and unpacks artifacts. No other module opens archives.
//!
//! [`Fetcher`] downloads the artifact of a source, [`Store`] keeps verified artifacts, and [`unpack`] extracts an
//! artifact into a workspace. [`pack`] and [`Archive`] build artifacts from sources that do not provide them.
//! [`pack_dependencies`] and [`unpack_dependencies`] handle the archives in the cache of dependencies of the agent.

mod digest;
mod directory;
mod fetch;
mod pack;
mod revision;
mod rules;
mod store;
mod unpack;

pub use digest::{Algorithm, Digest, DigestError, Hasher, InPod};
pub use directory::{Directory, DirectoryError};
pub use fetch::{AllowedHosts, FetchError, FetchSettings, Fetched, Fetcher, InvalidHost};
pub use pack::{Archive, PackError, Packed, pack, pack_dependencies, pack_file};
pub use revision::Revision;
pub use rules::{Limits, LinkError, NameError};
pub use store::{Incoming, Pinned, Store, StoreError, Usage};
pub use unpack::{UnpackError, Unpacked, survey, unpack, unpack_dependencies};
