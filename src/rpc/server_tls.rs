//! Agent side of the TLS 1.3 connections. The agent requires the controller's client certificate. The agent's
//! certificate files can change at any time.
//!
//! Before each connection, the agent checks whether the files have changed. If the agent cannot watch the directory,
//! the agent reads the files for each connection. These reads are cheap, because the controller rarely opens
//! connections.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, Stream};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{Acceptor, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use zeroize::Zeroizing;

use super::handshake::{self, ControllerClientVerifier};
use crate::file_watch::{Cached, FileWatch};
use crate::rpc::identity::{self, IdentityError};

/// File name of the certificate.
pub const CERTIFICATE_FILE: &str = "tls.crt";
/// File name of the private key.
pub const KEY_FILE: &str = "tls.key";
/// File name of the trusted authorities.
pub const AUTHORITY_FILE: &str = "ca.crt";
/// File name of the inputs key, with which the agent computes keyed hashes of configuration inputs. A certificate
/// renewal does not change this key.
pub const INPUTS_KEY_FILE: &str = "inputs.key";

/// Timeout for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent handshakes. If another client connects, the agent drops the client that has been silent
/// for the longest time. Clients that send no data therefore cannot block other clients.
const MAX_HANDSHAKES: usize = 32;
/// Delay before the agent retries if it cannot accept a connection, for example because too many files are open.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout for reads from a rejected client.
const REFUSED_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of bytes that the agent reads from a rejected client.
const REFUSED_BYTES: u64 = 64 * 1024;
/// Maximum size of a TLS file in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Reason why the agent cannot use the TLS files.
#[derive(Debug, Error)]
pub enum ServerTlsError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} exceeds {MAX_FILE} bytes", path.display())]
    TooLong { path: PathBuf },
    #[error("{} contains no certificate", path.display())]
    Certificates { path: PathBuf, source: IdentityError },
    #[error("{} contains no private key", path.display())]
    Key { path: PathBuf },
    #[error("invalid CA certificates in {}", path.display())]
    Authorities { path: PathBuf, source: rustls::Error },
    #[error("failed to create a client verifier from {}: {reason}", path.display())]
    Verifier { path: PathBuf, reason: String },
    #[error("invalid certificate or key in {}", directory.display())]
    Serve { directory: PathBuf, source: rustls::Error },
}

/// Acceptor for TLS connections from the controller.
pub struct TlsAcceptor {
    directory: PathBuf,
    watch: FileWatch,
    loaded: ArcSwap<Loaded>,
    /// Cache entry, which is present while the loaded files are current.
    checked: Cached<()>,
}

/// File content and the resulting TLS configuration.
struct Loaded {
    files: Files,
    config: Arc<ServerConfig>,
}

#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
    authorities: Vec<u8>,
}

impl TlsAcceptor {
    /// Reads `tls.crt`, `tls.key` and `ca.crt` from the directory. Later changes to these files apply to new
    /// connections.
    pub fn from_directory(directory: impl Into<PathBuf>, watch: FileWatch) -> Result<Self, ServerTlsError> {
        let directory = directory.into();
        let files = read_files(&directory)?;
        let config = Arc::new(configuration(&directory, &files)?);
        let loaded = ArcSwap::from_pointee(Loaded { files, config });
        Ok(TlsAcceptor { directory, watch, loaded, checked: Cached::default() })
    }

    /// Returns a stream of connections from clients that authenticate as the controller. The stream never ends, and
    /// never returns an error. The agent only logs rejected clients and failures to accept a connection.
    pub fn incoming(self, listener: TcpListener) -> impl Stream<Item = io::Result<Connection>> + Send {
        futures::stream::unfold(Incoming::new(self, listener), |mut incoming| async move {
            let connection = incoming.next().await;
            Some((Ok(connection), incoming))
        })
    }

    /// Returns the TLS configuration for the next client. If the files are invalid, the function returns the last valid
    /// configuration.
    async fn current(&self) -> Arc<ServerConfig> {
        let version = self.watch.version([self.directory.as_path()]);
        if self.checked.find(version).is_none() {
            self.reload().await;
            self.checked.keep(version, ());
        }
        self.loaded.load().config.clone()
    }

    /// Reads the files, and applies their content if the files are valid.
    async fn reload(&self) {
        let directory = self.directory.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || read_files(&directory)).await else { return };
        let loaded = read.and_then(|files| {
            if self.loaded.load().files == files {
                return Ok(None);
            }
            let config = Arc::new(configuration(&self.directory, &files)?);
            Ok(Some(Loaded { files, config }))
        });
        match loaded {
            Ok(None) => {}
            Ok(Some(loaded)) => {
                self.loaded.store(Arc::new(loaded));
                tracing::info!(directory = %self.directory.display(), "TLS files reloaded");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "failed to reload TLS files, using the previous files");
            }
        }
    }

    /// Performs the handshake, and sets `greeted` after the client's first message.
    pub(super) async fn handshake(&self, stream: TcpStream, greeted: &AtomicBool) -> io::Result<Connection> {
        // Without this option, the second packet of each reply waits 40 ms for the delayed acknowledgment of the first
        // packet.
        stream.set_nodelay(true)?;
        let greeting = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        greeted.store(true, Ordering::Relaxed);
        match greeting.into_stream(self.current().await).into_fallible().await {
            Ok(stream) => Ok(Connection(stream)),
            Err((error, stream)) => {
                close_after_alert(stream).await;
                Err(handshake::explain(error, "client"))
            }
        }
    }

    /// Performs the handshake with a timeout. If the agent rejects the client, the agent logs the reason.
    async fn connection(&self, stream: TcpStream, peer: SocketAddr, greeted: &AtomicBool) -> Option<Connection> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "TLS handshake timed out");
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(stream, greeted));
        match handshake.await.unwrap_or_else(|_| Err(late())) {
            Ok(connection) => Some(connection),
            // A probe that only opens a TCP connection sends no message.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !greeted.load(Ordering::Relaxed) => {
                tracing::debug!(%peer, "connection closed before the TLS handshake");
                None
            }
            Err(error) => {
                tracing::info!(%peer, %error, "TLS connection rejected");
                None
            }
        }
    }
}

