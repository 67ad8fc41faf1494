//! State that all clones of a [`Fetcher`](super::Fetcher) share. Concurrent calls with the same digest and URL share
//! one download.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared as SharedFuture, WeakShared};
use url::Url;

use super::super::blocking;
use super::super::digest::Digest;
use super::super::store::{Pinned, Store};
use super::error::{FetchError, RetryAfter};
use super::settings::FetchSettings;
use super::target::Target;
use crate::mutual_tls::Client;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) settings: FetchSettings,
    pub(super) store: Store,
    pub(super) downloads: SingleFlight,
    pub(super) postponed: RetryAfter,
    pub(super) download_attempts: AtomicU64,
}

impl Shared {
    pub(super) fn grant(&self, digest: &Digest, namespace: &str) -> Result<(), FetchError> {
        let granted = self.store.grant(digest, namespace);
        granted.map(drop).map_err(|error| FetchError::Store { digest: digest.clone(), cause: error.to_string() })
    }

    /// Returns the artifact if the store contains it. If an earlier process stored the artifact, the first access in
    /// this process reads the whole file to verify the digest.
    pub(super) async fn stored(&self, digest: &Digest) -> Result<Option<Pinned>, FetchError> {
        let (store, expected) = (self.store.clone(), digest.clone());
        let opened = blocking::spawn(move || store.open_artifact(&expected)).await;
        let failed = |cause: String| FetchError::Store { digest: digest.clone(), cause };
        opened.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
    }
}

/// Joins the download in progress for this digest and URL, or starts a download.
pub(super) fn join(shared: &Arc<Shared>, target: &Target, digest: &Digest) -> SharedDownload {
    let mut table = shared.downloads.lock();
    let key = (digest.clone(), target.url.clone());
    if let Some(download) = table.in_progress.get(&key).and_then(|entry| entry.download.upgrade()) {
        return download;
    }
    table.next_number += 1;
    let number = table.next_number;
    let guard = InProgressGuard { shared: Arc::clone(shared), key: key.clone(), number };
    let target = target.clone();
    let download = async move {
        // Moves `guard` into the future. The guard removes the entry from the table when the download ends or the
        // future is dropped.
        let guard = guard;
        let (InProgressGuard { shared, key: (digest, url), .. }, store) = (&guard, &guard.shared.store);
        // Checks the store again, because another download can finish between the caller's check and the start of this
        // download.
        if store.was_downloaded_from(digest, url.as_str())
            && let Some(artifact) = shared.stored(digest).await?
        {
            return Ok(artifact);
        }
        let artifact = shared.download(&target, digest).await?;
        store.record_url(digest, url.as_str());
        tracing::info!(%digest, bytes = artifact.size(), "fetched artifact");
        Ok(artifact)
    };
    let download = download.boxed().shared();
    if let Some(weak) = download.downgrade() {
        table.in_progress.insert(key, Entry { number, download: weak });
    }
    download
}

/// Guard for a download's entry in the table. Dropping the guard removes the entry.
struct InProgressGuard {
    shared: Arc<Shared>,
    key: Key,
    number: u64,
}

impl Drop for InProgressGuard {
    fn drop(&mut self) {
        let mut table = self.shared.downloads.lock();
        // After a cancellation, another download can replace the entry before this guard is dropped.
        if table.in_progress.get(&self.key).is_some_and(|entry| entry.number == self.number) {
            table.in_progress.remove(&self.key);
        }
    }
}

/// A future that yields the result of a download. All callers that wait for the download share this future. The
/// download progresses while at least one caller polls the future. Dropping the last clone cancels the download.
pub(super) type SharedDownload = SharedFuture<BoxFuture<'static, Result<Pinned, FetchError>>>;

/// Downloads in progress.
#[derive(Debug, Default)]
pub(super) struct SingleFlight {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    in_progress: HashMap<Key, Entry>,
    next_number: u64,
}

/// The digest and URL that identify a download.
type Key = (Digest, Url);

#[derive(Debug)]
struct Entry {
    number: u64,
    download: WeakShared<BoxFuture<'static, Result<Pinned, FetchError>>>,
}

impl SingleFlight {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().in_progress.len()
    }
}
