//! Routes, request limits and security headers of the web UI.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use tokio::sync::Semaphore;
use url::form_urlencoded;

use super::error::UiError;
use super::form::MAX_FORM;
use super::pages::frame;
use super::response::{asset, html, redirect, status};
use super::state::{Answer, Ui};
use super::{actions, csrf, live, oidc_sign_in, pages, sign_in};
use crate::api::names;
use crate::server::PeerAddress;

/// Maximum time until the response to a request starts.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent requests.
const MAX_REQUESTS: usize = 64;
/// Maximum number of concurrent requests per peer. A peer can be a proxy for all users.
const MAX_PER_PEER: usize = 48;
/// Maximum time until a request's complete form has arrived.
const FORM_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum total size of the pending large responses, in KiB. A response is pending until the client has read the
/// response.
const MAX_WAITING: usize = 32 * 1024;
/// Maximum total size of a peer's pending large responses, in KiB.
const MAX_WAITING_PER_PEER: usize = MAX_WAITING / 4;
/// Minimum size of a large response, in KiB.
const LARGE: usize = 64;
/// Size of each part of a large response, in bytes.
const PART: usize = 16 * 1024;
/// Maximum length of a path and its query, in bytes.
const MAX_URI: usize = 4096;
/// Delay in seconds after which a client can repeat a request that has exceeded a rate limit.
const RETRY_AFTER: &str = "3";

/// Security headers of all responses. Pages can load only this server's stylesheet and script.
const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    // With `no-referrer`, browsers would not send the origin of a form.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
];

/// Returns the router of the web UI.
pub(super) fn router(ui: Arc<Ui>) -> Router {
    let limits = (Arc::new(Gate::default()), ui.clone());
    Router::new()
        .route("/", get(list))
        .route("/fleet", get(fleet))
        .route("/stacks/{namespace}/{name}", get(stack))
        .route("/stacks/{namespace}/{name}/live", get(stream))
        .route("/stacks/{namespace}/{name}/runs/{run}", get(run))
        .route("/stacks/{namespace}/{name}/actions/{action}", post(act))
        .route("/sign-in", get(sign_in_form).post(sign_in))
        .route("/sign-in/oidc", get(oidc_begin))
        .route("/sign-in/oidc/callback", get(oidc_end))
        .route("/sign-out", post(sign_out))
        .route("/style.css", get(style))
        .route("/script.js", get(script))
        .fallback(not_found)
        .with_state(ui)
        .layer(middleware::from_fn_with_state(limits, guard))
}

/// Returns the response to a page request. Redirects users without a session to the sign-in page.
fn finish(ui: &Ui, headers: &HeaderMap, uri: &Uri, answer: Answer) -> Response {
    match answer {
        Ok(response) => response,
        // The request lacks the cookie if a link on another site has opened the page. When a page from this server
        // reloads the path, the browser sends the cookie.
        Err(UiError::SignedOut) if csrf::is_from_other_site(headers) => {
            html(StatusCode::OK, frame::reload(uri.path_and_query().map_or("/", |path| path.as_str())))
        }
        Err(UiError::SignedOut) => {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let next: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
            redirect(&format!("/sign-in?next={next}"))
        }
        Err(error) => {
            if error.status().is_server_error() {
                tracing::warn!(error = &error as &dyn std::error::Error, "failed to serve a page of the web UI");
            }
            let visitor = ui.visitor(headers).ok();
            let page =
                frame::error(&ui.cluster_name, visitor.as_ref(), &error.to_string(), stack_of_action(uri.path()));
            html(error.status(), page)
        }
    }
}

/// Returns the path of the Stack's page for the path of an action.
fn stack_of_action(path: &str) -> Option<&str> {
    path.split_once("/actions/").map(|(stack, _)| stack).filter(|stack| stack.starts_with("/stacks/"))
}

async fn list(State(ui): State<Arc<Ui>>, headers: HeaderMap, uri: Uri, RawQuery(query): RawQuery) -> Response {
    let answer = async { pages::list::answer(&ui, &ui.visitor(&headers)?, query.as_deref().unwrap_or_default()).await };
    let answer = Box::pin(answer).await;
    finish(&ui, &headers, &uri, answer)
}

