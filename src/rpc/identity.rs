//! The controller's certificate authority, and the certificates for both sides of a connection to an agent.
//!
//! A server certificate is valid only for server authentication, and only the controller's client certificate contains
//! the controller's URI. An attacker who has obtained the key of one Workspace therefore cannot call the agents of
//! other Workspaces.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

/// URI in the controller's client certificate. Agents reject clients whose certificate lacks this URI.
pub const CONTROLLER_URI: &str = "urn:pulumi-controller:controller";
/// Validity of an authority. The controller renews the authority when less than a third of this validity remains. A
/// third of this validity is longer than [`LEAF_VALIDITY`], so no certificate outlives its authority.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Validity of a server or client certificate.
pub const LEAF_VALIDITY: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// Maximum clock skew between hosts. The controller backdates the start of a certificate's validity by this interval,
/// because other hosts' clocks can be slow.
const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);
/// Organization in the subject name of a generated authority.
const ORGANIZATION: &str = "pulumi-controller";

/// Reason why the controller or the agent cannot create or read a certificate.
#[derive(Debug, Error)]
pub enum IdentityError {
    #[error("failed to create {what}")]
    Make { what: &'static str, source: rcgen::Error },
    #[error(
        "failed to read the authority's private key: must be PKCS#8 (\"BEGIN PRIVATE KEY\") with ECDSA, Ed25519 or RSA"
    )]
    ReadKey { source: rcgen::Error },
    #[error("the certificate that matches the private key is not a CA certificate (CA:TRUE, keyCertSign)")]
    NoAuthority,
    #[error("no certificate of the authority matches its private key")]
    ForeignKey,
    #[error("failed to read the certificate: not PEM")]
    ReadPem,
    #[error("failed to parse the X.509 certificate: {reason}")]
    ReadCertificate { reason: String },
    #[error("failed to create a certificate: invalid time {now}")]
    Time { now: Timestamp },
}

/// Certificate with its private key, both PEM-encoded.
#[derive(Clone)]
pub struct Issued {
    pub certificate_pem: String,
    pub key_pem: Zeroizing<String>,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Issued").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

/// Subject alternative names of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub dns: Vec<String>,
    pub uris: Vec<String>,
}

/// Certificate authority of the controller.
pub struct Authority {
    bundle_pem: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authority").field("bundle_pem", &self.bundle_pem).finish_non_exhaustive()
    }
}

impl Authority {
    /// Generates an authority with a new key.
    pub fn generate(now: Timestamp) -> Result<Self, IdentityError> {
        let what = "an authority";
        let key = generate_key(what)?;
        // Gives each authority a unique name. Agents send the names of the authorities that they trust, and the
        // controller uses these names to select its client certificate.
        let mut params = parameters(&format!("authority {}", uuid::Uuid::new_v4()), now, AUTHORITY_VALIDITY)?;
        params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(|source| IdentityError::Make { what, source })?;
        Ok(Authority {
            bundle_pem: certificate.pem(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Reads an authority. `bundle_pem` can contain several trusted certificates. The authority signs with the
    /// certificate that matches the key.
    pub fn from_pem(bundle_pem: &str, key_pem: &str) -> Result<Self, IdentityError> {
        let key = KeyPair::from_pem(key_pem).map_err(|source| IdentityError::ReadKey { source })?;
        for certificate in read_bundle(bundle_pem)? {
            if parse(&certificate)?.public_key().subject_public_key.data != key.public_key_raw() {
                continue;
            }
            if !may_sign(&parse(&certificate)?) {
                return Err(IdentityError::NoAuthority);
            }
            let issuer = Issuer::from_ca_cert_der(&certificate, key)
                .map_err(|source| IdentityError::ReadCertificate { reason: source.to_string() })?;
            return Ok(Authority { bundle_pem: bundle_pem.to_owned(), certificate, issuer });
        }
        Err(IdentityError::ForeignKey)
    }

    /// Returns all certificates of the authority. The other side of a connection must trust these certificates.
    pub fn certificate_pem(&self) -> &str {
        &self.bundle_pem
    }

    /// Returns the certificate that matches the key.
    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns whether the controller has generated the authority. The controller renews only generated authorities.
    pub fn is_generated(&self) -> bool {
        let is_ours = |certificate: &X509Certificate<'_>| {
            let mut organizations = certificate.subject().iter_organization();
            organizations.any(|found| found.as_str().is_ok_and(|name| name == ORGANIZATION))
        };
        parse(&self.certificate).is_ok_and(|certificate| is_ours(&certificate))
    }

    /// Returns whether the controller must renew the authority. This is the case if less than a third of the validity
    /// remains.
    pub fn renewal_due(&self, now: Timestamp) -> bool {
        parse(&self.certificate).is_ok_and(|certificate| is_renewal_due(&certificate, now))
    }

    /// Returns the expiration time of the authority.
    pub fn expiry(&self) -> Option<Timestamp> {
        let certificate = parse(&self.certificate).ok()?;
        Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
    }

    /// Returns the authority's private key in PEM encoding.
    pub fn key_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.issuer.key().serialize_pem())
    }

    /// Issues a certificate for an agent. The certificate is valid only for server authentication with these names.
    pub fn issue_server(&self, dns_names: &[String], now: Timestamp) -> Result<Issued, IdentityError> {
        let mut params = parameters("pulumi-controller-workspace", now, LEAF_VALIDITY)?;
        for name in dns_names {
            let name = name
                .as_str()
                .try_into()
                .map_err(|source| IdentityError::Make { what: "a server certificate", source })?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, "a server certificate")
    }

    /// Issues the controller's client certificate. The certificate is valid only for client authentication.
    pub fn issue_client(&self, now: Timestamp) -> Result<Issued, IdentityError> {
        let what = "the controller's client certificate";
        let mut params = parameters("pulumi-controller", now, LEAF_VALIDITY)?;
        let uri = CONTROLLER_URI.try_into().map_err(|source| IdentityError::Make { what, source })?;
        params.subject_alt_names.push(SanType::URI(uri));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, what)
    }

