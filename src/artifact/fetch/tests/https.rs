//! Tests for artifact downloads over HTTPS. The client verifies the certificate and does not require a process-wide
//! crypto provider.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, crypto::ring};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::mutual_tls::test_runtime::{Authority, Runtime, Server};

/// Starts a server that sends `artifact` over HTTPS. Returns the server's URL and its certificate in PEM format.
async fn serve(tasks: &mut JoinSet<()>) -> (String, String) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/a", listener.local_addr().unwrap());
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nartifact").await;
            let _ = stream.shutdown().await;
        }
    });
    (url, cert.pem())
}

#[tokio::test]
async fn an_https_server_is_trusted_only_if_its_certificate_is_configured() {
    let mut tasks = JoinSet::new();
    let (url, certificate) = serve(&mut tasks).await;
    let (_, stranger) = serve(&mut tasks).await;
    let directory = TempDir::new().unwrap();
    let trusting = |pem: &str, name: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, pem).unwrap();
        Fixture::with(|settings| settings.certificate_authorities = Some(path))
    };
    let fixture = trusting(&certificate, "own.pem");
    let fetched = fixture.fetcher.fetch(&url, &Digest::of(b"artifact"), "apps").await.unwrap();
    assert_eq!(content(&fetched), b"artifact");
    for fixture in [trusting(&stranger, "stranger.pem"), Fixture::new()] {
        let error = fixture.fails(&url, &Digest::of(b"artifact")).await;
        assert!(matches!(&error, FetchError::Connect { .. }), "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
}

#[tokio::test]
async fn an_artifact_is_downloaded_with_mutual_tls_only_from_an_authorized_server() {
    let own = Authority::new("example.org");
    let mut runtime = Runtime::issuing(&own.issue("/flux/pulumi-controller"), &own, &[]);
    let server = Server::start(&own.issue("/flux/source-controller"), &own).await;
    let (url, digest) = (server.url("/a"), Digest::of(b"artifact"));
    assert!(url.starts_with("http://"), "the status of a source has this URL");
    let mutual_tls = runtime.mutual_tls(&["spiffe://self/flux/source-controller"]);
    let fixture = Fixture::with(|settings| settings.mutual_tls = Some(mutual_tls));
    let fetched = fixture.fetcher.fetch(&url, &digest, "apps").await.unwrap();
    assert_eq!(content(&fetched), b"artifact");
    let host = format!("\r\nhost: {}\r\n", server.address);
    assert!(server.requests()[0].to_lowercase().contains(&host), "{:?}", server.requests());

    let mutual_tls = runtime.mutual_tls(&["spiffe://self/flux/other"]);
    let fixture = Fixture::with(|settings| settings.mutual_tls = Some(mutual_tls));
    let error = fixture.fails(&url, &digest).await;
    let expected = format!(
        "failed to fetch {url}: server has the SPIFFE ID spiffe://example.org/flux/source-controller, which \
         --authorized-artifact-server-spiffe-id does not authorize"
    );
    assert_eq!((error.to_string(), fixture.fetcher.download_attempts()), (expected, 1));
    assert_eq!(server.requests().len(), 1);
}