async fn fleet(State(ui): State<Arc<Ui>>, headers: HeaderMap, uri: Uri) -> Response {
    let answer = async { pages::fleet::answer(&ui, &ui.visitor(&headers)?).await };
    let answer = Box::pin(answer).await;
    finish(&ui, &headers, &uri, answer)
}

async fn stack(
    State(ui): State<Arc<Ui>>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    uri: Uri,
    RawQuery(query): RawQuery,
) -> Response {
    let answer = async {
        check_names(&namespace, &name)?;
        let visitor = ui.visitor(&headers)?;
        pages::stack::answer(&ui, &visitor, (namespace, name), query.as_deref().unwrap_or_default()).await
    };
    let answer = Box::pin(answer).await;
    finish(&ui, &headers, &uri, answer)
}

async fn run(
    State(ui): State<Arc<Ui>>,
    Path((namespace, name, run)): Path<(String, String, String)>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let answer = async {
        check_names(&namespace, &name)?;
        check_names(&namespace, &run)?;
        pages::run::answer(&ui, &ui.visitor(&headers)?, (namespace, name), &run).await
    };
    let answer = Box::pin(answer).await;
    finish(&ui, &headers, &uri, answer)
}

async fn stream(
    State(ui): State<Arc<Ui>>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let answer = async {
        check_names(&namespace, &name)?;
        let visitor = ui.visitor(&headers)?;
        live::run::answer(&ui, visitor, (namespace, name), query.as_deref().unwrap_or_default()).await
    };
    match Box::pin(answer).await {
        Ok(response) => response,
        // The script cannot read the status of the response, so an event tells the script that the session has ended.
        // If the API server has rejected the token of a valid session, the script tries again, because an API server
        // that starts can temporarily reject valid tokens.
        Err(UiError::SignedOut) if !ui.has_session(&headers) => live::run::signed_out(),
        // The script later opens another stream, so the response needs no page.
        Err(error) => status(error.status()),
    }
}

async fn act(
    State(ui): State<Arc<Ui>>,
    Path((namespace, name, action)): Path<(String, String, String)>,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
) -> Response {
    let path = format!("/stacks/{namespace}/{name}");
    let answer = async {
        check_names(&namespace, &name)?;
        actions::answer(&ui, &headers, (namespace, name), &action, body).await
    };
    match Box::pin(answer).await {
        // After the sign-in, the user must repeat the action on the Stack's page.
        Err(UiError::SignedOut) => redirect(&format!("/sign-in?next={path}")),
        answer => finish(&ui, &headers, &uri, answer),
    }
}

async fn sign_in_form(State(ui): State<Arc<Ui>>, RawQuery(query): RawQuery) -> Response {
    let next = sign_in::next(query.as_deref().unwrap_or_default());
    html(StatusCode::OK, frame::sign_in(&ui.cluster_name, &next, ui.oidc.is_some(), None))
}

async fn sign_in(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let (parts, body) = request.into_parts();
    Box::pin(sign_in::answer(&ui, &parts.headers, peer, body)).await
}

async fn oidc_begin(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let (parts, _) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    let answer = Box::pin(oidc_sign_in::begin(&ui, &parts.headers, peer, query)).await;
    finish(&ui, &parts.headers, &parts.uri, answer)
}

async fn oidc_end(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let (parts, _) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    let answer = Box::pin(oidc_sign_in::end(&ui, &parts.headers, peer, query)).await;
    finish(&ui, &parts.headers, &parts.uri, answer)
}

async fn sign_out(State(ui): State<Arc<Ui>>, headers: HeaderMap, uri: Uri, body: Body) -> Response {
    match Box::pin(sign_in::end(&ui, &headers, body)).await {
        // The session has expired, so the sign-out is complete.
        Err(UiError::SignedOut) => redirect("/sign-in"),
        answer => finish(&ui, &headers, &uri, answer),
    }
}

async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("style.css"))
}

async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("script.js"))
}

async fn not_found(State(ui): State<Arc<Ui>>, headers: HeaderMap, uri: Uri) -> Response {
    finish(&ui, &headers, &uri, Err(UiError::NotFound))
}

