//! Journal of operations, which contains their requests, progress and results. The journal preserves the result of a
//! run if clients disconnect or the agent restarts.
//!
//! The directory `operations/<id>/` contains these files:
//! - `request.json`: the request. The agent writes this file before it starts the process.
//! - `progress-<n>`: segments of the progress, which contain length-delimited messages.
//! - `result`: the result as a single message. The agent writes this file after all progress.
//! - `transcript-<part>.gz`: parts of the transcript for the run history. The agent writes these files after the file
//!   `result`, and before it reports the result.
//! - `acknowledged`: an empty file. The agent writes this file when the controller has recorded the result.

mod reader;
mod record;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::durable;
use crate::rpc::proto;

pub use reader::{Item, Reader, StartedProcess};
pub use record::{JournalRecord, Request, now};

/// Maximum number of finished operations in the journal.
const MAX_OPERATIONS_KEPT: usize = 5;
const MAX_ID: usize = 64;
/// File name extension of a directory whose operation is unreadable.
const UNREADABLE_EXTENSION: &str = "unreadable";

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error(
        "invalid ID {id:?}: must consist of at most {MAX_ID} letters, digits and hyphens and not start with a hyphen"
    )]
    Id { id: String },
    #[error("operation {id} is already in the journal")]
    Known { id: String },
    #[error("failed to write operation {id} to the journal")]
    Write { id: String, source: io::Error },
    #[error("failed to read the journal in {}", path.display())]
    Read { path: PathBuf, source: io::Error },
}

/// All operations in the journal.
pub struct Journal {
    directory: PathBuf,
    records: Mutex<BTreeMap<String, Arc<JournalRecord>>>,
}

impl Journal {
    /// Loads the operations of previous agents. The function removes an operation without a request: the agent writes
    /// the request first, so the operation's process has not started. If a request is unreadable, the function renames
    /// the directory of the operation, so that a user can inspect the directory.
    pub fn open(directory: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Read { path: directory.to_owned(), source };
        let mut records = BTreeMap::new();
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == UNREADABLE_EXTENSION) {
                continue;
            }
            let cleared = match JournalRecord::load(&path) {
                Ok(record) => {
                    records.insert(record.request().id.clone(), Arc::new(record));
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), "removing an operation without a request");
                    durable::remove(&path)
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), %error, "renaming an unreadable operation");
                    mark_unreadable(&path)
                }
            };
            // This error is not fatal: the journal ignores the operation even if its directory remains.
            if let Err(error) = cleared {
                tracing::warn!(path = %path.display(), %error, "failed to clean up the journal");
            }
        }
        Ok(Journal { directory: directory.to_owned(), records: Mutex::new(records) })
    }

    /// Writes a request durably. The caller must not start the process of the operation before the request is written.
    pub fn begin(&self, request: Request) -> Result<Arc<JournalRecord>, JournalError> {
        validate_id(&request.id)?;
        let id = request.id.clone();
        let mut records = self.records();
        if records.contains_key(&id) {
            return Err(JournalError::Known { id });
        }
        let directory = self.directory.join(&id);
        let created = JournalRecord::create(directory.clone(), request)
            .and_then(|record| durable::sync_directory(&self.directory).map(|()| record));
        match created {
            Ok(record) => {
                let record = Arc::new(record);
                records.insert(id, record.clone());
                Ok(record)
            }
            Err(source) => {
                let _ = durable::remove(&directory);
                Err(JournalError::Write { id, source })
            }
        }
    }

    pub fn find(&self, id: &str) -> Option<Arc<JournalRecord>> {
        self.records().get(id).cloned()
    }

    /// Returns the operations without a result.
    pub fn unfinished(&self) -> Vec<Arc<JournalRecord>> {
        self.records().values().filter(|record| record.result().is_none()).cloned().collect()
    }

    /// Removes the unfinished operations of other pods with the same persistent volume. The operation's processes can
    /// still be running in the other pod, for example after a forced deletion. The controller therefore checks the
    /// other pod to determine whether these operations have ended, and does not ask this agent.
    pub fn forget_unfinished_of_other_pods(&self, pod_uid: &str) {
        for record in self.unfinished() {
            let Request { id, pod_uid: started_in, .. } = record.request();
            if started_in.as_ref().is_none_or(|started_in| started_in == pod_uid) {
                continue;
            }
            tracing::warn!(operation = id, pod_uid = started_in, "removing an unfinished operation of another pod");
            if let Err(error) = record.remove() {
                tracing::warn!(operation = id, %error, "failed to remove an unfinished operation of another pod");
            }
            self.records().remove(id);
        }
    }

    /// Returns the finished operations of a stack. A finished operation has a result, and no running process.
    pub fn finished(&self, stack: &str) -> Vec<Arc<JournalRecord>> {
        let is_meant = |record: &&Arc<JournalRecord>| record.request().stack == stack && record.result().is_some();
        self.records().values().filter(is_meant).cloned().collect()
    }

    /// Returns the operations with unacknowledged results, sorted by start time.
    pub fn unacknowledged(&self) -> Vec<Arc<JournalRecord>> {
        let mut records: Vec<_> =
            self.records().values().filter(|record| record.is_unacknowledged()).cloned().collect();
        records.sort_by_key(|record| record.request().started);
        records
    }

    /// Writes the result of an operation, and removes the oldest finished operations. If the write fails, the result
    /// remains available in memory.
    pub fn finish(&self, record: &JournalRecord, result: proto::Result) {
        if let Err(error) = record.finish(result) {
            tracing::error!(operation = record.request().id, %error, "failed to write the result of the operation");
        }
        self.remove_old();
    }

    /// Keeps at most [`MAX_OPERATIONS_KEPT`] finished operations. The journal removes acknowledged operations before
    /// unacknowledged ones, and older operations before newer ones.
    fn remove_old(&self) {
        let mut records = self.records();
        let mut finished: Vec<_> = records.values().filter(|record| record.result().is_some()).cloned().collect();
        finished.sort_by_key(|record| (record.is_unacknowledged(), record.request().started));
        let surplus = finished.len().saturating_sub(MAX_OPERATIONS_KEPT);
        for record in finished.into_iter().take(surplus) {
            if let Err(error) = record.remove() {
                tracing::warn!(operation = record.request().id, %error, "failed to remove an old operation");
            }
            records.remove(&record.request().id);
        }
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<String, Arc<JournalRecord>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renames an unreadable operation. The new name is not a valid ID, so the name cannot conflict with another operation,
/// and the journal does not load the operation again.
fn mark_unreadable(path: &Path) -> io::Result<()> {
    let aside = path.with_extension(UNREADABLE_EXTENSION);
    durable::remove(&aside)?;
    durable::rename(path, &aside)
}

/// Validates an ID, because the journal uses the ID as a directory name.
pub fn validate_id(id: &str) -> Result<(), JournalError> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if id.is_empty() || id.len() > MAX_ID || id.starts_with('-') || !id.bytes().all(is_safe) {
        return Err(JournalError::Id { id: id.chars().take(MAX_ID).collect() });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
