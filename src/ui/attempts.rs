//! Sign-ins at the OIDC issuer that have begun. The browser keeps each sign-in in its own encrypted cookie, so that users
//! can sign in in several tabs at the same time. The cookie proves that the same browser has started the sign-in.

use std::cmp::Reverse;

use axum::http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};

use super::oidc::Challenge;
use super::session::{SessionError, Sessions};

/// Prefix of the cookie names. A name ends with the beginning of the `state` parameter. The cookies cannot be
/// `SameSite=Strict`, because the browser must send them when the issuer redirects to the UI.
const COOKIE: &str = "__Host-pulumi-ui-oidc-";
/// Number of characters of the `state` parameter in a cookie name.
const NAME_LENGTH: usize = 16;
/// Maximum number of sign-ins in a browser. A further sign-in replaces the oldest sign-in.
const MAX_ATTEMPTS: usize = 4;
/// Maximum total size of the cookies, in bytes. Proxies reject requests with large headers.
const MAX_SIZE: usize = 4096;
/// Maximum number of cookies that the UI reads from a request.
const MAX_COOKIES: usize = 16;
/// Maximum time between the start and the completion of a sign-in, in seconds.
const MAX_DURATION: i64 = 10 * 60;
/// Additional authenticated data for the cookie encryption.
const CONTEXT: &[u8] = b"pulumi-controller web UI OIDC sign-in v1";
/// Number of random bytes in each value of a sign-in challenge.
const RANDOM: usize = 32;

/// Sign-in that has begun.
#[derive(Serialize, Deserialize)]
pub(super) struct Attempt {
    state: String,
    nonce: String,
    verifier: String,
    /// Path to which the UI redirects after the sign-in.
    pub(super) next: String,
    /// Expiry of the sign-in, in seconds since 1970.
    expires: i64,
}

impl Attempt {
    pub(super) fn new(sessions: &Sessions, next: String, now: i64) -> Result<Self, SessionError> {
        let random = || sessions.random(RANDOM);
        let (state, nonce, verifier) = (random()?, random()?, random()?);
        Ok(Attempt { state, nonce, verifier, next, expires: now.saturating_add(MAX_DURATION) })
    }

    /// Returns the sign-in with this `state` parameter, or `None` if the browser has not started the sign-in, or if the
    /// sign-in has expired.
    pub(super) fn find(sessions: &Sessions, headers: &HeaderMap, state: &str, now: i64) -> Option<Self> {
        let name = cookie_name(state)?;
        let (_, sealed) = cookies(headers).find(|(found, _)| *found == name)?;
        unseal(sessions, sealed, now).filter(|attempt| attempt.state == state)
    }

    pub(super) fn challenge(&self) -> Challenge<'_> {
        Challenge { state: &self.state, nonce: &self.nonce, verifier: &self.verifier }
    }

    /// Returns the `Set-Cookie` header values that store this sign-in. The values also delete the sign-ins in the
    /// request that are not valid or exceed a limit.
    pub(super) fn cookies(
        &self,
        sessions: &Sessions,
        headers: &HeaderMap,
        now: i64,
    ) -> Result<Vec<HeaderValue>, SessionError> {
        let content = serde_json::to_vec(self).map_err(|_| SessionError)?;
        let sealed = sessions.seal(CONTEXT, content)?;
        let mut values = Vec::new();
        for name in obsolete(sessions, headers, sealed.len(), now) {
            values.push(cookie(name, "", 0)?);
        }
        values.push(cookie(&self.name()?, &sealed, MAX_DURATION)?);
        Ok(values)
    }

    /// Returns the `Set-Cookie` header value that deletes this sign-in.
    pub(super) fn no_cookie(&self) -> Result<HeaderValue, SessionError> {
        cookie(&self.name()?, "", 0)
    }

    fn name(&self) -> Result<String, SessionError> {
        cookie_name(&self.state).ok_or(SessionError)
    }
}

/// Returns the names of the cookies in a request that the browser must delete before it stores another cookie with this
/// size. Keeps the newest sign-ins.
fn obsolete<'a>(sessions: &Sessions, headers: &'a HeaderMap, size: usize, now: i64) -> Vec<&'a str> {
    let found = cookies(headers).take(MAX_COOKIES);
    let mut found: Vec<_> = found
        .map(|(name, sealed)| (unseal(sessions, sealed, now).map(|attempt| attempt.expires), name, sealed))
        .collect();
    found.sort_by_key(|(expires, ..)| Reverse(*expires));
    let (mut count, mut size) = (1, size);
    let mut obsolete = Vec::new();
    for (expires, name, sealed) in found {
        let is_kept = expires.is_some() && count < MAX_ATTEMPTS && size + sealed.len() <= MAX_SIZE;
        if is_kept {
            count += 1;
            size += sealed.len();
        } else {
            obsolete.push(name);
        }
    }
    obsolete
}

fn unseal(sessions: &Sessions, sealed: &str, now: i64) -> Option<Attempt> {
    let content = sessions.unseal(CONTEXT, sealed)?;
    let attempt: Attempt = serde_json::from_slice(&content).ok()?;
    (attempt.expires > now).then_some(attempt)
}

/// Returns the name of the cookie for a sign-in, or `None` if the UI has not created the `state` parameter.
fn cookie_name(state: &str) -> Option<String> {
    let name = format!("{COOKIE}{}", state.get(..NAME_LENGTH)?);
    is_name(&name).then_some(name)
}

fn is_name(name: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let end = name.strip_prefix(COOKIE);
    end.is_some_and(|end| end.len() == NAME_LENGTH && end.bytes().all(is_safe))
}

