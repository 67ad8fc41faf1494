//! The agent's end of TLS: version 1.3, a client certificate of the controller, and files that may change at any time.
//!
//! The files are read again whenever somebody connects. The controller connects rarely, so this costs nothing; and
//! unlike a watch on the directory it cannot be refused (the number of watches on a node is limited) or miss a change.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::Stream;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::rpc::identity::{self, CONTROLLER_URI, IdentityError};

/// The certificate, in the directory.
pub const CERTIFICATE_FILE: &str = "tls.crt";
/// The private key, in the directory.
pub const KEY_FILE: &str = "tls.key";
/// The authorities that are trusted, in the directory.
pub const AUTHORITY_FILE: &str = "ca.crt";

/// How long a client may take to prove who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many clients may be proving it at the same time; others wait in the listener's queue.
const HANDSHAKES_AT_ONCE: usize = 32;
/// How long nobody is accepted after the system refused to, for instance for want of file descriptors.
const PAUSE_AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(200);
/// The longest of the files.
const LONGEST_FILE: u64 = 1024 * 1024;

/// Why the files cannot be used.
#[derive(Debug, Error)]
pub enum ServerTlsError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is longer than {LONGEST_FILE} bytes", path.display())]
    TooLong { path: PathBuf },
    #[error("{} holds no certificate", path.display())]
    Certificates { path: PathBuf, source: IdentityError },
    #[error("{} holds no private key", path.display())]
    Key { path: PathBuf },
    #[error("the certificates in {} cannot be trusted", path.display())]
    Authorities { path: PathBuf, source: rustls::Error },
    #[error("the authorities in {} cannot verify clients: {reason}", path.display())]
    Verifier { path: PathBuf, reason: String },
    #[error("certificate and key in {} cannot be served", directory.display())]
    Serve { directory: PathBuf, source: rustls::Error },
}

/// Accepts the controller's connections, and nobody else's.
pub struct TlsAcceptor {
    directory: PathBuf,
    loaded: ArcSwap<Loaded>,
}

/// The files as they were when they were read, and what was made of them.
struct Loaded {
    files: Files,
    config: Arc<ServerConfig>,
}

#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authorities: Vec<u8>,
}

impl TlsAcceptor {
    /// Reads `tls.crt`, `tls.key` and `ca.crt` from the directory. They are read again as they change.
    pub fn from_directory(directory: impl Into<PathBuf>) -> Result<Self, ServerTlsError> {
        let directory = directory.into();
        let files = read_files(&directory)?;
        let config = Arc::new(configuration(&directory, &files)?);
        Ok(TlsAcceptor { directory, loaded: ArcSwap::from_pointee(Loaded { files, config }) })
    }

    /// The connections of clients that proved to be the controller. The stream never ends and never yields an error:
    /// a client that is refused is logged, and so is a system that refuses connections for a while.
    pub fn incoming(self, listener: TcpListener) -> impl Stream<Item = io::Result<Connection>> + Send {
        let incoming =
            Incoming { acceptor: Arc::new(self), listener, handshakes: FuturesUnordered::new(), done: VecDeque::new() };
        futures::stream::unfold(incoming, |mut incoming| async move {
            let connection = incoming.next().await;
            Some((Ok(connection), incoming))
        })
    }

    /// The configuration for the next client. Files that cannot be used leave the last good ones in force.
    async fn current(&self) -> Arc<ServerConfig> {
        let directory = self.directory.clone();
        let read = tokio::task::spawn_blocking(move || read_files(&directory)).await;
        let files = match read {
            Ok(Ok(files)) => files,
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "keeping the TLS files read before");
                return self.loaded.load().config.clone();
            }
            Err(_) => return self.loaded.load().config.clone(),
        };
        if self.loaded.load().files == files {
            return self.loaded.load().config.clone();
        }
        match configuration(&self.directory, &files) {
            Ok(config) => {
                let config = Arc::new(config);
                self.loaded.store(Arc::new(Loaded { files, config: config.clone() }));
                tracing::info!(directory = %self.directory.display(), "TLS files reloaded");
                config
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "keeping the TLS files read before");
                self.loaded.load().config.clone()
            }
        }
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<Connection> {
        let acceptor = tokio_rustls::TlsAcceptor::from(self.current().await);
        let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the client did not finish the TLS handshake"))??;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let names = certificate.map(identity::names_of).transpose().map_err(io::Error::other)?.unwrap_or_default();
        if names.uris.iter().any(|uri| uri == CONTROLLER_URI) {
            return Ok(Connection(stream));
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the client's certificate is not the controller's"))
    }
}

struct Incoming {
    acceptor: Arc<TlsAcceptor>,
    listener: TcpListener,
    handshakes: FuturesUnordered<BoxFuture<'static, Option<Connection>>>,
    done: VecDeque<Connection>,
}

impl Incoming {
    async fn next(&mut self) -> Connection {
        loop {
            if let Some(connection) = self.done.pop_front() {
                return connection;
            }
            let room = self.handshakes.len() < HANDSHAKES_AT_ONCE;
            tokio::select! {
                accepted = self.listener.accept(), if room => self.accepted(accepted),
                Some(finished) = self.handshakes.next(), if !self.handshakes.is_empty() => {
                    self.done.extend(finished);
                }
            }
        }
    }

    fn accepted(&mut self, accepted: io::Result<(TcpStream, std::net::SocketAddr)>) {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // The pause takes a place among the handshakes, so that a lasting error does not spin.
                let pause = async {
                    tokio::time::sleep(PAUSE_AFTER_ACCEPT_ERROR).await;
                    None
                };
                self.handshakes.push(Box::pin(pause));
                return;
            }
        };
        let acceptor = self.acceptor.clone();
        self.handshakes.push(Box::pin(async move {
            match acceptor.handshake(stream).await {
                Ok(connection) => Some(connection),
                Err(error) => {
                    tracing::info!(%peer, %error, "connection refused");
                    None
                }
            }
        }));
    }
}

/// A connection from the controller.
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

fn read_files(directory: &Path) -> Result<Files, ServerTlsError> {
    let read = |name: &str| {
        let path = directory.join(name);
        match read_file(&path) {
            Ok(bytes) if bytes.len() as u64 > LONGEST_FILE => Err(ServerTlsError::TooLong { path }),
            Ok(bytes) => Ok(bytes),
            Err(source) => Err(ServerTlsError::Read { path, source }),
        }
    };
    Ok(Files { certificate: read(CERTIFICATE_FILE)?, key: read(KEY_FILE)?, authorities: read(AUTHORITY_FILE)? })
}

/// Reads at most one byte more than is allowed.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
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
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(serve)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A resumed session would go on with a certificate that is not valid any more.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
