//! One download per digest and URL at a time: whoever comes while it is under way joins it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, Shared as SharedFuture, WeakShared};
use url::Url;

use super::super::digest::Digest;
use super::super::store::Pinned;
use super::error::FetchError;

/// The result of a download, for all who joined it. Whoever polls drives it; when the last one goes, it is cancelled.
pub(super) type SharedDownload = SharedFuture<BoxFuture<'static, Result<Pinned, FetchError>>>;

/// The downloads under way.
#[derive(Debug, Default)]
pub(super) struct SingleFlight {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) under_way: HashMap<Key, Entry>,
    pub(super) next_number: u64,
}

/// What is downloaded, and from where.
pub(super) type Key = (Digest, Url);

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) landing: WeakShared<BoxFuture<'static, Result<Pinned, FetchError>>>,
}

impl SingleFlight {
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().under_way.len()
    }
}
