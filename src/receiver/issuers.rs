//! Reads the keys of OIDC issuers, and caches them.
//!
//! Tenants set the URLs of the issuers, and any client can send a token with an unknown key ID. The cache therefore reads
//! the keys of an issuer at most every [`REFRESH_INTERVAL`], the namespaces share the slots for reads fairly, and the
//! size of each response and the number of cached issuers per namespace are limited. As for Git repositories, the client
//! does not connect to loopback or link-local addresses. It also follows no redirects.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use jiff::Timestamp;
use jsonwebtoken::Algorithm;
use reqwest::{Client, redirect};
use serde::Deserialize;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::api::pulumi::StackReceiver;
use crate::http_client::{self, Proxies, addresses};
use crate::receiver::oidc_token::{Keys, OidcFault, Unverified};
use crate::runtime::fair_slots::{FairSlots, Limits};
use crate::text::chain;

/// Maximum age of the keys. After a rotation, an issuer usually publishes the old key for hours.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// Minimum interval between two reads of the keys of an issuer for a namespace, even if a token names an unknown key.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout for reading the configuration and the keys of an issuer. The timeout is shorter than the callers' timeouts.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 128 * 1024;
/// Maximum size of the file with the CA certificates, in bytes.
const MAX_AUTHORITIES: u64 = 1024 * 1024;
/// Maximum number of issuers of a namespace in the cache.
const MAX_ISSUERS_PER_NAMESPACE: usize = 16;
/// Limits for the reads of keys.
pub(super) const SLOTS: Limits = Limits { total: 4, per_key: 1, waiting_per_key: 8 };
/// Maximum number of calls of all namespaces that wait for a read. A waiting call keeps its connection.
pub(super) const MAX_WAITING: usize = 20;

/// Settings of the client for issuers.
#[derive(Clone, Debug, Default)]
pub struct IssuerSettings {
    /// File with CA certificates that the client trusts in addition to the system certificates. The file can be missing.
    pub authorities: PathBuf,
    pub proxies: Proxies,
    /// Whether an issuer may have a loopback or link-local address. Only tests use such addresses.
    pub local_addresses: bool,
}

impl IssuerSettings {
    /// Creates settings with the proxies in the environment variables of this process.
    pub fn new(authorities: PathBuf) -> Self {
        IssuerSettings { authorities, proxies: Proxies::from_environment(), local_addresses: false }
    }
}

/// Cache of the keys of all issuers. Clones are cheap and share the cache.
#[derive(Clone)]
pub struct Issuers(Arc<Shared>);

struct Shared {
    settings: IssuerSettings,
    slots: FairSlots,
    tasks: TaskTracker,
    /// Issuers by namespace and URL. Tenants cannot use or evict the entries of other namespaces. Hold the lock only for
    /// short critical sections, and never across an `.await`.
    cache: Mutex<HashMap<(String, String), Cached>>,
}

/// State of an issuer.
#[derive(Clone, Debug)]
struct Cached {
    keys: Arc<Keys>,
    /// Time at which the keys expire. `None` if no read has succeeded.
    expires: Option<Instant>,
    attempted: Instant,
    /// Whether a call is reading the keys. Other calls wait for its slot.
    is_reading: bool,
    /// Cause of the failure of the last read.
    failure: Option<String>,
    used: Instant,
}

/// What to do with a token.
#[derive(Debug)]
enum Decision {
    Use(Arc<Keys>),
    Read,
    Refuse(Option<String>),
}

/// Selects what to do with a token that names this key.
fn decide(cached: Option<&Cached>, key_id: &str, algorithm: Algorithm, now: Instant) -> Decision {
    let Some(cached) = cached else { return Decision::Read };
    let is_fresh = cached.expires.is_some_and(|expires| now < expires);
    if is_fresh && cached.keys.find(key_id, algorithm).is_some() {
        return Decision::Use(Arc::clone(&cached.keys));
    }
    match !cached.is_reading && now.saturating_duration_since(cached.attempted) < REFRESH_INTERVAL {
        true => Decision::Refuse(cached.failure.clone()),
        false => Decision::Read,
    }
}

