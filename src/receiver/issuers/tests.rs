//! Tests with an issuer that serves HTTPS on the loopback interface.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::receiver::oidc_token::tests::{Signer, claims};

/// Responses of an issuer to requests for a path.
type Pages = Arc<Mutex<HashMap<&'static str, (u16, String)>>>;

const CONFIGURATION: &str = "/.well-known/openid-configuration";

/// An issuer with one key.
pub struct TestIssuer {
    pub url: String,
    pub signer: Signer,
    /// File with the certificate of the issuer.
    authorities: NamedTempFile,
    pages: Pages,
    requests: Arc<AtomicUsize>,
}

impl TestIssuer {
    pub async fn start() -> Self {
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
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (pages, requests) = (Pages::default(), Arc::<AtomicUsize>::default());
        let (served, counted) = (pages.clone(), requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default();
                counted.fetch_add(1, Ordering::SeqCst);
                let (status, body) = served.lock().unwrap().get(path).cloned().unwrap_or((404, String::new()));
                let head = format!("HTTP/1.1 {status} -\r\nlocation: /keys\r\nconnection: close");
                let response = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(response.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        let mut authorities = NamedTempFile::new().unwrap();
        authorities.write_all(cert.pem().as_bytes()).unwrap();
        let issuer = TestIssuer { url, signer: Signer::new("one"), authorities, pages, requests };
        issuer.publish(json!({"issuer": issuer.url, "jwks_uri": format!("{}/keys", issuer.url)}));
        issuer.page("/keys", 200, issuer.signer.keys().to_string());
        issuer
    }

    fn page(&self, path: &'static str, status: u16, body: String) {
        self.pages.lock().unwrap().insert(path, (status, body));
    }

    fn publish(&self, configuration: Value) {
        self.page(CONFIGURATION, 200, configuration.to_string());
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    pub fn settings(&self) -> IssuerSettings {
        let authorities = self.authorities.path().to_owned();
        IssuerSettings { authorities, proxies: Proxies::default(), local_addresses: true }
    }

    pub fn provider(&self) -> Value {
        json!({"issuerURL": self.url, "audience": "pulumi-test", "claims": {"repository": "acme/web"}})
    }

    fn receiver(&self) -> StackReceiver {
        receiver("apps", &self.provider())
    }

    pub fn token(&self, changes: Value) -> String {
        let mut changes = changes;
        changes["iss"] = json!(self.url);
        self.signer.token(&claims(changes))
    }
}

fn receiver(namespace: &str, provider: &Value) -> StackReceiver {
    let spec = json!({"type": "generic-oidc", "oidcProviders": [provider], "resources": [{"name": "web"}]});
    serde_json::from_value(json!({"metadata": {"name": "ci", "namespace": namespace}, "spec": spec})).unwrap()
}

fn issuers(settings: IssuerSettings) -> Issuers {
    Issuers::new(settings, TaskTracker::new())
}

async fn call(issuers: &Issuers, receiver: &StackReceiver, token: &str) -> Result<(), OidcFault> {
    let headers = [(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap())].into_iter().collect();
    issuers.authenticate(receiver, &headers).await
}

fn cause(result: Result<(), OidcFault>) -> String {
    match result {
        Err(OidcFault::Unavailable { cause, .. }) => cause,
        other => panic!("expected an error about the issuer, not {other:?}"),
    }
}

#[tokio::test]
async fn the_keys_of_an_issuer_are_read_once() {
    let issuer = TestIssuer::start().await;
    let (issuers, receiver, token) = (issuers(issuer.settings()), issuer.receiver(), issuer.token(json!({})));
    let number = SLOTS.per_key + SLOTS.waiting_per_key;
    let calls = futures::future::join_all((0..=number).map(|_| call(&issuers, &receiver, &token))).await;
    let (busy, accepted): (Vec<_>, Vec<_>) = calls.into_iter().partition(Result::is_err);
    assert_eq!(busy, [Err(OidcFault::Busy { waiting: SLOTS.waiting_per_key })]);
    assert_eq!(accepted.len(), number);
    assert_eq!(issuer.requests(), 2, "the configuration and the keys");
    let wrong = call(&issuers, &receiver, &issuer.token(json!({"repository": "evil/web"}))).await;
    assert_eq!(wrong, Err(OidcFault::Claim("repository".to_owned())));
    assert_eq!(issuer.requests(), 2);
}

#[tokio::test]
async fn a_flood_of_unknown_keys_causes_no_flood_of_requests() {
    let mut issuer = TestIssuer::start().await;
    let (issuers, receiver, good) = (issuers(issuer.settings()), issuer.receiver(), issuer.token(json!({})));
    assert_eq!(call(&issuers, &receiver, &good).await, Ok(()));
    issuer.signer = Signer::new("two");
    let unknown = issuer.token(json!({}));
    for _ in 0..50 {
        assert_eq!(call(&issuers, &receiver, &unknown).await, Err(OidcFault::Key(issuer.url.clone())));
    }
    assert_eq!(issuer.requests(), 2);
    assert_eq!(call(&issuers, &receiver, &good).await, Ok(()), "the other tokens are still valid");
    // The issuer rotates its keys. After the interval, the next call reads the keys.
    issuer.page("/keys", 200, issuer.signer.keys().to_string());
    for cached in issuers.0.lock().values_mut() {
        cached.attempted -= REFRESH_INTERVAL;
    }
    assert_eq!(call(&issuers, &receiver, &unknown).await, Ok(()));
    assert_eq!(call(&issuers, &receiver, &good).await, Err(OidcFault::Key(issuer.url.clone())));
    assert_eq!(issuer.requests(), 4);
}

#[tokio::test]
async fn a_token_of_another_issuer_causes_no_request() {
    let issuer = TestIssuer::start().await;
    let issuers = issuers(issuer.settings());
    let provider = json!({"issuerURL": "https://ci.example.com", "audience": "a", "claims": {"sub": "b"}});
    let result = call(&issuers, &receiver("apps", &provider), &issuer.token(json!({}))).await;
    assert_eq!((result, issuer.requests()), (Err(OidcFault::Issuer), 0));
}

#[tokio::test]
async fn an_invalid_configuration_of_an_issuer_is_rejected() {
    let issuer = TestIssuer::start().await;
    let (receiver, token, url) = (issuer.receiver(), issuer.token(json!({})), issuer.url.clone());
    let result = async || cause(call(&issuers(issuer.settings()), &receiver, &token).await);
    let rows = [
        (json!({"issuer": format!("{url}/"), "jwks_uri": format!("{url}/keys")}), "another issuer"),
        (json!({"issuer": "https://evil.example.com", "jwks_uri": format!("{url}/keys")}), "another issuer"),
        (json!({"issuer": url, "jwks_uri": url.replace("https", "http")}), "does not use https"),
        (json!({"issuer": url, "jwks_uri": "file:///etc/passwd"}), "does not use https"),
        (json!({"issuer": url, "jwks_uri": format!("{url}/moved")}), "HTTP status 302"),
        (json!({"issuer": url, "jwks_uri": format!("{url}/none")}), "HTTP status 404"),
        (json!({"issuer": url, "jwks_uri": format!("{url}/large")}), "has more than"),
        (json!({"issuer": url, "jwks_uri": format!("{url}/text")}), "keys of the issuer are malformed"),
        (json!({"issuer": url, "jwks_uri": format!("{url}/empty")}), "publishes no keys"),
        (json!({"issuer": url}), "configuration of the issuer is malformed"),
    ];
    issuer.page("/moved", 302, String::new());
    issuer.page("/large", 200, " ".repeat(MAX_RESPONSE + 1));
    issuer.page("/text", 200, "text".to_owned());
    issuer.page("/empty", 200, json!({"keys": []}).to_string());
    for (configuration, expected) in rows {
        issuer.publish(configuration.clone());
        let cause = result().await;
        assert!(cause.contains(expected), "{configuration}: {cause}");
    }
}

#[tokio::test]
async fn a_failed_read_is_not_repeated_immediately() {
    let issuer = TestIssuer::start().await;
    let (issuers, receiver, token) = (issuers(issuer.settings()), issuer.receiver(), issuer.token(json!({})));
    issuer.page(CONFIGURATION, 503, String::new());
    for _ in 0..20 {
        assert!(cause(call(&issuers, &receiver, &token).await).contains("HTTP status 503"));
    }
    assert_eq!(issuer.requests(), 1);
}

#[tokio::test]
async fn an_untrusted_or_local_issuer_is_rejected() {
    let issuer = TestIssuer::start().await;
    let (receiver, token) = (issuer.receiver(), issuer.token(json!({})));
    let untrusted = IssuerSettings { authorities: PathBuf::from("/no/such/file"), ..issuer.settings() };
    let cause_of = async |settings| cause(call(&issuers(settings), &receiver, &token).await);
    let message = cause_of(untrusted).await;
    assert!(message.contains("certificate"), "{message}");
    let message = cause_of(IssuerSettings { local_addresses: false, ..issuer.settings() }).await;
    assert!(message.contains("loopback, link-local or unspecified address"), "{message}");
    assert_eq!(issuer.requests(), 0);
}

#[tokio::test]
async fn a_read_continues_when_the_caller_disconnects() {
    let issuer = TestIssuer::start().await;
    let (issuers, receiver, token) = (issuers(issuer.settings()), issuer.receiver(), issuer.token(json!({})));
    let canceled = tokio::time::timeout(Duration::from_micros(1), call(&issuers, &receiver, &token)).await;
    assert!(canceled.is_err());
    for _ in 0..200 {
        if call(&issuers, &receiver, &token).await.is_ok() {
            return assert_eq!(issuer.requests(), 2);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the keys are not in the cache");
}

#[test]
fn a_namespace_evicts_only_its_own_issuers() {
    let (issuers, now) = (issuers(IssuerSettings::default()), Instant::now());
    let key = |namespace: &str, number: usize| (namespace.to_owned(), format!("https://{number}.example.com"));
    issuers.0.begin(&key("other", 0), now);
    for number in 0..MAX_ISSUERS_PER_NAMESPACE + 3 {
        let offset = u32::try_from(number).unwrap() * Duration::from_secs(1);
        issuers.0.begin(&key("apps", number), now + offset);
    }
    let expected: BTreeSet<_> =
        (3..MAX_ISSUERS_PER_NAMESPACE + 3).map(|number| key("apps", number)).chain([key("other", 0)]).collect();
    assert_eq!(issuers.0.lock().keys().cloned().collect::<BTreeSet<_>>(), expected);
    issuers.0.begin(&key("apps", 100), now + 3 * MAX_AGE);
    assert_eq!(issuers.0.lock().len(), 1, "unused entries are removed");
}

#[test]
fn a_read_depends_on_the_age_of_the_keys_and_on_the_last_read() {
    let now = Instant::now() + 2 * MAX_AGE;
    let signer = Signer::new("one");
    let keys = Arc::new(Keys::parse(signer.keys().to_string().as_bytes()).unwrap());
    // Ages of the keys and of the last read in seconds, whether the last read failed, the key, and the decision.
    let rows = [
        (Some(10), 10, false, "one", "use"),
        (Some(10), 10, true, "one", "use"),
        (Some(3599), 3599, false, "one", "use"),
        (Some(3600), 3600, false, "one", "read"),
        (Some(3600), 29, true, "one", "refuse: failed"),
        (Some(3600), 30, true, "one", "read"),
        (Some(10), 10, false, "two", "refuse"),
        (Some(40), 29, true, "two", "refuse: failed"),
        (Some(40), 40, false, "two", "read"),
        (None, 29, true, "one", "refuse: failed"),
        (None, 29, false, "one", "refuse"),
        (None, 30, true, "one", "read"),
    ];
    for row in rows {
        let (age, attempted, has_failed, key, expected) = row;
        let cached = Cached {
            keys: keys.clone(),
            expires: age.map(|age| now - Duration::from_secs(age) + MAX_AGE),
            attempted: now - Duration::from_secs(attempted),
            is_reading: false,
            failure: has_failed.then(|| "failed".to_owned()),
            used: now,
        };
        let decision = match decide(Some(&cached), key, Algorithm::ES256, now) {
            Decision::Use(_) => "use".to_owned(),
            Decision::Read => "read".to_owned(),
            Decision::Refuse(None) => "refuse".to_owned(),
            Decision::Refuse(Some(why)) => format!("refuse: {why}"),
        };
        assert_eq!(decision, expected, "{row:?}");
    }
    assert!(matches!(decide(None, "one", Algorithm::ES256, now), Decision::Read));
    let (expires, failure) = (None, Some("failed".to_owned()));
    let reading = Cached { keys, expires, attempted: now, is_reading: true, failure, used: now };
    let decision = decide(Some(&reading), "one", Algorithm::ES256, now);
    assert!(matches!(decision, Decision::Read), "waits for the read of another call: {decision:?}");
}
