//! Authenticates as a GitHub App: exchanges a signed JWT for an installation token, which grants read access to the
//! repository for one hour.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::source::git::error::GitError;
use crate::text::chain;

/// User name for installation tokens.
pub const TOKEN_USER: &str = "x-access-token";
/// Timeout for exchanging a JWT for a token.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// Minimum remaining lifetime for a cached token. The controller replaces a cached token that expires earlier.
const MIN_REMAINING_LIFETIME: SignedDuration = SignedDuration::from_mins(5);
/// Maximum number of cached tokens.
const MAX_TOKENS: usize = 1000;

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
        if let Some((token, expires_at)) = self.lock().get(&cache_key)
            && now + MIN_REMAINING_LIFETIME < *expires_at
        {
            return Ok(token.clone());
        }
        let TokenResponse { token, expires_at } = exchange(app, client, now).await?;
        let mut cached = self.lock();
        cached.retain(|_, (_, expires_at)| now < *expires_at);
        if cached.len() < MAX_TOKENS {
            cached.insert(cache_key, (token.clone(), expires_at));
        }
        Ok(token)
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
    let host = app.api.host_str().unwrap_or_default();
    let about = |why: String| {
        GitError::Credentials(format!("failed to get a token for GitHub App {} from {host}: {why}", app.id))
    };
    let request = client
        .post(app.exchange_url())
        .bearer_auth(app.jwt(now)?)
        .header("Accept", "application/vnd.github+json")
        .header("X-GitHub-Api-Version", "2022-11-28")
        .timeout(TIMEOUT);
    let mut response = request.send().await.map_err(|error| GitError::Unreachable(chain(&error.without_url())))?;
    let status = response.status();
    if !status.is_success() {
        return Err(about(match status.as_u16() {
            401 => "the private key does not match the appID, or the clock of the controller is wrong (HTTP 401)"
                .to_owned(),
            403 => {
                "access denied (HTTP 403): the installation may be suspended, or it may have exceeded the rate limit"
                    .to_owned()
            }
            404 => format!("installation {} of the App not found (HTTP 404)", app.installation),
            other => format!("HTTP status {other}"),
        }));
    }
    let mut body = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| GitError::Unreachable(chain(&error.without_url())))?
    {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_RESPONSE {
            return Err(about("response exceeds the limit".to_owned()));
        }
    }
    serde_json::from_slice(&body).map_err(|_| about("response has no token".to_owned()))
}

#[cfg(test)]
mod tests {
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
