//! Builds HTTP clients that reject blocked addresses.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::http_client::{self, Proxies, addresses};
use crate::source::git::error::GitError;
use crate::text::chain;

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 5;

/// Returns a client that uses the proxies and trusts the system certificates and `authorities`. Requests to blocked
/// addresses and redirects to the host names of the proxies fail unless `local_addresses` is true.
pub fn client(authorities: &[String], proxies: &Proxies, local_addresses: bool) -> Result<reqwest::Client, GitError> {
    let builder = http_client::builder(authorities, proxies);
    let builder = builder.map_err(|error| GitError::Credentials(error.to_string()))?;
    let hosts = proxies.hosts();
    let builder = match local_addresses {
        true => builder,
        false => builder.dns_resolver(Arc::new(addresses::Resolver { proxies: hosts.clone() })),
    };
    builder
        .redirect(reqwest::redirect::Policy::custom(move |attempt| {
            let refusal = addresses::refusal(attempt.url(), &hosts).filter(|_| !local_addresses);
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_redirect_to_the_host_name_of_a_proxy_is_rejected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            let headers = format!("location: http://localhost:{port}/b\r\ncontent-length: 0");
            stream.write_all(format!("HTTP/1.1 302 Found\r\n{headers}\r\n\r\n").as_bytes()).await.unwrap();
            stream
        };
        // The HTTP request does not use the HTTPS proxy.
        let proxy = |name: &str| (name == "HTTPS_PROXY").then(|| "http://localhost:3128".to_owned());
        let client = client(&[], &Proxies::from_variables(proxy), false).unwrap();
        let request = client.get(format!("http://localhost:{port}/a")).send();
        let (_stream, response) = tokio::join!(server, request);
        let message = chain(&response.unwrap_err());
        assert!(message.contains("localhost is the host name of a proxy"), "{message}");
    }
}
