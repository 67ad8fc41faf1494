//! Format of the Secret that stores the CA: up to three pairs of a certificate and a private key, and two annotations
//! with timestamps.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::decide::Found;
use super::generations::{Generations, Pending};
use crate::rpc::identity::Authority;

/// Name of the Secret that stores the CA.
pub const SECRET: &str = "pulumi-controller-authority";

/// Names of two entries in the Secret: a certificate and its private key. `ca.crt` can contain additional
/// certificates that are also trusted.
type Pair = [&'static str; 2];
const CURRENT: Pair = ["ca.crt", "ca.key"];
const NEXT: Pair = ["next.crt", "next.key"];
const PREVIOUS: Pair = ["previous.crt", "previous.key"];

/// Annotation that contains the promotion time of the next CA.
const PROMOTE_AT: &str = "pulumi.com/promote-at";
/// Annotation that contains the time at which the previous CA is no longer trusted.
const RETIRE_AT: &str = "pulumi.com/retire-at";
/// Annotation that a user sets to request a CA rotation.
const ROTATE: &str = "pulumi.com/rotate";

/// Parses the Secret. Ignores an invalid next or previous CA.
pub(super) fn read(secret: Option<&Secret>) -> Found {
    let Some(secret) = secret else {
        return Found::Nothing;
    };
    let current = match authority(secret, CURRENT) {
        Ok(current) => Arc::new(current),
        Err(reason) => return Found::Unusable(reason),
    };
    let pending = |pair: Pair, annotation: &str| {
        let until = secret.annotations().get(annotation).and_then(|time| time.parse().ok());
        let given = secret.data.as_ref().is_some_and(|data| pair.iter().any(|key| data.contains_key(*key)));
        match authority(secret, pair) {
            Ok(authority) if authority.certificate() == current.certificate() => None,
            Ok(authority) => Some(Pending { authority: Arc::new(authority), until }),
            Err(reason) => {
                if given {
                    tracing::warn!(secret = SECRET, reason, "ignoring invalid CA in Secret");
                }
                None
            }
        }
    };
    let (next, previous) = (pending(NEXT, PROMOTE_AT), pending(PREVIOUS, RETIRE_AT));
    Found::Usable {
        generations: Box::new(Generations::new(current, next, previous)),
        rotation_requested: secret.annotations().contains_key(ROTATE),
    }
}

fn authority(secret: &Secret, [certificate, key]: Pair) -> Result<Authority, String> {
    let text = |key: &str| {
        let ByteString(bytes) =
            secret.data.as_ref().and_then(|data| data.get(key)).ok_or_else(|| format!("missing key {key}"))?;
        std::str::from_utf8(bytes).map_err(|_| format!("{key} is not valid UTF-8"))
    };
    Authority::from_pem(text(certificate)?, text(key)?).map_err(|error| format!("{certificate}, {key}: {error}"))
}

pub(super) fn new(generations: &Generations, namespace: &str) -> Secret {
    let annotations = annotations(generations).into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let data = data(generations)
        .into_iter()
        .filter_map(|(key, pem)| Some((key.to_owned(), ByteString(pem?.as_bytes().to_vec()))));
    Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            annotations: Some(annotations.collect()),
            ..ObjectMeta::default()
        },
        data: Some(data.collect()),
        ..Secret::default()
    }
}

/// Returns the merge patch that stores the generations and removes a rotation request. The API server rejects the
/// patch if the Secret has changed since the controller read it.
pub(super) fn patch(generations: &Generations, found: &Secret) -> Value {
    let bytes = |pem: Option<Zeroizing<String>>| pem.map(|pem| ByteString(pem.as_bytes().to_vec()));
    let data: BTreeMap<_, _> = data(generations).into_iter().map(|(key, pem)| (key, bytes(pem))).collect();
    json!({
        "metadata": {"resourceVersion": found.resource_version(), "annotations": annotations(generations)},
        "data": data,
    })
}

