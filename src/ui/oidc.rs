//! OIDC client: discovers the issuer's endpoints, and exchanges an authorization code for an ID token (authorization
//! code flow with PKCE).
//!
//! The token endpoint sends the ID token directly over TLS, so the UI does not need to verify the token's signature
//! (OpenID Connect Core, section 3.1.3.7). The API server verifies the signature with each request.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderValue, Method, header};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use reqwest::Request;
use ring::digest;
use serde::Deserialize;
use tokio::time::Instant;
use url::{Url, form_urlencoded};

use super::error::UiError;
use super::issuer_client::{IssuerClient, failed, read_file};
use crate::config::OidcConfig;
use crate::http_client::Proxies;

/// Lifetime of the cached endpoints.
const TTL: Duration = Duration::from_secs(60 * 60);
/// Maximum size of the client secret file, in bytes.
const MAX_SECRET: u64 = 4096;
/// Maximum number of authentication methods that the UI reads from the configuration of the issuer.
const MAX_METHODS: usize = 32;

/// Client of an OIDC issuer.
pub(super) struct Oidc {
    config: OidcConfig,
    client: IssuerClient,
    endpoints: Mutex<Option<(Endpoints, Instant)>>,
}

/// Endpoints of an issuer.
#[derive(Clone, Debug)]
struct Endpoints {
    authorization: Url,
    token: Url,
    secret_in: SecretIn,
}

/// Part of a token request that contains the client secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecretIn {
    /// The header `Authorization` (`client_secret_basic`).
    Header,
    /// The form (`client_secret_post`).
    Form,
}

/// Configuration that an issuer publishes.
#[derive(Deserialize)]
struct Published {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
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
    pub(super) fn new(config: OidcConfig, proxies: Proxies) -> Self {
        let client = IssuerClient::new(config.ca_file.clone(), proxies);
        Oidc { config, client, endpoints: Mutex::default() }
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
        let endpoints = self.endpoints().await?;
        let secret = self.secret().await?;
        let request = self.token_request(endpoints, code, challenge, secret.as_deref())?;
        let tokens: Tokens = self.client.fetch("exchange the code for an ID token", request).await?;
        match is_of_sign_in(&tokens.id_token, &self.config, challenge.nonce) {
            true => Ok(tokens.id_token),
            false => Err(failed("sign in", "the ID token belongs to another issuer, client or sign-in")),
        }
    }

    /// Returns the client secret, or `None` if the client has no secret. Reads the file for each sign-in, because the
    /// file can change.
    async fn secret(&self) -> Result<Option<String>, UiError> {
        let Some(path) = &self.config.client_secret_file else { return Ok(None) };
        let secret = read_file("read the secret of the OIDC client", path, MAX_SECRET).await?;
        Ok(Some(secret.trim().to_owned()))
    }

