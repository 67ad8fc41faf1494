//! Authenticates as a GitHub App: exchanges a signed JWT for an installation token, which grants read access to the
//! repository for one hour.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::source::git::error::GitError;
use crate::source::git::http::{busy, retry_after};
use crate::text::chain;

/// User name for installation tokens.
pub const TOKEN_USER: &str = "x-access-token";
/// Timeout for exchanging a JWT for a token.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// Minimum remaining lifetime for a cached token. The controller replaces a cached token that expires earlier.
const MIN_REMAINING_LIFETIME: SignedDuration = SignedDuration::from_mins(5);
/// Maximum time for which the controller caches a token, which is the lifetime of the tokens from GitHub. A user can
/// specify another API, whose tokens could otherwise fill the cache permanently.
const MAX_LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// Maximum number of cached tokens.
const MAX_TOKENS: usize = 1000;
/// Maximum length of a cached token, in bytes.
const MAX_TOKEN_LENGTH: usize = 4096;

/// An installation of a GitHub App.
#[derive(Clone)]
pub struct App {
    id: String,
    installation: String,
    private_key: String,
    api: Url,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("id", &self.id).field("api", &self.api.as_str()).finish_non_exhaustive()
    }
}

/// Returns whether the controller may send a token to this API. The URL must use HTTPS, unless the host is localhost.
fn is_safe(api: &Url) -> bool {
    let is_local_host = matches!(api.host_str(), Some("127.0.0.1" | "[::1]" | "localhost"));
    api.scheme() == "https" || (api.scheme() == "http" && is_local_host)
}

impl App {
    /// Validates the App settings. If `base_url` is missing, derives the API URL from the repository host.
    pub fn new(
        id: String,
        installation: String,
        private_key: String,
        base_url: Option<&str>,
        host: &str,
    ) -> Result<Self, String> {
        let is_plain =
            |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
        if !is_plain(&id) {
            return Err("invalid appID of the GitHub App: must be a number or a client ID".to_owned());
        }
        if installation.is_empty() || !installation.bytes().all(|b| b.is_ascii_digit()) {
            return Err("invalid installationID of the GitHub App: must be a number".to_owned());
        }
        let text = match base_url.map(str::trim).filter(|text| !text.is_empty()) {
            Some(given) => given.to_owned(),
            None if host == "github.com" => "https://api.github.com".to_owned(),
            None => format!("https://{host}/api/v3"),
        };
        let refused = || format!("invalid baseURL {text:?} of the GitHub App: must be an https URL");
        let api = Url::parse(&text).map_err(|_| refused())?;
        if !is_safe(&api) || !api.has_host() || !api.username().is_empty() || api.password().is_some() {
            return Err(refused());
        }
        Ok(Self { id, installation, private_key, api })
    }

    /// Returns the cache key for the token.
    fn cache_key(&self) -> [u8; 32] {
        let parts = [self.api.as_str(), &self.id, &self.installation, &self.private_key];
        Sha256::digest(parts.join("\0")).into()
    }