fn data(generations: &Generations) -> BTreeMap<&'static str, Option<Zeroizing<String>>> {
    let pair = |[certificate, key]: Pair, authority: Option<&Authority>| {
        let pem = |authority: &Authority| Zeroizing::new(authority.certificate_pem().to_owned());
        [(certificate, authority.map(pem)), (key, authority.map(Authority::key_pem))]
    };
    let pending = |pair_of: Pair, pending: Option<&Pending>| pair(pair_of, pending.map(|pending| &*pending.authority));
    let all = [
        pair(CURRENT, Some(generations.current())),
        pending(NEXT, generations.next()),
        pending(PREVIOUS, generations.previous()),
    ];
    all.into_iter().flatten().collect()
}

fn annotations(generations: &Generations) -> BTreeMap<&'static str, Option<String>> {
    let time = |pending: Option<&Pending>| pending.and_then(|pending| pending.until).map(in_seconds);
    [(PROMOTE_AT, time(generations.next())), (RETIRE_AT, time(generations.previous())), (ROTATE, None)].into()
}

/// Formats a time without fractional seconds.
fn in_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> Authority {
        Authority::generate(Timestamp::now()).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn usable(secret: &Secret) -> (Generations, bool) {
        match read(Some(secret)) {
            Found::Usable { generations, rotation_requested } => (*generations, rotation_requested),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_authority_is_unchanged_after_writing_and_reading_its_secret() {
        let all = Generations::first(authority())
            .with_next(authority(), at(1_900_000_000))
            .promoted(at(1_950_000_000))
            .with_next(authority(), at(1_960_000_000));
        let (read, requested) = usable(&new(&all, "flux-system"));
        assert!(read == all && !requested);
        assert_eq!(read.next().unwrap().until, Some(at(1_960_000_000)));
        assert_eq!(read.previous().unwrap().until, Some(at(1_950_000_000)));
        let keys: Vec<String> = new(&all.retired(), "flux-system").data.unwrap().into_keys().collect();
        assert_eq!(keys, ["ca.crt", "ca.key", "next.crt", "next.key"]);
    }

    #[test]
    fn a_patch_sets_the_resource_version_and_removes_expired_entries() {
        let one = Generations::first(authority());
        let mut found = new(&one, "flux-system");
        found.metadata.resource_version = Some("7".to_owned());
        let patch = patch(&one, &found);
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let nulls = json!({"pulumi.com/promote-at": null, "pulumi.com/retire-at": null, "pulumi.com/rotate": null});
        assert_eq!(patch["metadata"]["annotations"], nulls);
        assert!(patch["data"]["ca.key"].is_string() && patch["data"]["next.key"].is_null());
        assert_eq!(patch["data"].as_object().unwrap().len(), 6);
    }

    #[test]
    fn the_error_for_an_unusable_secret_states_the_reason() {
        let mut secret = new(&Generations::first(authority()), "flux-system");
        let broken = |key: &str, bytes: Option<&[u8]>| {
            let mut secret = secret.clone();
            match bytes {
                Some(bytes) => secret.data.as_mut().unwrap().insert(key.to_owned(), ByteString(bytes.to_vec())),
                None => secret.data.as_mut().unwrap().remove(key),
            };
            match read(Some(&secret)) {
                Found::Unusable(reason) => reason,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(broken("ca.key", None), "missing key ca.key");
        assert_eq!(broken("ca.crt", Some(&[0xff])), "ca.crt is not valid UTF-8");
        assert_eq!(broken("ca.crt", Some(b"hello")), "ca.crt, ca.key: failed to read the certificate: not PEM");
        let foreign = authority().key_pem();
        let reason = broken("ca.key", Some(foreign.as_bytes()));
        assert_eq!(reason, "ca.crt, ca.key: no certificate of the authority matches its private key");

        secret.data.as_mut().unwrap().insert("next.crt".to_owned(), ByteString(b"hello".to_vec()));
        secret.annotations_mut().insert(ROTATE.to_owned(), String::new());
        let (read, requested) = usable(&secret);
        assert!(read.next().is_none() && requested, "an unreadable next CA is ignored");
    }
}
