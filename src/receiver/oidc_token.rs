//! Verifies the OIDC tokens of calls: the signature, the issuer, the audience, the lifetime and the claims. This module
//! performs no I/O.
//!
//! The module accepts only asymmetric signatures. The crate `ring` verifies them, like all other signatures of the
//! controller.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, new_error};
use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, Validation, dangerous};
use ring::signature as verification;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::api::pulumi::OidcProvider;

/// Maximum size of a token, in bytes. The tokens of GitHub and GitLab have about 2 KiB.
const MAX_TOKEN: usize = 16 * 1024;
/// Maximum number of keys of an issuer.
const MAX_KEYS: usize = 64;
/// Maximum length of the ID of a key, in bytes.
const MAX_KEY_ID: usize = 512;
/// Permitted difference between the clocks of the issuer and of the controller, in seconds.
const LEEWAY: u64 = 60;

/// The reason why the handler rejects a call with an OIDC token. The texts contain no part of a token, because any
/// client can send a token.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OidcFault {
    #[error("header Authorization must have the form Bearer <OIDC token>, with at most {MAX_TOKEN} bytes")]
    NoToken,
    #[error("the OIDC token is malformed, has no key ID, or has an unsupported algorithm; sign it with RS256 or ES256")]
    Malformed,
    #[error("oidcProviders does not contain the issuer of the OIDC token")]
    Issuer,
    #[error("the issuer {0} has no key with the ID and the algorithm of the OIDC token")]
    Key(String),
    #[error("the signature of the OIDC token is not valid for the key of the issuer {0}")]
    Signature(String),
    #[error("the OIDC token has expired, is not yet valid, or has no valid claims exp and iat")]
    Lifetime,
    #[error("the OIDC token has another audience than oidcProviders; request a token with the audience {0}")]
    Audience(String),
    #[error("claim {0} of the OIDC token does not have the value in oidcProviders")]
    Claim(String),
    #[error("failed to read the keys of the OIDC issuer {issuer}: {cause}")]
    Unavailable { issuer: String, cause: String },
    #[error("too many calls wait for the keys of OIDC issuers, {waiting} of them in this namespace")]
    Busy { waiting: usize },
}

/// A token that is not yet verified, with the values that select the key.
#[derive(Debug)]
pub struct Unverified<'a> {
    token: &'a str,
    pub issuer: String,
    pub key_id: String,
    pub algorithm: Algorithm,
}

#[derive(Deserialize)]
struct IssuerClaim {
    iss: String,
}

impl<'a> Unverified<'a> {
    /// Reads the token in the header `Authorization`.
    ///
    /// # Errors
    /// Returns an error if the header contains no token with an asymmetric algorithm and a key ID.
    pub fn read(headers: &'a HeaderMap) -> Result<Self, OidcFault> {
        let header = headers.get(AUTHORIZATION).and_then(|header| header.to_str().ok()).ok_or(OidcFault::NoToken)?;
        let (scheme, token) = header.split_once(' ').ok_or(OidcFault::NoToken)?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || token.len() > MAX_TOKEN {
            return Err(OidcFault::NoToken);
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| OidcFault::Malformed)?;
        // A token that is signed with the public key as the secret of an HMAC must never be valid.
        let is_asymmetric = header.alg.family() != AlgorithmFamily::Hmac;
        let key_id = header.kid.filter(|id| is_asymmetric && !id.is_empty() && id.len() <= MAX_KEY_ID);
        let key_id = key_id.ok_or(OidcFault::Malformed)?;
        let claims: IssuerClaim = dangerous::insecure_decode_claims(token).map_err(|_| OidcFault::Malformed)?;
        Ok(Unverified { token, issuer: claims.iss, key_id, algorithm: header.alg })
    }

    /// Returns the provider with the issuer of the token. The URLs must be equal.
    pub fn provider<'p>(&self, providers: &'p [OidcProvider]) -> Result<&'p OidcProvider, OidcFault> {
        providers.iter().find(|provider| provider.issuer_url == self.issuer).ok_or(OidcFault::Issuer)
    }

    /// Verifies the token with this key, and compares its claims with the provider. `now` is the current time in seconds
    /// since 1970.
    ///
    /// # Errors
    /// Returns an error if the token does not authenticate the call.
    pub fn verify(&self, key: &DecodingKey, provider: &OidcProvider, now: u64) -> Result<(), OidcFault> {
        // Fails if the provider is already installed.
        let _ = RING.install_default();
        let mut validation = Validation::new(self.algorithm);
        validation.set_required_spec_claims(&["iss", "aud", "exp"]);
        validation.set_issuer(&[&provider.issuer_url]);
        validation.set_audience(&[&provider.audience]);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        let claims = jsonwebtoken::decode::<BTreeMap<String, Value>>(self.token, key, &validation);
        let claims = claims.map_err(|error| fault(error.kind(), provider))?.claims;
        // The library also accepts a list of issuers.
        if claims.get("iss").and_then(Value::as_str) != Some(&provider.issuer_url) {
            return Err(OidcFault::Issuer);
        }
        let issued = claims.get("iat").and_then(Value::as_f64).ok_or(OidcFault::Lifetime)?;
        let latest = u32::try_from(now.saturating_add(LEEWAY)).map_or(f64::MAX, f64::from);
        if !(0.0..=latest).contains(&issued) {
            return Err(OidcFault::Lifetime);
        }
        // The schema requires claims. Without this check, a provider without claims would accept all tokens of the
        // issuer.
        if provider.claims.is_empty() {
            return Err(OidcFault::Claim("sub".to_owned()));
        }
        let wrong = provider.claims.iter().find(|(name, value)| !has_value(claims.get(*name), value));
        wrong.map_or(Ok(()), |(name, _)| Err(OidcFault::Claim(name.clone())))
    }
}

