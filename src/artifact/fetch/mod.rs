//! Fetching artifacts: once per digest, from allowed hosts only, bounded in bytes and time, and verified before use.

mod client;
mod download;
mod error;
mod hosts;
mod retry_after;
mod single_flight;
mod target;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use error::FetchError;
pub use hosts::{AllowedHosts, InvalidHost};

use super::digest::Digest;
use super::limits::Limits;
use super::store::{Pinned, Store};
use retry_after::RetryAfter;
use single_flight::SingleFlight;
use target::Target;

/// How artifacts are fetched.
#[derive(Clone, Debug)]
pub struct FetchSettings {
    /// Where artifacts may come from.
    pub allowed_hosts: AllowedHosts,
    /// Replaces the whole `host:port` of every URL but source-watcher's, for a controller that runs outside of the
    /// cluster. Flux takes it from `SOURCE_CONTROLLER_LOCALHOST`.
    pub source_controller_host: Option<String>,
    /// The same for the URLs of source-watcher. Flux takes it from `SOURCE_WATCHER_LOCALHOST`.
    pub source_watcher_host: Option<String>,
    /// A file of PEM certificates that https servers are checked against. Unset: those of the system.
    pub certificate_authorities: Option<PathBuf>,
    /// Whether a namespace gets nothing from Flux's storage that belongs to another one. Default: no.
    pub own_namespace_only: bool,
    /// The most bytes that are downloaded. Default 256 MiB.
    pub download_bytes: u64,
    /// How long a connection may take to be made. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a server may send nothing. Default 30 s.
    pub idle_timeout: Duration,
    /// How long a download may take altogether. Default 4 min: less than a reconcile, which is to tell of it.
    pub overall_timeout: Duration,
}

impl FetchSettings {
    /// The defaults, with these hosts.
    pub fn new(allowed_hosts: AllowedHosts) -> Self {
        Self {
            allowed_hosts,
            source_controller_host: None,
            source_watcher_host: None,
            certificate_authorities: None,
            own_namespace_only: false,
            download_bytes: Limits::default().download_bytes,
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            overall_timeout: Duration::from_secs(240),
        }
    }

    /// The host that replaces this URL's, by Flux's rule.
    fn replacement(&self, url: &url::Url) -> Option<&str> {
        let watcher = url.host_str().is_some_and(|host| host.starts_with("source-watcher"));
        if watcher { self.source_watcher_host.as_deref() } else { self.source_controller_host.as_deref() }
    }
}

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

#[derive(Debug)]
struct Shared {
    client: reqwest::Client,
    settings: FetchSettings,
    store: Store,
    downloads: SingleFlight,
    patience: RetryAfter,
    fetches: AtomicU64,
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
            None => single_flight::join(&self.shared, target, digest).await,
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

impl Shared {
    fn grant(&self, digest: &Digest, namespace: &str) -> Result<(), FetchError> {
        let granted = self.store.grant(digest, namespace);
        granted.map(drop).map_err(|error| FetchError::Store { digest: digest.clone(), cause: error.to_string() })
    }

    /// Looks into the store; the first look at what an earlier process left reads the whole file.
    async fn stored(&self, digest: &Digest) -> Result<Option<Pinned>, FetchError> {
        let (store, wanted) = (self.store.clone(), digest.clone());
        let opened = tokio::task::spawn_blocking(move || store.open_artifact(&wanted)).await;
        let failed = |cause: String| FetchError::Store { digest: digest.clone(), cause };
        opened.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
    }
}
