//! Tests for parsing, computing and verifying digests.

use proptest::prelude::*;

use super::*;

#[test]
fn digests_of_every_supported_algorithm_are_computed_and_parsed() {
    // Test vectors for "abc" from FIPS 180-4 and, for BLAKE3, from the reference implementation.
    let table = [
        (Algorithm::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            Algorithm::Sha384,
            "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
        ),
        (
            Algorithm::Sha512,
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
             2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ),
        (Algorithm::Blake3, "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
    ];
    for (algorithm, hex) in table {
        let found = Digest::of_reader(algorithm, &b"abc"[..]).unwrap();
        assert_eq!(found.hex(), hex);
        assert_eq!(found.to_string(), format!("{algorithm}:{hex}"));
        assert_eq!(found.to_string().parse(), Ok(found));
    }
}

#[test]
fn incremental_hashing_equals_hashing_all_bytes_together() {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(b"a");
    hasher.update(b"");
    hasher.update(b"bc");
    assert_eq!(hasher.finish(), Digest::of(b"abc"));
}

#[test]
fn an_invalid_digest_is_rejected_with_the_reason() {
    let digits = "a".repeat(64);
    let table = [
        (String::new(), "digest is empty"),
        (digits.clone(), "has no algorithm"),
        (format!("sha1:{}", "a".repeat(40)), "insecure digest algorithm sha1"),
        (format!("md5:{}", "a".repeat(32)), "insecure digest algorithm md5"),
        (format!("crc32:{digits}"), "unsupported digest algorithm \"crc32\""),
        (format!("SHA256:{digits}"), "unsupported digest algorithm \"SHA256\""),
        (format!(":{digits}"), "unsupported digest algorithm \"\""),
        ("sha256:".to_owned(), "must have 64 hexadecimal digits, not 0"),
        (format!("sha256:{digits}a"), "not 65"),
        (format!("sha512:{digits}"), "must have 128 hexadecimal digits, not 64"),
        (format!("sha256:{}", "A".repeat(64)), "contains 'A'"),
        (format!("sha256:{} ", "a".repeat(63)), "contains ' '"),
        (format!("sha256:sha256:{digits}"), "contains 's'"),
    ];
    for (text, message) in table {
        let error = text.parse::<Digest>().expect_err(&text).to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}

#[test]
fn verification_succeeds_only_for_an_equal_digest() {
    let digest = Digest::of(b"abc");
    assert!(digest.verify(&Digest::of(b"abc")));
    assert!(!digest.verify(&Digest::of(b"abd")));
    assert!(!digest.verify(&Digest::of_reader(Algorithm::Sha512, &b"abc"[..]).unwrap()));
}

proptest! {
    #[test]
    fn any_text_is_parsed_as_a_digest_or_rejected(text in ".*") {
        if let Ok(digest) = text.parse::<Digest>() {
            prop_assert_eq!(digest.to_string(), text);
        }
    }

    #[test]
    fn any_valid_digest_is_unchanged_after_a_round_trip(hex in "[0-9a-f]{64}") {
        let text = format!("sha256:{hex}");
        prop_assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
    }
}

#[test]
fn digests_of_in_pod_sources_are_stable_and_match_no_archive() {
    // Workspaces in existing installations contain the digests of the in-pod sources, so these digests must not change.
    let image = "sha256:54a0b53c31a856bb28d128223bf9817ad2c81036ced1456729c4650f947c1cf4";
    let init_containers = "sha256:29fcd7b6689f9ecb999a9ce953f1ac1e71222db252ae7a1559161b80c59a9930";
    assert_eq!(InPod::Image.digest().to_string(), image);
    assert_eq!(InPod::InitContainers.digest().to_string(), init_containers);
    for source in InPod::ALL {
        assert_eq!(InPod::of(&source.digest()), Some(source));
    }
    assert_eq!(InPod::of(&Digest::of(b"an archive")), None);
}
