//! A minimal GitHub API, which exchanges a GitHub App's signed JWT for a token.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde_json::{Value, json};

pub struct GitHub {
    pub base_url: String,
    pub exchanges: Arc<AtomicUsize>,
    pub token: Arc<Mutex<String>>,
}

#[derive(Clone)]
struct Api {
    /// The App's public key as PKCS#1.
    key: Arc<Vec<u8>>,
    exchanges: Arc<AtomicUsize>,
    token: Arc<Mutex<String>>,
}

impl GitHub {
    /// Starts an API server that accepts only the GitHub App 12 and its installation 34.
    pub async fn start(key: Vec<u8>, token: &str) -> Self {
        let (exchanges, token) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(token.to_owned())));
        let api = Api { key: Arc::new(key), exchanges: Arc::clone(&exchanges), token: Arc::clone(&token) };
        let router =
            Router::new().route("/api/v3/app/installations/{id}/access_tokens", post(exchange)).with_state(api);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/api/v3", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        GitHub { base_url, exchanges, token }
    }

    pub fn exchanges(&self) -> usize {
        self.exchanges.load(Ordering::SeqCst)
    }
}

async fn exchange(State(api): State<Api>, Path(id): Path<String>, headers: HeaderMap) -> (StatusCode, String) {
    let refused = |status, why: &str| (status, json!({"message": why}).to_string());
    let Some(claims) = claims(&api, &headers) else { return refused(StatusCode::UNAUTHORIZED, "bad signature") };
    let now = Timestamp::now().as_second();
    let number = |name: &str| claims[name].as_i64().unwrap_or_default();
    if claims["iss"] != "12" || number("iat") > now || number("exp") < now || number("exp") - number("iat") > 600 {
        return refused(StatusCode::UNAUTHORIZED, "bad claims");
    }
    if id != "34" {
        return refused(StatusCode::NOT_FOUND, "no such installation");
    }
    api.exchanges.fetch_add(1, Ordering::SeqCst);
    let ends = Timestamp::now() + SignedDuration::from_hours(1);
    let token = api.token.lock().unwrap().clone();
    (StatusCode::CREATED, json!({"token": token, "expires_at": ends.to_string()}).to_string())
}

/// Returns the JWT's claims if the signature matches the App's key.
fn claims(api: &Api, headers: &HeaderMap) -> Option<Value> {
    let statement = headers.get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")?.to_owned();
    let (text, signature) = statement.rsplit_once('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, api.key.as_slice());
    key.verify(text.as_bytes(), &signature).ok()?;
    let (_, claims) = text.split_once('.')?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}
