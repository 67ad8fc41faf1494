//! HTTP endpoint that serves the run history. Clients authenticate with a token for the Kubernetes API. The token's
//! user needs the permission to `get` the Stack's subresource `history`.
//!
//! - `GET /history/NAMESPACE/STACK` returns a JSON list with the names of all files that belong to the Stack's runs.
//! - `GET /history/NAMESPACE/STACK/UID/RUN/FILE` returns a file.
//!
//! Both paths omit runs that are older than the namespace.

mod access;
mod path;
mod rejected_tokens;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use kube::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::access::{Access, AccessError};
use self::path::RequestedPath;
use crate::history::{self, HistoryError, HistoryStore};
use crate::server::PeerAddress;

/// Maximum number of files that the endpoint holds in memory.
const MAX_FILES: usize = 4;
/// Maximum number of Stacks whose files the endpoint lists concurrently.
const MAX_LISTINGS: usize = 2;
/// Timeout for a request that waits until the endpoint has sent files to other clients, or has listed other files.
const SLOT_TIMEOUT: Duration = Duration::from_secs(10);
/// Value of the header `Retry-After` in seconds, if the endpoint has too many requests.
const RETRY_AFTER: &str = "3";

/// The endpoint's dependencies and limits.
struct Api {
    access: Access,
    store: HistoryStore,
    files: Arc<Semaphore>,
    listings: Arc<Semaphore>,
}

/// The content of a file. The value holds a permit, so that at most [`MAX_FILES`] files are in memory.
struct CountedFile {
    content: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for CountedFile {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

/// The reason why a request was rejected or failed. The client receives the message.
#[derive(Debug, thiserror::Error)]
enum ApiError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("path not found: must be /history/NAMESPACE/STACK or /history/NAMESPACE/STACK/UID/RUN/FILE")]
    Path,
    #[error("file not found in the history; the controller may have deleted the run")]
    NotFound,
    #[error(transparent)]
    Storage(#[from] HistoryError),
}

impl ApiError {
    fn status(&self) -> StatusCode {
        match self {
            ApiError::Access(AccessError::NoToken | AccessError::InvalidToken) => StatusCode::UNAUTHORIZED,
            ApiError::Access(AccessError::TooManyRejected) => StatusCode::TOO_MANY_REQUESTS,
            ApiError::Access(AccessError::Forbidden { .. }) => StatusCode::FORBIDDEN,
            ApiError::Access(
                AccessError::Review { .. } | AccessError::Namespace { .. } | AccessError::Timeout | AccessError::Busy,
            )
            | ApiError::Storage(_) => StatusCode::SERVICE_UNAVAILABLE,
            ApiError::Path | ApiError::NotFound => StatusCode::NOT_FOUND,
        }
    }
}

/// Returns the endpoint's router.
pub fn router(client: Client, store: HistoryStore) -> Router {
    router_of(Api::new(client, &store))
}

fn router_of(api: Api) -> Router {
    Router::new().route("/history/{*path}", get(serve)).with_state(Arc::new(api))
}

async fn serve(
    State(api): State<Arc<Api>>,
    Path(path): Path<String>,
    peer: Option<Extension<PeerAddress>>,
    headers: HeaderMap,
) -> Response<Body> {
    let peer = peer.map(|Extension(PeerAddress(address))| address);
    let answer = api.answer(&path, &headers, peer).await;
    answer.unwrap_or_else(|error| {
        if error.status() == StatusCode::SERVICE_UNAVAILABLE {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to serve the history of runs");
        }
        let mut response = text(error.status(), "text/plain; charset=utf-8", false, format!("{error}\n").into());
        if matches!(error, ApiError::Access(AccessError::Busy | AccessError::TooManyRejected)) {
            let seconds = header::HeaderValue::from_static(RETRY_AFTER);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    })
}

impl Api {
    fn new(client: Client, store: &HistoryStore) -> Self {
        let slots = |count| Arc::new(Semaphore::new(count));
        let (files, listings) = (slots(MAX_FILES), slots(MAX_LISTINGS));
        Api { access: Access::new(client), store: store.for_readers(), files, listings }
    }

    async fn answer(&self, path: &str, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Response<Body>, ApiError> {
        let requested = RequestedPath::parse(path).ok_or(ApiError::Path)?;
        // Checks the permission first, so that a client without permission cannot find out whether a file exists.
        let created = self.access.check(headers, peer, requested.namespace, requested.stack).await?;
        let Some(file) = requested.file else {
            let permit = slot(&self.listings).await?;
            let mut names = self.store.names(requested.path).await?;
            drop(permit);
            names.retain(|name| history::is_since(name, created));
            let list = serde_json::to_vec(&names).unwrap_or_default();
            return Ok(text(StatusCode::OK, "application/json", false, list.into()));
        };
        if !history::is_since(requested.path, created) {
            return Err(ApiError::NotFound);
        }
        let content = self.read(requested.path).await?;
        let media_type = if file.name().contains(".json") { "application/json" } else { "text/plain; charset=utf-8" };
        Ok(text(StatusCode::OK, media_type, file.name().ends_with(".gz"), content))
    }

    /// Returns the content of a file. The file counts toward [`MAX_FILES`] until its content is sent or dropped.
    async fn read(&self, name: &str) -> Result<Bytes, ApiError> {
        let permit = slot(&self.files).await?;
        let content = self.store.read_object(name).await?.ok_or(ApiError::NotFound)?;
        Ok(Bytes::from_owner(CountedFile { content, _permit: permit }))
    }
}

/// Waits for a permit.
async fn slot(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    let permit = tokio::time::timeout(SLOT_TIMEOUT, permits.clone().acquire_owned()).await;
    permit.ok().and_then(Result::ok).ok_or_else(|| AccessError::Busy.into())
}

/// Returns a response. Tenants' programs wrote the content, so a browser must neither guess the content type nor
/// execute the content.
fn text(status: StatusCode, media_type: &'static str, is_compressed: bool, content: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(content));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, header::HeaderValue::from_static("default-src 'none'; sandbox"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    if is_compressed {
        headers.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static("gzip"));
    }
    response
}

#[cfg(test)]
mod tests;
