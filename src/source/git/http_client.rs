//! Builds HTTP clients that reject blocked addresses.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::http_client::{self, Proxies};
use crate::source::git::addresses;
use crate::source::git::error::GitError;
use crate::text::chain;

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 5;

/// Returns a client that uses the proxies and trusts the system certificates and `authorities`. Requests to blocked
/// addresses fail unless `local_addresses` is true.
pub fn client(authorities: &[String], proxies: &Proxies, local_addresses: bool) -> Result<reqwest::Client, GitError> {
    let builder = http_client::builder(authorities, proxies);
    let builder = builder.map_err(|error| GitError::Credentials(error.to_string()))?;
    let builder = match local_addresses {
        true => builder,
        false => builder.dns_resolver(Arc::new(addresses::Resolver { proxies: proxies.hosts() })),
    };
    builder
        .redirect(reqwest::redirect::Policy::custom(move |attempt| {
            let refusal = addresses::refusal(attempt.url()).filter(|_| !local_addresses);
            let from = attempt.previous().last().map(|url| url.scheme().to_owned());
            if attempt.previous().len() > MAX_REDIRECTS {
                attempt.error("too many redirects")
            } else if from.as_deref() == Some("https") && attempt.url().scheme() != "https" {
                attempt.error("redirect from https to http is not allowed")
            } else if let Some(why) = refusal {
                attempt.error(why)
            } else {
                attempt.follow()
            }
        }))
        .connect_timeout(Duration::from_secs(10))
        .pool_max_idle_per_host(2)
        .build()
        .map_err(|error| GitError::Credentials(format!("invalid certificate authorities: {}", chain(&error))))
}

/// HTTP clients for requests to GitHub App APIs. Caches the client that trusts no repository-specific certificates. The
/// cached client remains valid until the certificates for all Stacks change.
#[derive(Debug, Default)]
pub struct Clients {
    pub proxies: Proxies,
    cached: Mutex<Option<(Option<String>, reqwest::Client)>>,
}

impl Clients {
    pub fn from_environment() -> Self {
        Self { proxies: Proxies::from_environment(), cached: Mutex::default() }
    }

    /// Returns a client that trusts the system certificates, the certificates for all Stacks (`for_all`), and `own`.
    pub(super) fn client(
        &self,
        for_all: Option<String>,
        own: Vec<String>,
        local: bool,
    ) -> Result<reqwest::Client, GitError> {
        if !own.is_empty() {
            return client(&own.into_iter().chain(for_all).collect::<Vec<_>>(), &self.proxies, local);
        }
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = cached.as_ref().filter(|(cached_for_all, _)| *cached_for_all == for_all) {
            return Ok(client.clone());
        }
        let client = client(&for_all.iter().cloned().collect::<Vec<_>>(), &self.proxies, local)?;
        *cached = Some((for_all, client.clone()));
        Ok(client)
    }
}
