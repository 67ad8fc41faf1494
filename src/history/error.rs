//! Errors of requests to the history storage.

use std::time::Duration;

/// The error of a request to the history storage.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("failed to write {name} to the history of runs: {source}")]
    Write { name: String, source: object_store::Error },
    #[error("failed to read {name} from the history of runs: {source}")]
    Read { name: String, source: object_store::Error },
    #[error("failed to list the history of runs: {0}")]
    List(object_store::Error),
    #[error("failed to delete old runs from the history of runs: {0}")]
    Delete(object_store::Error),
    #[error("the storage of the history of runs did not respond within {} s", .0.as_secs())]
    Timeout(Duration),
}