/// Checks the names in a path. A request with an invalid name could address another object.
fn check_names(namespace: &str, name: &str) -> Result<(), UiError> {
    let is_valid = names::is_object_name(namespace) && names::is_object_name(name);
    is_valid.then_some(()).ok_or(UiError::NotFound)
}

/// Limits of concurrent requests. Hold each lock only for short critical sections, and never across an `.await`.
struct Gate {
    total: Semaphore,
    peers: Mutex<HashMap<IpAddr, usize>>,
    /// Total size of the pending large responses of each peer, in KiB.
    waiting: Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { total: Semaphore::new(MAX_REQUESTS), peers: Mutex::default(), waiting: Arc::default() }
    }
}

/// Slot of a request of a peer. Drop the slot to make it available again.
struct Entered<'a> {
    gate: &'a Gate,
    peer: IpAddr,
}

impl Gate {
    fn enter(&self, peer: IpAddr) -> Option<Entered<'_>> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let count = peers.entry(peer).or_default();
        if *count >= MAX_PER_PEER {
            return None;
        }
        *count += 1;
        Some(Entered { gate: self, peer })
    }

    /// Counts a large response as pending until its client has read the response. Clients that read slowly could
    /// otherwise fill the memory.
    async fn hold(&self, peer: Option<IpAddr>, response: Response) -> Response {
        let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok()).unwrap_or_default();
        let size = (size / 1024).min(MAX_WAITING);
        if size < LARGE {
            return response;
        }
        let Some(held) = Held::new(&self.waiting, peer, size) else { return refused(&UiError::Busy) };
        let (parts, body) = response.into_parts();
        let content = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
        let pieces = futures::stream::unfold((content, held), |(mut rest, held)| async move {
            let piece = rest.split_to(rest.len().min(PART));
            // Copies the piece, because a slice would keep the whole response in memory.
            (!piece.is_empty()).then(|| (Ok::<_, Infallible>(Bytes::copy_from_slice(&piece)), (rest, held)))
        });
        Response::from_parts(parts, Body::from_stream(pieces))
    }
}

/// Memory reservation for a pending large response. Drop the reservation to release the memory.
struct Held {
    waiting: Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
    peer: Option<IpAddr>,
    size: usize,
}

impl Held {
    /// Returns `None` if all peers' pending responses or this peer's pending responses would exceed a limit.
    fn new(waiting: &Arc<Mutex<HashMap<Option<IpAddr>, usize>>>, peer: Option<IpAddr>, size: usize) -> Option<Self> {
        let mut sizes = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = sizes.get(&peer).copied().unwrap_or_default();
        // The first pending response of a peer can exceed the limit per peer.
        let is_first = of_peer == 0;
        if sizes.values().sum::<usize>() + size > MAX_WAITING || !is_first && of_peer + size > MAX_WAITING_PER_PEER {
            return None;
        }
        sizes.insert(peer, of_peer + size);
        Some(Held { waiting: waiting.clone(), peer, size })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut sizes = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = sizes.get(&self.peer).copied().unwrap_or_default().saturating_sub(self.size);
        if rest == 0 {
            sizes.remove(&self.peer);
        } else {
            sizes.insert(self.peer, rest);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut peers = self.gate.peers.lock().unwrap_or_else(PoisonError::into_inner);
        match peers.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                peers.remove(&self.peer);
            }
        }
    }
}

/// Limits the requests, and adds the security headers to all responses.
async fn guard(State((gate, ui)): State<(Arc<Gate>, Arc<Ui>)>, request: Request, next: Next) -> Response {
    let mut response = admit(&gate, &ui, request, next).await;
    let is_limited = response.status() == StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if is_limited {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
    }
    response
}

/// Returns the response to a rejected request.
fn refused(error: &UiError) -> Response {
    html(error.status(), frame::error("", None, &error.to_string(), None))
}

