//! Sessions of users. The browser keeps a session as an encrypted cookie, and the controller keeps only the encryption
//! key in memory. A controller restart therefore ends all sessions, and another process cannot decrypt a copied cookie.
//! After a sign-out, the controller rejects the session, even if a client sends a copy of the cookie.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

/// Maximum duration of a session in seconds. If the token expires earlier, the session ends with the token.
const MAX_DURATION: i64 = 8 * 60 * 60;
/// Maximum size of a token in bytes.
pub(super) const MAX_TOKEN: usize = 6 * 1024;
/// Prefix of the cookie names. Browsers accept a cookie with the prefix `__Host-` only over TLS, or from localhost, and
/// never send it to another host.
const COOKIE: &str = "__Host-pulumi-ui-";
/// Maximum number of cookies per session. A token can be longer than one cookie.
const COOKIES: usize = 3;
/// Maximum size of a cookie value in bytes. Browsers accept at most 4,096 bytes per cookie.
const MAX_COOKIE: usize = 3800;
/// Additional authenticated data for the encryption. Other data that the UI has encrypted with the same key is not
/// valid as a session.
const CONTEXT: &[u8] = b"pulumi-controller web UI session v1";
const KEY_LENGTH: usize = 32;
const ID_LENGTH: usize = 16;
/// Maximum number of session IDs that the controller keeps after a sign-out, until the sessions expire. The sign-in
/// rate limits make it difficult to reach this number. Beyond this number, the controller forgets a session of the user
/// with the most ended sessions, so that a user can make only the user's own sessions valid again.
const MAX_ENDED: usize = 20_000;

/// Error if the operating system provides no random numbers for a session.
#[derive(Debug, thiserror::Error)]
#[error("failed to create a session of the web UI: the operating system provides no random numbers")]
pub struct SessionError;

/// Keys of the sessions.
pub(super) struct Sessions {
    encryption: LessSafeKey,
    csrf: hmac::Key,
    random: SystemRandom,
    /// IDs of the sessions that users have ended. Hold the lock only for short critical sections, and never across an
    /// `.await`.
    ended: Mutex<HashMap<String, Ended>>,
    /// Hashes user names for [`Ended::user`].
    users: RandomState,
}

/// Session that its user has ended.
struct Ended {
    /// Hash of the user name, because user names can be long.
    user: u64,
    /// Expiry of the session, in seconds since 1970.
    expires: i64,
}

/// Session of a user.
#[derive(Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) token: String,
    /// User name that the API server derives from the token.
    pub(super) user: String,
    /// Random session ID, from which the UI derives the session's form token.
    id: String,
    /// Expiry of the session, in seconds since 1970.
    expires: i64,
}

impl Session {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the time until the expiry of the session.
    pub(super) fn remaining(&self, now: i64) -> Duration {
        Duration::from_secs(u64::try_from(self.expires.saturating_sub(now)).unwrap_or_default())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

impl Sessions {
    pub(super) fn new() -> Result<Self, SessionError> {
        let random = SystemRandom::new();
        let key = |length: usize| {
            let mut key = Zeroizing::new(vec![0_u8; length]);
            random.fill(&mut key).map(|()| key).map_err(|_| SessionError)
        };
        let encryption = UnboundKey::new(&AES_256_GCM, &key(KEY_LENGTH)?).map_err(|_| SessionError)?;
        let csrf = hmac::Key::new(hmac::HMAC_SHA256, &key(KEY_LENGTH)?);
        let (encryption, ended, users) = (LessSafeKey::new(encryption), Mutex::default(), RandomState::new());
        Ok(Sessions { encryption, csrf, random, ended, users })
    }

    /// Creates a session of a user.
    pub(super) fn create(&self, token: String, user: String, now: i64) -> Result<Session, SessionError> {
        let mut id = [0; ID_LENGTH];
        self.random.fill(&mut id).map_err(|_| SessionError)?;
        let end = now.saturating_add(MAX_DURATION);
        let expires = token_expiry(&token).map_or(end, |expiry| expiry.min(end));
        Ok(Session { token, user, id: hex::encode(id), expires })
    }

    /// Returns the `Set-Cookie` header values for a session.
    pub(super) fn cookies(&self, session: &Session, now: i64) -> Result<Vec<HeaderValue>, SessionError> {
        let content = serde_json::to_vec(session).map_err(|_| SessionError)?;
        let text = self.seal(CONTEXT, content)?;
        let age = session.expires.saturating_sub(now).max(0);
        let parts: Vec<&[u8]> = text.as_bytes().chunks(MAX_COOKIE).collect();
        // If the session needs fewer cookies than an earlier session, the response deletes the remaining cookies.
        let cookies = (0..COOKIES).map(|number| match parts.get(number) {
            Some(part) => cookie(number, &String::from_utf8_lossy(part), age),
            None => cookie(number, "", 0),
        });
        cookies.collect()
    }

    /// Returns the `Set-Cookie` header values that delete a session's cookies.
    pub(super) fn no_cookies() -> Vec<HeaderValue> {
        (0..COOKIES).filter_map(|number| cookie(number, "", 0).ok()).collect()
    }

    /// Returns the session in a request's cookies, or `None` if the session is not valid or has expired.
    pub(super) fn open(&self, headers: &HeaderMap, now: i64) -> Option<Session> {
        let text: String = (0..COOKIES).map_while(|number| find_cookie(headers, number)).collect();
        let opened = self.unseal(CONTEXT, &text)?;
        let session: Session = serde_json::from_slice(&opened).ok()?;
        self.is_valid(&session, now).then_some(session)
    }

    /// Returns whether a session has neither expired nor ended before its expiry.
    pub(super) fn is_valid(&self, session: &Session, now: i64) -> bool {
        let is_ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&session.id);
        session.expires > now && !is_ended
    }

    /// Ends a session before its expiry.
    pub(super) fn end(&self, session: &Session, now: i64) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let ended_session = Ended { user: self.users.hash_one(&session.user), expires: session.expires };
        ended.insert(session.id.clone(), ended_session);
        if ended.len() > MAX_ENDED {
            ended.retain(|_, session| session.expires > now);
        }
        if ended.len() > MAX_ENDED {
            forget_one(&mut ended);
        }
    }

