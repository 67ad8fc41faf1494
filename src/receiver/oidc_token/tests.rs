use axum::http::HeaderValue;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;
use sha2::Sha256;

use super::*;

pub const ISSUER: &str = "https://ci.example.com";

/// An issuer with a P-256 key.
pub struct Signer {
    key: EcdsaKeyPair,
    pub id: &'static str,
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    pub fn new(id: &'static str) -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Signer { key: EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).unwrap(), id }
    }

    /// Returns the public key as a JSON Web Key.
    pub fn public(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let (x, y) = (encode(&point[1..33]), encode(&point[33..]));
        json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.id, "x": x, "y": y})
    }

    pub fn keys(&self) -> Value {
        json!({"keys": [self.public()]})
    }

    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encode(signature))
    }

    pub fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "ES256", "typ": "JWT", "kid": self.id}), claims)
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// Returns valid claims with these changes. A change to `null` removes the claim.
pub fn claims(changes: Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER, "aud": "pulumi-test", "sub": "repo:acme/web:ref:refs/heads/main", "repository": "acme/web",
        "ref": "refs/heads/main", "ref_protected": "true", "trusted": true, "number": 7, "groups": ["acme/web"],
        "iat": now(), "nbf": now() - 5, "exp": now() + 300,
    });
    crate::runtime::fake_api::apply_json_merge_patch(&mut claims, &changes);
    claims
}

pub fn provider(claims: Value) -> OidcProvider {
    serde_json::from_value(json!({"issuerURL": ISSUER, "audience": "pulumi-test", "claims": claims})).unwrap()
}

fn bearer(token: &str) -> HeaderMap {
    [(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap())].into_iter().collect()
}

fn verify(token: &str, keys: &Value, provider: &OidcProvider) -> Result<(), OidcFault> {
    let headers = bearer(token);
    let token = Unverified::read(&headers)?;
    let provider = token.provider(std::slice::from_ref(provider))?;
    let keys = Keys::parse(keys.to_string().as_bytes()).unwrap();
    let key = keys.find(&token.key_id, token.algorithm).ok_or_else(|| OidcFault::Key(token.issuer.clone()))?;
    token.verify(key, provider, u64::try_from(now()).unwrap())
}

#[test]
fn a_token_needs_the_issuer_the_audience_the_lifetime_and_the_claims() {
    let signer = Signer::new("one");
    let audience = || OidcFault::Audience("pulumi-test".to_owned());
    let rows = [
        (json!({}), Ok(())),
        (json!({"aud": ["other", "pulumi-test"]}), Ok(())),
        (json!({"nbf": null}), Ok(())),
        (json!({"exp": now() - 30}), Ok(())),
        (json!({"iss": "https://ci.example.com/"}), Err(OidcFault::Issuer)),
        (json!({"iss": "https://evil.example.com"}), Err(OidcFault::Issuer)),
        (json!({"iss": [ISSUER]}), Err(OidcFault::Malformed)),
        (json!({"iss": null}), Err(OidcFault::Malformed)),
        (json!({"aud": "other"}), Err(audience())),
        (json!({"aud": "pulumi"}), Err(audience())),
        (json!({"aud": []}), Err(audience())),
        (json!({"aud": null}), Err(audience())),
        (json!({"aud": {"a": "pulumi-test"}}), Err(audience())),
        (json!({"exp": now() - 90}), Err(OidcFault::Lifetime)),
        (json!({"exp": null}), Err(OidcFault::Lifetime)),
        (json!({"exp": "9999999999"}), Err(OidcFault::Lifetime)),
        (json!({"nbf": now() + 90}), Err(OidcFault::Lifetime)),
        (json!({"iat": now() + 90}), Err(OidcFault::Lifetime)),
        (json!({"iat": null}), Err(OidcFault::Lifetime)),
        (json!({"iat": "now"}), Err(OidcFault::Lifetime)),
        (json!({"repository": "evil/web"}), Err(OidcFault::Claim("repository".to_owned()))),
        (json!({"repository": "acme/web2"}), Err(OidcFault::Claim("repository".to_owned()))),
        (json!({"repository": ["acme/web"]}), Err(OidcFault::Claim("repository".to_owned()))),
        (json!({"repository": null}), Err(OidcFault::Claim("repository".to_owned()))),
    ];
    for (changes, expected) in rows {
        let token = signer.token(&claims(changes.clone()));
        assert_eq!(verify(&token, &signer.keys(), &provider(json!({"repository": "acme/web"}))), expected, "{changes}");
    }
}

#[test]
fn all_claims_of_the_provider_must_have_exactly_their_values() {
    let signer = Signer::new("one");
    let rows = [
        (json!({"repository": "acme/web", "ref": "refs/heads/main"}), None),
        (json!({"trusted": "true", "number": "7", "ref_protected": "true"}), None),
        (json!({"repository": "acme/web", "ref": "refs/heads/other"}), Some("ref")),
        (json!({"repository": "acme/*"}), Some("repository")),
        (json!({"repository": "Acme/web"}), Some("repository")),
        (json!({"groups": "acme/web"}), Some("groups")),
        (json!({"missing": ""}), Some("missing")),
        (json!({"missing": "null"}), Some("missing")),
        // The schema rejects a provider without claims.
        (json!({}), Some("sub")),
    ];
    for (wanted, expected) in rows {
        let token = signer.token(&claims(json!({})));
        let expected = expected.map_or(Ok(()), |claim| Err(OidcFault::Claim(claim.to_owned())));
        assert_eq!(verify(&token, &signer.keys(), &provider(wanted.clone())), expected, "{wanted}");
    }
}