/// Receives the form of a request.
async fn receive(request: Request) -> Result<Request, UiError> {
    if request.method() != Method::POST {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(FORM_TIMEOUT, axum::body::to_bytes(body, MAX_FORM)).await {
        Ok(Ok(form)) => Ok(Request::from_parts(parts, Body::from(form))),
        Ok(Err(_)) | Err(_) => Err(UiError::Form("it is incomplete or larger than 16 KiB")),
    }
}

async fn admit(gate: &Gate, ui: &Ui, request: Request, next: Next) -> Response {
    if request.uri().path_and_query().is_some_and(|path| path.as_str().len() > MAX_URI) {
        return status(StatusCode::URI_TOO_LONG);
    }
    if ![Method::GET, Method::HEAD, Method::POST].contains(request.method()) {
        return status(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !ui.may_request(request.headers()) {
        return refused(&UiError::TooManyRequests);
    }
    // A client that sends a form slowly occupies a connection, but no request slot. The server limits the number of
    // connections separately.
    let request = match receive(request).await {
        Ok(request) => request,
        Err(error) => return refused(&error),
    };
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let entered = peer.map(|peer| gate.enter(peer));
    let (Ok(_slot), false) = (gate.total.try_acquire(), matches!(entered, Some(None))) else {
        return status(StatusCode::SERVICE_UNAVAILABLE);
    };
    let response = tokio::time::timeout(TIMEOUT, next.run(request)).await;
    match response {
        Ok(response) => gate.hold(peer, response).await,
        Err(_) => status(StatusCode::GATEWAY_TIMEOUT),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_failed_action_leads_back_to_its_stack() {
        let rows = [
            ("/stacks/apps/web/actions/approve", Some("/stacks/apps/web")),
            ("/stacks/apps/web", None),
            ("//evil.com/actions/approve", None),
        ];
        for (path, expected) in rows {
            assert_eq!(stack_of_action(path), expected, "{path}");
        }
    }

    #[test]
    fn the_number_of_requests_of_a_peer_is_limited() {
        let gate = Gate::default();
        let (peer, other) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let mut entered: Vec<_> = (0..MAX_PER_PEER).map(|_| gate.enter(peer).unwrap()).collect();
        assert!(gate.enter(peer).is_none() && gate.enter(other).is_some());
        entered.pop();
        entered.push(gate.enter(peer).unwrap());
        drop(entered);
        assert!(gate.peers.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn large_responses_that_no_client_reads_are_limited() {
        const SIZE: usize = 1024 * 1024;
        let gate = Gate::default();
        let page = || Response::new(Body::from("x".repeat(SIZE)));
        let peer = |number: u8| Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)));
        let mut held = Vec::new();
        for number in 0..4 {
            for _ in 0..MAX_WAITING_PER_PEER * 1024 / SIZE {
                let response = gate.hold(peer(number), page()).await;
                assert_eq!(response.status(), StatusCode::OK);
                held.push(response);
            }
            let refused = gate.hold(peer(number), page()).await.status();
            assert_eq!(refused, StatusCode::SERVICE_UNAVAILABLE, "one peer does not fill the memory");
        }
        assert_eq!(gate.hold(peer(5), page()).await.status(), StatusCode::SERVICE_UNAVAILABLE, "all memory is in use");
        assert_eq!(gate.hold(peer(5), Response::new(Body::from("small"))).await.status(), StatusCode::OK);
        let body = axum::body::to_bytes(held.pop().unwrap().into_body(), usize::MAX).await.unwrap();
        assert!(body.len() == SIZE && body.iter().all(|byte| *byte == b'x'));
        assert_eq!(gate.hold(peer(3), page()).await.status(), StatusCode::OK, "the client has read a response");
        drop(held);
        assert!(gate.waiting.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_form_is_rejected_before_it_occupies_a_slot() {
        let endless = futures::stream::pending::<Result<Bytes, Infallible>>();
        let slow = axum::http::Request::post("/sign-in").body(Body::from_stream(endless)).unwrap();
        assert!(matches!(receive(slow).await, Err(UiError::Form(_))));
        let large = axum::http::Request::post("/sign-in").body(Body::from("a".repeat(MAX_FORM + 1))).unwrap();
        assert!(receive(large).await.is_err());
        let form = axum::http::Request::post("/sign-in").body(Body::from("a=1")).unwrap();
        let body = receive(form).await.unwrap().into_body();
        assert_eq!(axum::body::to_bytes(body, MAX_FORM).await.unwrap(), "a=1");
    }
}