impl Issuers {
    pub fn new(settings: IssuerSettings, tasks: TaskTracker) -> Self {
        let (slots, cache) = (FairSlots::with_places(SLOTS, MAX_WAITING), Mutex::default());
        Issuers(Arc::new(Shared { settings, slots, tasks, cache }))
    }

    /// Authenticates a call with the OIDC token in its headers.
    ///
    /// # Errors
    /// Returns an error if the token does not authenticate the call, or if the keys of the issuer are not available.
    pub async fn authenticate(&self, receiver: &StackReceiver, headers: &HeaderMap) -> Result<(), OidcFault> {
        let token = Unverified::read(headers)?;
        let provider = token.provider(&receiver.spec.oidc_providers)?;
        let namespace = receiver.metadata.namespace.clone().unwrap_or_default();
        let keys = self.keys(namespace, &token).await?;
        let key = keys.find(&token.key_id, token.algorithm).ok_or_else(|| OidcFault::Key(token.issuer.clone()))?;
        let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
        token.verify(key, provider, now)
    }

    /// Returns the keys of the issuer of a token. Reads the keys if the cache does not contain the key of the token.
    async fn keys(&self, namespace: String, token: &Unverified<'_>) -> Result<Arc<Keys>, OidcFault> {
        let issuer = &token.issuer;
        let refused = |failure: Option<String>| match failure {
            Some(cause) => OidcFault::Unavailable { issuer: issuer.clone(), cause },
            None => OidcFault::Key(issuer.clone()),
        };
        match self.decide(&namespace, token) {
            Decision::Use(keys) => return Ok(keys),
            Decision::Refuse(failure) => return Err(refused(failure)),
            Decision::Read => {}
        }
        let timed_out = || refused(Some(format!("timed out after {} s", TIMEOUT.as_secs())));
        let deadline = Instant::now() + TIMEOUT;
        let slot = tokio::time::timeout_at(deadline, self.0.slots.acquire(&namespace)).await;
        let slot = slot.map_err(|_| timed_out())?;
        let slot = slot.map_err(|busy| OidcFault::Busy { waiting: busy.waiting })?;
        // Another call can have read the keys while this call waited for the slot.
        match self.decide(&namespace, token) {
            Decision::Use(keys) => return Ok(keys),
            Decision::Refuse(failure) => return Err(refused(failure)),
            Decision::Read => {}
        }
        // Runs in a task, because the read must also end if the client closes its connection. Otherwise, a client could
        // prevent the next read of the keys for the whole interval.
        let (this, key) = (self.clone(), (namespace.clone(), issuer.clone()));
        self.0.begin(&key, Instant::now());
        let read = self.0.tasks.spawn(async move {
            let _slot = slot;
            let read = tokio::time::timeout(TIMEOUT, this.0.read(&key.1)).await;
            let result = read.unwrap_or_else(|_| Err(format!("timed out after {} s", TIMEOUT.as_secs())));
            this.0.end(&key, result, Instant::now());
        });
        // If the read takes longer or the task panics, the cache does not contain the keys.
        let _ = tokio::time::timeout_at(deadline, read).await;
        match self.decide(&namespace, token) {
            Decision::Use(keys) => Ok(keys),
            Decision::Refuse(failure) => Err(refused(failure)),
            Decision::Read => Err(timed_out()),
        }
    }

    fn decide(&self, namespace: &str, token: &Unverified<'_>) -> Decision {
        let (mut cache, now) = (self.0.lock(), Instant::now());
        let mut cached = cache.get_mut(&(namespace.to_owned(), token.issuer.clone()));
        if let Some(cached) = &mut cached {
            cached.used = now;
        }
        decide(cached.as_deref(), &token.key_id, token.algorithm, now)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Cached>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the start of a read. Removes entries that were not used for a long time, and the least recently used entry
    /// of a namespace with too many entries.
    fn begin(&self, key: &(String, String), now: Instant) {
        let mut cache = self.lock();
        if let Some(cached) = cache.get_mut(key) {
            (cached.attempted, cached.is_reading) = (now, true);
            return;
        }
        cache.retain(|_, cached| now.saturating_duration_since(cached.used) < 2 * MAX_AGE);
        let of_namespace = || cache.iter().filter(|((namespace, _), _)| *namespace == key.0);
        if of_namespace().count() >= MAX_ISSUERS_PER_NAMESPACE {
            let oldest = of_namespace().min_by_key(|(_, cached)| cached.used).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| cache.remove(&oldest));
        }
        let (keys, failure) = (Arc::default(), None);
        let cached = Cached { keys, expires: None, attempted: now, is_reading: true, failure, used: now };
        cache.insert(key.clone(), cached);
    }