#[test]
fn only_asymmetric_signatures_of_the_named_key_are_valid() {
    let (signer, other) = (Signer::new("one"), Signer::new("one"));
    let provider = provider(json!({"repository": "acme/web"}));
    let good = claims(json!({}));
    let header = |algorithm: &str| json!({"alg": algorithm, "kid": "one"});
    let signature = || Err(OidcFault::Signature(ISSUER.to_owned()));
    let key = || Err(OidcFault::Key(ISSUER.to_owned()));
    // The classic attack on a verifier that takes the algorithm from the token: an HMAC with the public key as secret.
    let confused = |secret: &[u8]| {
        let message = format!("{}.{}", encode(header("HS256").to_string()), encode(good.to_string()));
        let hmac = Hmac::<Sha256>::new_from_slice(secret).unwrap().chain_update(&message);
        format!("{message}.{}", encode(hmac.finalize().into_bytes()))
    };
    let unsigned = format!("{}.{}.", encode(header("none").to_string()), encode(good.to_string()));
    let valid = signer.token(&good);
    let parts: Vec<&str> = valid.split('.').collect();
    let changed = format!("{}.{}.{}", parts[0], encode(claims(json!({"repository": "a"})).to_string()), parts[2]);
    let cut = format!("{}.{}.{}", parts[0], parts[1], parts[2].get(..40).unwrap());
    let rows = [
        ("valid", valid.clone(), Ok(())),
        ("another key with the same ID", other.token(&good), signature()),
        ("other claims", changed, signature()),
        ("a short signature", cut, signature()),
        ("no signature", format!("{}.{}.", parts[0], parts[1]), signature()),
        ("alg none", unsigned, Err(OidcFault::Malformed)),
        ("HMAC with the key", confused(signer.key.public_key().as_ref()), Err(OidcFault::Malformed)),
        ("HMAC with the key set", confused(signer.keys().to_string().as_bytes()), Err(OidcFault::Malformed)),
        ("an algorithm of another family", signer.sign(&header("RS256"), &good), key()),
        ("another algorithm of the family", signer.sign(&header("ES384"), &good), key()),
        ("an unknown algorithm", signer.sign(&header("ES512"), &good), Err(OidcFault::Malformed)),
        ("an unknown key", signer.sign(&json!({"alg": "ES256", "kid": "two"}), &good), key()),
        ("no key ID", signer.sign(&json!({"alg": "ES256"}), &good), Err(OidcFault::Malformed)),
        (
            "a critical extension",
            signer.sign(&json!({"alg": "ES256", "kid": "one", "crit": ["b"], "b": 1}), &good),
            Err(OidcFault::Malformed),
        ),
        ("no token", "text".to_owned(), Err(OidcFault::Malformed)),
        ("too long", "a".repeat(MAX_TOKEN + 1), Err(OidcFault::NoToken)),
    ];
    for (what, token, expected) in rows {
        assert_eq!(verify(&token, &signer.keys(), &provider), expected, "{what}");
    }
    // Without `alg` in the key set, the family of the key must still match the algorithm of the token.
    let mut unrestricted = signer.public();
    unrestricted.as_object_mut().unwrap().remove("alg");
    let unrestricted = json!({"keys": [unrestricted]});
    assert_eq!(verify(&valid, &unrestricted, &provider), Ok(()));
    assert_eq!(verify(&signer.sign(&header("ES384"), &good), &unrestricted, &provider), signature());
    assert_eq!(verify(&signer.sign(&header("EdDSA"), &good), &unrestricted, &provider), key());
}

#[test]
fn an_ed25519_key_verifies_a_token() {
    let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let set = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "e", "x": encode(key.public_key())}]});
    let header = json!({"alg": "EdDSA", "kid": "e"});
    let message = format!("{}.{}", encode(header.to_string()), encode(claims(json!({})).to_string()));
    let token = format!("{message}.{}", encode(key.sign(message.as_bytes())));
    assert_eq!(verify(&token, &set, &provider(json!({"repository": "acme/web"}))), Ok(()));
}

