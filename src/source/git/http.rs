//! Git over HTTP: sends the protocol library's requests with an HTTP client, and enforces the connection limits.

use std::any::Any;
use std::io::{self, BufRead, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gix_transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use reqwest::{Method, Response, StatusCode};
use url::Url;

use crate::source::git::budget::Budget;
use crate::source::git::error::GitError;
use crate::text::chain;

/// User agent of the HTTP client. Some servers accept only clients whose user agent starts with `git/`.
const AGENT: &str = concat!("git/pulumi-controller-", env!("CARGO_PKG_VERSION"));
/// Backoff after a response with status 429 or 503. The first value applies if the response has no `Retry-After`
/// header. The second value is the maximum for the time in this header.
const RETRY_AFTER_RANGE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30 * 60));
/// Maximum size of a request body, in bytes.
const MAX_REQUEST: usize = 1 << 20;

/// An HTTP connection to a repository.
pub struct Connection {
    client: reqwest::Client,
    budget: Arc<Budget>,
    /// The only origin that may receive the credentials, and the `Authorization` header with the credentials.
    authorization: Option<(url::Origin, HeaderValue)>,
    /// Whether the credentials contain more than an access token.
    has_user: bool,
    /// The base URL after redirects. `None` if this URL equals the requested base URL.
    base: Option<String>,
}

impl Connection {
    /// Creates a connection. `has_user` is `false` if the credentials consist only of an access token.
    pub fn new(
        client: reqwest::Client,
        budget: Arc<Budget>,
        url: &Url,
        authorization: Option<HeaderValue>,
        has_user: bool,
    ) -> Self {
        let authorization = authorization.map(|value| (url.origin(), value));
        Self { client, budget, authorization, has_user, base: None }
    }

    fn exchange(&self, method: Method, url: &str, headers: HeaderMap) -> Exchange {
        let authorization = Url::parse(url).ok().and_then(|url| {
            let (origin, value) = self.authorization.as_ref()?;
            (url.origin() == *origin).then(|| value.clone())
        });
        Exchange {
            client: self.client.clone(),
            budget: Arc::clone(&self.budget),
            refused: match authorization {
                None => GitError::CredentialsMissing,
                Some(_) if self.has_user => GitError::CredentialsRefused,
                Some(_) => GitError::TokenRefused,
            },
            state: State::Collecting {
                method,
                url: url.to_owned(),
                headers: with_authorization(headers, authorization),
                body: Vec::new(),
            },
        }
    }
}

fn with_authorization(mut headers: HeaderMap, authorization: Option<HeaderValue>) -> HeaderMap {
    if let Some(value) = authorization {
        headers.insert(AUTHORIZATION, value);
    }
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers
}

/// Parses the header lines that the protocol library passes.
fn parse_headers(lines: impl IntoIterator<Item = impl AsRef<str>>) -> HeaderMap {
    let pairs = lines.into_iter().filter_map(|line| {
        let (name, value) = line.as_ref().split_once(':')?;
        let name: HeaderName = name.trim().parse().ok()?;
        Some((name, HeaderValue::from_str(value.trim()).ok()?))
    });
    pairs.collect()
}

impl Http for Connection {
    type Headers = ResponseHeaders;
    type ResponseBody = ResponseBody;
    type PostBody = RequestBody;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix_error::Result<GetResponse<Self::Headers, Self::ResponseBody>> {
        let mut exchange = self.exchange(Method::GET, url, parse_headers(headers));
        let final_url = exchange.send().map_err(gix_error::Error::from_error)?;
        let tail = url.strip_prefix(base_url).unwrap_or(url);
        match final_url.as_str().strip_suffix(tail) {
            Some(base) if base != base_url => self.base = Some(base.to_owned()),
            Some(_) => {}
            None => {
                let message =
                    "server redirects to a URL that is not a repository: correct the URL of the repository".to_owned();
                return Err(gix_error::Error::from_error(self.budget.fail(GitError::Protocol(message))));
            }
        }
        let exchange = Arc::new(Mutex::new(exchange));
        let body = ResponseBody::new(Arc::clone(&exchange));
        Ok(GetResponse { headers: ResponseHeaders::new(exchange), body })
    }

    fn post(
        &mut self,
        url: &str,
        _base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _body: PostBodyDataKind,
    ) -> gix_error::Result<PostResponse<Self::Headers, Self::ResponseBody, Self::PostBody>> {
        let exchange = Arc::new(Mutex::new(self.exchange(Method::POST, url, parse_headers(headers))));
        Ok(PostResponse {
            post_body: RequestBody(Arc::clone(&exchange)),
            headers: ResponseHeaders::new(Arc::clone(&exchange)),
            body: ResponseBody::new(exchange),
        })
    }

    fn configure(&mut self, _config: &dyn Any) -> gix_error::Result {
        Ok(())
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.base.clone()
    }
}

/// An HTTP request and its response.
struct Exchange {
    client: reqwest::Client,
    budget: Arc<Budget>,
    /// Returns the error for a response with the status 401.
    refused: fn(String) -> GitError,
    state: State,
}

enum State {
    Collecting { method: Method, url: String, headers: HeaderMap, body: Vec<u8> },
    Responded { content_type: String, response: Option<Response> },
    Failed,
}

