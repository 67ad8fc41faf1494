//! Certificate verification during the TLS handshake. The module contains the agent's verifier for client certificates,
//! and creates error messages that identify the invalid certificate.

use std::io;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::rpc::identity::{self, CONTROLLER_URI};

/// The agent's verifier for client certificates. The verifier performs the checks of the inner verifier, and then
/// rejects a client certificate without the controller's URI. The rejection is part of the handshake, so the client
/// receives the reason.
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

/// Advice for errors that can occur after a rotation of the authority, because the kubelet updates mounted files with a
/// delay.
const KUBELET_DELAY: &str =
    "after a rotation of the authority, the kubelet updates the certificate files in the pod within two minutes";

/// Returns the error with a message for users. `peer` is `agent` or `client`, and identifies the other side of the
/// connection.
pub(super) fn explain(error: io::Error, peer: &str) -> io::Error {
    let message =
        error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).and_then(|fault| message(fault, peer));
    match message {
        Some(message) => io::Error::new(error.kind(), message),
        None => error,
    }
}

fn message(fault: &Error, peer: &str) -> Option<String> {
    match fault {
        Error::NoCertificatesPresented => Some(format!("the {peer} sent no certificate")),
        Error::InvalidCertificate(reason) => Some(certificate_message(reason, peer)),
        Error::AlertReceived(alert) => alert_message(*alert, peer),
        _ => None,
    }
}

/// Returns a message that describes why the other side's certificate is invalid.
fn certificate_message(reason: &CertificateError, peer: &str) -> String {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("the {peer}'s certificate has expired: {reason}")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the {peer}'s certificate is not yet valid (compare the clocks of the nodes): {reason}")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the {peer}'s certificate is for another workspace: {reason}")
        }
        // If a trusted authority has the issuer's name but a different key, the error is a bad signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("the {peer}'s certificate is signed by an untrusted authority; {KUBELET_DELAY}")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!(
                "the {peer}'s certificate is not a {} certificate",
                if peer == "agent" { "server" } else { "client" }
            )
        }
        CertificateError::ApplicationVerificationFailure => {
            format!("the {peer}'s certificate does not identify the controller")
        }
        other => format!("the {peer}'s certificate is invalid: {other}"),
    }
}

/// Returns a message for an alert if the other side has rejected this side's certificate.
fn alert_message(alert: AlertDescription, peer: &str) -> Option<String> {
    let message = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            format!("the {peer} does not trust the authority of the presented certificate; {KUBELET_DELAY}")
        }
        AlertDescription::CertificateExpired => {
            format!("the {peer} rejected the presented certificate as expired or not yet valid")
        }
        AlertDescription::CertificateRequired => {
            format!("the {peer} requires a client certificate, but none was presented")
        }
        AlertDescription::UnsupportedCertificate => {
            format!("the {peer} rejected the presented certificate as invalid for this side of a connection")
        }
        AlertDescription::AccessDenied => {
            format!("the {peer} rejected the presented certificate, which does not identify the controller")
        }
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            format!("the {peer} rejected the presented certificate")
        }
        _ => return None,
    };
    Some(message)
}
