//! Reasons why a request with mutual TLS failed.

use std::error::Error;
use std::io;

use super::identity::NoIdentity;

/// Kind of server that a flag authorizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Server of artifacts, such as source-controller.
    ArtifactServer,
    /// Server that receives events: notification-controller.
    EventServer,
}

impl Peer {
    /// Returns the flag of this controller that authorizes the server.
    pub fn server_flag(self) -> &'static str {
        match self {
            Peer::ArtifactServer => "--authorized-artifact-server-spiffe-id",
            Peer::EventServer => "--authorized-event-server-spiffe-id",
        }
    }

    /// Returns the flag of the server that authorizes this controller.
    fn client_flag(self) -> &'static str {
        match self {
            Peer::ArtifactServer => "--authorized-artifact-client-spiffe-id",
            Peer::EventServer => "--authorized-notifier-spiffe-id",
        }
    }
}

/// Reason why a request with mutual TLS failed, or why a server rejected a request without TLS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    NoIdentity(#[from] NoIdentity),
    #[error("server has the SPIFFE ID {found}, which {} does not authorize", peer.server_flag())]
    Unauthorized { found: String, peer: Peer },
    #[error("server has no valid X.509-SVID: {cause}")]
    InvalidCertificate { cause: String },
    #[error(
        "server does not use TLS: set {} of the server, or remove {} of the controller",
        peer.client_flag(), peer.server_flag()
    )]
    NoTls { peer: Peer },
    #[error(
        "server rejected the SPIFFE ID {own} of the controller ({alert}): add this SPIFFE ID to {} of the server",
        peer.client_flag()
    )]
    Rejected { own: String, alert: String, peer: Peer },
    #[error(
        "server does not accept requests without TLS: it may require SPIFFE mutual TLS; set {} to the SPIFFE ID of the \
         server",
        peer.server_flag()
    )]
    TlsRequired { peer: Peer },
    #[error("failed to set up mutual TLS: {cause}")]
    Setup { cause: String },
}

impl Failure {
    /// Returns the reason if the TLS library or the peer has rejected the connection. `own` is the SPIFFE ID of the
    /// controller.
    pub(super) fn of(error: &reqwest::Error, own: impl FnOnce() -> String, peer: Peer) -> Option<Self> {
        Some(match tls_error(error)? {
            rustls::Error::Other(other) => match other.0.downcast_ref::<spiffe_rustls::Error>() {
                Some(spiffe_rustls::Error::UnauthorizedSpiffeId(found)) => {
                    Failure::Unauthorized { found: found.to_string(), peer }
                }
                Some(cause) => Failure::InvalidCertificate { cause: cause.to_string() },
                None => Failure::InvalidCertificate { cause: other.to_string() },
            },
            // The response to the first TLS message is not a TLS message.
            rustls::Error::InvalidMessage(_) => Failure::NoTls { peer },
            rustls::Error::AlertReceived(alert) => Failure::Rejected { own: own(), alert: format!("{alert:?}"), peer },
            cause => Failure::InvalidCertificate { cause: cause.to_string() },
        })
    }
}

/// Returns the first error of the TLS library in the chain of causes.
fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref() {
            return Some(found);
        }
        // The source of an I/O error is the source of its inner error.
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => cause.source(),
        };
    }
    None
}