impl Exchange {
    /// Sends the request. Returns the URL after redirects.
    fn send(&mut self) -> io::Result<String> {
        let State::Collecting { method, url, headers, body } = std::mem::replace(&mut self.state, State::Failed) else {
            return Err(io::Error::other("request was already sent"));
        };
        let request = self.client.request(method, &url).headers(headers).body(body).send();
        let response = self.budget.wait(request)?;
        let unreachable = |error: reqwest::Error| GitError::Unreachable(chain(&error.without_url()));
        let response = response.map_err(|error| self.budget.fail(unreachable(error)))?;
        if let Some(error) = refusal(&response, self.refused) {
            return Err(self.budget.fail(error));
        }
        let final_url = response.url().to_string();
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        self.state = State::Responded { content_type, response: Some(response) };
        Ok(final_url)
    }

    fn ensure_sent(&mut self) -> io::Result<()> {
        if matches!(self.state, State::Collecting { .. }) { self.send().map(drop) } else { Ok(()) }
    }
}

/// Returns the error that corresponds to a response with an error status. `unauthorized` returns the error for the
/// status 401.
fn refusal(response: &Response, unauthorized: fn(String) -> GitError) -> Option<GitError> {
    let status = response.status();
    let text = format!("HTTP {}", status.as_u16());
    match status {
        status if status.is_success() => None,
        StatusCode::UNAUTHORIZED => Some(unauthorized(text)),
        StatusCode::FORBIDDEN => Some(GitError::CredentialsRefused(text)),
        StatusCode::NOT_FOUND | StatusCode::GONE => Some(GitError::NotFound(text)),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Some(busy(status, retry_after(response.headers())))
        }
        status => Some(GitError::Status(status.as_u16())),
    }
}

/// Returns the delay in the header `Retry-After`, or `None` if the header is not a number of seconds.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Returns the error for a server that limits the rate of requests. `requested` is the delay that the server requests.
pub fn busy(status: StatusCode, requested: Option<Duration>) -> GitError {
    let (default, most) = RETRY_AFTER_RANGE;
    let after = requested.unwrap_or(default).clamp(Duration::from_secs(1), most);
    GitError::Busy { status: status.as_u16(), after }
}

type Shared = Arc<Mutex<Exchange>>;

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Exchange> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A writer that collects the request body.
pub struct RequestBody(Shared);

impl Write for RequestBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut lock(&self.0).state {
            State::Collecting { body, .. } if body.len() + bytes.len() <= MAX_REQUEST => {
                body.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            State::Collecting { .. } => Err(io::Error::other("request exceeds the limit")),
            _ => Err(io::Error::other("request was already sent")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader for the response headers. Returns only the `Content-Type` line, because the protocol library uses no other
/// header. The first read from the headers or from the body sends the request.
pub struct ResponseHeaders {
    exchange: Shared,
    line: Option<io::Cursor<Vec<u8>>>,
}

impl ResponseHeaders {
    fn new(exchange: Shared) -> Self {
        Self { exchange, line: None }
    }

    fn line(&mut self) -> io::Result<&mut io::Cursor<Vec<u8>>> {
        if self.line.is_none() {
            let mut exchange = lock(&self.exchange);
            exchange.ensure_sent()?;
            if let State::Responded { content_type, .. } = &exchange.state {
                self.line = Some(io::Cursor::new(format!("Content-Type: {content_type}\n").into_bytes()));
            }
        }
        self.line.as_mut().ok_or_else(|| io::Error::other("no response"))
    }
}

impl Read for ResponseHeaders {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.line()?.read(buffer)
    }
}

impl BufRead for ResponseHeaders {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.line()?.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        if let Some(line) = &mut self.line {
            line.consume(amount);
        }
    }
}

/// A reader for the response body. Enforces the budget's limits.
pub struct ResponseBody {
    exchange: Shared,
    response: Option<Response>,
    chunk: io::Cursor<Vec<u8>>,
}

impl ResponseBody {
    fn new(exchange: Shared) -> Self {
        Self { exchange, response: None, chunk: io::Cursor::default() }
    }

    fn next(&mut self) -> io::Result<Vec<u8>> {
        let mut exchange = lock(&self.exchange);
        exchange.ensure_sent()?;
        if self.response.is_none()
            && let State::Responded { response, .. } = &mut exchange.state
        {
            self.response = response.take();
        }
        let budget = Arc::clone(&exchange.budget);
        drop(exchange);
        let Some(response) = &mut self.response else { return Ok(Vec::new()) };
        let chunk = budget.wait(response.chunk())?;
        let broken = |error: reqwest::Error| GitError::Unreachable(chain(&error.without_url()));
        let chunk = chunk.map_err(|error| budget.fail(broken(error)))?.unwrap_or_default().to_vec();
        budget.spend(chunk.len())?;
        Ok(chunk)
    }
}

impl Read for ResponseBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(buffer.len());
        let (from, to) = (available.get(..count).unwrap_or_default(), buffer.get_mut(..count).unwrap_or_default());
        to.copy_from_slice(from);
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for ResponseBody {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.chunk.fill_buf()?.is_empty() {
            self.chunk = io::Cursor::new(self.next()?);
        }
        self.chunk.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.chunk.consume(amount);
    }
}
