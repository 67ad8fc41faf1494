//! The HTTP client for servers inside the cluster, with and without mutual TLS.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{RequestBuilder, Response, StatusCode, Version};
use spiffe_rustls::ClientConfigBuilder;
use tokio::sync::OnceCell;
use url::Url;

use super::authorized_id::AuthorizedId;
use super::failure::{Failure, Peer};
use super::identity::Identity;

/// Timeout for opening a connection with mutual TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const HTTP_PORT: u16 = 80;

/// Settings of mutual TLS for one kind of server.
#[derive(Clone, Debug)]
pub struct MutualTls {
    pub identity: Identity,
    /// SPIFFE IDs that the server can have.
    pub authorized: Arc<[AuthorizedId]>,
}

/// HTTP client for one kind of server inside the cluster. If mutual TLS is configured, the client sends all requests
/// with mutual TLS, and to `https` instead of `http`. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    peer: Peer,
    plain: reqwest::Client,
    mutual_tls: Option<MutualTls>,
    /// Client with mutual TLS. The first request with an X.509-SVID creates the client.
    secured: Arc<OnceCell<reqwest::Client>>,
}

/// Reason why a request received no response.
#[derive(Debug)]
pub enum SendError {
    Refused(Failure),
    Http(reqwest::Error),
}

impl Client {
    /// Returns a client that uses `plain` if mutual TLS is not configured.
    pub fn new(peer: Peer, plain: reqwest::Client, mutual_tls: Option<MutualTls>) -> Self {
        Self { peer, plain, mutual_tls, secured: Arc::default() }
    }

    /// Returns the client without mutual TLS, for other servers inside the cluster.
    pub fn plain(&self) -> reqwest::Client {
        self.plain.clone()
    }

    /// Sends a request. `request` adds the method, the headers and the body to the given client and URL. The caller
    /// limits the duration.
    ///
    /// # Errors
    /// Returns an error if the server does not send a response, does not have an authorized SPIFFE ID, or requires
    /// TLS although mutual TLS is not configured.
    pub async fn send(
        &self,
        url: &Url,
        request: impl Fn(&reqwest::Client, Url) -> RequestBuilder,
    ) -> Result<Response, SendError> {
        match &self.mutual_tls {
            Some(mutual_tls) => Box::pin(self.send_secured(mutual_tls, url, request)).await,
            None => {
                let response = request(&self.plain, url.clone()).send().await.map_err(SendError::Http)?;
                match url.scheme() == "http" && requires_tls(&response) {
                    true => Err(SendError::Refused(Failure::TlsRequired { peer: self.peer })),
                    false => Ok(response),
                }
            }
        }
    }

    async fn send_secured(
        &self,
        mutual_tls: &MutualTls,
        url: &Url,
        request: impl Fn(&reqwest::Client, Url) -> RequestBuilder,
    ) -> Result<Response, SendError> {
        let client = self.secured(mutual_tls).await.map_err(SendError::Refused)?;
        let own = || mutual_tls.identity.spiffe_id().unwrap_or_default();
        let classified = |error: reqwest::Error| match Failure::of(&error, own, self.peer) {
            Some(failure) => SendError::Refused(failure),
            None => SendError::Http(error),
        };
        let (first, second) = secure(url);
        let sent = request(&client, first).send().await.map_err(classified);
        match (sent, second) {
            (Err(SendError::Http(error)), Some(second)) if error.is_connect() => {
                match request(&client, second).send().await.map_err(classified) {
                    Err(SendError::Http(_)) => Err(SendError::Http(error)),
                    result => result,
                }
            }
            (sent, _) => sent,
        }
    }

    async fn secured(&self, mutual_tls: &MutualTls) -> Result<reqwest::Client, Failure> {
        let source = mutual_tls.identity.source().await?;
        let client = self.secured.get_or_try_init(|| async {
            let (authorized, own) = (mutual_tls.authorized.clone(), source.clone());
            let is_authorized = move |server: &spiffe::SpiffeId| {
                let own = own.try_svid();
                let own = own.as_ref().map(|svid| svid.spiffe_id().trust_domain());
                authorized.iter().any(|id| id.authorizes(server, own))
            };
            let tls = ClientConfigBuilder::new(source).authorize(is_authorized).build();
            let tls = tls.map_err(|error| Failure::Setup { cause: error.to_string() })?;
            build(tls, CONNECT_TIMEOUT).map_err(|error| Failure::Setup { cause: error.to_string() })
        });
        client.await.cloned()
    }
}

/// Returns whether the response shows that the server accepts only TLS: status 400 of HTTP/1.0, which the HTTP server of
/// Go, and therefore of Flux, then sends.
fn requires_tls(response: &Response) -> bool {
    response.version() == Version::HTTP_10 && response.status() == StatusCode::BAD_REQUEST
}

/// Builds an HTTP client for servers inside the cluster. The client does not follow redirects, because a redirect could
/// lead to a host that is not allowed. The client does not use a proxy.
///
/// # Errors
/// Returns an error if the TLS settings are not valid.
pub fn build(tls: rustls::ClientConfig, connect_timeout: Duration) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(connect_timeout)
        .user_agent(concat!("pulumi-controller/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Returns the `https` URL for a URL, and a second URL for the case that the server does not listen on the port of the
/// first URL. A server with mutual TLS usually has an `http` URL, because the Flux controllers do not change the URLs in
/// the status of their objects. If this URL has no port, the first URL has the port 80, which the Services of Flux have,
/// and the second URL has the default port of `https`, as in the requests of the Flux controllers.
fn secure(url: &Url) -> (Url, Option<Url>) {
    let mut secured = url.clone();
    if url.scheme() != "http" || secured.set_scheme("https").is_err() || url.port().is_some() {
        return (secured, None);
    }
    let mut first = secured.clone();
    match first.set_port(Some(HTTP_PORT)) {
        Ok(()) => (first, Some(secured)),
        Err(()) => (secured, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_mutual_tls_use_https_and_keep_the_port() {
        let rows = [
            ("http://source/a?b=c", "https://source:80/a?b=c", Some("https://source/a?b=c")),
            ("http://source:80/a", "https://source:80/a", Some("https://source/a")),
            ("http://source.svc.:9090/a", "https://source.svc.:9090/a", None),
            ("http://[::1]/a", "https://[::1]:80/a", Some("https://[::1]/a")),
            ("https://source/a", "https://source/a", None),
            ("https://source:8443/a", "https://source:8443/a", None),
        ];
        for (url, first, second) in rows {
            let found = secure(&url.parse().unwrap());
            assert_eq!((found.0.as_str(), found.1.as_ref().map(Url::as_str)), (first, second), "{url}");
        }
    }
}
