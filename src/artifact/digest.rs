//! Digests that identify and verify artifacts.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use sha2::{Digest as _, Sha256, Sha384, Sha512};

use super::quote::quoted;

/// Supported algorithms, as listed in error messages.
const SUPPORTED: &str = "sha256, sha384, sha512 or blake3";

/// A hash algorithm for verifying artifacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    Sha256,
    Sha384,
    Sha512,
    Blake3,
}

impl Algorithm {
    /// Returns the name as it appears in a digest.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha384 => "sha384",
            Algorithm::Sha512 => "sha512",
            Algorithm::Blake3 => "blake3",
        }
    }

    /// Number of hexadecimal digits of a digest.
    pub fn hex_digits(self) -> usize {
        match self {
            Algorithm::Sha256 | Algorithm::Blake3 => 64,
            Algorithm::Sha384 => 96,
            Algorithm::Sha512 => 128,
        }
    }

    fn parse(name: &str) -> Result<Self, DigestError> {
        match name {
            "sha256" => Ok(Algorithm::Sha256),
            "sha384" => Ok(Algorithm::Sha384),
            "sha512" => Ok(Algorithm::Sha512),
            "blake3" => Ok(Algorithm::Blake3),
            "sha1" => Err(DigestError::Broken { algorithm: "sha1" }),
            "md5" => Err(DigestError::Broken { algorithm: "md5" }),
            other => Err(DigestError::Unknown { algorithm: quoted(other) }),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A valid digest in the form `algorithm:hex`: the algorithm is supported, and the digits are lower case and complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

/// The reason why a text is not a usable digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    #[error("digest is empty: it is required to verify the artifact")]
    Empty,
    #[error("digest {text} has no algorithm: must have the form algorithm:hex, for example sha256:1f40...")]
    NoAlgorithm { text: String },
    #[error("insecure digest algorithm {algorithm}: must be {SUPPORTED}")]
    Broken { algorithm: &'static str },
    #[error("unsupported digest algorithm {algorithm}: must be {SUPPORTED}")]
    Unknown { algorithm: String },
    #[error("invalid {algorithm} digest: must have {expected} hexadecimal digits, not {found}")]
    Length { algorithm: Algorithm, expected: usize, found: usize },
    #[error("invalid {algorithm} digest: must consist of 0-9 and a-f, but contains {found:?}")]
    Character { algorithm: Algorithm, found: char },
}

impl Digest {
    /// Returns the SHA-256 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns the digest of all bytes of the reader.
    ///
    /// # Errors
    /// Returns the errors of the reader.
    pub fn of_reader(algorithm: Algorithm, mut reader: impl Read) -> io::Result<Self> {
        let mut hasher = Hasher::new(algorithm);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(count) => hasher.update(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The digits in lower case.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// Returns whether `found`, computed over bytes, equals this digest. The comparison takes constant time.
    pub fn verify(&self, found: &Digest) -> bool {
        let difference = self.hex.bytes().zip(found.hex.bytes()).fold(0, |sum, (ours, theirs)| sum | (ours ^ theirs));
        self.algorithm == found.algorithm && self.hex.len() == found.hex.len() && difference == 0
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        if text.is_empty() {
            return Err(DigestError::Empty);
        }
        let (name, hex) = text.split_once(':').ok_or_else(|| DigestError::NoAlgorithm { text: quoted(text) })?;
        let algorithm = Algorithm::parse(name)?;
        if let Some(found) = hex.chars().find(|character| !matches!(character, '0'..='9' | 'a'..='f')) {
            return Err(DigestError::Character { algorithm, found });
        }
        let expected = algorithm.hex_digits();
        if hex.len() != expected {
            return Err(DigestError::Length { algorithm, expected, found: hex.len() });
        }
        Ok(Self { algorithm, hex: hex.to_owned() })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.algorithm, self.hex)
    }
}

/// Computes a digest incrementally.
#[derive(Clone, Debug)]
pub struct Hasher(Running);

#[derive(Clone, Debug)]
enum Running {
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
    /// Boxed, because its state is much larger than the others.
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => Running::Sha256(Sha256::new()),
            Algorithm::Sha384 => Running::Sha384(Sha384::new()),
            Algorithm::Sha512 => Running::Sha512(Sha512::new()),
            Algorithm::Blake3 => Running::Blake3(Box::default()),
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Running::Sha256(hasher) => hasher.update(bytes),
            Running::Sha384(hasher) => hasher.update(bytes),
            Running::Sha512(hasher) => hasher.update(bytes),
            Running::Blake3(hasher) => drop(hasher.update(bytes)),
        }
    }

    pub fn finish(self) -> Digest {
        match self.0 {
            Running::Sha256(hasher) => digest(Algorithm::Sha256, &hasher.finalize()),
            Running::Sha384(hasher) => digest(Algorithm::Sha384, &hasher.finalize()),
            Running::Sha512(hasher) => digest(Algorithm::Sha512, &hasher.finalize()),
            Running::Blake3(hasher) => digest(Algorithm::Blake3, hasher.finalize().as_bytes()),
        }
    }
}

fn digest(algorithm: Algorithm, hash: &[u8]) -> Digest {
    Digest { algorithm, hex: hex::encode(hash) }
}

#[cfg(test)]
mod tests {
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
    fn incremental_hashing_equals_hashing_at_once() {
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
    fn only_equal_digests_verify() {
        let digest = Digest::of(b"abc");
        assert!(digest.verify(&Digest::of(b"abc")));
        assert!(!digest.verify(&Digest::of(b"abd")));
        assert!(!digest.verify(&Digest::of_reader(Algorithm::Sha512, &b"abc"[..]).unwrap()));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_rejected(text in ".*") {
            if let Ok(digest) = text.parse::<Digest>() {
                prop_assert_eq!(digest.to_string(), text);
            }
        }

        #[test]
        fn any_valid_digest_round_trips(hex in "[0-9a-f]{64}") {
            let text = format!("sha256:{hex}");
            prop_assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        }
    }
}
