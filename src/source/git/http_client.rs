//! Builds HTTP clients that trust additional CA certificates, use proxies and reject blocked addresses.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::{ClientBuilder, NoProxy, Proxy};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::source::git::addresses;
use crate::source::git::error::GitError;
use crate::text::chain;

/// Path of the system CA certificates on common Linux distributions.
const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 5;

/// The proxies that the controller's environment variables specify. A child process has no environment variables, so
/// the controller passes the proxies in the request.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Proxies {
    http: Option<String>,
    https: Option<String>,
    all: Option<String>,
    not_for: Option<String>,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxies").finish_non_exhaustive()
    }
}

impl Proxies {
    pub fn from_environment() -> Self {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let either = |name: &str| get(name).or_else(|| get(&name.to_lowercase()));
        Self {
            http: either("HTTP_PROXY"),
            https: either("HTTPS_PROXY"),
            all: either("ALL_PROXY"),
            not_for: either("NO_PROXY"),
        }
    }

    /// Returns the host names of the proxies.
    fn hosts(&self) -> Vec<String> {
        let given = [&self.http, &self.https, &self.all].into_iter().flatten();
        let parsed = given.filter_map(|text| {
            let url = Url::parse(text).ok().filter(Url::has_host);
            url.or_else(|| Url::parse(&format!("http://{text}")).ok())?.host_str().map(str::to_owned)
        });
        parsed.collect()
    }

    /// Returns the proxies in the HTTP client's format. Ignores invalid URLs.
    fn list(&self) -> Vec<Proxy> {
        let proxies = [
            self.http.as_ref().map(Proxy::http),
            self.https.as_ref().map(Proxy::https),
            self.all.as_ref().map(Proxy::all),
        ];
        let not_for = self.not_for.as_deref().and_then(NoProxy::from_string);
        proxies.into_iter().flatten().flatten().map(|proxy| proxy.no_proxy(not_for.clone())).collect()
    }
}

/// Returns a client that uses the proxies and trusts the system certificates and `authorities`. Requests to blocked
/// addresses fail unless `local_addresses` is true.
pub fn client(authorities: &[String], proxies: &Proxies, local_addresses: bool) -> Result<reqwest::Client, GitError> {
    let refused = |why: String| GitError::Credentials(format!("invalid certificate authorities: {why}"));
    let mut roots = rustls::RootCertStore::empty();
    let system = CertificateDer::pem_file_iter(SYSTEM_CERTIFICATES).map(|found| found.flatten().collect::<Vec<_>>());
    roots.add_parsable_certificates(system.unwrap_or_default());
    for text in authorities {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let (added, _) = roots.add_parsable_certificates(found.map_err(|error| refused(error.to_string()))?);
        if added == 0 {
            return Err(refused("no certificate in PEM format found".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let builder = proxies.list().into_iter().fold(reqwest::Client::builder().no_proxy(), ClientBuilder::proxy);
    let builder = match local_addresses {
        true => builder,
        false => builder.dns_resolver(Arc::new(addresses::Resolver { proxies: proxies.hosts() })),
    };
    builder
        .tls_backend_preconfigured(tls)
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
        .map_err(|error| refused(chain(&error)))
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
