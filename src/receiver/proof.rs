//! Authentication of webhook calls and selection of their events. Pure.
//!
//! Bodies are processed in pieces as they arrive, so that many large bodies at the same time use little memory.

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
/// Event that GitHub and Gitea send when a webhook is created. It only tests the path and the token.
const PING: &str = "ping";

/// Reason why a call is refused. It is visible to the owner of the receiver, never to the caller.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    #[error("header {0} is missing")]
    Missing(&'static str),
    #[error("header {0} must have the form <hash>=<signature in hexadecimal digits>")]
    Malformed(&'static str),
    #[error("header {0} names an unsupported hash; sign with sha256 or sha512")]
    Hash(&'static str),
    #[error("header {0} does not match the token and the body; check that the caller uses the token in the Secret")]
    Wrong(&'static str),
    #[error("the path belongs to an earlier token; use the path in status.webhookPath")]
    OldPath,
}

/// State of the authentication of a call.
pub enum Proof {
    /// The call is authenticated without its body.
    Given,
    Sha256(&'static str, Box<Hmac<Sha256>>, Vec<u8>),
    Sha512(&'static str, Box<Hmac<Sha512>>, Vec<u8>),
}

impl Proof {
    /// Performs the checks that do not need the body. `is_current` is whether the path belongs to the current token.
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
            // For this type, the path is the secret. The path of a revoked token must not be accepted.
            ReceiverType::Generic if is_current => Ok(Proof::Given),
            ReceiverType::Generic => Err(Fault::OldPath),
        }
    }

    /// Adds a piece of the body.
    pub fn take(&mut self, bytes: &[u8]) {
        match self {
            Proof::Given => {}
            Proof::Sha256(_, hmac, _) => hmac.update(bytes),
            Proof::Sha512(_, hmac, _) => hmac.update(bytes),
        }
    }

    /// Checks the signature at the end of the body. The comparison takes constant time for signatures of the right length.
    pub fn end(self) -> Result<(), Fault> {
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
    let hash = hashes.iter().find(|known| **known == hash).ok_or(Fault::Hash(header))?;
    let signature = hex::decode(signature).map_err(|_| Fault::Malformed(header))?;
    if *hash == "sha512" {
        let hmac = Hmac::new_from_slice(token.bytes()).map_err(|_| Fault::Wrong(header))?;
        return Ok(Proof::Sha512(header, Box::new(hmac), signature));
    }
    let hmac = Hmac::new_from_slice(token.bytes()).map_err(|_| Fault::Wrong(header))?;
    Ok(Proof::Sha256(header, Box::new(hmac), signature))
}

/// Compares HMACs of both texts, so that the duration reveals neither the length of the token nor a matching prefix.
fn same(token: &ReceiverToken, given: &[u8]) -> bool {
    let hash = |text: &[u8]| Hmac::<Sha256>::new_from_slice(token.bytes()).map(|hmac| hmac.chain_update(text));
    let (Ok(wanted), Ok(given)) = (hash(token.bytes()), hash(given)) else { return false };
    given.verify(&wanted.finalize().into_bytes()).is_ok()
}

/// Whether the event of a call triggers runs, given the events that the receiver selects.
pub fn runs(kind: ReceiverType, wanted: &[String], headers: &HeaderMap) -> bool {
    let header = match kind {
        ReceiverType::Github => GITHUB_EVENT,
        ReceiverType::Gitlab => GITLAB_EVENT,
        ReceiverType::Generic | ReceiverType::GenericHmac => return true,
    };
    let event = headers.get(header).and_then(|event| event.to_str().ok()).unwrap_or_default();
    if kind == ReceiverType::Github && event.eq_ignore_ascii_case(PING) {
        return false;
    }
    wanted.is_empty() || wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(event))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;
    use ReceiverType::{Generic, GenericHmac, Github, Gitlab};

    const BODY: &[u8] = br#"{"ref":"refs/heads/main"}"#;
    // Output of: printf '%s' '{"ref":"refs/heads/main"}' | openssl dgst -sha256 -hmac s3cret, and with -sha512 and -sha1.
    const SHA256: &str = "232a5e067b6a5aa567ed5a1d21a0dffaf6ef0eeecb6bd9bcf43b3d5ef3fc4f43";
    const SHA512: &str = "5d451062f10d9e2e3477568a228981d1708584a21a7f8796bb12e824c5175e229169cf2154b7fce5701f037c076766194208a3aac12a381a650f53ba28c1094e";
    const SHA1: &str = "9e9224e1fe730b87754d941cabe9da2f2724b16c";

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).expect("a name"), HeaderValue::try_from(*value).expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    fn judge(kind: ReceiverType, pairs: &[(&str, &str)], token: &str, body: &[u8]) -> Result<(), Fault> {
        let mut proof = Proof::begin(kind, &headers(pairs), &ReceiverToken::from(token.as_bytes()), true)?;
        // In two pieces, as a body may arrive.
        let (one, two) = body.split_at(body.len() / 2);
        proof.take(one);
        proof.take(two);
        proof.end()
    }

    #[test]
    fn a_signature_must_match_the_body_and_the_token() {
        let sha256 = format!("sha256={SHA256}");
        let upper = format!("sha256={}", SHA256.to_uppercase());
        let sha512 = format!("sha512={SHA512}");
        let sha1 = format!("sha1={SHA1}");
        let short = format!("sha256={}", SHA256.get(..62).unwrap());
        let crossed = format!("sha512={SHA256}");
        let other = format!("md5={SHA256}");
        let odd = format!("sha256={}", SHA256.get(..63).unwrap());
        let (hub, x) = (GITHUB_SIGNATURE, SIGNATURE);
        let rows = [
            (Github, hub, sha256.as_str(), Ok(())),
            (Github, hub, &upper, Ok(())),
            (Github, hub, &sha512, Err(Fault::Hash(hub))),
            (Github, hub, &sha1, Err(Fault::Hash(hub))),
            (Github, "X-Hub-Signature", &sha1, Err(Fault::Missing(hub))),
            (Github, x, &sha256, Err(Fault::Missing(hub))),
            (Github, hub, SHA256, Err(Fault::Malformed(hub))),
            (Github, hub, "sha256=", Err(Fault::Wrong(hub))),
            (Github, hub, &short, Err(Fault::Wrong(hub))),
            (Github, hub, &odd, Err(Fault::Malformed(hub))),
            (GenericHmac, x, &sha256, Ok(())),
            (GenericHmac, x, &sha512, Ok(())),
            (GenericHmac, x, &sha1, Err(Fault::Hash(x))),
            (GenericHmac, x, &crossed, Err(Fault::Wrong(x))),
            (GenericHmac, x, &other, Err(Fault::Hash(x))),
            (GenericHmac, hub, &sha256, Err(Fault::Missing(x))),
            (GenericHmac, x, "sha256=zz", Err(Fault::Malformed(x))),
        ];
        for (kind, header, value, wanted) in rows {
            assert_eq!(judge(kind, &[(header, value)], "s3cret", BODY), wanted, "{kind:?} {header}: {value}");
        }
        for kind in [Github, GenericHmac] {
            let header = if kind == Github { hub } else { x };
            let signed = [(header, sha256.as_str())];
            assert_eq!(judge(kind, &signed, "other", BODY), Err(Fault::Wrong(header)), "another token");
            assert_eq!(judge(kind, &signed, "s3cret", b"{}"), Err(Fault::Wrong(header)), "another body");
            assert_eq!(judge(kind, &[], "s3cret", BODY), Err(Fault::Missing(header)), "no signature");
        }
    }

    #[test]
    fn gitlab_calls_are_authenticated_by_the_plain_token() {
        let rows = [("s3cret", Ok(())), ("s3cre", Err(())), ("s3cret2", Err(())), ("", Err(())), ("S3cret", Err(()))];
        for (given, wanted) in rows {
            let wanted = wanted.map_err(|()| Fault::Wrong(GITLAB_TOKEN));
            assert_eq!(judge(Gitlab, &[(GITLAB_TOKEN, given)], "s3cret", BODY), wanted, "{given:?}");
        }
        assert_eq!(judge(Gitlab, &[], "s3cret", BODY), Err(Fault::Missing(GITLAB_TOKEN)));
    }

    #[test]
    fn a_generic_call_is_authenticated_by_the_path_of_the_current_token() {
        let token = ReceiverToken::from(&b"s3cret"[..]);
        assert_eq!(judge(Generic, &[], "s3cret", BODY), Ok(()));
        let old = Proof::begin(Generic, &HeaderMap::new(), &token, false).err();
        assert_eq!(old, Some(Fault::OldPath));
        let signed = headers(&[(GITHUB_SIGNATURE, &format!("sha256={SHA256}"))]);
        assert!(
            Proof::begin(Github, &signed, &token, false).is_ok(),
            "a caller with the new token may use the old path"
        );
    }

    #[test]
    fn events_are_filtered_by_header_and_pings_are_ignored() {
        let push = ["push".to_owned(), "release".to_owned()];
        let rows: [(ReceiverType, &[String], &str, &str, bool); 11] = [
            (Github, &push, GITHUB_EVENT, "push", true),
            (Github, &push, GITHUB_EVENT, "PUSH", true),
            (Github, &push, GITHUB_EVENT, "issues", false),
            (Github, &push, GITLAB_EVENT, "push", false),
            (Github, &[], GITHUB_EVENT, "issues", true),
            (Github, &[], GITHUB_EVENT, "ping", false),
            (Github, &["ping".to_owned()], GITHUB_EVENT, "ping", false),
            (Gitlab, &["push hook".to_owned()], GITLAB_EVENT, "Push Hook", true),
            (Gitlab, &["Push Hook".to_owned()], GITLAB_EVENT, "Tag Push Hook", false),
            (Gitlab, &[], GITLAB_EVENT, "Tag Push Hook", true),
            (GenericHmac, &[], GITHUB_EVENT, "ping", true),
        ];
        for (kind, wanted, header, event, runs_it) in rows {
            assert_eq!(
                runs(kind, wanted, &headers(&[(header, event)])),
                runs_it,
                "{kind:?} {wanted:?} {header}: {event}"
            );
        }
    }
}
