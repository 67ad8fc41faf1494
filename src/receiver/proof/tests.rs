use axum::http::{HeaderName, HeaderValue};

use super::*;
use ReceiverType::{Generic, GenericHmac, Github, Gitlab};

const BODY: &[u8] = br#"{"ref":"refs/heads/main"}"#;
// Output of `printf '%s' '{"ref":"refs/heads/main"}' | openssl dgst -sha256 -hmac s3cret`. The other values are the
// output of the same command with `-sha512` and `-sha1`.
const SHA256: &str = "232a5e067b6a5aa567ed5a1d21a0dffaf6ef0eeecb6bd9bcf43b3d5ef3fc4f43";
const SHA512: &str = "5d451062f10d9e2e3477568a228981d1708584a21a7f8796bb12e824c5175e229169cf2154b7fce5701f037c076766194208a3aac12a381a650f53ba28c1094e";
const SHA1: &str = "9e9224e1fe730b87754d941cabe9da2f2724b16c";

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&str, &str)| {
        (HeaderName::try_from(*name).expect("a name"), HeaderValue::try_from(*value).expect("a value"))
    };
    pairs.iter().map(pair).collect()
}

fn authenticate(kind: ReceiverType, pairs: &[(&str, &str)], token: &str, body: &[u8]) -> Result<(), Fault> {
    let mut proof = Proof::begin(kind, &headers(pairs), &ReceiverToken::from(token.as_bytes()), true)?;
    // Passes the body in two pieces.
    let (one, two) = body.split_at(body.len() / 2);
    proof.update(one);
    proof.update(two);
    proof.verify()
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
    for (kind, header, value, expected) in rows {
        assert_eq!(authenticate(kind, &[(header, value)], "s3cret", BODY), expected, "{kind:?} {header}: {value}");
    }
    for kind in [Github, GenericHmac] {
        let header = if kind == Github { hub } else { x };
        let signed = [(header, sha256.as_str())];
        assert_eq!(authenticate(kind, &signed, "other", BODY), Err(Fault::Wrong(header)), "a different token");
        assert_eq!(authenticate(kind, &signed, "s3cret", b"{}"), Err(Fault::Wrong(header)), "a different body");
        assert_eq!(authenticate(kind, &[], "s3cret", BODY), Err(Fault::Missing(header)), "no signature");
    }
}

#[test]
fn gitlab_calls_are_authenticated_by_the_plain_token() {
    let rows = [("s3cret", Ok(())), ("s3cre", Err(())), ("s3cret2", Err(())), ("", Err(())), ("S3cret", Err(()))];
    for (given, expected) in rows {
        let expected = expected.map_err(|()| Fault::Wrong(GITLAB_TOKEN));
        assert_eq!(authenticate(Gitlab, &[(GITLAB_TOKEN, given)], "s3cret", BODY), expected, "{given:?}");
    }
    assert_eq!(authenticate(Gitlab, &[], "s3cret", BODY), Err(Fault::Missing(GITLAB_TOKEN)));
}

#[test]
fn a_generic_call_is_authenticated_by_the_path_of_the_current_token() {
    let token = ReceiverToken::from(&b"s3cret"[..]);
    assert_eq!(authenticate(Generic, &[], "s3cret", BODY), Ok(()));
    let old = Proof::begin(Generic, &HeaderMap::new(), &token, false).err();
    assert_eq!(old, Some(Fault::OldPath));
    let signed = headers(&[(GITHUB_SIGNATURE, &format!("sha256={SHA256}"))]);
    assert!(Proof::begin(Github, &signed, &token, false).is_ok(), "a caller with the new token may use the old path");
}

#[test]
fn calls_are_filtered_by_event_type_and_pings_are_ignored() {
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
    for (kind, expected, header, event, is_run) in rows {
        assert_eq!(
            triggers_run(kind, expected, &headers(&[(header, event)])),
            is_run,
            "{kind:?} {expected:?} {header}: {event}"
        );
    }
}
