//! OIDC client: discovers the issuer's endpoints, and exchanges an authorization code for an ID token (authorization
//! code flow with PKCE).
//!
//! The token endpoint sends the ID token directly over TLS, so the UI does not need to verify the token's signature
//! (OpenID Connect Core, section 3.1.3.7). The API server verifies the signature with each request.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::header;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use reqwest::{RequestBuilder, Response};
use ring::digest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use url::{Url, form_urlencoded};

use super::error::UiError;
use crate::config::OidcConfig;
use crate::text::chain;

/// Timeout of an issuer request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Lifetime of the cached endpoints.
const TTL: Duration = Duration::from_secs(60 * 60);
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// Maximum size of the client secret file, in bytes.
const MAX_SECRET: usize = 4096;

/// Client of an OIDC issuer.
pub(super) struct Oidc {
    config: OidcConfig,
    http: reqwest::Client,
    endpoints: Mutex<Option<(Endpoints, Instant)>>,
}

/// Endpoints of an issuer.
#[derive(Clone, Debug)]
struct Endpoints {
    authorization: Url,
    token: Url,
}

/// Configuration that an issuer publishes.
#[derive(Deserialize)]
struct Published {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
}

/// Random values of one sign-in.
pub(super) struct Challenge<'a> {
    pub(super) state: &'a str,
    pub(super) nonce: &'a str,
    pub(super) verifier: &'a str,
}

#[derive(Deserialize)]
struct Tokens {
    id_token: String,
}

/// Claims of an ID token that identify the sign-in.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    nonce: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Oidc {
    pub(super) fn new(config: OidcConfig, http: reqwest::Client) -> Self {
        Oidc { config, http, endpoints: Mutex::default() }
    }

    /// Returns the URL at which the user signs in.
    ///
    /// # Errors
    /// Returns an error if the issuer does not respond.
    pub(super) async fn sign_in_url(&self, challenge: &Challenge<'_>) -> Result<Url, UiError> {
        let mut url = self.endpoints().await?.authorization;
        let code_challenge = digest::digest(&digest::SHA256, challenge.verifier.as_bytes());
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.config.client_id)
            .append_pair("redirect_uri", self.config.redirect.as_str())
            .append_pair("scope", &self.config.scopes.join(" "))
            .append_pair("state", challenge.state)
            .append_pair("nonce", challenge.nonce)
            .append_pair("code_challenge", &BASE64_URL_SAFE_NO_PAD.encode(code_challenge))
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Exchanges an authorization code for an ID token.
    ///
    /// # Errors
    /// Returns an error if the issuer rejects the code, or if the token belongs to another sign-in.
    pub(super) async fn id_token(&self, code: &str, challenge: &Challenge<'_>) -> Result<String, UiError> {
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", self.config.redirect.as_str())
            .append_pair("client_id", &self.config.client_id)
            .append_pair("code_verifier", challenge.verifier)
            .finish();
        let endpoint = self.endpoints().await?.token;
        let request = self.http.post(endpoint).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let request = match self.authorization().await? {
            Some(authorization) => request.header(header::AUTHORIZATION, authorization),
            None => request,
        };
        let tokens: Tokens = fetch("exchange the code for an ID token", request.body(form)).await?;
        match is_of_sign_in(&tokens.id_token, &self.config, challenge.nonce) {
            true => Ok(tokens.id_token),
            false => Err(failed("sign in", "the ID token belongs to another issuer, client or sign-in")),
        }
    }

    /// Returns the header with the client credentials. Reads the client secret file for each sign-in, because the file
    /// can change.
    async fn authorization(&self) -> Result<Option<String>, UiError> {
        let Some(path) = &self.config.client_secret_file else { return Ok(None) };
        let secret = tokio::time::timeout(TIMEOUT, tokio::fs::read_to_string(path)).await;
        let secret = match secret {
            Ok(Ok(secret)) if secret.len() <= MAX_SECRET => secret,
            Ok(Ok(_)) => return Err(failed("read the secret of the OIDC client", "the file is too large")),
            Ok(Err(error)) => return Err(failed("read the secret of the OIDC client", &error.to_string())),
            Err(_) => return Err(failed("read the secret of the OIDC client", &timed_out("reading the file"))),
        };
        let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let credentials = format!("{}:{}", encode(&self.config.client_id), encode(secret.trim()));
        Ok(Some(format!("Basic {}", BASE64_STANDARD.encode(credentials))))
    }

    async fn endpoints(&self) -> Result<Endpoints, UiError> {
        let now = Instant::now();
        if let Some(endpoints) = self.cached(now) {
            return Ok(endpoints);
        }
        let request = "read the configuration of the OIDC issuer";
        let address = format!("{}/.well-known/openid-configuration", self.config.issuer.trim_end_matches('/'));
        let published: Published = fetch(request, self.http.get(address)).await?;
        if published.issuer != self.config.issuer {
            return Err(failed(request, "the configuration names another issuer; correct --ui-oidc-issuer"));
        }
        let parse = |text: &str| Url::parse(text).ok().filter(|url| self.is_secure(url));
        let parsed = (parse(&published.authorization_endpoint), parse(&published.token_endpoint));
        let (Some(authorization), Some(token)) = parsed else {
            return Err(failed(request, "the URLs of the endpoints do not use https"));
        };
        let found = Endpoints { authorization, token };
        *self.endpoints.lock().unwrap_or_else(PoisonError::into_inner) = Some((found.clone(), now + TTL));
        Ok(found)
    }

    /// Returns whether an endpoint is at least as secure as the issuer: the endpoint uses TLS, or the issuer does not
    /// use TLS. The flag `--ui-oidc-issuer` permits only issuers with TLS, so only tests use an issuer without TLS.
    fn is_secure(&self, url: &Url) -> bool {
        url.scheme() == "https" || !self.config.issuer.starts_with("https:")
    }

    fn cached(&self, now: Instant) -> Option<Endpoints> {
        let cached = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        cached.as_ref().filter(|(_, expires)| *expires > now).map(|(endpoints, _)| endpoints.clone())
    }
}

