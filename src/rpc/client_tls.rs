//! Controller side of the TLS 1.3 connections. The controller verifies that an agent belongs to the expected Workspace,
//! and presents a client certificate from a certificate authority that the agent trusts.
//!
//! During a rotation of the authority, some pods still mount the certificate files from the previous authority. The
//! controller therefore has two client certificates: one from the current authority, and one from the previous
//! authority. The controller selects the certificate by the authority names that the agent sends during the handshake.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::byte_rate::LimitedStream;
use super::handshake;
use crate::rpc::identity::{self, IdentityError, Issued};

/// Reason why the controller cannot use its identity.
#[derive(Debug, Error)]
pub enum ClientIdentityError {
    #[error("failed to read the controller's client certificate")]
    Certificate { source: IdentityError },
    #[error("failed to read the controller's client key")]
    Key,
    #[error("failed to read the authority's certificates")]
    Authorities { source: IdentityError },
    #[error("invalid CA certificates of the authority")]
    Trust { source: rustls::Error },
    #[error("the controller's client certificate or key is invalid")]
    Use { source: rustls::Error },
}

/// Returns a configuration that trusts these authorities (PEM, any number of certificates). A connection presents the
/// first of the client certificates that the agent accepts.
pub(super) fn configuration(clients: &[Issued], authorities_pem: &str) -> Result<ClientConfig, ClientIdentityError> {
    let authorities =
        identity::read_bundle(authorities_pem).map_err(|source| ClientIdentityError::Authorities { source })?;
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate).map_err(|source| ClientIdentityError::Trust { source })?;
    }
    let identities = clients.iter().map(Identity::read).collect::<Result<_, _>>()?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|source| ClientIdentityError::Use { source })?
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(Identities(identities)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Connects to an agent, and verifies the name of the agent. `limit` limits the read rate of the connection. If the
/// agent closes the connection, `close_reason` receives the reason.
pub(super) async fn connect(
    target: SocketAddr,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    limit: impl FnOnce(TcpStream) -> LimitedStream,
    close_reason: CloseReason,
) -> io::Result<AgentStream> {
    close_reason.set(None);
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    let connected = tokio_rustls::TlsConnector::from(tls).connect(name, limit(stream)).await;
    connected.map(|stream| AgentStream { stream, close_reason }).map_err(|error| handshake::explain(error, "agent"))
}

/// Reason why the agent closed a connection. If the agent closes the connection before the controller sends a call, the
/// call's error does not contain this reason.
#[derive(Clone, Debug, Default)]
pub(super) struct CloseReason(Arc<Mutex<Option<String>>>);

impl CloseReason {
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, reason: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// The controller's client certificates, in order of preference.
#[derive(Debug)]
struct Identities(Vec<Identity>);

#[derive(Debug)]
struct Identity {
    /// Name of the issuing authority in DER encoding.
    issuer: Vec<u8>,
    key: Arc<CertifiedKey>,
}

impl Identity {
    fn read(client: &Issued) -> Result<Self, ClientIdentityError> {
        let unreadable = |source| ClientIdentityError::Certificate { source };
        let chain = identity::read_bundle(&client.certificate_pem).map_err(unreadable)?;
        let issuer = identity::issuer(&client.certificate_pem).map_err(unreadable)?;
        let key = PrivateKeyDer::from_pem_slice(client.key_pem.as_bytes()).map_err(|_| ClientIdentityError::Key)?;
        let key = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())
            .map_err(|source| ClientIdentityError::Use { source })?;
        Ok(Identity { issuer, key: Arc::new(key) })
    }
}

impl ResolvesClientCert for Identities {
    fn resolve(&self, trusted: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let accepted = self.0.iter().find(|identity| trusted.contains(&identity.issuer.as_slice()));
        // If the agent accepts none of the certificates, the controller presents its first certificate. The agent's
        // error then contains the reason for the rejection.
        accepted.or_else(|| self.0.first()).map(|identity| identity.key.clone())
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Connection to an agent. An agent can reject the client certificate after the client has completed the handshake. In
/// this case, the first read fails, and its error contains the reason.
pub(super) struct AgentStream {
    stream: TlsStream<LimitedStream>,
    close_reason: CloseReason,
}

impl AsyncRead for AgentStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        Pin::new(&mut this.stream).poll_read(context, buffer).map_err(|error| {
            let error = handshake::explain(error, "agent");
            this.close_reason.set(Some(error.to_string()));
            error
        })
    }
}

impl AsyncWrite for AgentStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
