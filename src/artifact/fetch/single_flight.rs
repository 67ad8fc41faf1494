//! Deduplicates downloads: concurrent callers with the same digest and URL share one download.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, Shared as SharedFuture, WeakShared};
use url::Url;

use super::super::digest::Digest;
use super::super::store::Pinned;
use super::error::FetchError;

/// The shared result of a download. Each caller that polls it drives the download; dropping the last clone cancels it.
pub(super) type SharedDownload = SharedFuture<BoxFuture<'static, Result<Pinned, FetchError>>>;

/// Downloads in progress.
#[derive(Debug, Default)]
pub(super) struct SingleFlight {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) in_progress: HashMap<Key, Entry>,
    pub(super) next_number: u64,
}

/// The digest and URL of a download.
pub(super) type Key = (Digest, Url);

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) download: WeakShared<BoxFuture<'static, Result<Pinned, FetchError>>>,
}

impl SingleFlight {
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().in_progress.len()
    }
}
