//! Fetches artifacts. Downloads the artifact for each pair of digest and URL once, and verifies the artifact before
//! use. Restricts the hosts, and limits the size and duration of downloads.

mod download;
mod error;
mod settings;
mod shared;
mod target;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use error::FetchError;
pub use settings::{AllowedHosts, FetchSettings, InvalidHost};

use super::blocking;
use super::digest::Digest;
use super::store::{Pinned, Store};
use crate::mutual_tls::{Client, Peer};
use shared::Shared;
use target::Target;

/// A fetched artifact.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The artifact in the store.
    pub artifact: Pinned,
    /// Whether this call added the artifact to the store, either with [`Fetcher::keep`] or with a download that the
    /// call started or joined.
    pub downloaded: bool,
}

/// Fetches artifacts into a store. Clones share the store, the connections and the downloads in progress.
#[derive(Clone, Debug)]
pub struct Fetcher {
    shared: Arc<Shared>,
}

impl Fetcher {
    /// # Errors
    /// Fails if the CA certificate file is unreadable or invalid.
    pub fn new(settings: FetchSettings, store: Store) -> Result<Self, FetchError> {
        let client = Client::new(Peer::ArtifactServer, download::client(&settings)?, settings.mutual_tls.clone());
        let (downloads, postponed) = Default::default();
        let download_attempts = AtomicU64::new(0);
        Ok(Self { shared: Arc::new(Shared { client, settings, store, downloads, postponed, download_attempts }) })
    }

    /// Returns the HTTP client for other servers inside the cluster, without mutual TLS.
    pub fn client(&self) -> reqwest::Client {
        self.shared.client.plain()
    }

    /// Returns the artifact with this digest, and grants the namespace access to the artifact. Uses the stored artifact
    /// if the namespace already has access or if this process has downloaded the artifact from the same URL. Otherwise,
    /// downloads the artifact from the URL. Concurrent calls with the same digest and URL share one download and its
    /// result.
    ///
    /// # Errors
    /// Fails if the URL is not allowed, if the server does not serve the artifact, or if the download times out. Also
    /// fails if the artifact has the wrong digest, exceeds the size limit or cannot be stored. Retries once if the
    /// connection breaks. The caller must perform all other retries. After a response with a `Retry-After` header,
    /// calls with the same URL fail without a request until the time in the header has passed.
    pub async fn fetch(&self, url: &str, digest: &Digest, namespace: &str) -> Result<Fetched, FetchError> {
        self.fetch_from(url, digest, namespace, namespace).await
    }

    /// Fetches the artifact of a source in `source_namespace` in the same way as [`Self::fetch`], and grants
    /// `namespace` access to the artifact. The caller must check that `namespace` may use this source.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::fetch`]. The URL is not allowed if its path belongs to a source outside
    /// `source_namespace` and the settings forbid cross-namespace references.
    pub async fn fetch_from(
        &self,
        url: &str,
        digest: &Digest,
        source_namespace: &str,
        namespace: &str,
    ) -> Result<Fetched, FetchError> {
        let store = &self.shared.store;
        if store.is_granted(digest, namespace)
            && let Some(artifact) = self.shared.stored(digest).await?
        {
            return Ok(Fetched { artifact, downloaded: false });
        }
        let target = Target::resolve(url, &self.shared.settings)?;
        target.check_owner(source_namespace, &self.shared.settings)?;
        // A digest alone does not grant access. A source that the namespace may use must also have a URL that serves
        // the artifact.
        let stored = match store.was_downloaded_from(digest, target.url.as_str()) {
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
        match self.shared.postponed.refusal(&target.url) {
            Some(error) => Err(error),
            None => shared::join(&self.shared, target, digest).await,
        }
    }

    /// Stores an artifact that the controller built from objects in the namespace.
    ///
    /// # Errors
    /// Fails if the store cannot store the artifact.
    pub async fn keep(&self, bytes: &Arc<[u8]>, digest: &Digest, namespace: &str) -> Result<Fetched, FetchError> {
        let matches = Digest::of_reader(digest.algorithm(), &bytes[..]).is_ok_and(|found| digest.verify(&found));
        if matches && let Some(artifact) = self.shared.stored(digest).await? {
            self.shared.grant(digest, namespace)?;
            return Ok(Fetched { artifact, downloaded: false });
        }
        let (store, bytes, expected) = (self.shared.store.clone(), Arc::clone(bytes), digest.clone());
        let stored = blocking::spawn(move || {
            let mut incoming = store.begin(expected.algorithm())?;
            incoming.append(&bytes)?;
            incoming.commit(&expected)
        })
        .await;
        let failed = |cause: String| FetchError::Store { digest: digest.clone(), cause };
        let artifact = stored.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        self.shared.grant(digest, namespace)?;
        Ok(Fetched { artifact, downloaded: true })
    }

    /// Returns the number of download attempts, including retries.
    pub fn download_attempts(&self) -> u64 {
        self.shared.download_attempts.load(Ordering::Relaxed)
    }
}