/// Returns the names and the values of the sign-in cookies in a request.
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let values = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = values.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| is_name(name))
}

fn cookie(name: &str, value: &str, age: i64) -> Result<HeaderValue, SessionError> {
    let text = format!("{name}={value}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Lax");
    let mut value = HeaderValue::from_str(&text).map_err(|_| SessionError)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    /// Browser that stores the cookies of responses.
    #[derive(Default)]
    struct Browser(Vec<(String, String)>);

    impl Browser {
        fn headers(&self) -> HeaderMap {
            let pairs: Vec<_> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
            HeaderMap::from_iter([(header::COOKIE, pairs.join("; ").parse().unwrap())])
        }

        fn receive(&mut self, values: &[HeaderValue]) {
            for value in values {
                let text = value.to_str().unwrap();
                assert!(text.starts_with("__Host-") && text.contains("; Path=/; "), "{text}");
                assert!(text.len() < 4096 && text.ends_with("; Secure; HttpOnly; SameSite=Lax"), "{text}");
                let (name, value) = text.split(';').next().unwrap().split_once('=').unwrap();
                self.0.retain(|(found, _)| found != name);
                if !text.contains("; Max-Age=0;") {
                    self.0.push((name.to_owned(), value.to_owned()));
                }
            }
        }

        fn begin(&mut self, sessions: &Sessions, next: &str, now: i64) -> Attempt {
            let attempt = Attempt::new(sessions, next.to_owned(), now).unwrap();
            self.receive(&attempt.cookies(sessions, &self.headers(), now).unwrap());
            attempt
        }

        fn has(&self, sessions: &Sessions, attempt: &Attempt, now: i64) -> bool {
            let found = Attempt::find(sessions, &self.headers(), &attempt.state, now);
            found.is_some_and(|found| found.nonce == attempt.nonce && found.verifier == attempt.verifier)
        }
    }

    #[test]
    fn sign_ins_in_several_tabs_are_independent() {
        let (sessions, mut browser) = (Sessions::new().unwrap(), Browser::default());
        let attempts: Vec<_> = ["/a", "/b", "/c"].iter().map(|next| browser.begin(&sessions, next, NOW)).collect();
        assert!(attempts.iter().all(|attempt| browser.has(&sessions, attempt, NOW)));
        browser.receive(&[attempts[1].no_cookie().unwrap()]);
        let found: Vec<_> = attempts.iter().map(|attempt| browser.has(&sessions, attempt, NOW)).collect();
        assert_eq!(found, [true, false, true]);
        assert!(!browser.has(&sessions, &attempts[0], NOW + MAX_DURATION), "expired");
        assert!(!browser.has(&Sessions::new().unwrap(), &attempts[0], NOW), "another key");
    }

    #[test]
    fn a_state_that_differs_from_the_cookie_is_rejected() {
        let (sessions, mut browser) = (Sessions::new().unwrap(), Browser::default());
        let attempt = browser.begin(&sessions, "/", NOW);
        let other = browser.begin(&sessions, "/", NOW);
        let ((start, _), (_, end)) = (attempt.state.split_at(NAME_LENGTH), other.state.split_at(NAME_LENGTH));
        let states = [start.to_owned(), format!("{start}{end}"), String::new(), "é".repeat(30)];
        for state in states {
            assert!(Attempt::find(&sessions, &browser.headers(), &state, NOW).is_none(), "{state}");
        }
        // A cookie of another sign-in is not valid under this name.
        browser.0[0].1 = browser.0[1].1.clone();
        assert!(!browser.has(&sessions, &attempt, NOW) && browser.has(&sessions, &other, NOW));
    }

    #[test]
    fn the_number_and_the_size_of_the_cookies_are_limited() {
        let (sessions, mut browser) = (Sessions::new().unwrap(), Browser::default());
        let attempts: Vec<_> = (0..10).map(|number| browser.begin(&sessions, "/", NOW + number)).collect();
        assert_eq!(browser.0.len(), MAX_ATTEMPTS);
        let kept: Vec<_> = attempts.iter().filter(|attempt| browser.has(&sessions, attempt, NOW)).collect();
        assert_eq!(kept.iter().map(|attempt| attempt.expires - NOW - MAX_DURATION).collect::<Vec<_>>(), [6, 7, 8, 9]);
        for _ in 0..10 {
            let attempt = browser.begin(&sessions, &format!("/{}", "\"".repeat(1023)), NOW + 20);
            let size: usize = browser.0.iter().map(|(_, value)| value.len()).sum();
            assert!(size <= MAX_SIZE && browser.has(&sessions, &attempt, NOW + 20), "{size}");
        }
        browser.0 = vec![(format!("{COOKIE}{}", "a".repeat(NAME_LENGTH)), "invalid".to_owned())];
        browser.begin(&sessions, "/", NOW);
        assert_eq!(browser.0.len(), 1, "an invalid cookie is deleted");
    }

    #[test]
    fn cookies_with_other_names_are_ignored() {
        let sessions = Sessions::new().unwrap();
        let pairs =
            ["__Host-pulumi-ui-0=a", "__Host-pulumi-ui-oidc-short=a", "__Host-pulumi-ui-oidc-0123456789,12345=a"];
        let headers: HeaderMap = HeaderMap::from_iter([(header::COOKIE, pairs.join("; ").parse().unwrap())]);
        assert_eq!(obsolete(&sessions, &headers, 0, NOW), Vec::<&str>::new());
    }
}
