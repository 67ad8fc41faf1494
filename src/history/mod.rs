//! The run history: stores data about completed runs in object storage or on a volume, and deletes old runs.
//!
//! `names` defines the object names. `open` opens the storage, and `requests` limits the storage requests. `store`
//! writes, reads and deletes objects. `retention` and `volume_size` select the runs to delete, and `cleanup` deletes
//! expired runs periodically. This module uses neither the agent nor the Kubernetes API.

mod cleanup;
mod error;
mod names;
mod open;
mod requests;
mod retention;
mod store;
mod volume_size;

pub use error::HistoryError;
pub use names::{FILES, File, RunName, is_since};
pub use open::{HistoryUrl, HistoryUrlError, OpenError, open};
pub use retention::Retention;
pub use store::{HistoryStore, Place};