    /// Returns a signed JWT that identifies the App.
    fn jwt(&self, now: Timestamp) -> Result<String, GitError> {
        let refused =
            |why: &str| GitError::Credentials(format!("invalid private key of GitHub App {}: {why}", self.id));
        let key = match PrivateKeyDer::from_pem_slice(self.private_key.as_bytes()) {
            Ok(PrivateKeyDer::Pkcs1(key)) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
            Ok(PrivateKeyDer::Pkcs8(key)) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
            _ => return Err(refused("must be an RSA key in PEM format (PKCS#1 or PKCS#8)")),
        };
        let key = key.map_err(|error| refused(&error.to_string()))?;
        // Backdates the JWT by 60 s, because clocks can differ and GitHub rejects a JWT from the future.
        let issued = now.as_second() - 60;
        let header = json!({"alg": "RS256", "typ": "JWT"});
        let claims = json!({"iat": issued, "exp": issued + 600, "iss": self.id});
        let encoded = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encoded(&header), encoded(&claims));
        let mut signature = vec![0; key.public().modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
            .map_err(|_| refused("signing failed"))?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    pub fn api(&self) -> &Url {
        &self.api
    }

    /// Returns the message for a failed exchange.
    fn exchange_failed(&self, why: &str) -> String {
        let host = self.api.host_str().unwrap_or_default();
        format!("failed to get a token for GitHub App {} from {host}: {why}", self.id)
    }

    fn exchange_url(&self) -> String {
        format!("{}/app/installations/{}/access_tokens", self.api.as_str().trim_end_matches('/'), self.installation)
    }
}

/// The response to a request that exchanges a JWT for a token.
#[derive(Deserialize)]
struct TokenResponse {
    token: String,
    expires_at: Timestamp,
}

/// A cache for installation tokens.
#[derive(Default)]
pub struct Tokens {
    cached: Mutex<HashMap<[u8; 32], (String, Timestamp)>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl Tokens {
    /// Returns the cached token for the installation, or requests a new token.
    pub async fn token(&self, app: &App, client: &reqwest::Client) -> Result<String, GitError> {
        let (cache_key, now) = (app.cache_key(), Timestamp::now());
        if let Some(token) = self.find(&cache_key, now) {
            return Ok(token);
        }
        let TokenResponse { token, expires_at } = exchange(app, client, now).await?;
        self.keep(cache_key, &token, expires_at, now);
        Ok(token)
    }

    fn find(&self, cache_key: &[u8; 32], now: Timestamp) -> Option<String> {
        let cached = self.lock();
        let (token, expires_at) = cached.get(cache_key)?;
        (now + MIN_REMAINING_LIFETIME < *expires_at).then(|| token.clone())
    }

    fn keep(&self, cache_key: [u8; 32], token: &str, expires_at: Timestamp, now: Timestamp) {
        let mut cached = self.lock();
        cached.retain(|_, (_, expires_at)| now < *expires_at);
        if cached.len() < MAX_TOKENS && token.len() <= MAX_TOKEN_LENGTH {
            cached.insert(cache_key, (token.to_owned(), expires_at.min(now + MAX_LIFETIME)));
        }
    }

    /// Discards all cached tokens. Call this function after a server has rejected a token, because a user may have
    /// revoked the token.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], (String, Timestamp)>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn exchange(app: &App, client: &reqwest::Client, now: Timestamp) -> Result<TokenResponse, GitError> {
    let request = client
        .post(app.exchange_url())
        .bearer_auth(app.jwt(now)?)
        .header("Accept", "application/vnd.github+json")
        .header("X-GitHub-Api-Version", "2022-11-28")
        .timeout(TIMEOUT);
    let response = request.send().await.map_err(unreachable)?;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = read_body(response).await?;
    if !status.is_success() {
        return Err(refusal(app, status, &headers, &body, now));
    }
    let invalid = |why: &str| GitError::Credentials(app.exchange_failed(why));
    if body.len() > MAX_RESPONSE {
        return Err(invalid("response exceeds the limit"));
    }
    serde_json::from_slice(&body).map_err(|_| invalid("response has no token"))
}

fn unreachable(error: reqwest::Error) -> GitError {
    GitError::Unreachable(chain(&error.without_url()))
}

/// Reads the body of a response until its size exceeds the limit.
async fn read_body(mut response: reqwest::Response) -> Result<Vec<u8>, GitError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_RESPONSE {
            break;
        }
    }
    Ok(body)
}

/// Returns the error that corresponds to a response with an error status.
fn refusal(app: &App, status: StatusCode, headers: &HeaderMap, body: &[u8], now: Timestamp) -> GitError {
    let requested = requested_delay(headers, now);
    let why = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => return busy(status, requested),
        StatusCode::FORBIDDEN if requested.is_some() || names_rate_limit(body) => return busy(status, requested),
        status if status.is_server_error() => {
            let why = format!("HTTP status {}", status.as_u16());
            return GitError::CredentialsUnavailable(app.exchange_failed(&why));
        }
        StatusCode::UNAUTHORIZED => {
            "the private key does not match the appID, or the clock of the controller is wrong (HTTP 401)".to_owned()
        }
        StatusCode::FORBIDDEN => "access denied (HTTP 403): the installation may be suspended".to_owned(),
        StatusCode::NOT_FOUND => format!("installation {} of the App not found (HTTP 404)", app.installation),
        other => format!("HTTP status {}", other.as_u16()),
    };
    GitError::Credentials(app.exchange_failed(&why))
}

/// Returns the delay that GitHub requests because of an exceeded rate limit.
fn requested_delay(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
    retry_after(headers).or_else(|| {
        let reset = number("x-ratelimit-reset").filter(|_| number("x-ratelimit-remaining") == Some(0))?;
        u64::try_from(reset.saturating_sub(now.as_second())).ok().map(Duration::from_secs)
    })
}

