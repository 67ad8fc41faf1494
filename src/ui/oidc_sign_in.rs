//! Sign-in at the OIDC issuer. A cookie proves that the same browser has started the sign-in.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use url::form_urlencoded;

use super::error::UiError;
use super::oidc::{Challenge, Oidc};
use super::pages::frame;
use super::response::{html, redirect, with_cookies};
use super::sign_in;
use super::state::{Answer, Ui};

/// Name of the sign-in cookie. The cookie cannot be `SameSite=Strict`, because the browser must send the cookie when
/// the issuer redirects to the UI.
const COOKIE: &str = "__Host-pulumi-ui-oidc";
/// Maximum time between the start and the completion of a sign-in, in seconds.
const MAX_DURATION: i64 = 10 * 60;
/// Additional authenticated data for the cookie encryption.
const CONTEXT: &[u8] = b"pulumi-controller web UI OIDC sign-in v1";
/// Number of random bytes in each value of a sign-in challenge.
const RANDOM: usize = 32;
/// Maximum length of an authorization code, in bytes.
const MAX_CODE: usize = 4096;
/// Maximum length of an error code of the issuer, in bytes.
const MAX_ERROR_CODE: usize = 64;

/// Sign-in that has begun.
#[derive(Serialize, Deserialize)]
struct Attempt {
    state: String,
    nonce: String,
    verifier: String,
    /// Path to which the UI redirects after the sign-in.
    next: String,
    /// Expiry of the sign-in, in seconds since 1970.
    expires: i64,
}

impl Attempt {
    fn challenge(&self) -> Challenge<'_> {
        Challenge { state: &self.state, nonce: &self.nonce, verifier: &self.verifier }
    }
}

/// Starts a sign-in, and redirects the browser to the issuer.
pub(super) async fn begin(ui: &Ui, peer: Option<IpAddr>, query: &str) -> Answer {
    let oidc = issuer(ui)?;
    if !ui.sign_in_limits.may_sign_in(peer, Instant::now()) {
        return Err(UiError::TooManySignIns);
    }
    let random = || ui.sessions.random(RANDOM).map_err(sign_in::failed_session);
    let (state, nonce, verifier) = (random()?, random()?, random()?);
    let now = Timestamp::now().as_second();
    let attempt = Attempt { state, nonce, verifier, next: sign_in::next(query), expires: now + MAX_DURATION };
    let url = oidc.sign_in_url(&attempt.challenge()).await?;
    let content = serde_json::to_vec(&attempt).unwrap_or_default();
    let sealed = ui.sessions.seal(CONTEXT, content).map_err(sign_in::failed_session)?;
    Ok(with_cookies(redirect(url.as_str()), vec![cookie(&sealed, MAX_DURATION)?]))
}

/// Completes a sign-in after the issuer has redirected the browser to the UI with an authorization code.
pub(super) async fn end(ui: &Ui, headers: &HeaderMap, peer: Option<IpAddr>, query: &str) -> Answer {
    let oidc = issuer(ui)?;
    let attempt = attempt(ui, headers, query, Timestamp::now().as_second()).ok_or(UiError::UnknownSignIn)?;
    let Some(code) = parameter(query, "code").filter(|code| code.len() <= MAX_CODE) else {
        return Err(UiError::Failed { request: "sign in".to_owned(), cause: rejection(query) });
    };
    // A client can reuse the sign-in cookie, so the rate limit also applies here.
    if !ui.exchange_limits.may_sign_in(peer, Instant::now()) {
        return Err(UiError::TooManySignIns);
    }
    let token = oidc.id_token(&code, &attempt.challenge()).await?;
    let mut cookies = match sign_in::session_cookies(ui, &token).await {
        Err(UiError::SignedOut) => Err(UiError::InvalidToken),
        other => other,
    }?;
    cookies.push(cookie("", 0)?);
    Ok(with_cookies(opened(&attempt.next), cookies))
}

/// Returns the cause of a sign-in that the issuer has rejected, with the error code of the issuer, such as
/// `access_denied` (RFC 6749, section 4.1.2.1).
fn rejection(query: &str) -> String {
    let is_code = |code: &String| {
        code.len() <= MAX_ERROR_CODE && !code.is_empty() && code.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let code = parameter(query, "error").filter(is_code).map(|code| format!(": {code}")).unwrap_or_default();
    format!("the issuer has not permitted the sign-in{code}")
}

/// Returns a page that opens a path on this server. The UI does not redirect, because the browser would not send the
/// session cookie after a redirect from the issuer.
fn opened(path: &str) -> Response {
    html(StatusCode::OK, frame::reload(path))
}

fn issuer(ui: &Ui) -> Result<&Oidc, UiError> {
    ui.oidc.as_ref().ok_or(UiError::NotFound)
}

/// Returns the sign-in to which a redirect from the issuer belongs.
fn attempt(ui: &Ui, headers: &HeaderMap, query: &str, now: i64) -> Option<Attempt> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, sealed) = pairs.find(|(name, _)| *name == COOKIE)?;
    let content = ui.sessions.unseal(CONTEXT, sealed)?;
    let attempt: Attempt = serde_json::from_slice(&content).ok()?;
    let is_it = attempt.expires > now && parameter(query, "state").as_deref() == Some(attempt.state.as_str());
    is_it.then_some(attempt)
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
}

fn cookie(value: &str, age: i64) -> Result<HeaderValue, UiError> {
    let text = format!("{COOKIE}={value}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Lax");
    let failed = |_| UiError::Failed { request: "sign in".to_owned(), cause: "the cookie is not valid".to_owned() };
    let mut value = HeaderValue::from_str(&text).map_err(failed)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_sign_in_shows_the_error_code_of_the_issuer() {
        let plain = "the issuer has not permitted the sign-in";
        let long = format!("error={}", "a".repeat(65));
        let rows = [
            ("error=access_denied&state=1", format!("{plain}: access_denied")),
            ("state=1", plain.to_owned()),
            ("error=", plain.to_owned()),
            ("error=go+to+http%3A%2F%2Fevil.example.com", plain.to_owned()),
            (long.as_str(), plain.to_owned()),
        ];
        for (query, expected) in rows {
            assert_eq!(rejection(query), expected, "{query}");
        }
    }
}