    /// Returns whether the current key of the authority has signed this certificate.
    pub fn has_issued(&self, certificate_pem: &str) -> Result<bool, IdentityError> {
        let leaf = first(certificate_pem)?;
        let (leaf, own) = (parse(&leaf)?, parse(&self.certificate)?);
        Ok(leaf.verify_signature(Some(own.public_key())).is_ok())
    }

    fn issue(&self, mut params: CertificateParams, what: &'static str) -> Result<Issued, IdentityError> {
        let key = generate_key(what)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(|source| IdentityError::Make { what, source })?;
        Ok(Issued { certificate_pem: certificate.pem(), key_pem: Zeroizing::new(key.serialize_pem()) })
    }
}

/// Returns whether less than a third of a certificate's validity period remains. In a bundle, the function checks only
/// the first certificate.
pub fn renewal_due(certificate_pem: &str, now: Timestamp) -> Result<bool, IdentityError> {
    Ok(is_renewal_due(&parse(&first(certificate_pem)?)?, now))
}

fn is_renewal_due(certificate: &X509Certificate<'_>, now: Timestamp) -> bool {
    let validity = certificate.validity();
    let (begin, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let third = end.saturating_sub(begin) / 3;
    end.saturating_sub(now.as_second()) < third
}

/// Returns whether the extensions of a certificate permit the holder to sign other certificates.
fn may_sign(certificate: &X509Certificate<'_>) -> bool {
    let signs = certificate.key_usage().is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    signs && certificate.is_ca()
}

/// Returns the subject alternative names of a certificate. In a bundle, the function reads only the first certificate.
pub fn names(certificate_pem: &str) -> Result<Names, IdentityError> {
    names_of(&first(certificate_pem)?)
}

/// Returns a certificate's subject alternative names in DER encoding.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Result<Names, IdentityError> {
    let parsed = parse(certificate)?;
    let found = parsed
        .subject_alternative_name()
        .map_err(|error| IdentityError::ReadCertificate { reason: error.to_string() })?;
    let mut names = Names::default();
    for name in found.iter().flat_map(|extension| &extension.value.general_names) {
        match name {
            GeneralName::DNSName(dns) => names.dns.push((*dns).to_owned()),
            GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
            _ => {}
        }
    }
    Ok(names)
}

/// Returns a certificate's issuer name in DER encoding. In a bundle, the function reads only the first certificate.
pub(crate) fn issuer(certificate_pem: &str) -> Result<Vec<u8>, IdentityError> {
    Ok(parse(&first(certificate_pem)?)?.issuer().as_raw().to_vec())
}

/// Returns all certificates in a PEM string.
///
/// # Errors
///
/// Returns an error if the string contains no certificate.
pub(crate) fn read_bundle(pem: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|_| IdentityError::ReadPem)?;
    if certificates.is_empty() { Err(IdentityError::ReadPem) } else { Ok(certificates) }
}

fn first(pem: &str) -> Result<CertificateDer<'static>, IdentityError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| IdentityError::ReadPem)
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, IdentityError> {
    match X509Certificate::from_der(certificate) {
        Ok((_, parsed)) => Ok(parsed),
        Err(error) => Err(IdentityError::ReadCertificate { reason: error.to_string() }),
    }
}

fn generate_key(what: &'static str) -> Result<KeyPair, IdentityError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|source| IdentityError::Make { what, source })
}