/// `openssl genrsa` has created the key, and `openssl dgst -sha256 -sign` the signatures.
#[test]
fn an_rsa_key_verifies_signatures() {
    const MODULUS: &str = "v6dFaDXljDAlhWkM1JgvzQRsSQl9NnGQcBokrU37_dX1Dd_FPZSFnvdJWjYWuV-BZsJQIihi4hwsP9vsacB0uIBvtVqewGS40ycNh5OQ8-Ytjuvnn5iY3Ilq3TrGQ3OKNl5rq0fi8sP3Z5txqykgzNf8n0lgG61yO9mqy2C2V53PnxL2dmD7hutmWH0RG8IHJGttmwG6k9oiszFBr1oo8tb3Tm2BWqFhkNzW5FxszzmCQemTratqXAqnU-ORN9jrBpBHlQM_ZXbihyMFTOVUxk_lXxYDp-jLFMeyyMCXeSL3sfm4pKgiW6lnLXls4kZddI-fu_JRB32lxQoPq967zQ";
    const MESSAGE: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InIifQ.e30";
    const PKCS1: &str = "gZwQ8G89isCRD5mufa1oVJ6Kx9rsMouMqu3qHMZqDJd-UIsiJh2o3b9rGXTxEKgLT7RPkuodRWpTbmPauRTmFbMtJDFf5Z3hsfkmxKIBZERtuDaPx9HWS2ISYHMi_9CzJtSvhKbbnvbxS7CRS0Qt4UQxVknQkl8PEjD4Up-AnvXNO52JvCE3j5Vf0HP0FNXNPyQU1_MwrSPIRKpWdL9yyi-Rt6P74oZCSc9lBKVZU_knvr3u_aBsor7grAkDPWwfuOX7-4fU6E5ERSr3ppaczzle8y19JI1bJUqoanI8B4p_5JADKzcTQvBq5dRwKy1dSoEBT2lTufJOPWW67hL2WA";
    const PSS: &str = "v1Xag7p839xOVaD3VcDBQFAknlMTELsoxQ5DcwG5m3sZ_wMWRwpPg3Zk9dr5v9g1WEHCzRdu1GvPNt__KRqO_NvubY4REenqcoCcCbRdRv4VAtdHehE1qNQ4-4P0AuCpKEC6WuXNnler6n9dOHP9PlD5ZrYIZqhqFh4D31W8DXQ2FloMLNZzpKwVT7eKqwoI6x0vF0DSfKn5lL-DOpP259BUC_AnBEOIgtgAkf1hmyXvjhsSMfuDzZVCZwsUA9aVFJMnELtjUAbXUfoNH5JII4TtSx1CDCGio6QYz6LLyJ9LJgBrxPmN07gtwg6TQERGn1WTrEzDMQKjJBG37JiUmg";
    let key = json!({"kty": "RSA", "kid": "r", "e": "AQAB", "n": MODULUS});
    let keys = Keys::parse(json!({"keys": [key]}).to_string().as_bytes()).unwrap();
    let _ = RING.install_default();
    let is_valid = |algorithm, signature: &str, message: &str| {
        let key = keys.find("r", algorithm).unwrap();
        jsonwebtoken::crypto::verify(signature, message.as_bytes(), key, algorithm).unwrap()
    };
    assert!(is_valid(Algorithm::RS256, PKCS1, MESSAGE) && is_valid(Algorithm::PS256, PSS, MESSAGE));
    assert!(!is_valid(Algorithm::RS384, PKCS1, MESSAGE) && !is_valid(Algorithm::PS256, PKCS1, MESSAGE));
    assert!(!is_valid(Algorithm::RS256, PSS, MESSAGE) && !is_valid(Algorithm::RS256, PKCS1, "another message"));
}

#[test]
fn only_keys_that_can_verify_tokens_are_kept() {
    let good = Signer::new("one").public();
    let with = |name: &str, value: Value| {
        let mut key = good.clone();
        key[name] = value;
        key
    };
    let rows = [
        (good.clone(), true),
        (with("use", json!("enc")), false),
        (with("alg", json!("HS256")), true),
        (with("alg", json!("RSA-OAEP")), false),
        (with("kid", Value::Null), false),
        (with("kid", json!("")), false),
        (with("kid", json!("k".repeat(MAX_KEY_ID + 1))), false),
        (json!({"kty": "oct", "kid": "one", "k": "c2VjcmV0"}), false),
        (json!({"kty": "new", "kid": "one"}), false),
        (json!("key"), false),
    ];
    for (key, expected) in rows {
        let keys = Keys::parse(json!({"keys": [key]}).to_string().as_bytes()).unwrap();
        assert_eq!(!keys.is_empty(), expected, "{key}");
    }
    let many = Keys::parse(json!({"keys": vec![good; 100]}).to_string().as_bytes()).unwrap();
    assert_eq!(many.0.len(), MAX_KEYS);
    assert!(Keys::parse(b"{}").is_none() && Keys::parse(b"").is_none());
}

#[test]
fn the_token_is_read_only_from_a_bearer_header() {
    let token = Signer::new("one").token(&claims(json!({})));
    let rows = [
        (format!("Bearer {token}"), true),
        (format!("bearer {token}"), true),
        (format!("Basic {token}"), false),
        (token.clone(), false),
        ("Bearer ".to_owned(), false),
    ];
    for (value, expected) in rows {
        let headers = [(AUTHORIZATION, HeaderValue::from_str(&value).unwrap())].into_iter().collect();
        assert_eq!(Unverified::read(&headers).is_ok(), expected, "{value}");
    }
    assert_eq!(Unverified::read(&HeaderMap::new()).unwrap_err(), OidcFault::NoToken);
}
