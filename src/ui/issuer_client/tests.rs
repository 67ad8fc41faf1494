//! Tests for the proxies and the CA certificates of the client.

use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use reqwest::Method;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use url::Url;

use super::*;

/// Reads a request, and responds with the first line of the request as JSON.
async fn respond(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut request = [0; 4096];
    let length = stream.read(&mut request).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&request[..length]);
    let body = json!(text.lines().next()).to_string();
    let response = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Starts a server without TLS, and returns its address.
async fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            respond(listener.accept().await.unwrap().0).await;
        }
    });
    address
}

/// Starts a server with TLS, and returns its URL and its certificate in PEM format.
async fn serve_tls() -> (String, String) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                respond(stream).await;
            }
        }
    });
    (url, cert.pem())
}

async fn fetch(client: &IssuerClient, url: &str) -> Result<Value, String> {
    let request = Request::new(Method::GET, Url::parse(url).unwrap());
    client.fetch("read the test", request).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn requests_use_the_proxy_except_for_excluded_hosts() {
    let (proxy, issuer) = (serve().await, serve().await);
    let of = |not_for: &'static str| {
        let address = format!("http://{proxy}");
        let proxies = Proxies::from_variables(move |name| match name {
            "HTTP_PROXY" => Some(address.clone()),
            "NO_PROXY" => Some(not_for.to_owned()),
            _ => None,
        });
        IssuerClient::new(None, proxies)
    };
    // The host name does not resolve, so only the proxy can respond.
    let proxied = fetch(&of(""), "http://issuer.invalid/a").await.unwrap();
    assert_eq!(proxied, "GET http://issuer.invalid/a HTTP/1.1");
    assert!(fetch(&of(".invalid"), "http://issuer.invalid/a").await.is_err());
    let direct = fetch(&of("127.0.0.1"), &format!("http://{issuer}/a")).await.unwrap();
    assert_eq!(direct, "GET /a HTTP/1.1");
}

#[tokio::test]
async fn only_certificates_of_trusted_authorities_are_accepted() {
    let ((url, certificate), (_, stranger)) = (serve_tls().await, serve_tls().await);
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ca.crt");
    let untrusting = IssuerClient::new(None, Proxies::default());
    let refused = fetch(&untrusting, &url).await.unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    let client = IssuerClient::new(Some(path.clone()), Proxies::default());
    let missing = fetch(&client, &url).await.unwrap_err();
    assert!(missing.starts_with("failed to read the CA certificates of the OIDC issuer: "), "{missing}");
    // The client reads the file again after each change.
    let large = "-".repeat(1024 * 1024 + 1);
    let rows = [
        (stranger.as_str(), "certificate"),
        (certificate.as_str(), ""),
        ("no certificate", "no certificate in PEM format found"),
        (large.as_str(), "the file is too large"),
    ];
    for (content, expected) in rows {
        std::fs::write(&path, content).unwrap();
        match fetch(&client, &url).await {
            Ok(line) => assert_eq!((line, expected), (json!("GET / HTTP/1.1"), "")),
            Err(error) => assert!(!expected.is_empty() && error.contains(expected), "{expected}: {error}"),
        }
    }
}