fn parameters(name: &str, now: Timestamp, validity: Duration) -> Result<CertificateParams, IdentityError> {
    let seconds = u64::try_from(now.as_second()).map_err(|_| IdentityError::Time { now })?;
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + validity;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn an_authority_is_unchanged_after_a_pem_round_trip() {
        let made = Authority::generate(at(NOW)).unwrap();
        let server = made.issue_server(&["a.svc".to_owned()], at(NOW)).unwrap();
        let read = Authority::from_pem(made.certificate_pem(), &made.key_pem()).unwrap();
        assert!(read.has_issued(&server.certificate_pem).unwrap());
        assert!(read.has_issued(&read.issue_client(at(NOW)).unwrap().certificate_pem).unwrap());
    }

    #[test]
    fn certificates_are_signed_with_the_certificate_that_matches_the_key() {
        let old = Authority::generate(at(NOW)).unwrap();
        let next = Authority::generate(at(NOW)).unwrap();
        let bundle = format!("{}{}", next.certificate_pem(), old.certificate_pem());
        let both = Authority::from_pem(&bundle, &old.key_pem()).unwrap();
        let issued = both.issue_client(at(NOW)).unwrap();
        assert!(old.has_issued(&issued.certificate_pem).unwrap());
        assert!(!next.has_issued(&issued.certificate_pem).unwrap());
        assert_eq!(both.certificate_pem(), bundle);
    }

    #[test]
    fn a_key_that_does_not_match_the_certificate_is_rejected() {
        let one = Authority::generate(at(NOW)).unwrap();
        let other = Authority::generate(at(NOW)).unwrap();
        let refused = Authority::from_pem(one.certificate_pem(), &other.key_pem());
        assert!(matches!(refused, Err(IdentityError::ForeignKey)));
    }

    #[test]
    fn issued_certificates_contain_the_expected_names() {
        let authority = Authority::generate(at(NOW)).unwrap();
        let dns = vec!["a-workspace.apps.svc".to_owned(), "b.apps.svc".to_owned()];
        let server = authority.issue_server(&dns, at(NOW)).unwrap();
        assert_eq!(names(&server.certificate_pem).unwrap(), Names { dns, uris: vec![] });
        let client = authority.issue_client(at(NOW)).unwrap();
        assert_eq!(names(&client.certificate_pem).unwrap(), Names { dns: vec![], uris: vec![CONTROLLER_URI.into()] });
    }

    #[test]
    fn renewal_is_due_when_less_than_a_third_of_the_lifetime_remains() {
        const DAY: i64 = 24 * 60 * 60;
        let authority = Authority::generate(at(NOW)).unwrap();
        let server = authority.issue_server(&["a.svc".to_owned()], at(NOW)).unwrap();
        for (days, due) in [(0, false), (59, false), (61, true), (90, true), (1000, true)] {
            let now = at(NOW + days * DAY);
            assert_eq!(renewal_due(&server.certificate_pem, now).unwrap(), due, "after {days} days");
        }
        assert!(!authority.renewal_due(at(NOW + 243 * DAY)) && authority.renewal_due(at(NOW + 244 * DAY)));
    }

    #[test]
    fn an_authority_recognizes_the_certificates_that_it_has_issued() {
        let (one, other) = (Authority::generate(at(NOW)).unwrap(), Authority::generate(at(NOW)).unwrap());
        let issued = one.issue_client(at(NOW)).unwrap();
        assert!(
            one.has_issued(&issued.certificate_pem).unwrap() && !other.has_issued(&issued.certificate_pem).unwrap()
        );
        assert_ne!(issuer(&issued.certificate_pem).unwrap(), issuer(other.certificate_pem()).unwrap());
        assert!(one.is_generated() && !foreign(true).unwrap().is_generated());
        assert_eq!(one.expiry(), Some(at(NOW + 365 * 24 * 60 * 60)));
    }

    /// Returns an authority as another program would create it, with or without the CA flag in the certificate.
    fn foreign(is_authority: bool) -> Result<Authority, IdentityError> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "our company");
        params.is_ca = if is_authority { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
        Authority::from_pem(&params.self_signed(&key).unwrap().pem(), &key.serialize_pem())
    }

    #[test]
    fn a_certificate_without_the_ca_flag_is_not_an_authority() {
        assert!(matches!(foreign(false), Err(IdentityError::NoAuthority)));
        let issued = foreign(true).unwrap().issue_server(&["a.svc".to_owned()], at(NOW)).unwrap();
        assert_eq!(names(&issued.certificate_pem).unwrap().dns, ["a.svc"]);
    }

    #[test]
    fn an_invalid_certificate_is_an_error() {
        for text in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(names(text).is_err(), "{text}");
            assert!(renewal_due(text, at(NOW)).is_err(), "{text}");
        }
    }
}
