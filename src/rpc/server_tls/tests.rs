//! Tests which clients the agent's TLS server accepts. The tests use real connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::body::Body;

use crate::file_watch::FileWatch;
use crate::rpc::client::tests::FakeAgent;
use crate::rpc::client::{AgentAddress, Agents, RpcError};
use crate::rpc::identity::{Authority, Issued};
use crate::rpc::proto;
use crate::rpc::proto::agent_server::AgentServer;
use crate::rpc::server_tls::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, ServerTlsError, TlsAcceptor};

const NAME: &str = "web-workspace.apps.svc";

/// Running agent, and the authority that issued the certificates for both sides.
pub(crate) struct Serving {
    pub(crate) authority: Authority,
    directory: tempfile::TempDir,
    watch: FileWatch,
    address: SocketAddr,
    _end: DropGuard,
}

impl Serving {
    pub(crate) async fn start(agent: FakeAgent) -> Self {
        Self::start_service(AgentServer::new(agent)).await
    }

    /// Starts an agent that serves any HTTP/2 service.
    pub(crate) async fn start_service<S>(service: S) -> Self
    where
        S: tower::Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
    {
        let authority = Authority::generate(Timestamp::now()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        write_files(directory.path(), &server_certificate(&authority), authority.certificate_pem());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let watch = FileWatch::new();
        let incoming = TlsAcceptor::from_directory(directory.path(), watch.clone()).unwrap().incoming(listener);
        let end = CancellationToken::new();
        let ended = end.clone().cancelled_owned();
        let server = tonic::transport::Server::builder();
        tokio::spawn(server.serve_with_incoming_shutdown(service, incoming, ended));
        Serving { authority, directory, watch, address, _end: end.drop_guard() }
    }

    pub(crate) fn agents(&self) -> Agents {
        self.agents_with(&self.authority.issue_client(Timestamp::now()).unwrap())
    }

    fn agents_with(&self, client: &Issued) -> Agents {
        Agents::new(std::slice::from_ref(client), self.authority.certificate_pem()).unwrap()
    }

    pub(crate) fn address(&self) -> AgentAddress {
        AgentAddress {
            ip: self.address.ip(),
            port: self.address.port(),
            server_name: NAME.to_owned(),
            namespace: "apps".to_owned(),
        }
    }

    async fn status_as(&self, client: &Issued) -> Result<proto::StatusReply, RpcError> {
        status(&self.agents_with(client), &self.address()).await
    }

    async fn assert_serves_the_controller(&self) {
        let client = self.authority.issue_client(Timestamp::now()).unwrap();
        assert_eq!(self.status_as(&client).await.unwrap().start_id, "start");
    }

    /// Returns the error that the client receives.
    async fn refusal(&self, clients: &[Issued]) -> String {
        let agents = Agents::new(clients, self.authority.certificate_pem()).unwrap();
        let error = status(&agents, &self.address()).await.expect_err("should be rejected");
        assert!(error.is_unavailable(), "{error}");
        self.assert_serves_the_controller().await;
        error.message
    }

    /// Replaces the agent's certificate files.
    fn mount(&self, server: &Issued, authorities: &str) {
        self.change(|directory| write_files(directory, server, authorities));
    }

    /// Changes the agent's certificate files, and waits until the agent has detected the change.
    fn change(&self, change: impl FnOnce(&Path)) {
        let directory = self.directory.path();
        let version = || self.watch.version([directory]).expect("the directory is watched");
        let before = version();
        change(directory);
        let began = Instant::now();
        while version() == before {
            assert!(began.elapsed() < Duration::from_secs(1), "the change is not detected");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

async fn status(agents: &Agents, address: &AgentAddress) -> Result<proto::StatusReply, RpcError> {
    agents.connect(address).await?.status().await
}

fn server_certificate(authority: &Authority) -> Issued {
    authority.issue_server(&[NAME.to_owned()], Timestamp::now()).unwrap()
}

fn write_files(directory: &Path, server: &Issued, authorities: &str) {
    std::fs::write(directory.join(CERTIFICATE_FILE), &server.certificate_pem).unwrap();
    std::fs::write(directory.join(KEY_FILE), &server.key_pem).unwrap();
    std::fs::write(directory.join(AUTHORITY_FILE), authorities).unwrap();
}

/// Returns a client certificate from the authority that lacks the controller's URI.
fn client_without_controller_uri(authority: &Authority) -> Issued {
    let key = KeyPair::from_pem(&authority.key_pem()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(authority.certificate_pem(), key).unwrap();
    let mut params = CertificateParams::new(vec!["someone.svc".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    Issued { certificate_pem: certificate.pem(), key_pem: key.serialize_pem().into() }
}

fn days_ago(days: i64) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second() - days * 24 * 60 * 60).unwrap()
}

#[tokio::test]
async fn the_controller_can_connect_to_the_agent() {
    Serving::start(FakeAgent::default()).await.assert_serves_the_controller().await;
}

#[tokio::test]
async fn responses_are_sent_without_waiting_for_acknowledgments() {
    let serving = Serving::start(FakeAgent::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = AgentAddress { port: listener.local_addr().unwrap().port(), ..serving.address() };
    let agents = serving.agents();
    let client = tokio::spawn(async move { status(&agents, &address).await });
    let acceptor = TlsAcceptor::from_directory(serving.directory.path(), FileWatch::new()).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let connection = acceptor.handshake(stream, &AtomicBool::default()).await.unwrap();
    assert!(connection.0.get_ref().0.nodelay().unwrap());
    client.abort();
}

/// Returns clients that the agent rejects. Each client has a name, certificates, the agent's log message, and the error
/// that the client receives.
fn strangers(authority: &Authority) -> [(&'static str, Vec<Issued>, &'static str, &'static str); 5] {
    let of_another = Authority::generate(Timestamp::now()).unwrap().issue_client(Timestamp::now()).unwrap();
    [
        (
            "no certificate",
            vec![],
            "the client sent no certificate",
            "requires a client certificate, but none was presented",
        ),
        (
            "a workspace",
            vec![server_certificate(authority)],
            "the client's certificate is not a client certificate",
            "rejected the presented certificate as invalid for this side of a connection",
        ),
        (
            "another client of the authority",
            vec![client_without_controller_uri(authority)],
            "the client's certificate does not identify the controller",
            "rejected the presented certificate, which does not identify the controller",
        ),
        (
            "an expired controller",
            vec![authority.issue_client(days_ago(91)).unwrap()],
            "the client's certificate has expired",
            "rejected the presented certificate as expired",
        ),
        (
            "the controller of another authority",
            vec![of_another],
            "the client's certificate is signed by an untrusted authority",
            "does not trust the authority of the presented certificate",
        ),
    ]
}

#[tokio::test]
async fn unauthorized_clients_are_rejected_with_the_reason() {
    let serving = Serving::start(FakeAgent::default()).await;
    // Repeats the attempt, because the connection sometimes ends before the client sends the call.
    for (who, clients, _, error) in strangers(&serving.authority).iter().cycle().take(100) {
        let message = serving.refusal(clients).await;
        assert!(message.contains("the agent ") && message.contains(error), "{who}: {message}");
    }
}

#[tokio::test]
async fn the_agent_reports_why_it_rejected_a_client() {
    let authority = Authority::generate(Timestamp::now()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    write_files(directory.path(), &server_certificate(&authority), authority.certificate_pem());
    let acceptor = TlsAcceptor::from_directory(directory.path(), FileWatch::new()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let address = AgentAddress {
        ip: address.ip(),
        port: address.port(),
        server_name: NAME.to_owned(),
        namespace: "apps".to_owned(),
    };
    for (who, clients, reason, _) in strangers(&authority) {
        let agents = Agents::new(&clients, authority.certificate_pem()).unwrap();
        let address = address.clone();
        let call = tokio::spawn(async move { status(&agents, &address).await });
        let (stream, _) = listener.accept().await.unwrap();
        let refused = acceptor.handshake(stream, &AtomicBool::default()).await.map(|_| ()).expect_err(who);
        assert!(refused.to_string().contains(reason), "{who}: {refused}");
        call.await.unwrap().expect_err(who);
    }
}

#[tokio::test]
async fn plaintext_and_silent_clients_do_not_block_the_controller() {
    let serving = Serving::start(FakeAgent::default()).await;
    let mut plain = TcpStream::connect(serving.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let open = serving.agents().connect(&serving.address()).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(serving.address).await.unwrap());
    }
    serving.assert_serves_the_controller().await;
    open.status().await.expect("an authenticated client was not dropped");
}

#[tokio::test]
async fn a_server_with_a_wrong_certificate_is_rejected() {
    let serving = Serving::start(FakeAgent::default()).await;
    let authority = &serving.authority;
    let stranger = Authority::generate(Timestamp::now()).unwrap();
    let named = |name: &str, at| authority.issue_server(&[name.to_owned()], at).unwrap();
    let cases = [
        (named("other-workspace.apps.svc", Timestamp::now()), "the agent's certificate is for another workspace"),
        (named(NAME, days_ago(91)), "the agent's certificate has expired"),
        (server_certificate(&stranger), "the agent's certificate is signed by an untrusted authority"),
        (authority.issue_client(Timestamp::now()).unwrap(), "the agent's certificate is not a server certificate"),
    ];
    for (server, reason) in cases {
        serving.mount(&server, authority.certificate_pem());
        let error = serving.agents().connect(&serving.address()).await.map(|_| ()).expect_err(reason);
        assert!(error.is_unavailable() && error.message.contains(reason), "{error}");
        serving.mount(&server_certificate(authority), authority.certificate_pem());
        serving.assert_serves_the_controller().await;
    }
}

/// Combines the controller's certificates at each step of a rotation with a pod's files at each step. The pairs in
/// `impossible` cannot occur, because a pod receives new files before the next step.
#[tokio::test]
async fn agents_stay_reachable_in_each_step_of_an_authority_rotation() {
    let serving = Serving::start(FakeAgent::default()).await;
    let (old, new) = (&serving.authority, Authority::generate(Timestamp::now()).unwrap());
    let (old_pem, new_pem) = (old.certificate_pem(), new.certificate_pem());
    let (old_first, new_first) = (format!("{old_pem}{new_pem}"), format!("{new_pem}{old_pem}"));
    let client = |authority: &Authority| authority.issue_client(Timestamp::now()).unwrap();
    let controllers = [
        ("before", vec![client(old)], old_pem),
        ("prepared", vec![client(old)], &*old_first),
        ("promoted", vec![client(&new), client(old)], &*new_first),
        ("retired", vec![client(&new)], new_pem),
    ];
    let pods = [
        ("old", server_certificate(old), old_pem),
        ("prepared", server_certificate(old), &*old_first),
        ("renewed", server_certificate(&new), &*new_first),
        ("new", server_certificate(&new), new_pem),
    ];
    let impossible =
        [("before", "renewed"), ("before", "new"), ("prepared", "new"), ("retired", "old"), ("retired", "prepared")];
    for (controller, clients, trusted) in &controllers {
        let agents = Agents::new(clients, trusted).unwrap();
        for (pod, server, authorities) in &pods {
            serving.mount(server, authorities);
            let result = status(&agents, &serving.address()).await;
            let reached = !impossible.contains(&(*controller, *pod));
            assert_eq!(result.is_ok(), reached, "controller {controller}, pod {pod}: {result:?}");
        }
    }
}

#[tokio::test]
async fn an_open_connection_survives_rotation_of_all_certificates() {
    let serving = Serving::start(FakeAgent::default()).await;
    let agents = serving.agents();
    let open = agents.connect(&serving.address()).await.unwrap();
    let next = Authority::generate(Timestamp::now()).unwrap();
    serving.mount(&server_certificate(&next), next.certificate_pem());
    agents.replace_identity(&[next.issue_client(Timestamp::now()).unwrap()], next.certificate_pem()).unwrap();
    status(&agents, &serving.address()).await.expect("a new connection uses the next authority");
    open.status().await.expect("the open connection continues");
}

#[tokio::test]
async fn changed_certificate_files_apply_to_the_next_connection() {
    let serving = Serving::start(FakeAgent::default()).await;
    let next = Authority::generate(Timestamp::now()).unwrap();
    let client = next.issue_client(Timestamp::now()).unwrap();
    let both = format!("{}{}", serving.authority.certificate_pem(), next.certificate_pem());
    let agents = Agents::new(&[client], &both).unwrap();
    let status = async || agents.connect(&serving.address()).await?.status().await;

    status().await.expect_err("the agent does not trust the next authority");
    serving.mount(&server_certificate(&serving.authority), &both);
    status().await.expect("the bundle has both authorities");
    serving.assert_serves_the_controller().await;

    serving.mount(&server_certificate(&next), next.certificate_pem());
    status().await.expect("the next authority signed the certificate");
    let old = serving.authority.issue_client(Timestamp::now()).unwrap();
    Agents::new(&[old], &both).unwrap().connect(&serving.address()).await.unwrap().status().await.expect_err("too old");
}

#[tokio::test]
async fn the_last_valid_certificates_stay_active_if_the_files_are_unusable() {
    let serving = Serving::start(FakeAgent::default()).await;
    let other_key = server_certificate(&serving.authority).key_pem;
    serving.change(|directory| std::fs::write(directory.join(KEY_FILE), other_key).unwrap());
    serving.assert_serves_the_controller().await;
    serving.change(|directory| std::fs::remove_file(directory.join(AUTHORITY_FILE)).unwrap());
    serving.assert_serves_the_controller().await;
}

#[tokio::test]
async fn a_client_can_replace_its_certificate() {
    let serving = Serving::start(FakeAgent::default()).await;
    let stranger = Authority::generate(Timestamp::now()).unwrap();
    let agents = Agents::new(&[stranger.issue_client(Timestamp::now()).unwrap()], stranger.certificate_pem()).unwrap();
    let clone = agents.clone();
    let client = serving.authority.issue_client(Timestamp::now()).unwrap();
    agents.replace_identity(&[client], serving.authority.certificate_pem()).unwrap();
    clone.connect(&serving.address()).await.unwrap().status().await.expect("the clone has the new identity");
}

#[test]
fn an_unusable_certificate_directory_is_reported() {
    let authority = Authority::generate(Timestamp::now()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let load = || TlsAcceptor::from_directory(directory.path(), FileWatch::new()).map(|_| ()).unwrap_err();
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
