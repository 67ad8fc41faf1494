//! HTTP client for requests to the OIDC issuer. The client uses the proxies in the environment variables of the
//! controller, and trusts the CA certificates in a file.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderValue, header};
use reqwest::{Client, Request, Response, redirect};
use serde::de::DeserializeOwned;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

use super::error::UiError;
use crate::http_client::{self, Proxies};
use crate::text::chain;

/// Timeout of an issuer request, and of reading a file.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// Maximum size of the file with the CA certificates, in bytes.
const MAX_AUTHORITIES: u64 = 1024 * 1024;

/// Client for requests to an OIDC issuer.
pub(super) struct IssuerClient {
    /// File with CA certificates that the client trusts in addition to the system certificates.
    ca_file: Option<PathBuf>,
    proxies: Proxies,
    /// HTTP client, and the content of the file for which it was created. Hold the lock only for short critical
    /// sections, and never across an `.await`.
    cached: Mutex<Option<(Option<String>, Client)>>,
}

impl IssuerClient {
    pub(super) fn new(ca_file: Option<PathBuf>, proxies: Proxies) -> Self {
        IssuerClient { ca_file, proxies, cached: Mutex::default() }
    }

    /// Sends a request, and parses the response. Errors do not contain the response, because the issuer's response can
    /// contain tokens.
    ///
    /// # Errors
    /// Returns an error if the issuer does not respond with success and valid JSON.
    pub(super) async fn fetch<T: DeserializeOwned>(
        &self,
        purpose: &'static str,
        mut request: Request,
    ) -> Result<T, UiError> {
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let client = self.http().await?;
        let exchange = async {
            let response = client.execute(request).await;
            let response = response.map_err(|error| failed(purpose, &chain(&error.without_url())))?;
            if !response.status().is_success() {
                return Err(failed(purpose, &format!("HTTP status {}", response.status())));
            }
            let body =
                read(response).await.ok_or_else(|| failed(purpose, "the response is incomplete or too large"))?;
            serde_json::from_slice(&body).map_err(|_| failed(purpose, "the response is not valid"))
        };
        let timeout = || failed(purpose, &timed_out("waiting for the issuer"));
        tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| Err(timeout()))
    }

    /// Returns the HTTP client. Reads the file with the CA certificates for each request, because the file can change.
    async fn http(&self) -> Result<Client, UiError> {
        let purpose = "read the CA certificates of the OIDC issuer";
        let authorities = match &self.ca_file {
            Some(path) => Some(read_file(purpose, path, MAX_AUTHORITIES).await?),
            None => None,
        };
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = cached.as_ref().filter(|(content, _)| *content == authorities) {
            return Ok(client.clone());
        }
        let list: Vec<String> = authorities.iter().cloned().collect();
        let builder = http_client::builder(&list, &self.proxies);
        let builder = builder.map_err(|error| failed(purpose, &error.to_string()))?;
        let client = builder
            // The client must not send the client secret or an authorization code to another server.
            .redirect(redirect::Policy::none())
            .connect_timeout(TIMEOUT)
            .user_agent(concat!("pulumi-controller/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| failed("create the client for the OIDC issuer", &chain(&error)))?;
        *cached = Some((authorities, client.clone()));
        Ok(client)
    }
}

/// Returns the error for a failed request.
pub(super) fn failed(request: &str, cause: &str) -> UiError {
    UiError::Failed { request: request.to_owned(), cause: cause.to_owned() }
}

fn timed_out(what: &str) -> String {
    format!("{what} timed out after {} seconds; retry later", TIMEOUT.as_secs())
}

/// Returns the content of a file with at most `max` bytes.
///
/// # Errors
/// Returns an error if the file is too large or cannot be read.
pub(super) async fn read_file(purpose: &str, path: &Path, max: u64) -> Result<String, UiError> {
    let read = async {
        let mut content = Vec::new();
        File::open(path).await?.take(max.saturating_add(1)).read_to_end(&mut content).await?;
        Ok::<_, std::io::Error>(content)
    };
    let content = match tokio::time::timeout(TIMEOUT, read).await {
        Ok(Ok(content)) => content,
        Ok(Err(error)) => return Err(failed(purpose, &error.to_string())),
        Err(_) => return Err(failed(purpose, &timed_out("reading the file"))),
    };
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > max {
        return Err(failed(purpose, "the file is too large"));
    }
    String::from_utf8(content).map_err(|_| failed(purpose, "the file contains invalid UTF-8"))
}

/// Returns the body of a response, or `None` if the body is incomplete or too large.
async fn read(mut response: Response) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > MAX_RESPONSE {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(body)
}

#[cfg(test)]
mod tests;
