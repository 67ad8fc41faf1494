//! Digests that identify and verify artifacts.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use super::quote::quoted;

/// Supported algorithms, as error messages list them.
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
    /// Returns the algorithm name that digests contain.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha384 => "sha384",
            Algorithm::Sha512 => "sha512",
            Algorithm::Blake3 => "blake3",
        }
    }

    /// Returns the number of hexadecimal digits in a digest that this algorithm computes.
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

/// A valid digest in the form `algorithm:hex`, with a supported algorithm and lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

/// The reason why a string is not a valid digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    #[error("digest is empty: a digest is required to verify the artifact")]
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

    /// Reads `reader` to its end and returns the digest of the bytes.
    ///
    /// # Errors
    /// Returns an error if reading fails.
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

    /// Returns the hexadecimal digits in lower case.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// Returns whether `found`, the digest of the received bytes, equals this digest. Compares the digests in constant
    /// time.
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

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl JsonSchema for Digest {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Digest".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^((sha256|blake3):[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})$",
        })
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
    /// The box keeps the enum small, because the BLAKE3 state is much larger than the other states.
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

/// A source whose files are already in the workspace pod. Each in-pod source has a fixed digest, because the controller
/// and the agent identify every source by a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPod {
    /// A directory of the container image. The path of the directory is relative to the image root.
    Image,
    /// The project directory, into which user-defined init containers write the project.
    InitContainers,
}

impl InPod {
    const ALL: [InPod; 2] = [InPod::Image, InPod::InitContainers];

    /// Returns the in-pod source that this digest identifies, or `None` if the digest identifies an archive.
    pub fn of(digest: &Digest) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.digest() == *digest)
    }

    /// Returns the fixed digest of this source. The digest is the hash of a string that is not an archive, so no
    /// archive has the same digest.
    pub fn digest(self) -> Digest {
        Digest::of(match self {
            InPod::Image => b"pulumi-controller: the source is in the image",
            InPod::InitContainers => b"pulumi-controller: the source comes from the init containers",
        })
    }
}

#[cfg(test)]
mod tests;