    /// Returns the request that exchanges a code for tokens.
    fn token_request(
        &self,
        endpoints: Endpoints,
        code: &str,
        challenge: &Challenge<'_>,
        secret: Option<&str>,
    ) -> Result<Request, UiError> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", self.config.redirect.as_str())
            .append_pair("client_id", &self.config.client_id)
            .append_pair("code_verifier", challenge.verifier);
        let mut request = Request::new(Method::POST, endpoints.token);
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        match (secret, endpoints.secret_in) {
            (Some(secret), SecretIn::Header) => {
                headers.insert(header::AUTHORIZATION, authorization(&self.config.client_id, secret)?);
            }
            (Some(secret), SecretIn::Form) => {
                form.append_pair("client_secret", secret);
            }
            (None, _) => {}
        }
        *request.body_mut() = Some(form.finish().into());
        Ok(request)
    }

    async fn endpoints(&self) -> Result<Endpoints, UiError> {
        let now = Instant::now();
        if let Some(endpoints) = self.cached(now) {
            return Ok(endpoints);
        }
        let request = "read the configuration of the OIDC issuer";
        let address = format!("{}/.well-known/openid-configuration", self.config.issuer.trim_end_matches('/'));
        let address = Url::parse(&address).map_err(|_| failed(request, "the URL of the issuer is not valid"))?;
        let published: Published = self.client.fetch(request, Request::new(Method::GET, address)).await?;
        if published.issuer != self.config.issuer {
            return Err(failed(request, "the configuration names another issuer; correct --ui-oidc-issuer"));
        }
        let parse = |text: &str| Url::parse(text).ok().filter(|url| self.is_secure(url));
        let parsed = (parse(&published.authorization_endpoint), parse(&published.token_endpoint));
        let (Some(authorization), Some(token)) = parsed else {
            return Err(failed(request, "the URLs of the endpoints do not use https"));
        };
        let methods = published.token_endpoint_auth_methods_supported.as_deref();
        let secret_in = match (secret_in(methods), &self.config.client_secret_file) {
            (Some(secret_in), _) => secret_in,
            // A client without a secret does not authenticate.
            (None, None) => SecretIn::Header,
            (None, Some(_)) => {
                let cause = "the token endpoint supports neither client_secret_basic nor client_secret_post";
                return Err(failed(request, cause));
            }
        };
        let found = Endpoints { authorization, token, secret_in };
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

/// Returns the part of a token request in which the issuer expects the client secret, or `None` if the issuer supports
/// no method with a client secret. If the issuer publishes no `methods`, it supports `client_secret_basic` (RFC 8414,
/// section 2).
fn secret_in(methods: Option<&[String]>) -> Option<SecretIn> {
    let Some(methods) = methods else { return Some(SecretIn::Header) };
    let supports = |method: &str| methods.iter().take(MAX_METHODS).any(|found| found == method);
    match (supports("client_secret_basic"), supports("client_secret_post")) {
        (true, _) => Some(SecretIn::Header),
        (false, true) => Some(SecretIn::Form),
        (false, false) => None,
    }
}

/// Returns the header with the client ID and the client secret (RFC 6749, section 2.3.1).
fn authorization(client_id: &str, secret: &str) -> Result<HeaderValue, UiError> {
    let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let credentials = BASE64_STANDARD.encode(format!("{}:{}", encode(client_id), encode(secret)));
    let value = HeaderValue::from_str(&format!("Basic {credentials}"));
    let mut value = value.map_err(|_| failed("sign in", "the secret of the OIDC client is not valid"))?;
    value.set_sensitive(true);
    Ok(value)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> OidcConfig {
        OidcConfig {
            issuer: "https://login.example.com".to_owned(),
            client_id: "pulumi".to_owned(),
            client_secret_file: None,
            ca_file: None,
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

    #[test]
    fn the_client_secret_is_in_the_part_of_the_request_that_the_issuer_supports() {
        let many: Vec<_> = std::iter::repeat_n("none", MAX_METHODS).chain(["client_secret_post"]).collect();
        let rows: [(Option<&[&str]>, _); 7] = [
            (None, Some(SecretIn::Header)),
            (Some(&["client_secret_basic", "client_secret_post"]), Some(SecretIn::Header)),
            (Some(&["client_secret_post", "client_secret_basic"]), Some(SecretIn::Header)),
            (Some(&["private_key_jwt", "client_secret_post"]), Some(SecretIn::Form)),
            (Some(&["none", "private_key_jwt"]), None),
            (Some(&[]), None),
            (Some(&many), None),
        ];
        for (methods, expected) in rows {
            let list = methods.map(|methods| methods.iter().map(|method| (*method).to_owned()).collect::<Vec<_>>());
            assert_eq!(secret_in(list.as_deref()), expected, "{methods:?}");
        }
    }

    #[test]
    fn a_token_request_contains_the_client_secret_once() {
        let oidc = Oidc::new(config(), Proxies::default());
        let challenge = Challenge { state: "s", nonce: "n", verifier: "v" };
        let basic = format!("Basic {}", BASE64_STANDARD.encode("pulumi:a%26b"));
        let form = "grant_type=authorization_code&code=c&\
                    redirect_uri=https%3A%2F%2Fpulumi.example.com%2Fsign-in%2Foidc%2Fcallback&client_id=pulumi&\
                    code_verifier=v";
        let rows = [
            (Some("a&b"), SecretIn::Header, Some(basic.as_str()), form.to_owned()),
            (Some("a&b"), SecretIn::Form, None, format!("{form}&client_secret=a%26b")),
            (None, SecretIn::Header, None, form.to_owned()),
            (None, SecretIn::Form, None, form.to_owned()),
        ];
        for (secret, secret_in, expected, body) in rows {
            let url = || Url::parse("https://login.example.com/token").unwrap();
            let endpoints = Endpoints { authorization: url(), token: url(), secret_in };
            let request = oidc.token_request(endpoints, "c", &challenge, secret).unwrap();
            let found = request.headers().get(header::AUTHORIZATION).map(|value| value.to_str().unwrap());
            assert_eq!(found, expected, "{secret_in:?}");
            let found = request.body().and_then(|body| body.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(found), body, "{secret_in:?}");
        }
    }
}
