//! One download per digest and URL at a time: whoever comes while it is under way joins it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared as SharedFuture, WeakShared};
use url::Url;

use super::super::digest::Digest;
use super::super::store::Pinned;
use super::Shared;
use super::error::FetchError;
use super::target::Target;

/// The result of a download, for all who joined it. Whoever polls drives it; when the last one goes, it is cancelled.
type SharedDownload = SharedFuture<BoxFuture<'static, Result<Pinned, FetchError>>>;

/// The downloads under way.
#[derive(Debug, Default)]
pub(super) struct SingleFlight {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    under_way: HashMap<Key, Entry>,
    next_number: u64,
}

/// What is downloaded, and from where.
type Key = (Digest, Url);

#[derive(Debug)]
struct Entry {
    number: u64,
    landing: WeakShared<BoxFuture<'static, Result<Pinned, FetchError>>>,
}

/// Joins the download of this digest from this URL that is under way, or begins one.
pub(super) fn join(shared: &Arc<Shared>, target: &Target, digest: &Digest) -> SharedDownload {
    let mut table = shared.downloads.lock();
    let key = (digest.clone(), target.url.clone());
    if let Some(landing) = table.under_way.get(&key).and_then(|entry| entry.landing.upgrade()) {
        return landing;
    }
    table.next_number += 1;
    let number = table.next_number;
    let listing = Listing { shared: Arc::clone(shared), key: key.clone(), number };
    let target = target.clone();
    let download = async move {
        // Moved in, so that the flight is off the table as soon as it ends, or is dropped.
        let listing = listing;
        let (Listing { shared, key: (digest, url), .. }, store) = (&listing, &listing.shared.store);
        // Another flight may have landed after the caller looked, and before this one was listed.
        if store.came_from(digest, url.as_str())
            && let Some(artifact) = shared.stored(digest).await?
        {
            return Ok(artifact);
        }
        let artifact = shared.download(&target, digest).await?;
        store.note_url(digest, url.as_str());
        tracing::info!(%digest, bytes = artifact.size(), "fetched artifact");
        Ok(artifact)
    };
    let landing = download.boxed().shared();
    if let Some(weak) = landing.downgrade() {
        table.under_way.insert(key, Entry { number, landing: weak });
    }
    landing
}

impl SingleFlight {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().under_way.len()
    }
}

/// A flight's place on the table.
struct Listing {
    shared: Arc<Shared>,
    key: Key,
    number: u64,
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut table = self.shared.downloads.lock();
        // A cancelled flight may be followed by another before it is dropped.
        if table.under_way.get(&self.key).is_some_and(|entry| entry.number == self.number) {
            table.under_way.remove(&self.key);
        }
    }
}
