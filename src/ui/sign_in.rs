//! Sign-in with a Kubernetes API token, and sign-out.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use jiff::Timestamp;
use tokio::time::Instant;
use url::form_urlencoded;

use super::csrf;
use super::error::UiError;
use super::form::Form;
use super::pages::frame;
use super::response::{html, redirect, with_cookies};
use super::session::{MAX_TOKEN, SessionError, Sessions};
use super::state::{Answer, Ui};

/// Maximum length of the path that the UI opens after a sign-in, in bytes.
const MAX_NEXT: usize = 1024;

/// Returns the path that the UI opens after the sign-in. Replaces an address that is not a path on this server.
pub(super) fn next(query: &str) -> String {
    let next = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "next").map(|(_, value)| value);
    next.filter(|path| is_own_path(path)).map_or_else(|| "/".to_owned(), |path| path.into_owned())
}

/// Returns whether a string is a path on this server. Browsers treat `//host` and `/\host` as addresses of other
/// servers.
fn is_own_path(path: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
    path.starts_with('/') && !path.starts_with("//") && path.len() <= MAX_NEXT && path.bytes().all(is_safe)
}

/// Responds to a sign-in.
pub(super) async fn answer(ui: &Ui, headers: &HeaderMap, peer: Option<IpAddr>, body: Body) -> Response {
    let form = match Form::read(body).await {
        Ok(form) => form,
        Err(error) => return failed(ui, "/", &error),
    };
    let next = form.get("next").filter(|path| is_own_path(path)).unwrap_or("/").to_owned();
    match cookies(ui, headers, peer, &form).await {
        Ok(cookies) => {
            // The cookies replace the cookies of an earlier session. A copy of the earlier cookies must not stay valid.
            if let Some(earlier) = ui.sessions.open(headers, Timestamp::now().as_second()) {
                ui.end_session(&earlier);
            }
            with_cookies(redirect(&next), cookies)
        }
        // The API server has rejected the token.
        Err(UiError::SignedOut) => failed(ui, &next, &UiError::InvalidToken),
        Err(error) => failed(ui, &next, &error),
    }
}

/// Returns the cookies for a new session.
async fn cookies(ui: &Ui, headers: &HeaderMap, peer: Option<IpAddr>, form: &Form) -> Result<Vec<HeaderValue>, UiError> {
    if !csrf::is_same_origin(headers) {
        return Err(UiError::Forged);
    }
    if !ui.sign_in_limits.may_sign_in(peer, Instant::now()) {
        return Err(UiError::TooManySignIns);
    }
    let token = form.get("token").unwrap_or_default().trim();
    let token = token.strip_prefix("Bearer ").unwrap_or(token).trim();
    if token.is_empty() {
        return Err(UiError::Form("the token is empty"));
    }
    session_cookies(ui, token).await
}

/// Returns the cookies for a new session with this token.
///
/// # Errors
/// Returns an error if the API server rejects the token.
pub(super) async fn session_cookies(ui: &Ui, token: &str) -> Result<Vec<HeaderValue>, UiError> {
    if token.len() > MAX_TOKEN {
        return Err(UiError::Form("the token is longer than 6,144 bytes; use a token with fewer groups"));
    }
    let name = ui.users.with_token(token)?.name().await?;
    let now = Timestamp::now().as_second();
    let session = ui.sessions.create(token.to_owned(), name, now).map_err(failed_session)?;
    ui.sessions.cookies(&session, now).map_err(failed_session)
}

/// Returns the error if the UI cannot create a session.
pub(super) fn failed_session(error: SessionError) -> UiError {
    UiError::Failed { request: "sign in".to_owned(), cause: error.to_string() }
}

fn failed(ui: &Ui, next: &str, error: &UiError) -> Response {
    let status = match error {
        UiError::InvalidToken => StatusCode::UNAUTHORIZED,
        other => other.status(),
    };
    html(status, frame::sign_in(&ui.cluster_name, next, ui.oidc.is_some(), Some(&error.to_string())))
}

/// Responds to a sign-out.
pub(super) async fn end(ui: &Ui, headers: &HeaderMap, body: Body) -> Answer {
    let visitor = ui.visitor(headers)?;
    Form::of_session(ui, headers, &visitor, body).await?;
    ui.end_session(&visitor.session);
    Ok(with_cookies(redirect("/sign-in"), Sessions::no_cookies()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_returns_only_to_a_path_of_this_server() {
        let rows = [
            ("next=/stacks/apps/web", "/stacks/apps/web"),
            ("next=%2F%3Fq%3Da%2Bb", "/?q=a+b"),
            ("", "/"),
            ("next=https://evil.com", "/"),
            ("next=//evil.com", "/"),
            ("next=/%5Cevil.com", "/"),
            ("next=/a%0D%0AX:1", "/"),
            ("next=evil", "/"),
        ];
        for (query, expected) in rows {
            assert_eq!(next(query), expected, "{query}");
        }
    }
}