    /// Encrypts a value for a cookie. `context` identifies the purpose of the value.
    pub(super) fn seal(&self, context: &[u8], mut content: Vec<u8>) -> Result<String, SessionError> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| SessionError)?;
        let key = Nonce::assume_unique_for_key(nonce);
        self.encryption.seal_in_place_append_tag(key, Aad::from(context), &mut content).map_err(|_| SessionError)?;
        Ok(BASE64_URL_SAFE_NO_PAD.encode([nonce.as_slice(), content.as_slice()].concat()))
    }

    /// Decrypts the value of a cookie. Returns `None` if a client has modified the value, or if the value has another
    /// purpose.
    pub(super) fn unseal(&self, context: &[u8], text: &str) -> Option<Zeroizing<Vec<u8>>> {
        let sealed = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, content) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut content = Zeroizing::new(content.to_vec());
        let length = self.encryption.open_in_place(nonce, Aad::from(context), &mut content).ok()?.len();
        content.truncate(length);
        Some(content)
    }

    /// Returns `length` random bytes as a string.
    pub(super) fn random(&self, length: usize) -> Result<String, SessionError> {
        let mut bytes = vec![0_u8; length];
        self.random.fill(&mut bytes).map_err(|_| SessionError)?;
        Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Returns the token that each form of a session contains.
    pub(super) fn form_token(&self, session: &Session) -> String {
        hex::encode(hmac::sign(&self.csrf, session.id.as_bytes()))
    }

    /// Returns whether a token in a form belongs to the session. The comparison takes constant time.
    pub(super) fn is_form_token(&self, session: &Session, token: &str) -> bool {
        hex::decode(token).is_ok_and(|tag| hmac::verify(&self.csrf, session.id.as_bytes(), &tag).is_ok())
    }
}

/// Removes the session that expires first of the user with the most ended sessions.
fn forget_one(ended: &mut HashMap<String, Ended>) {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for session in ended.values() {
        *counts.entry(session.user).or_default() += 1;
    }
    let user = counts.into_iter().max_by_key(|(_, count)| *count).map(|(user, _)| user);
    let of_user = ended.iter().filter(|(_, session)| Some(session.user) == user);
    let first = of_user.min_by_key(|(_, session)| session.expires).map(|(id, _)| id.clone());
    if let Some(id) = first {
        ended.remove(&id);
    }
}

