//! The agent's verification of a client certificate: a trusted authority, use by a client, and the controller's URI.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::rpc::identity::{self, CONTROLLER_URI};

/// Verifier that requires the controller's URI in addition to the checks of another verifier. It refuses in the
/// handshake, so that the client receives the reason.
#[derive(Debug)]
pub(super) struct ControllerClientVerifier(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ControllerClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(certificate, intermediates, now)?;
        let names = identity::names_of(certificate).map_err(|_| CertificateError::BadEncoding)?;
        if names.uris.iter().any(|uri| uri == CONTROLLER_URI) {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
