//! One download per digest at a time: whoever comes while it is under way joins it.

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
type Landing = SharedFuture<BoxFuture<'static, Result<Pinned, FetchError>>>;

/// The downloads under way.
#[derive(Debug, Default)]
pub(super) struct Flights {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    under_way: HashMap<Digest, Entry>,
    next_number: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    url: Url,
    landing: WeakShared<BoxFuture<'static, Result<Pinned, FetchError>>>,
}

/// A download that the caller takes part in.
#[derive(Debug)]
pub(super) struct Flight {
    /// Where it downloads from, which need not be where the caller would have.
    pub(super) url: Url,
    pub(super) landing: Landing,
}

/// Joins the download of this digest that is under way, or begins one.
pub(super) fn join(shared: &Arc<Shared>, target: &Target, digest: &Digest) -> Flight {
    let mut table = shared.flights.lock();
    if let Some(entry) = table.under_way.get(digest)
        && let Some(landing) = entry.landing.upgrade()
    {
        return Flight { url: entry.url.clone(), landing };
    }
    table.next_number += 1;
    let number = table.next_number;
    let listing = Listing { shared: Arc::clone(shared), digest: digest.clone(), number };
    let (target, url) = (target.clone(), target.url.clone());
    let download = async move {
        // Moved in, so that the flight is off the table as soon as it ends, or is dropped.
        let listing = listing;
        // Another flight may have landed after the caller looked, and before this one was listed.
        match listing.shared.stored(&listing.digest).await? {
            Some(artifact) => Ok(artifact),
            None => {
                let artifact = listing.shared.download(&target, &listing.digest).await?;
                tracing::info!(digest = %listing.digest, bytes = artifact.size(), "fetched artifact");
                Ok(artifact)
            }
        }
    };
    let landing = download.boxed().shared();
    if let Some(weak) = landing.downgrade() {
        table.under_way.insert(digest.clone(), Entry { number, url: url.clone(), landing: weak });
    }
    Flight { url, landing }
}

impl Flights {
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
    digest: Digest,
    number: u64,
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut table = self.shared.flights.lock();
        // A cancelled flight may be followed by another before it is dropped.
        if table.under_way.get(&self.digest).is_some_and(|entry| entry.number == self.number) {
            table.under_way.remove(&self.digest);
        }
    }
}