fn cookie(number: usize, value: &str, age: i64) -> Result<HeaderValue, SessionError> {
    let text = format!("{COOKIE}{number}={value}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Strict");
    let mut value = HeaderValue::from_str(&text).map_err(|_| SessionError)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the value of a cookie, or `None` if the request does not contain the cookie, or if the value is empty.
fn find_cookie(headers: &HeaderMap, number: usize) -> Option<&str> {
    let name = format!("{COOKIE}{number}");
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// Returns the expiry of a token in seconds since 1970, or `None` if the token is not a JSON Web Token. The function
/// does not verify the signature, because the API server verifies the signature with each request. A wrong expiry
/// therefore affects only when the session ends.
fn token_expiry(token: &str) -> Option<i64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let payload = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Claims = serde_json::from_slice(&payload).ok()?;
    // The conversion saturates.
    Some(claims.exp as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn headers(cookies: &[HeaderValue]) -> HeaderMap {
        let pairs = cookies.iter().map(|cookie| cookie.to_str().unwrap().split(';').next().unwrap());
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, pairs.collect::<Vec<_>>().join("; ").parse().unwrap());
        headers
    }

    #[test]
    fn only_the_process_that_created_a_session_opens_it() {
        let sessions = Sessions::new().unwrap();
        for length in [20, MAX_TOKEN] {
            let session = sessions.create("t".repeat(length), "alice".to_owned(), NOW).unwrap();
            let cookies = sessions.cookies(&session, NOW).unwrap();
            assert_eq!(cookies.len(), COOKIES);
            for cookie in &cookies {
                let text = cookie.to_str().unwrap();
                assert!(text.len() < 4096 && text.ends_with("; Secure; HttpOnly; SameSite=Strict"), "{text}");
                assert!(!text.contains("tttt"), "the token is encrypted: {text}");
            }
            let opened = sessions.open(&headers(&cookies), NOW + 60).unwrap();
            assert_eq!((opened.token.len(), opened.user.as_str()), (length, "alice"));
            assert!(sessions.open(&headers(&cookies), NOW + MAX_DURATION).is_none(), "expired");
            assert!(Sessions::new().unwrap().open(&headers(&cookies), NOW).is_none(), "another key");
        }
        assert!(sessions.open(&headers(&Sessions::no_cookies()), NOW).is_none());
        assert!(sessions.open(&HeaderMap::new(), NOW).is_none());
    }

    #[test]
    fn a_copied_cookie_is_rejected_after_the_sign_out() {
        let sessions = Sessions::new().unwrap();
        let of = |user: &str| sessions.create("token".to_owned(), user.to_owned(), NOW).unwrap();
        let (alice, bob) = (of("alice"), of("bob"));
        let (copied, other) = (sessions.cookies(&alice, NOW).unwrap(), sessions.cookies(&bob, NOW).unwrap());
        sessions.end(&alice, NOW);
        assert!(sessions.open(&headers(&copied), NOW).is_none());
        assert!(sessions.open(&headers(&other), NOW).is_some());
    }

    #[test]
    fn a_sign_out_is_effective_even_if_another_user_has_ended_too_many_sessions() {
        let sessions = Sessions::new().unwrap();
        let of = |user: &str, now: i64| sessions.create("token".to_owned(), user.to_owned(), now).unwrap();
        let (alice, bob, oldest) = (of("alice", NOW), of("bob", NOW), of("carol", NOW - 1));
        sessions.end(&alice, NOW);
        sessions.end(&oldest, NOW);
        for _ in 2..MAX_ENDED {
            sessions.end(&of("carol", NOW), NOW);
        }
        assert!(!sessions.is_valid(&oldest, NOW), "the maximum is not exceeded");
        sessions.end(&bob, NOW);
        for session in [&alice, &bob] {
            assert!(!sessions.is_valid(session, NOW), "{}", session.user);
        }
        assert!(sessions.is_valid(&oldest, NOW), "a session of the user with the most ended sessions is forgotten");
        assert_eq!(sessions.ended.lock().unwrap().len(), MAX_ENDED);
        sessions.end(&bob, NOW);
        assert_eq!(sessions.ended.lock().unwrap().len(), MAX_ENDED, "a repeated sign-out forgets no session");
        sessions.end(&of("dave", NOW + 1), NOW + MAX_DURATION);
        assert_eq!(sessions.ended.lock().unwrap().len(), 1, "expired sessions are forgotten");
    }

    #[test]
    fn a_changed_cookie_is_rejected() {
        let sessions = Sessions::new().unwrap();
        let session = sessions.create("token".to_owned(), "alice".to_owned(), NOW).unwrap();
        let cookies = sessions.cookies(&session, NOW).unwrap();
        let text = cookies[0].to_str().unwrap().split(';').next().unwrap().to_owned();
        let (start, last) = text.split_at(text.len() - 1);
        let other = if last == "A" { "B" } else { "A" };
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, format!("{start}{other}").parse().unwrap());
        assert!(sessions.open(&headers, NOW).is_none());
    }

    #[test]
    fn a_session_ends_with_its_token() {
        let sessions = Sessions::new().unwrap();
        let with = |payload: &str| {
            let token = format!("e30.{}.sig", BASE64_URL_SAFE_NO_PAD.encode(payload));
            sessions.create(token, "alice".to_owned(), NOW).unwrap().expires - NOW
        };
        assert_eq!(with(&format!("{{\"exp\":{}}}", NOW + 600)), 600);
        assert_eq!(with(&format!("{{\"exp\":{}}}", NOW + 10 * MAX_DURATION)), MAX_DURATION);
        assert_eq!(with("{}"), MAX_DURATION);
        assert_eq!(with("not JSON"), MAX_DURATION);
        let session = sessions.create("token".to_owned(), "alice".to_owned(), NOW).unwrap();
        for (after, expected) in [(0, MAX_DURATION), (60, MAX_DURATION - 60), (MAX_DURATION, 0), (i64::MAX - NOW, 0)] {
            let remaining = session.remaining(NOW + after).as_secs();
            assert_eq!(remaining, u64::try_from(expected).unwrap(), "after {after} seconds");
        }
    }

    #[test]
    fn a_form_token_belongs_to_one_session() {
        let sessions = Sessions::new().unwrap();
        let of = |user: &str| sessions.create("token".to_owned(), user.to_owned(), NOW).unwrap();
        let (alice, other) = (of("alice"), of("alice"));
        let token = sessions.form_token(&alice);
        assert!(sessions.is_form_token(&alice, &token));
        assert!(!sessions.is_form_token(&other, &token));
        for token in ["", "zz", token.get(2..).unwrap_or_default()] {
            assert!(!sessions.is_form_token(&alice, token), "{token}");
        }
    }
}