fn failed(request: &str, cause: &str) -> UiError {
    UiError::Failed { request: request.to_owned(), cause: cause.to_owned() }
}

fn timed_out(what: &str) -> String {
    format!("{what} timed out after {} seconds; retry later", TIMEOUT.as_secs())
}

/// Returns whether an ID token is from this issuer, and for this client and this sign-in.
fn is_of_sign_in(token: &str, config: &OidcConfig, nonce: &str) -> bool {
    let payload = token.split('.').nth(1).and_then(|payload| BASE64_URL_SAFE_NO_PAD.decode(payload).ok());
    let claims: Option<Claims> = payload.and_then(|payload| serde_json::from_slice(&payload).ok());
    claims.is_some_and(|claims| {
        let is_for_client = match &claims.aud {
            Audience::One(audience) => *audience == config.client_id,
            Audience::Many(audiences) => audiences.contains(&config.client_id),
        };
        claims.iss == config.issuer && is_for_client && claims.nonce.as_deref() == Some(nonce)
    })
}

/// Sends a request, and parses the response. Errors do not contain the response, because the issuer's response can
/// contain tokens.
async fn fetch<T: DeserializeOwned>(request: &'static str, builder: RequestBuilder) -> Result<T, UiError> {
    let exchange = async {
        let response = builder.header(header::ACCEPT, "application/json").send().await;
        let response = response.map_err(|error| failed(request, &chain(&error.without_url())))?;
        if !response.status().is_success() {
            return Err(failed(request, &format!("HTTP status {}", response.status())));
        }
        let body = read(response).await.ok_or_else(|| failed(request, "the response is incomplete or too large"))?;
        serde_json::from_slice(&body).map_err(|_| failed(request, "the response is not valid"))
    };
    let timeout = || failed(request, &timed_out("waiting for the issuer"));
    tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| Err(timeout()))
}

/// Returns the body of a response, or `None` if the body is incomplete or too large.
async fn read(mut response: Response) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_RESPONSE {
            return None;
        }
    }
    Some(body)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> OidcConfig {
        OidcConfig {
            issuer: "https://login.example.com".to_owned(),
            client_id: "pulumi".to_owned(),
            client_secret_file: None,
            scopes: vec!["openid".to_owned()],
            redirect: Url::parse("https://pulumi.example.com/sign-in/oidc/callback").unwrap(),
        }
    }

    #[test]
    fn an_id_token_of_another_sign_in_is_rejected() {
        let rows = [
            (json!({ "iss": "https://login.example.com", "aud": "pulumi", "nonce": "n" }), true),
            (json!({ "iss": "https://login.example.com", "aud": ["a", "pulumi"], "nonce": "n" }), true),
            (json!({ "iss": "https://login.example.com/", "aud": "pulumi", "nonce": "n" }), false),
            (json!({ "iss": "https://login.example.com", "aud": "other", "nonce": "n" }), false),
            (json!({ "iss": "https://login.example.com", "aud": "pulumi", "nonce": "other" }), false),
            (json!({ "iss": "https://login.example.com", "aud": "pulumi" }), false),
            (json!([]), false),
        ];
        for (claims, expected) in rows {
            let token = format!("e30.{}.sig", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));
            assert_eq!(is_of_sign_in(&token, &config(), "n"), expected, "{claims}");
        }
        assert!(!is_of_sign_in("token", &config(), "n"));
    }
}