    /// Records the result of a read. After a failure, unexpired keys remain valid.
    fn end(&self, key: &(String, String), result: Result<Keys, String>, now: Instant) {
        let mut cache = self.lock();
        let Some(cached) = cache.get_mut(key) else { return };
        cached.is_reading = false;
        match result {
            Ok(keys) => {
                (cached.keys, cached.expires, cached.failure) = (Arc::new(keys), Some(now + MAX_AGE), None);
            }
            Err(failure) => cached.failure = Some(failure),
        }
    }

    /// Reads the keys that an issuer publishes (OpenID Connect Discovery 1.0, section 4).
    async fn read(&self, issuer: &str) -> Result<Keys, String> {
        let client = self.client().await?;
        let address = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let published: Published = serde_json::from_slice(&self.get(&client, &address).await?)
            .map_err(|_| "the configuration of the issuer is malformed".to_owned())?;
        if published.issuer != issuer {
            return Err("the configuration at this URL belongs to another issuer".to_owned());
        }
        let keys = Keys::parse(&self.get(&client, &published.jwks_uri).await?);
        let keys = keys.ok_or_else(|| "the keys of the issuer are malformed".to_owned())?;
        if keys.is_empty() {
            return Err("the issuer publishes no keys that can verify tokens".to_owned());
        }
        Ok(keys)
    }

    async fn get(&self, client: &Client, address: &str) -> Result<Vec<u8>, String> {
        let url = Url::parse(address).ok().filter(|url| url.scheme() == "https" && url.has_host());
        let url = url.ok_or_else(|| "the URL does not use https, or is malformed".to_owned())?;
        let refusal = addresses::refusal(&url, &self.settings.proxies.hosts());
        if let Some(why) = refusal.filter(|_| !self.settings.local_addresses) {
            return Err(why);
        }
        let response = client.get(url).send().await;
        let mut response = response.map_err(|error| chain(&error.without_url()))?;
        if !response.status().is_success() {
            return Err(format!("HTTP status {}", response.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| chain(&error.without_url()))? {
            if body.len() + chunk.len() > MAX_RESPONSE {
                return Err(format!("the response has more than {MAX_RESPONSE} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Creates the client. Reads the file with the CA certificates, which can change.
    async fn client(&self) -> Result<Client, String> {
        let authorities = read_authorities(&self.settings.authorities).await?;
        let builder = http_client::builder(authorities.as_slice(), &self.settings.proxies);
        let builder = builder.map_err(|error| error.to_string())?;
        let resolver = addresses::Resolver { proxies: self.settings.proxies.hosts() };
        let builder = match self.settings.local_addresses {
            true => builder,
            false => builder.dns_resolver(Arc::new(resolver)),
        };
        let builder = builder.redirect(redirect::Policy::none()).connect_timeout(TIMEOUT).https_only(true);
        let builder = builder.user_agent(concat!("pulumi-controller/", env!("CARGO_PKG_VERSION")));
        builder.build().map_err(|error| chain(&error))
    }
}

/// Configuration that an issuer publishes.
#[derive(Deserialize)]
struct Published {
    issuer: String,
    jwks_uri: String,
}

/// Returns the CA certificates in a file. Returns an empty list if the file does not exist.
async fn read_authorities(path: &Path) -> Result<Vec<String>, String> {
    let failed =
        |why: &dyn std::fmt::Display| format!("failed to read the CA certificates in {}: {why}", path.display());
    let file = match File::open(path).await {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&error)),
    };
    let mut text = String::new();
    file.take(MAX_AUTHORITIES + 1).read_to_string(&mut text).await.map_err(|error| failed(&error))?;
    match u64::try_from(text.len()).is_ok_and(|length| length <= MAX_AUTHORITIES) {
        true => Ok(vec![text]),
        false => Err(failed(&"the file is too large")),
    }
}

#[cfg(test)]
pub(super) mod tests;
