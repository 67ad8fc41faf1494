//! Downloads one artifact: sends the request, reads the body up to a size limit, verifies the digest and stores the
//! artifact.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use reqwest::Response;
use reqwest::header::{HOST, HeaderMap, RETRY_AFTER};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::super::digest::Digest;
use super::super::store::{Incoming, Pinned, StoreError};
use super::error::{FetchError, MAX_RETRY_AFTER};
use super::settings::FetchSettings;
use super::shared::Shared;
use super::target::Target;
use crate::mutual_tls::{SendError, build};

/// Maximum number of body chunks that wait in memory for the write to disk. The chunks and the HTTP client's read
/// buffers need less than 4 MiB.
const MAX_CHUNKS: usize = 8;

impl Shared {
    /// Downloads an artifact into the store. If the connection breaks, retries once immediately, because the server may
    /// have closed an idle connection.
    pub(super) async fn download(&self, target: &Target, digest: &Digest) -> Result<Pinned, FetchError> {
        let limit = self.settings.overall_timeout;
        let attempts = async {
            match self.attempt(target, digest).await {
                Err(FetchError::Truncated { cause, .. }) => {
                    tracing::debug!(url = target.shown, cause, "connection closed; retrying once");
                    self.attempt(target, digest).await
                }
                result => result,
            }
        };
        let timed_out = |_| FetchError::Timeout { url: target.shown.clone(), what: "download", limit };
        timeout(limit, attempts).await.map_err(timed_out)?
    }

    async fn attempt(&self, target: &Target, digest: &Digest) -> Result<Pinned, FetchError> {
        self.download_attempts.fetch_add(1, Ordering::Relaxed);
        let response = self.request(target).await?;
        check_status(&response, target).inspect_err(|error| self.postponed.record(&target.url, error))?;
        // Rejects a declared length above the limit without reading the body. If the declared length is too small,
        // `forward` enforces the limit while it reads the body.
        if response.content_length().is_some_and(|length| length > self.settings.download_bytes) {
            return Err(self.too_large(target));
        }
        let (chunks, receiver) = mpsc::channel(MAX_CHUNKS);
        let (store, algorithm) = (self.store.clone(), digest.algorithm());
        let writer = spawn_blocking(move || write(store.begin(algorithm)?, receiver));
        let body = self.forward(response.bytes_stream(), chunks, target).await;
        let stored = |error| store_error(error, target, digest);
        let stopped = |error: tokio::task::JoinError| store_failure(digest, error.to_string());
        // A store error takes precedence, because a store error also makes `forward` stop reading the body.
        let incoming = writer.await.map_err(stopped)?.map_err(stored)?;
        body?;
        let expected = digest.clone();
        spawn_blocking(move || incoming.commit(&expected)).await.map_err(stopped)?.map_err(stored)
    }

    async fn request(&self, target: &Target) -> Result<Response, FetchError> {
        let url = || target.shown.clone();
        let request = self.client.send(&target.url, |client, url| client.get(url).header(HOST, &target.host));
        let limit = self.settings.connect_timeout.saturating_add(self.settings.idle_timeout);
        let response = timeout(limit, request).await;
        match response.map_err(|_| FetchError::Timeout { url: url(), what: "waiting for a response", limit })? {
            Ok(response) => Ok(response),
            Err(SendError::Refused(failure)) => Err(FetchError::MutualTls { url: url(), failure }),
            Err(SendError::Http(error)) if error.is_connect() && error.is_timeout() => {
                let limit = self.settings.connect_timeout;
                Err(FetchError::Timeout { url: url(), what: "connecting", limit })
            }
            Err(SendError::Http(error)) if error.is_connect() => {
                Err(FetchError::Connect { url: url(), cause: cause_of(error) })
            }
            Err(SendError::Http(error)) => {
                Err(FetchError::Truncated { url: url(), received: 0, cause: cause_of(error) })
            }
        }
    }