/// Returns whether the message of an error response is about a rate limit. Not every such response has the headers.
fn names_rate_limit(body: &[u8]) -> bool {
    String::from_utf8_lossy(body).to_lowercase().contains("rate limit")
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn app(base_url: Option<&str>, host: &str) -> Result<App, String> {
        App::new("12".to_owned(), "34".to_owned(), String::new(), base_url, host)
    }

    #[test]
    fn the_api_url_is_derived_from_the_host() {
        let rows = [
            (None, "github.com", "https://api.github.com/app/installations/34/access_tokens"),
            (None, "ghe.example", "https://ghe.example/api/v3/app/installations/34/access_tokens"),
            (Some("https://a.example/v3/"), "x", "https://a.example/v3/app/installations/34/access_tokens"),
        ];
        for (base, host, expected) in rows {
            assert_eq!(app(base, host).unwrap().exchange_url(), expected);
        }
        for base in ["ftp://a", "http://a", "nothing", "https://u:p@a"] {
            assert!(app(Some(base), "x").unwrap_err().contains("baseURL"), "{base}");
        }
    }

    #[test]
    fn the_lifetime_and_the_length_of_cached_tokens_are_limited() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let long = "t".repeat(MAX_TOKEN_LENGTH + 1);
        // Columns: the token, its lifetime, and the age at which the cache still contains and no longer contains it.
        for (token, lifetime, cached, dropped) in
            [("t", 600, Some(299), 301), ("t", 1_000_000_000, Some(3299), 3301), (long.as_str(), 600, None, 0)]
        {
            let tokens = Tokens::default();
            tokens.keep([0; 32], token, at(lifetime), at(0));
            let found = |age: i64| tokens.find(&[0; 32], at(age));
            assert!(cached.is_none_or(|age| found(age).as_deref() == Some(token)), "{lifetime}");
            assert_eq!(found(dropped), None, "{lifetime}");
        }
    }

    #[test]
    fn an_error_response_needs_user_action_unless_it_is_temporary() {
        let app = app(None, "github.com").unwrap();
        let now = Timestamp::from_second(1_000_000).unwrap();
        let limited = r#"{"message": "You have exceeded a secondary rate limit"}"#;
        // Columns: the status, the headers, the body, whether the error is stalled, and the end of its message.
        let rows: [(u16, &[(&'static str, &'static str)], &str, bool, &str); 12] = [
            (401, &[], "", true, "(HTTP 401)"),
            (403, &[], r#"{"message": "suspended"}"#, true, "the installation may be suspended"),
            (403, &[("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "1000090")], "", true, "may be suspended"),
            (404, &[], "", true, "installation 34 of the App not found (HTTP 404)"),
            (422, &[], "", true, "from api.github.com: HTTP status 422"),
            (403, &[("retry-after", "7")], "", false, "(HTTP 403): retrying after 7 s"),
            (403, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1000090")], "", false, "after 90 s"),
            (403, &[], limited, false, "(HTTP 403): retrying after 60 s"),
            (429, &[("retry-after", "0")], "", false, "(HTTP 429): retrying after 1 s"),
            (503, &[("retry-after", "9999")], "", false, "(HTTP 503): retrying after 1800 s"),
            (500, &[], "", false, "from api.github.com: HTTP status 500"),
            (502, &[], limited, false, "from api.github.com: HTTP status 502"),
        ];
        for (status, headers, body, is_stalled, expected) in rows {
            let named = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
            let headers: HeaderMap = headers.iter().map(named).collect();
            let status = StatusCode::from_u16(status).unwrap();
            let error = refusal(&app, status, &headers, body.as_bytes(), now);
            assert_eq!(error.is_stalled(), is_stalled, "{error}");
            assert!(error.to_string().ends_with(expected), "{error}");
            assert_eq!(error.is_transient(), matches!(status.as_u16(), 500 | 502), "{error}");
        }
    }

    #[test]
    fn a_github_app_id_that_would_change_the_url_path_is_rejected() {
        let with = |id: &str, installation: &str| {
            App::new(id.to_owned(), installation.to_owned(), String::new(), None, "github.com").map(drop)
        };
        assert!(with("Iv23liABC.x", "1").is_ok());
        assert!(with("12", "../..").unwrap_err().contains("installationID"));
        assert!(with("1/2", "1").unwrap_err().contains("appID"));
    }

    #[test]
    fn the_error_for_an_invalid_key_does_not_reveal_the_key() {
        let key = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----".to_owned();
        let app = App::new("12".to_owned(), "34".to_owned(), key, None, "github.com").unwrap();
        let message = app.jwt(Timestamp::now()).unwrap_err().to_string();
        assert!(message.contains("invalid private key of GitHub App 12") && !message.contains("hunter2"), "{message}");
        assert!(!format!("{app:?}").contains("hunter2"));
    }
}
