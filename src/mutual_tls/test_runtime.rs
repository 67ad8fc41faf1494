//! A SPIFFE runtime for tests: certificate authorities of trust domains, the Workload API on a Unix socket, and servers
//! with mutual TLS.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use super::{Client, Identity, MutualTls, Peer, build};

/// Certificate authority of a trust domain.
pub(crate) struct Authority {
    trust_domain: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// X.509-SVID with its private key.
#[derive(Clone)]
pub(crate) struct Svid {
    id: String,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Authority {
    pub(crate) fn new(trust_domain: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.subject_alt_names = vec![uri(&format!("spiffe://{trust_domain}"))];
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { trust_domain: trust_domain.to_owned(), certificate, issuer: Issuer::new(params, key) }
    }

    /// Issues an X.509-SVID for a path such as `/flux/source-controller`.
    pub(crate) fn issue(&self, path: &str) -> Svid {
        self.issue_until(path, 4096)
    }

    fn issue_until(&self, path: &str, year: i32) -> Svid {
        let id = format!("spiffe://{}{path}", self.trust_domain);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::ExplicitNoCa;
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names = vec![uri(&id)];
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        Svid { id, certificate, key: key.serialize_der() }
    }

    /// Issues an X.509-SVID that has expired.
    pub(crate) fn issue_expired(&self, path: &str) -> Svid {
        self.issue_until(path, 2020)
    }
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

/// `X509SVIDRequest` of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {}

/// `X509SVIDResponse` of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
struct Issued {
    #[prost(message, repeated, tag = "1")]
    svids: Vec<IssuedSvid>,
    #[prost(map = "string, bytes", tag = "3")]
    federated_bundles: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct IssuedSvid {
    #[prost(string, tag = "1")]
    spiffe_id: String,
    #[prost(bytes = "vec", tag = "2")]
    x509_svid: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    x509_svid_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    bundle: Vec<u8>,
}

/// The Workload API. Dropping this value stops it.
pub(crate) struct Runtime {
    directory: TempDir,
    replies: watch::Sender<Result<Issued, Status>>,
    tasks: JoinSet<()>,
}

impl Runtime {
    /// Returns a runtime that does not listen on its socket yet, and has no identity for the controller.
    pub(crate) fn new() -> Self {
        let replies = watch::Sender::new(Err(Status::permission_denied("no identity issued")));
        Self { directory: TempDir::new().unwrap(), replies, tasks: JoinSet::new() }
    }

    /// Starts a runtime that issues `svid` to the controller, with the trust bundle of `own` and of federated trust
    /// domains.
    pub(crate) fn issuing(svid: &Svid, own: &Authority, federated: &[&Authority]) -> Self {
        let mut runtime = Self::new();
        runtime.issue(svid, &[own], federated);
        runtime.listen();
        runtime
    }

    /// Sends a renewed X.509-SVID or renewed trust bundles.
    pub(crate) fn issue(&self, svid: &Svid, own: &[&Authority], federated: &[&Authority]) {
        let issued = IssuedSvid {
            spiffe_id: svid.id.clone(),
            x509_svid: svid.certificate.to_vec(),
            x509_svid_key: svid.key.clone(),
            bundle: own.iter().flat_map(|authority| authority.certificate.to_vec()).collect(),
        };
        let bundle =
            |authority: &&Authority| (format!("spiffe://{}", authority.trust_domain), authority.certificate.to_vec());
        let federated_bundles = federated.iter().map(bundle).collect();
        let _ = self.replies.send_replace(Ok(Issued { svids: vec![issued], federated_bundles }));
    }

    /// Withdraws the identity of the controller.
    pub(crate) fn withdraw(&self) {
        let _ = self.replies.send_replace(Err(Status::permission_denied("no identity issued")));
    }

    /// Value of `SPIFFE_ENDPOINT_SOCKET`.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}/agent.sock", self.directory.path().display())
    }

    /// Starts to listen on the socket.
    pub(crate) fn listen(&mut self) {
        let listener = UnixListener::bind(self.directory.path().join("agent.sock")).unwrap();
        let replies = self.replies.clone();
        let service = tower::service_fn(move |request: http::Request<tonic::body::Body>| {
            let replies = replies.subscribe();
            async move {
                assert_eq!(request.uri().path(), "/SpiffeWorkloadAPI/FetchX509SVID");
                assert_eq!(request.headers()["workload.spiffe.io"], "true");
                let stream = tower::service_fn(move |_: tonic::Request<Request>| {
                    let replies = replies.clone();
                    async move { Ok::<_, Status>(Response::new(updates(replies).boxed())) }
                });
                let codec = tonic_prost::ProstCodec::<Issued, Request>::default();
                Ok::<_, Infallible>(tonic::server::Grpc::new(codec).server_streaming(stream, request).await)
            }
        });
        let server = tonic::transport::Server::builder();
        self.tasks.spawn(async move {
            let _ = { server }.serve_with_incoming(service, UnixListenerStream::new(listener)).await;
        });
    }

    /// Stops the Workload API and removes its socket.
    pub(crate) async fn stop(&mut self) {
        self.tasks.shutdown().await;
        std::fs::remove_file(self.directory.path().join("agent.sock")).unwrap();
    }

    /// Returns a client that accepts servers with one of the given SPIFFE IDs.
    pub(crate) fn client(&mut self, peer: Peer, authorized: &[&str]) -> Client {
        Client::new(peer, plain(), Some(self.mutual_tls(authorized)))
    }

    pub(crate) fn mutual_tls(&mut self, authorized: &[&str]) -> MutualTls {
        let (identity, task) = Identity::new(&self.endpoint(), CancellationToken::new());
        tokio::spawn(task);
        MutualTls { identity, authorized: authorized.iter().map(|id| id.parse().unwrap()).collect() }
    }
}

/// Returns the current reply and all later replies.
fn updates(mut replies: watch::Receiver<Result<Issued, Status>>) -> impl Stream<Item = Result<Issued, Status>> {
    replies.mark_changed();
    stream::unfold(replies, |mut replies| async move {
        replies.changed().await.ok()?;
        let reply = replies.borrow_and_update().clone();
        Some((reply, replies))
    })
}

/// Returns an HTTP client that trusts no certificates.
pub(crate) fn plain() -> reqwest::Client {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    build(tls, Duration::from_secs(5)).unwrap()
}

/// A server that responds to each request with the text `artifact`. Dropping this value stops the server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The certificates of the clients of all requests.
    clients: Arc<Mutex<Vec<CertificateDer<'static>>>>,
    requests: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Starts a server with mutual TLS. The server accepts clients with an X.509-SVID of `clients`, and closes the
    /// connection after each response.
    pub(crate) async fn start(svid: &Svid, clients: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(clients.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let key = PrivateKeyDer::Pkcs8(svid.key.clone().into());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![svid.certificate.clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, requests) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (clients, received) = (seen.clone(), requests.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
                let mut request = vec![0; 65536];
                let length = stream.read(&mut request).await.unwrap_or_default();
                received.lock().unwrap().push(String::from_utf8_lossy(&request[..length]).into_owned());
                seen.lock().unwrap().push(certificate);
                let response = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\nartifact";
                let _ = stream.write_all(response).await;
                let _ = stream.shutdown().await;
            }
        });
        Self { address, clients, requests, _tasks: tasks }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns whether the client of the last request had this X.509-SVID.
    pub(crate) fn last_client_was(&self, svid: &Svid) -> bool {
        self.clients.lock().unwrap().last() == Some(&svid.certificate)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}
