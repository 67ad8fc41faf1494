//! Accepts connections from the controller to the fake agent. The server name (SNI) of a connection selects the
//! workspace. The certificate is from the Secret that this workspace's pod would mount.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use futures::Stream;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use pulumi_controller::api::names::{workspace_server_name, workspace_tls_secret};
use pulumi_controller::rpc::server_tls::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{Acceptor, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::workspace::Key;

/// Timeout for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of accepted connections that wait for the gRPC server.
const WAITING: usize = 256;

/// Accepts any number of connections.
pub(super) fn accept(
    listener: TcpListener,
    client: Client,
    tasks: &mut JoinSet<()>,
) -> impl Stream<Item = io::Result<Connection>> + use<> {
    let (accepted, connections) = mpsc::channel(WAITING);
    let certificates = Arc::new(Certificates { client, known: Mutex::default() });
    tasks.spawn(async move {
        // The handshakes are aborted when this task ends. Dropping the fake agent aborts this task.
        let mut handshakes = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            while handshakes.try_join_next().is_some() {}
            let (certificates, accepted) = (certificates.clone(), accepted.clone());
            handshakes.spawn(async move {
                match timeout(HANDSHAKE_TIMEOUT, certificates.handshake(stream)).await {
                    Ok(Ok(connection)) => drop(accepted.send(Ok(connection)).await),
                    Ok(Err(error)) => println!("connection to the fake agent failed: {error:#}"),
                    Err(_) => println!("connection to the fake agent failed: TLS handshake timed out"),
                }
            });
        }
    });
    ReceiverStream::new(connections)
}

/// TLS configurations by workspace. The fake agent loads each certificate once, and reloads a certificate after a
/// failed handshake.
struct Certificates {
    client: Client,
    known: Mutex<HashMap<Key, Arc<ServerConfig>>>,
}

impl Certificates {
    async fn handshake(&self, stream: TcpStream) -> anyhow::Result<Connection> {
        stream.set_nodelay(true)?;
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let name = start.client_hello().server_name().unwrap_or_default().to_owned();
        let workspace =
            Key::of_server_name(&name).with_context(|| format!("{name:?} is not the name of a workspace"))?;
        let config = self.of(&workspace).await.with_context(|| format!("the certificate of {name}"))?;
        match start.into_stream(config).await {
            Ok(stream) => Ok(Connection { stream, workspace }),
            Err(error) => {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&workspace);
                Err(error).with_context(|| format!("the TLS handshake as {name}"))
            }
        }
    }

    async fn of(&self, workspace: &Key) -> anyhow::Result<Arc<ServerConfig>> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = known().get(workspace) {
            return Ok(config.clone());
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &workspace.namespace);
        let config = Arc::new(configuration(&secrets.get(&workspace_tls_secret(&workspace.name)).await?)?);
        known().insert(workspace.clone(), config.clone());
        Ok(config)
    }
}

/// Returns an agent's TLS configuration. The agent requires TLS 1.3, and a client certificate from one of the
/// authorities in the Secret.
fn configuration(secret: &Secret) -> anyhow::Result<ServerConfig> {
    let data = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        value.map(|value| value.0.as_slice()).with_context(|| format!("the Secret has no {key}"))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(data(AUTHORITY_FILE)?) {
        roots.add(certificate?)?;
    }
    let chain = CertificateDer::pem_slice_iter(data(CERTIFICATE_FILE)?).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(data(KEY_FILE)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

impl Key {
    /// Parses `<workspace>-workspace.<namespace>.svc`.
    fn of_server_name(name: &str) -> Option<Key> {
        let (object, namespace) = name.strip_suffix(".svc")?.split_once('.')?;
        let key = Key { namespace: namespace.to_owned(), name: object.strip_suffix("-workspace")?.to_owned() };
        (workspace_server_name(&key.name, &key.namespace) == name).then_some(key)
    }
}

/// Connection from the controller to a workspace's agent.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    workspace: Key,
}

impl Connected for Connection {
    type ConnectInfo = Key;

    fn connect_info(&self) -> Key {
        self.workspace.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
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
