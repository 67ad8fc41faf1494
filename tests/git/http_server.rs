//! HTTP server that runs `git http-backend`. The server counts requests, and optionally requires credentials.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use base64::Engine as _;
use tokio::io::AsyncWriteExt;

use crate::repository::Repository;

/// Maximum size of a request, in bytes.
const MAX_REQUEST: usize = 16 << 20;

pub struct Server {
    pub address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    login: Mutex<Option<(String, String)>>,
    lists: AtomicUsize,
    fetches: AtomicUsize,
    /// Whether the server redirects requests for `/moved` to the repository.
    redirects: bool,
}

impl Server {
    /// Starts a server with a repository at `/app`.
    pub async fn of(repository: &Repository) -> Self {
        Self::start(repository, None, false).await
    }

    /// Starts a server whose repository requires these credentials. If `user` is empty, the server requires `password`
    /// as a bearer token.
    pub async fn private(repository: &Repository, user: &str, password: &str) -> Self {
        Self::start(repository, Some((user.to_owned(), password.to_owned())), false).await
    }

    /// Starts a server with a repository at `/app`. The server redirects `/moved/app` to `/app`.
    pub async fn redirecting(repository: &Repository) -> Self {
        Self::start(repository, None, true).await
    }

    async fn start(repository: &Repository, login: Option<(String, String)>, redirects: bool) -> Self {
        let shared = Arc::new(Shared {
            root: repository.root().to_owned(),
            login: Mutex::new(login),
            lists: AtomicUsize::new(0),
            fetches: AtomicUsize::new(0),
            redirects,
        });
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Server { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}/app", self.address)
    }

    /// Replaces the required credentials.
    pub fn set_login(&self, user: &str, password: &str) {
        *self.shared.login.lock().unwrap() = Some((user.to_owned(), password.to_owned()));
    }

    /// Returns the number of capability requests and the number of fetches.
    pub fn requests(&self) -> (usize, usize) {
        (self.shared.lists.load(Ordering::SeqCst), self.shared.fetches.load(Ordering::SeqCst))
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    if let Some(rest) = path.strip_prefix("/moved").filter(|_| shared.redirects) {
        let to = format!("{rest}?{query}");
        return Response::builder().status(302).header("Location", to).body(Body::empty()).unwrap();
    }
    let login = shared.login.lock().unwrap().clone();
    if let Some((user, password)) = login {
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        let expected = if user.is_empty() { format!("Bearer {password}") } else { format!("Basic {encoded}") };
        let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        if given != Some(expected.as_str()) {
            let response = Response::builder().status(401).header(WWW_AUTHENTICATE, "Basic realm=\"git\"");
            return response.body(Body::from("hidden words of the server")).unwrap();
        }
    }
    if path.ends_with("/info/refs") {
        shared.lists.fetch_add(1, Ordering::SeqCst);
    }
    backend(&shared, &path, &query, request).await
}

async fn backend(shared: &Shared, path: &str, query: &str, request: Request) -> Response<Body> {
    let mut command = tokio::process::Command::new("git");
    command.arg("http-backend").env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    for (name, value) in [
        ("GIT_PROJECT_ROOT", shared.root.display().to_string()),
        ("GIT_HTTP_EXPORT_ALL", "1".to_owned()),
        ("GIT_CONFIG_NOSYSTEM", "1".to_owned()),
        ("GIT_CONFIG_COUNT", "1".to_owned()),
        ("GIT_CONFIG_KEY_0", "safe.directory".to_owned()),
        ("GIT_CONFIG_VALUE_0", "*".to_owned()),
        ("PATH_INFO", path.to_owned()),
        ("QUERY_STRING", query.to_owned()),
        ("REQUEST_METHOD", request.method().to_string()),
        ("CONTENT_TYPE", header(&request, CONTENT_TYPE)),
        ("GIT_PROTOCOL", header(&request, HeaderName::from_static("git-protocol"))),
    ] {
        command.env(name, value);
    }
    let body = to_bytes(request.into_body(), MAX_REQUEST).await.unwrap();
    if body.windows(13).any(|part| part == b"command=fetch") {
        shared.fetches.fetch_add(1, Ordering::SeqCst);
    }
    command.env("CONTENT_LENGTH", body.len().to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let written = tokio::spawn(async move {
        let _ = stdin.write_all(&body).await;
    });
    let output = child.wait_with_output().await.unwrap();
    let _ = written.await;
    response(&output.stdout)
}

fn header(request: &Request, name: HeaderName) -> String {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// Converts a CGI program's output to a response.
fn response(output: &[u8]) -> Response<Body> {
    let end = output.windows(4).position(|part| part == b"\r\n\r\n").expect("end of the headers");
    let mut response = Response::new(Body::from(output[end + 4..].to_vec()));
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        let (name, value) = line.split_once(':').expect("a header");
        if name.eq_ignore_ascii_case("status") {
            let code = value.trim().split(' ').next().unwrap_or_default();
            *response.status_mut() = StatusCode::from_bytes(code.as_bytes()).unwrap();
        } else {
            response
                .headers_mut()
                .insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value.trim()).unwrap());
        }
    }
    response
}
