//! Fetching artifacts: once per digest, from allowed hosts only, bounded in bytes and time, and verified before use.

mod client;
mod download;
mod error;
mod hosts;
mod retry_after;
mod settings;
mod shared;
mod single_flight;
mod target;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use error::FetchError;
pub use hosts::{AllowedHosts, InvalidHost};
pub use settings::FetchSettings;

use super::digest::Digest;
use super::store::{Pinned, Store};
use shared::Shared;
use target::Target;

/// An artifact that was fetched.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The artifact in the store.
    pub artifact: Pinned,
    /// Whether the store did not have it: it was downloaded, by this caller or by another that this one joined, or made here.
    pub downloaded: bool,
}

/// Fetches artifacts into a store. Clones share the store, the connections and the downloads under way.
#[derive(Clone, Debug)]
pub struct Fetcher {
    shared: Arc<Shared>,
}

impl Fetcher {
    /// # Errors
    /// The settings do not make a client: the certificates cannot be read.
    pub fn new(settings: FetchSettings, store: Store) -> Result<Self, FetchError> {
        let client = client::build(&settings)?;
        let (downloads, patience) = Default::default();
        let fetches = AtomicU64::new(0);
        Ok(Self { shared: Arc::new(Shared { client, settings, store, downloads, patience, fetches }) })
    }

    /// The HTTP client, which talks to servers inside the cluster.
    pub fn client(&self) -> reqwest::Client {
        self.shared.client.clone()
    }

    /// Returns the artifact of this digest for a namespace, which is granted it: from the store, if the namespace has it already or
    /// this URL has produced it before, else from the URL. Callers that want the same digest of the same URL at the same time
    /// share one download and its error.
    ///
    /// # Errors
    /// The URL is refused, the server does not serve the artifact, or serves other bytes, too many or too slowly, or the
    /// store cannot keep it. Nothing is retried but once a connection that broke: the caller backs off. A server that asked
    /// for patience is not asked again before its time.
    pub async fn fetch(&self, url: &str, digest: &Digest, namespace: &str) -> Result<Fetched, FetchError> {
        let store = &self.shared.store;
        if store.is_granted(digest, namespace)
            && let Some(artifact) = self.shared.stored(digest).await?
        {
            return Ok(Fetched { artifact, downloaded: false });
        }
        let target = Target::aim(url, &self.shared.settings)?;
        target.check_owner(namespace, &self.shared.settings)?;
        // Who only knows the digest has to have a source that produces the bytes.
        let stored = match store.came_from(digest, target.url.as_str()) {
            true => self.shared.stored(digest).await?,
            false => None,
        };
        let (artifact, downloaded) = match stored {
            Some(artifact) => (artifact, false),
            None => (self.download_once(&target, digest).await?, true),
        };
        self.shared.grant(digest, namespace)?;
        Ok(Fetched { artifact, downloaded })
    }

    async fn download_once(&self, target: &Target, digest: &Digest) -> Result<Pinned, FetchError> {
        match self.shared.patience.refusal(&target.url) {
            Some(postponed) => Err(postponed),
            None => shared::join(&self.shared, target, digest).await,
        }
    }

    /// Puts an artifact into the store that was made here, of what the namespace has written.
    ///
    /// # Errors
    /// The store cannot keep it.
    pub async fn keep(&self, bytes: &Arc<[u8]>, digest: &Digest, namespace: &str) -> Result<Fetched, FetchError> {
        let is_of_these = Digest::of_reader(digest.algorithm(), &bytes[..]).is_ok_and(|found| digest.verify(&found));
        if is_of_these && let Some(artifact) = self.shared.stored(digest).await? {
            self.shared.grant(digest, namespace)?;
            return Ok(Fetched { artifact, downloaded: false });
        }
        let (store, bytes, wanted) = (self.shared.store.clone(), Arc::clone(bytes), digest.clone());
        let kept = tokio::task::spawn_blocking(move || {
            let mut incoming = store.begin(wanted.algorithm())?;
            incoming.append(&bytes)?;
            incoming.commit(&wanted)
        })
        .await;
        let failed = |cause: String| FetchError::Store { digest: digest.clone(), cause };
        let artifact = kept.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        self.shared.grant(digest, namespace)?;
        Ok(Fetched { artifact, downloaded: true })
    }

    /// How many downloads were really begun.
    pub fn fetches(&self) -> u64 {
        self.shared.fetches.load(Ordering::Relaxed)
    }
}
