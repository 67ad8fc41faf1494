//! Explains errors of a TLS handshake and names the certificate that caused them.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Advice for a change of the authority, whose files the kubelet updates with a delay.
const KUBELET_DELAY: &str = "after a change of the authority it takes up to two minutes until the pod has it";

/// Returns the error with a message for users. `peer` is the other side: `agent` or `client`.
pub(super) fn explain(error: io::Error, peer: &str) -> io::Error {
    let words = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).and_then(|fault| words(fault, peer));
    match words {
        Some(words) => io::Error::new(error.kind(), words),
        None => error,
    }
}

fn words(fault: &Error, peer: &str) -> Option<String> {
    match fault {
        Error::NoCertificatesPresented => Some(format!("the {peer} shows no certificate")),
        Error::InvalidCertificate(reason) => Some(invalid(reason, peer)),
        Error::AlertReceived(alert) => refused(*alert, peer),
        _ => None,
    }
}

/// Explains an error in the certificate of the other side.
fn invalid(reason: &CertificateError, peer: &str) -> String {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("the {peer}'s certificate has expired: {reason}")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the {peer}'s certificate is not valid yet (do the clocks of the nodes agree?): {reason}")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the {peer}'s certificate is that of another workspace: {reason}")
        }
        // A different key of an authority with a trusted name appears as a bad signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("the {peer}'s certificate is of an authority that is not trusted here; {KUBELET_DELAY}")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("the {peer}'s certificate is not one of a {}", if peer == "agent" { "server" } else { "client" })
        }
        CertificateError::ApplicationVerificationFailure => {
            format!("the {peer}'s certificate is not the controller's")
        }
        other => format!("the {peer}'s certificate cannot be accepted: {other}"),
    }
}

/// Explains an alert of the other side about the certificate of this side.
fn refused(alert: AlertDescription, peer: &str) -> Option<String> {
    let words = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            format!("the {peer} does not trust the authority of the certificate that it was shown; {KUBELET_DELAY}")
        }
        AlertDescription::CertificateExpired => {
            format!("the {peer} says that the certificate that it was shown has expired or is not valid yet")
        }
        AlertDescription::CertificateRequired => format!("the {peer} wants a certificate and was shown none"),
        AlertDescription::UnsupportedCertificate => {
            format!("the {peer} says that the certificate that it was shown is not for this end of a connection")
        }
        AlertDescription::AccessDenied => {
            format!("the {peer} says that the certificate that it was shown is not the controller's")
        }
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            format!("the {peer} does not accept the certificate that it was shown")
        }
        _ => return None,
    };
    Some(words)
}
