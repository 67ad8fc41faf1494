//! Authentication of webhook calls, and selection of the events that trigger runs. This module performs no I/O.
//!
//! The handler passes each piece of a body to the proof as soon as the piece arrives, so that many concurrent calls
//! with large bodies need little memory.

use axum::http::HeaderMap;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha512};
use thiserror::Error;

use crate::api::pulumi::{ReceiverToken, ReceiverType};

const GITHUB_SIGNATURE: &str = "X-Hub-Signature-256";
const GITHUB_EVENT: &str = "X-GitHub-Event";
const GITLAB_TOKEN: &str = "X-Gitlab-Token";
const GITLAB_EVENT: &str = "X-Gitlab-Event";
const SIGNATURE: &str = "X-Signature";
const AUTHORIZATION: &str = "Authorization";
/// Test event that GitHub and Gitea send when a user creates a webhook.
const PING: &str = "ping";

/// The reason why the handler rejects a call. The receiver's owner can read the reason, but the webhook caller never
/// receives the reason.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    #[error("header {0} is missing")]
    Missing(&'static str),
    #[error("header {0} must have the form <hash>=<signature in hexadecimal digits>")]
    Malformed(&'static str),
    #[error("header {0} has an unsupported hash algorithm; sign with sha256")]
    Hash(&'static str),
    #[error("header {0} is not valid for this token and body; check that the caller uses the token in the Secret")]
    Wrong(&'static str),
    #[error("the path is derived from an earlier token; use the path in status.webhookPath")]
    OldPath,
}

/// Authentication state of a call.
pub enum Proof {
    /// The call is authenticated, and the authentication did not require the body.
    Given,
    Sha256(&'static str, Box<Hmac<Sha256>>, Vec<u8>),
    Sha512(&'static str, Box<Hmac<Sha512>>, Vec<u8>),
}

impl Proof {
    /// Performs the checks that do not require the body. `is_current` states whether the path is derived from the
    /// current token.
    pub fn begin(
        kind: ReceiverType,
        headers: &HeaderMap,
        token: &ReceiverToken,
        is_current: bool,
    ) -> Result<Proof, Fault> {
        match kind {
            ReceiverType::Github => begin_hmac(GITHUB_SIGNATURE, &["sha256"], headers, token),
            ReceiverType::GenericHmac => begin_hmac(SIGNATURE, &["sha256", "sha512"], headers, token),
            ReceiverType::Gitlab => {
                let given = headers.get(GITLAB_TOKEN).ok_or(Fault::Missing(GITLAB_TOKEN))?;
                let is_equal = same(token, given.as_bytes());
                if is_equal { Ok(Proof::Given) } else { Err(Fault::Wrong(GITLAB_TOKEN)) }
            }
            // For the generic type, the path itself is the secret, so a path that is derived from a revoked token is
            // not valid.
            ReceiverType::Generic if is_current => Ok(Proof::Given),
            ReceiverType::Generic => Err(Fault::OldPath),
            // The handler authenticates such a call with its OIDC token, and never with a token in a Secret.
            ReceiverType::GenericOidc => Err(Fault::Missing(AUTHORIZATION)),
        }
    }

    /// Adds a piece of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Proof::Given => {}
            Proof::Sha256(_, hmac, _) => hmac.update(bytes),
            Proof::Sha512(_, hmac, _) => hmac.update(bytes),
        }
    }

    /// Verifies the signature. Call this function after the last piece of the body. Compares signatures of the correct
    /// length in constant time.
    pub fn verify(self) -> Result<(), Fault> {
        let (header, is_right) = match self {
            Proof::Given => return Ok(()),
            Proof::Sha256(header, hmac, given) => (header, hmac.verify_slice(&given).is_ok()),
            Proof::Sha512(header, hmac, given) => (header, hmac.verify_slice(&given).is_ok()),
        };
        if is_right { Ok(()) } else { Err(Fault::Wrong(header)) }
    }
}

fn begin_hmac(
    header: &'static str,
    hashes: &[&str],
    headers: &HeaderMap,
    token: &ReceiverToken,
) -> Result<Proof, Fault> {
    let text = headers.get(header).ok_or(Fault::Missing(header))?.to_str().map_err(|_| Fault::Malformed(header))?;
    let (hash, signature) = text.split_once('=').ok_or(Fault::Malformed(header))?;
    let hash = hashes.iter().find(|supported| **supported == hash).ok_or(Fault::Hash(header))?;
    let signature = hex::decode(signature).map_err(|_| Fault::Malformed(header))?;
    if *hash == "sha512" {
        let hmac = Hmac::new_from_slice(token.bytes()).map_err(|_| Fault::Wrong(header))?;
        return Ok(Proof::Sha512(header, Box::new(hmac), signature));
    }
    let hmac = Hmac::new_from_slice(token.bytes()).map_err(|_| Fault::Wrong(header))?;
    Ok(Proof::Sha256(header, Box::new(hmac), signature))
}

/// Compares the HMACs of both strings, so that the duration of the comparison reveals neither the token length nor a
/// matching prefix.
fn same(token: &ReceiverToken, given: &[u8]) -> bool {
    let hash = |text: &[u8]| Hmac::<Sha256>::new_from_slice(token.bytes()).map(|hmac| hmac.chain_update(text));
    let (Ok(desired), Ok(given)) = (hash(token.bytes()), hash(given)) else { return false };
    given.verify(&desired.finalize().into_bytes()).is_ok()
}

/// Returns whether the event that a call reports triggers runs. `desired` contains the events from the receiver's spec.
pub fn triggers_run(kind: ReceiverType, desired: &[String], headers: &HeaderMap) -> bool {
    let header = match kind {
        ReceiverType::Github => GITHUB_EVENT,
        ReceiverType::Gitlab => GITLAB_EVENT,
        ReceiverType::Generic | ReceiverType::GenericHmac | ReceiverType::GenericOidc => return true,
    };
    let event = headers.get(header).and_then(|event| event.to_str().ok()).unwrap_or_default();
    if kind == ReceiverType::Github && event.eq_ignore_ascii_case(PING) {
        return false;
    }
    desired.is_empty() || desired.iter().any(|desired| desired.eq_ignore_ascii_case(event))
}

#[cfg(test)]
mod tests;