/// Returns whether a claim has exactly this value. A list or an object never has the value.
fn has_value(claim: Option<&Value>, value: &str) -> bool {
    match claim {
        Some(Value::String(found)) => found == value,
        Some(Value::Bool(found)) => value == if *found { "true" } else { "false" },
        Some(Value::Number(found)) => value == found.to_string().as_str(),
        _ => false,
    }
}

fn fault(kind: &ErrorKind, provider: &OidcProvider) -> OidcFault {
    let missing = |claim: &str| match claim {
        "aud" => OidcFault::Audience(provider.audience.clone()),
        "iss" => OidcFault::Issuer,
        _ => OidcFault::Lifetime,
    };
    match kind {
        ErrorKind::InvalidSignature | ErrorKind::InvalidRsaKey(_) | ErrorKind::InvalidKeyFormat => {
            OidcFault::Signature(provider.issuer_url.clone())
        }
        ErrorKind::InvalidIssuer => OidcFault::Issuer,
        ErrorKind::InvalidAudience => OidcFault::Audience(provider.audience.clone()),
        ErrorKind::ExpiredSignature | ErrorKind::ImmatureSignature => OidcFault::Lifetime,
        ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => missing(claim),
        _ => OidcFault::Malformed,
    }
}

/// The keys of an issuer that can verify tokens.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    id: String,
    /// Algorithm to which the issuer restricts the key.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Keys {
    /// Parses a JSON Web Key Set. Ignores keys that cannot verify tokens, such as keys for encryption or symmetric keys.
    /// Returns `None` if the set is malformed.
    pub fn parse(set: &[u8]) -> Option<Self> {
        let set: KeySet = serde_json::from_slice(set).ok()?;
        Some(Keys(set.keys.into_iter().filter_map(Key::parse).take(MAX_KEYS).collect()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the key with this ID for this algorithm.
    pub fn find(&self, id: &str, algorithm: Algorithm) -> Option<&DecodingKey> {
        let is_for =
            |key: &&Key| key.key.family() == algorithm.family() && key.algorithm.is_none_or(|a| a == algorithm);
        self.0.iter().filter(|key| key.id == id).find(is_for).map(|key| &key.key)
    }
}

impl Key {
    fn parse(key: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(key).ok()?;
        let id = jwk.common.key_id.as_ref().filter(|id| !id.is_empty() && id.len() <= MAX_KEY_ID)?.clone();
        if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        // An unknown algorithm makes the key unusable.
        let algorithm = match jwk.common.key_algorithm {
            None => None,
            Some(algorithm) => Some(Algorithm::try_from(algorithm).ok()?),
        };
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|key| key.family() != AlgorithmFamily::Hmac)?;
        Some(Key { id, algorithm, key })
    }
}

/// Provider for `jsonwebtoken` that verifies asymmetric signatures with `ring`. It signs nothing.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: |algorithm, key| {
        let key = match (algorithm.family() == key.family(), key.kind()) {
            (true, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                // `ring` accepts no leading zeros.
                let modulus = n.iter().copied().skip_while(|byte| *byte == 0).collect();
                RingKey::Rsa(rsa(*algorithm)?, verification::RsaPublicKeyComponents { n: modulus, e: e.clone() })
            }
            (true, DecodingKeyKind::SecretOrDer(key)) => {
                RingKey::Curve(verification::UnparsedPublicKey::new(curve(*algorithm)?, key.clone()))
            }
            (false, _) => return Err(new_error(ErrorKind::InvalidAlgorithm)),
        };
        Ok(Box::new(RingVerifier { algorithm: *algorithm, key }))
    },
    // Only conversions to JSON Web Keys use these functions.
    key_utils: KeyUtils::new_unimplemented(),
};

fn rsa(algorithm: Algorithm) -> Result<&'static verification::RsaParameters, Error> {
    match algorithm {
        Algorithm::RS256 => Ok(&verification::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Ok(&verification::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Ok(&verification::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Ok(&verification::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Ok(&verification::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Ok(&verification::RSA_PSS_2048_8192_SHA512),
        _ => Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    }
}

fn curve(algorithm: Algorithm) -> Result<&'static dyn verification::VerificationAlgorithm, Error> {
    match algorithm {
        Algorithm::ES256 => Ok(&verification::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Ok(&verification::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Ok(&verification::ED25519),
        _ => Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    }
}

enum RingKey {
    Rsa(&'static verification::RsaParameters, verification::RsaPublicKeyComponents<Vec<u8>>),
    Curve(verification::UnparsedPublicKey<Vec<u8>>),
}

struct RingVerifier {
    algorithm: Algorithm,
    key: RingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let result = match &self.key {
            RingKey::Rsa(parameters, key) => key.verify(parameters, message, signature),
            RingKey::Curve(key) => key.verify(message, signature),
        };
        result.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
pub(super) mod tests;