    /// Sends the chunks of the body to the channel until the body ends, the body exceeds a limit, or the receiver
    /// closes the channel.
    async fn forward<Bytes: AsRef<[u8]>>(
        &self,
        mut body: impl Stream<Item = reqwest::Result<Bytes>> + Unpin,
        chunks: mpsc::Sender<Bytes>,
        target: &Target,
    ) -> Result<(), FetchError> {
        let limit = self.settings.idle_timeout;
        let mut received: u64 = 0;
        loop {
            let next = timeout(limit, body.next()).await;
            let url = || target.shown.clone();
            let chunk = match next.map_err(|_| FetchError::Timeout { url: url(), what: "waiting for data", limit })? {
                None => return Ok(()),
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => return Err(FetchError::Truncated { url: url(), received, cause: cause_of(error) }),
            };
            received = received.saturating_add(u64::try_from(chunk.as_ref().len()).unwrap_or(u64::MAX));
            if received > self.settings.download_bytes {
                return Err(self.too_large(target));
            }
            if chunks.send(chunk).await.is_err() {
                return Ok(());
            }
        }
    }

    fn too_large(&self, target: &Target) -> FetchError {
        FetchError::TooLarge { url: target.shown.clone(), limit: self.settings.download_bytes }
    }
}

/// Writes chunks until the channel closes. Callers must call this function on a blocking thread, because hashing and
/// disk writes would block the async runtime.
fn write<Bytes: AsRef<[u8]>>(
    mut incoming: Incoming,
    mut chunks: mpsc::Receiver<Bytes>,
) -> Result<Incoming, StoreError> {
    while let Some(chunk) = chunks.blocking_recv() {
        incoming.append(chunk.as_ref())?;
    }
    Ok(incoming)
}

fn check_status(response: &Response, target: &Target) -> Result<(), FetchError> {
    let url = target.shown.clone();
    match response.status().as_u16() {
        200 => Ok(()),
        404 => Err(FetchError::NotFound { url }),
        status => {
            Err(FetchError::Status { url, status, retry_after: retry_after(response.headers(), Timestamp::now()) })
        }
    }
}

/// Parses the `Retry-After` header, which contains either a number of seconds or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let then = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
            Duration::try_from(then.duration_since(now)).unwrap_or_default()
        }
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

fn store_error(error: StoreError, target: &Target, digest: &Digest) -> FetchError {
    match error {
        StoreError::Mismatch { expected, found, bytes } => {
            tracing::info!(url = target.shown, digest = %found, "downloaded artifact does not match its digest");
            FetchError::DigestMismatch { url: target.shown.clone(), expected, bytes }
        }
        other => store_failure(digest, other.to_string()),
    }
}

fn store_failure(digest: &Digest, cause: String) -> FetchError {
    FetchError::Store { digest: digest.clone(), cause }
}

/// Returns the message of the error, followed by the messages of all its causes. Only the innermost cause contains the
/// actual reason, for example "connection refused" or "dns error".
fn cause_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut causes = Vec::new();
    let mut next: Option<&dyn Error> = Some(&error);
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes.dedup();
    causes.join(": ")
}

/// Path of the system CA certificates on common Linux distributions.
const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Builds the HTTP client for servers without mutual TLS.
pub(super) fn client(settings: &FetchSettings) -> Result<reqwest::Client, FetchError> {
    let built = build(tls(settings)?, settings.connect_timeout);
    built.map_err(|cause| FetchError::Settings { why: cause.to_string() })
}

fn tls(settings: &FetchSettings) -> Result<rustls::ClientConfig, FetchError> {
    let failed = |cause: rustls::Error| FetchError::Settings { why: cause.to_string() };
    let mut roots = rustls::RootCertStore::empty();
    match &settings.certificate_authorities {
        Some(path) => {
            let (_, refused) = roots.add_parsable_certificates(read_certificates(path)?);
            if refused > 0 || roots.is_empty() {
                let why = format!("no valid certificates in {} (invalid certificates: {refused})", path.display());
                return Err(FetchError::Settings { why });
            }
        }
        // Missing system certificates are not an error, because Flux usually serves artifacts over HTTP.
        None => {
            roots.add_parsable_certificates(read_certificates(Path::new(SYSTEM_CERTIFICATES)).unwrap_or_default());
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FetchError> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    certificates.map_err(|cause| FetchError::Settings {
        why: format!("failed to read the certificate authorities in {}: {cause}", path.display()),
    })
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn retry_after_is_parsed_as_seconds_or_a_date_and_is_limited() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let table = [
            ("0", Some(0)),
            ("120", Some(120)),
            ("999999999", Some(600)),
            ("Sat, 21 Nov 2026 10:02:00 GMT", Some(120)),
            ("Sat, 21 Nov 2026 09:00:00 GMT", Some(0)),
            ("-5", None),
            ("soon", None),
            ("", None),
        ];
        for (text, seconds) in table {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            assert_eq!(retry_after(&headers, now), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