struct Incoming {
    acceptor: Arc<TlsAcceptor>,
    listener: TcpListener,
    handshakes: FuturesUnordered<Abortable<BoxFuture<'static, (u64, Option<Connection>)>>>,
    /// Clients with a handshake in progress. The oldest client is first.
    clients: VecDeque<Client>,
    accepted: u64,
    /// End of the pause during which the agent accepts no connections.
    paused_until: Option<Instant>,
}

/// Client with a handshake in progress.
struct Client {
    number: u64,
    peer: SocketAddr,
    greeted: Arc<AtomicBool>,
    handshake: AbortHandle,
}

impl Incoming {
    fn new(acceptor: TlsAcceptor, listener: TcpListener) -> Self {
        Incoming {
            acceptor: Arc::new(acceptor),
            listener,
            handshakes: FuturesUnordered::new(),
            clients: VecDeque::new(),
            accepted: 0,
            paused_until: None,
        }
    }

    async fn next(&mut self) -> Connection {
        loop {
            let pause = self.paused_until;
            tokio::select! {
                // Handles completed handshakes before new connections.
                biased;
                Some(finished) = self.handshakes.next(), if !self.handshakes.is_empty() => {
                    let Ok((number, connection)) = finished else { continue };
                    self.clients.retain(|client| client.number != number);
                    if let Some(connection) = connection {
                        return connection;
                    }
                }
                () = sleep_until(pause), if pause.is_some() => self.paused_until = None,
                accepted = self.listener.accept(), if pause.is_none() => match accepted {
                    Ok((stream, peer)) => self.begin(stream, peer),
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept connection");
                        self.paused_until = Some(Instant::now() + ACCEPT_RETRY_INTERVAL);
                    }
                },
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        self.evict_if_full();
        self.accepted += 1;
        let (number, acceptor, greeted) = (self.accepted, self.acceptor.clone(), Arc::new(AtomicBool::new(false)));
        let (handshake, registration) = AbortHandle::new_pair();
        self.clients.push_back(Client { number, peer, greeted: greeted.clone(), handshake });
        let connection = async move { (number, acceptor.connection(stream, peer, &greeted).await) };
        self.handshakes.push(Abortable::new(connection.boxed(), registration));
    }

    /// Drops the client that has been silent for the longest time if the maximum number of handshakes is in progress.
    /// If no client is silent, the function drops the oldest client.
    fn evict_if_full(&mut self) {
        if self.clients.len() < MAX_HANDSHAKES {
            return;
        }
        let silent = self.clients.iter().position(|client| !client.greeted.load(Ordering::Relaxed));
        if let Some(client) = self.clients.remove(silent.unwrap_or(0)) {
            tracing::info!(peer = %client.peer, "connection dropped: too many pending TLS handshakes");
            client.handshake.abort();
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    if let Some(instant) = instant {
        tokio::time::sleep_until(instant).await;
    }
}

/// Connection from the controller.
pub struct Connection(TlsStream<TcpStream>);

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Closes a connection so that the client receives the alert with the reason. Before the close, the agent reads the
/// remaining bytes from the client. Without these reads, the operating system would reset the connection and discard
/// the alert.
async fn close_after_alert(mut stream: TcpStream) {
    let listening = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(REFUSED_BYTES), &mut tokio::io::sink()).await
    };
    // Ignores the result, because the connection ends in any case.
    let _ = tokio::time::timeout(REFUSED_CLOSE_TIMEOUT, listening).await;
}

fn read_files(directory: &Path) -> Result<Files, ServerTlsError> {
    let read = |name: &str| {
        let path = directory.join(name);
        match read_file(&path) {
            Ok(bytes) if bytes.len() as u64 > MAX_FILE => Err(ServerTlsError::TooLong { path }),
            Ok(bytes) => Ok(bytes),
            Err(source) => Err(ServerTlsError::Read { path, source }),
        }
    };
    Ok(Files { certificate: read(CERTIFICATE_FILE)?, key: read(KEY_FILE)?.into(), authorities: read(AUTHORITY_FILE)? })
}

/// Reads at most [`MAX_FILE`] bytes from a file, and one more byte to detect a larger file.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn configuration(directory: &Path, files: &Files) -> Result<ServerConfig, ServerTlsError> {
    let certificates = |name: &str, bytes: &[u8]| {
        identity::read_bundle(&String::from_utf8_lossy(bytes))
            .map_err(|source| ServerTlsError::Certificates { path: directory.join(name), source })
    };
    let path = directory.join(AUTHORITY_FILE);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(AUTHORITY_FILE, &files.authorities)? {
        roots.add(certificate).map_err(|source| ServerTlsError::Authorities { path: path.clone(), source })?;
    }
    let chain = certificates(CERTIFICATE_FILE, &files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&files.key)
        .map_err(|_| ServerTlsError::Key { path: directory.join(KEY_FILE) })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| ServerTlsError::Verifier { path, reason: error.to_string() })?;
    let serve = |source| ServerTlsError::Serve { directory: directory.to_owned(), source };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(serve)?
        .with_client_cert_verifier(Arc::new(ControllerClientVerifier(verifier)))
        .with_single_cert(chain, key)
        .map_err(serve)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // Disables resumption, because a resumed session could use a certificate that is no longer valid.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

#[cfg(test)]
pub(crate) mod tests;
