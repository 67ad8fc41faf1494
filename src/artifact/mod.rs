//! Fetches, verifies, stores, packs and unpacks artifacts. No other module opens archives.
//!
//! [`Fetcher`] downloads a source's artifact, [`Store`] keeps verified artifacts, and [`unpack`] extracts an artifact
//! into a workspace. [`pack`] and [`Archive`] build artifacts for sources that do not provide artifacts themselves.
//! [`pack_dependencies`] and [`unpack_dependencies`] pack and unpack the archives in the agent's dependency cache.
//!
//! On systems other than Linux, this module contains only the digests, which the API objects of the kubectl plugin
//! need.

#[cfg(target_os = "linux")]
pub mod blocking;
mod digest;
#[cfg(target_os = "linux")]
mod directory;
#[cfg(target_os = "linux")]
mod fetch;
#[cfg(target_os = "linux")]
mod pack;
mod quote;
#[cfg(target_os = "linux")]
mod revision;
#[cfg(target_os = "linux")]
mod rules;
#[cfg(target_os = "linux")]
mod store;
#[cfg(target_os = "linux")]
mod unpack;

pub use digest::{Algorithm, Digest, DigestError, Hasher, InPod};
#[cfg(target_os = "linux")]
pub use directory::{Directory, DirectoryError};
#[cfg(target_os = "linux")]
pub use fetch::{AllowedHosts, FetchError, FetchSettings, Fetched, Fetcher, InvalidHost};
#[cfg(target_os = "linux")]
pub use pack::{Archive, PackError, Packed, pack, pack_dependencies, pack_file};
#[cfg(target_os = "linux")]
pub use revision::Revision;
#[cfg(target_os = "linux")]
pub use rules::{Limits, LinkError, NameError};
#[cfg(target_os = "linux")]
pub use store::{Incoming, Pinned, Store, StoreError, Usage};
#[cfg(target_os = "linux")]
pub use unpack::{UnpackError, Unpacked, survey, unpack, unpack_dependencies};
