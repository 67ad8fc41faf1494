//! Who gets through the agent's TLS and who does not, over real connections.

use std::net::SocketAddr;
use std::path::Path;

use jiff::Timestamp;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::rpc::client::{AgentAddress, Agents, RpcError};
use crate::rpc::client_tests::FakeAgent;
use crate::rpc::identity::{Authority, Issued};
use crate::rpc::proto;
use crate::rpc::proto::agent_server::AgentServer;
use crate::rpc::server_tls::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, ServerTlsError, TlsAcceptor};

const NAME: &str = "web-workspace.apps.svc";

/// An agent that serves, and the authority on both ends.
pub(crate) struct Serving {
    pub(crate) authority: Authority,
    directory: tempfile::TempDir,
    address: SocketAddr,
    _end: DropGuard,
}

impl Serving {
    pub(crate) async fn start(agent: FakeAgent) -> Self {
        let authority = Authority::generate(Timestamp::now()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        write_files(directory.path(), &server_certificate(&authority), authority.certificate_pem());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = TlsAcceptor::from_directory(directory.path()).unwrap().incoming(listener);
        let end = CancellationToken::new();
        let ended = end.clone().cancelled_owned();
        let server = tonic::transport::Server::builder();
        tokio::spawn(server.serve_with_incoming_shutdown(AgentServer::new(agent), incoming, ended));
        Serving { authority, directory, address, _end: end.drop_guard() }
    }

    pub(crate) fn agents(&self) -> Agents {
        self.agents_with(&self.authority.issue_client(Timestamp::now()).unwrap())
    }

    fn agents_with(&self, client: &Issued) -> Agents {
        Agents::new(client, self.authority.certificate_pem()).unwrap()
    }

    pub(crate) fn address(&self) -> AgentAddress {
        AgentAddress { ip: self.address.ip(), port: self.address.port(), server_name: NAME.to_owned() }
    }

    async fn status_as(&self, client: &Issued) -> Result<proto::StatusReply, RpcError> {
        self.agents_with(client).connect(&self.address()).await?.status().await
    }

    async fn assert_serves_the_controller(&self) {
        let client = self.authority.issue_client(Timestamp::now()).unwrap();
        assert_eq!(self.status_as(&client).await.unwrap().start_id, "start");
    }

    async fn assert_refuses(&self, client: &Issued, who: &str) {
        let error = self.status_as(client).await.expect_err(who);
        assert!(error.is_unavailable(), "{who}: {error}");
        self.assert_serves_the_controller().await;
    }
}

fn server_certificate(authority: &Authority) -> Issued {
    authority.issue_server(&[NAME.to_owned()], Timestamp::now()).unwrap()
}

fn write_files(directory: &Path, server: &Issued, authorities: &str) {
    std::fs::write(directory.join(CERTIFICATE_FILE), &server.certificate_pem).unwrap();
    std::fs::write(directory.join(KEY_FILE), &server.key_pem).unwrap();
    std::fs::write(directory.join(AUTHORITY_FILE), authorities).unwrap();
}

/// A client certificate of the authority that does not carry the controller's URI.
fn client_of_no_name(authority: &Authority) -> Issued {
    let key = KeyPair::from_pem(&authority.key_pem()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(authority.certificate_pem(), key).unwrap();
    let mut params = CertificateParams::new(vec!["someone.svc".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    Issued { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() }
}

fn days_ago(days: i64) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second() - days * 24 * 60 * 60).unwrap()
}

#[tokio::test]
async fn the_controller_gets_through() {
    Serving::start(FakeAgent::default()).await.assert_serves_the_controller().await;
}

#[tokio::test]
async fn nobody_else_gets_through() {
    let serving = Serving::start(FakeAgent::default()).await;
    let authority = &serving.authority;
    let stranger = Authority::generate(Timestamp::now()).unwrap();
    for (client, who) in [
        (client_of_no_name(authority), "a certificate without the controller's URI"),
        (server_certificate(authority), "a server certificate"),
        (authority.issue_client(days_ago(91)).unwrap(), "an expired certificate"),
        (stranger.issue_client(Timestamp::now()).unwrap(), "a certificate of another authority"),
    ] {
        serving.assert_refuses(&client, who).await;
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let serving = Serving::start(FakeAgent::default()).await;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in crate::rpc::identity::read_bundle(serving.authority.certificate_pem()).unwrap() {
        roots.add(certificate).unwrap();
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = TcpStream::connect(serving.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from(NAME).unwrap();
    let mut stream = connector.connect(name, stream).await.unwrap();
    let read = stream.read(&mut [0; 1]).await;
    assert!(read.is_err_and(|error| error.to_string().contains("CertificateRequired")), "the alert says why");
    serving.assert_serves_the_controller().await;
}

#[tokio::test]
async fn a_client_that_speaks_no_tls_or_nothing_at_all_stops_nobody() {
    let serving = Serving::start(FakeAgent::default()).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(serving.address).await.unwrap());
    }
    let mut plain = TcpStream::connect(serving.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    serving.assert_serves_the_controller().await;
}

#[tokio::test]
async fn an_agent_under_another_name_is_not_talked_to() {
    let serving = Serving::start(FakeAgent::default()).await;
    let address = AgentAddress { server_name: "other-workspace.apps.svc".to_owned(), ..serving.address() };
    let error = serving.agents().connect(&address).await.map(|_| ()).unwrap_err();
    assert!(error.message.contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn an_agent_of_another_authority_is_not_talked_to() {
    let serving = Serving::start(FakeAgent::default()).await;
    let stranger = Authority::generate(Timestamp::now()).unwrap();
    let client = serving.authority.issue_client(Timestamp::now()).unwrap();
    let agents = Agents::new(&client, stranger.certificate_pem()).unwrap();
    let error = agents.connect(&serving.address()).await.map(|_| ()).unwrap_err();
    assert!(error.is_unavailable() && error.message.contains("certificate"), "{error}");
}

#[tokio::test]
async fn changed_files_are_in_force_for_the_next_client() {
    let serving = Serving::start(FakeAgent::default()).await;
    let next = Authority::generate(Timestamp::now()).unwrap();
    let client = next.issue_client(Timestamp::now()).unwrap();
    let both = format!("{}{}", serving.authority.certificate_pem(), next.certificate_pem());
    let agents = Agents::new(&client, &both).unwrap();
    let status = async || agents.connect(&serving.address()).await?.status().await;

    status().await.expect_err("the agent does not know the next authority");
    write_files(serving.directory.path(), &server_certificate(&serving.authority), &both);
    status().await.expect("the bundle has both authorities");
    serving.assert_serves_the_controller().await;

    write_files(serving.directory.path(), &server_certificate(&next), next.certificate_pem());
    status().await.expect("the certificate is of the next authority");
    let old = serving.authority.issue_client(Timestamp::now()).unwrap();
    Agents::new(&old, &both).unwrap().connect(&serving.address()).await.unwrap().status().await.expect_err("too old");
}

#[tokio::test]
async fn files_that_cannot_be_used_leave_the_last_good_ones_in_force() {
    let serving = Serving::start(FakeAgent::default()).await;
    let directory = serving.directory.path();
    std::fs::write(directory.join(KEY_FILE), server_certificate(&serving.authority).key_pem).unwrap();
    serving.assert_serves_the_controller().await;
    std::fs::remove_file(directory.join(AUTHORITY_FILE)).unwrap();
    serving.assert_serves_the_controller().await;
}

#[tokio::test]
async fn the_clients_identity_can_be_replaced() {
    let serving = Serving::start(FakeAgent::default()).await;
    let stranger = Authority::generate(Timestamp::now()).unwrap();
    let agents = Agents::new(&stranger.issue_client(Timestamp::now()).unwrap(), stranger.certificate_pem()).unwrap();
    let clone = agents.clone();
    let client = serving.authority.issue_client(Timestamp::now()).unwrap();
    agents.replace_identity(&client, serving.authority.certificate_pem()).unwrap();
    clone.connect(&serving.address()).await.unwrap().status().await.expect("the clone has the new identity");
}

#[test]
fn a_directory_that_cannot_be_served_is_named() {
    let authority = Authority::generate(Timestamp::now()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let load = || TlsAcceptor::from_directory(directory.path()).map(|_| ()).unwrap_err();
    assert!(matches!(load(), ServerTlsError::Read { .. }));
    write_files(directory.path(), &server_certificate(&authority), "");
    assert!(matches!(load(), ServerTlsError::Certificates { .. }));
    write_files(directory.path(), &server_certificate(&authority), authority.certificate_pem());
    std::fs::write(directory.path().join(KEY_FILE), "").unwrap();
    assert!(matches!(load(), ServerTlsError::Key { .. }));
    std::fs::write(directory.path().join(KEY_FILE), server_certificate(&authority).key_pem).unwrap();
    assert!(matches!(load(), ServerTlsError::Serve { .. }));
    std::fs::write(directory.path().join(KEY_FILE), " ".repeat(2 * 1024 * 1024)).unwrap();
    assert!(matches!(load(), ServerTlsError::TooLong { .. }));
}
