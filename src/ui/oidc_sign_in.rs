//! Sign-in at the OIDC issuer.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use jiff::Timestamp;
use tokio::time::Instant;
use url::form_urlencoded;

use super::attempts::Attempt;
use super::error::UiError;
use super::oidc::Oidc;
use super::pages::frame;
use super::response::{html, redirect, with_cookies};
use super::sign_in;
use super::state::{Answer, Ui};

/// Maximum length of an authorization code, in bytes.
const MAX_CODE: usize = 4096;
/// Maximum length of an error code of the issuer, in bytes.
const MAX_ERROR_CODE: usize = 64;

/// Starts a sign-in, and redirects the browser to the issuer.
pub(super) async fn begin(ui: &Ui, headers: &HeaderMap, peer: Option<IpAddr>, query: &str) -> Answer {
    let oidc = issuer(ui)?;
    if !ui.sign_in_limits.may_sign_in(peer, Instant::now()) {
        return Err(UiError::TooManySignIns);
    }
    let now = Timestamp::now().as_second();
    let attempt = Attempt::new(&ui.sessions, sign_in::next(query), now).map_err(sign_in::failed_session)?;
    let cookies = attempt.cookies(&ui.sessions, headers, now).map_err(sign_in::failed_session)?;
    let url = oidc.sign_in_url(&attempt.challenge()).await?;
    Ok(with_cookies(redirect(url.as_str()), cookies))
}

/// Completes a sign-in after the issuer has redirected the browser to the UI with an authorization code.
pub(super) async fn end(ui: &Ui, headers: &HeaderMap, peer: Option<IpAddr>, query: &str) -> Answer {
    let oidc = issuer(ui)?;
    let (state, now) = (parameter(query, "state").unwrap_or_default(), Timestamp::now().as_second());
    let attempt = Attempt::find(&ui.sessions, headers, &state, now).ok_or(UiError::UnknownSignIn)?;
    let Some(code) = parameter(query, "code").filter(|code| code.len() <= MAX_CODE) else {
        return Err(UiError::Failed { request: "sign in".to_owned(), cause: rejection(query) });
    };
    // A client can reuse the cookie of a sign-in, so the rate limit also applies here.
    if !ui.exchange_limits.may_sign_in(peer, Instant::now()) {
        return Err(UiError::TooManySignIns);
    }
    let token = oidc.id_token(&code, &attempt.challenge()).await?;
    let mut cookies = match sign_in::session_cookies(ui, &token).await {
        Err(UiError::SignedOut) => Err(UiError::InvalidToken),
        other => other,
    }?;
    cookies.push(attempt.no_cookie().map_err(sign_in::failed_session)?);
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

fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
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
