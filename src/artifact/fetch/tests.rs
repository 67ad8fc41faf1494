use std::time::{Duration, Instant};

use futures::future::join_all;
use tempfile::TempDir;

use super::super::digest::Algorithm;
use super::super::store::Usage;
use super::*;

mod https;
mod server;

use server::{Response, Server};

/// A fetcher with its own store. The fetcher accepts only URLs with loopback addresses.
struct Fixture {
    fetcher: Fetcher,
    store: Store,
    directory: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut FetchSettings)) -> Self {
        let directory = TempDir::new().unwrap();
        let store = Store::open(directory.path(), 1_000_000).unwrap();
        let mut settings = FetchSettings {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(10),
            overall_timeout: Duration::from_secs(30),
            ..FetchSettings::new(AllowedHosts::none().and("127.0.0.1").unwrap())
        };
        change(&mut settings);
        Self { fetcher: Fetcher::new(settings, store.clone()).unwrap(), store, directory }
    }

    async fn fails(&self, url: &str, digest: &Digest) -> FetchError {
        let error = self.fetcher.fetch(url, digest, "apps").await.expect_err("should fail");
        self.assert_nothing_left().await;
        error
    }

    /// Asserts that a failed fetch leaves no artifact, no download and no file. Polls the store, because the writer of
    /// a canceled download stops shortly after the cancellation.
    async fn assert_nothing_left(&self) {
        let until = Instant::now() + Duration::from_secs(5);
        let empty = Usage { artifacts: 0, complete_bytes: 0, incoming_bytes: 0 };
        loop {
            let files = std::fs::read_dir(self.directory.path().join("incoming")).unwrap().count();
            let now = (self.store.usage(), files, self.fetcher.shared.downloads.count());
            if now == (empty, 0, 0) {
                return;
            }
            assert!(Instant::now() < until, "unexpected files: {now:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn content(fetched: &Fetched) -> Vec<u8> {
    std::fs::read(fetched.artifact.path()).unwrap()
}

#[tokio::test]
async fn an_artifact_is_downloaded_once_and_then_served_from_the_store() {
    let server = Server::start(|_| Response::ok(b"artifact")).await;
    let fixture = Fixture::new();
    let url = server.url("/ocirepository/flux-system/app/sha256:0a1b.tar.gz");
    for (round, downloaded) in [true, false].into_iter().enumerate() {
        let fetched = fixture.fetcher.fetch(&url, &Digest::of(b"artifact"), "apps").await.unwrap();
        assert_eq!((content(&fetched), fetched.downloaded), (b"artifact".to_vec(), downloaded), "round {round}");
    }
    let gone = fixture.fetcher.fetch("http://192.0.2.1/gone", &Digest::of(b"artifact"), "apps").await.unwrap();
    assert!(!gone.downloaded, "the cache key is the digest, not the URL");
    assert_eq!((fixture.fetcher.download_attempts(), server.count()), (1, 1));
    let request = &server.requests()[0];
    assert!(request.starts_with("GET /ocirepository/flux-system/app/sha256:0a1b.tar.gz HTTP/1.1"), "{request}");
    assert!(request.to_lowercase().contains("\r\nuser-agent: pulumi-controller/"), "{request}");
}

#[tokio::test]
async fn a_namespace_is_granted_a_stored_artifact_only_if_its_url_serves_it() {
    let server = Server::start(|_| Response::ok(b"artifact")).await;
    let empty = Server::start(|_| Response::not_found()).await;
    let fixture = Fixture::new();
    let (url, digest) = (server.url("/a"), Digest::of(b"artifact"));
    fixture.fetcher.fetch(&url, &digest, "team-a").await.unwrap();
    assert!(fixture.store.is_granted(&digest, "team-a") && !fixture.store.is_granted(&digest, "team-b"));
    // Team B knows the digest but has no source that produces the bytes.
    let error = fixture.fetcher.fetch(&empty.url("/b"), &digest, "team-b").await.unwrap_err();
    assert_eq!(error, FetchError::NotFound { url: empty.url("/b") });
    assert!(!fixture.store.is_granted(&digest, "team-b"));
    // A source of team B produces the same bytes.
    let other = Server::start(|_| Response::ok(b"artifact")).await;
    assert!(fixture.fetcher.fetch(&other.url("/b"), &digest, "team-b").await.unwrap().downloaded);
    assert!(fixture.store.is_granted(&digest, "team-b"));
    // The fetcher downloads an artifact once, even if several namespaces refer to the artifact's source.
    let third = fixture.fetcher.fetch(&url, &digest, "team-c").await.unwrap();
    assert!(!third.downloaded && fixture.store.is_granted(&digest, "team-c"));
    assert_eq!((server.count(), other.count(), fixture.store.usage().artifacts), (1, 1, 1));
}

#[tokio::test]
async fn an_artifact_of_an_authorized_source_in_another_namespace_is_granted() {
    let server = Server::start(|_| Response::ok(b"artifact")).await;
    let fixture = Fixture::with(|settings| {
        settings.allowed_hosts = AllowedHosts::services_of("flux-system", "cluster.local");
        settings.source_controller_host = server.url("").strip_prefix("http://").map(str::to_owned);
        settings.own_namespace_only = true;
    });
    let (fetcher, digest) = (&fixture.fetcher, Digest::of(b"artifact"));
    let url = "http://source-controller.flux-system.svc.cluster.local./gitrepository/flux-system/policies/1.tar.gz";
    // Columns: the namespace of the source, and whether the path belongs to this namespace.
    for (source_namespace, is_owner) in [("apps", false), ("other", false), ("flux-system", true)] {
        let fetched = fetcher.fetch_from(url, &digest, source_namespace, "apps").await;
        match is_owner {
            true => assert!(fetched.is_ok(), "{source_namespace}: {fetched:?}"),
            false => assert!(matches!(fetched, Err(FetchError::ForeignArtifact { .. })), "{source_namespace}"),
        }
        assert_eq!(fixture.store.is_granted(&digest, "apps"), is_owner, "{source_namespace}");
    }
    assert!(!fixture.store.is_granted(&digest, "flux-system"), "only the namespace of the caller has a grant");
    let error = fetcher.fetch(url, &digest, "team-b").await.unwrap_err();
    assert!(matches!(error, FetchError::ForeignArtifact { .. }), "a fetched artifact is not public: {error}");
}

#[tokio::test]
async fn calls_for_one_digest_at_different_urls_do_not_share_a_download() {
    let slow = Server::start(|_| Response::ok(b"artifact").dripping(Duration::from_millis(5))).await;
    let empty = Server::start(|_| Response::not_found()).await;
    let fixture = Fixture::new();
    let (good, bad, digest) = (slow.url("/a"), empty.url("/b"), Digest::of(b"artifact"));
    let second = async {
        slow.until_requests(1).await;
        fixture.fetcher.fetch(&bad, &digest, "team-b").await
    };
    let (first, second) = tokio::join!(fixture.fetcher.fetch(&good, &digest, "team-a"), second);
    assert!(first.is_ok() && matches!(second, Err(FetchError::NotFound { .. })), "{second:?}");
    assert!(!fixture.store.is_granted(&digest, "team-b"));
}

#[tokio::test]
async fn a_generated_artifact_is_stored_once_and_only_under_its_own_digest() {
    let fixture = Fixture::new();
    let made: Arc<[u8]> = Arc::from(&b"made"[..]);
    for (round, is_new) in [true, false].into_iter().enumerate() {
        let kept = fixture.fetcher.keep(&made, &Digest::of(b"made"), "apps").await.unwrap();
        assert_eq!((content(&kept), kept.downloaded), (b"made".to_vec(), is_new), "round {round}");
    }
    let error = fixture.fetcher.keep(&made, &Digest::of(b"other"), "apps").await.unwrap_err().to_string();
    assert!(error.contains("failed to store artifact"), "{error}");
    assert_eq!(fixture.fetcher.download_attempts(), 0, "no request is sent");
}

#[tokio::test]
async fn digests_of_all_algorithms_are_verified() {
    let server = Server::start(|_| Response::ok(b"artifact")).await;
    for algorithm in [Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512, Algorithm::Blake3] {
        let fixture = Fixture::new();
        let digest = Digest::of_reader(algorithm, &b"artifact"[..]).unwrap();
        fixture.fetcher.fetch(&server.url("/a"), &digest, "apps").await.unwrap();
        let wrong = Digest::of_reader(algorithm, &b"other"[..]).unwrap();
        let error = fixture.fetcher.fetch(&server.url("/a"), &wrong, "apps").await.unwrap_err();
        let url = server.url("/a");
        assert_eq!(error, FetchError::DigestMismatch { url, expected: wrong, bytes: 8 });
    }
}

#[tokio::test]
async fn the_error_for_a_wrong_digest_does_not_reveal_the_actual_digest() {
    let server = Server::start(|_| Response::ok(b"rewritten")).await;
    let fixture = Fixture::new();
    let error = fixture.fails(&server.url("/a"), &Digest::of(b"artifact")).await.to_string();
    assert!(error.contains(&Digest::of(b"artifact").to_string()), "{error}");
    assert!(!error.contains(&Digest::of(b"rewritten").to_string()), "{error}");
    assert_eq!(server.count(), 1, "a wrong digest does not cause a retry");
}

#[tokio::test]
async fn the_server_response_determines_the_error() {
    let table = [
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "not found (HTTP 404)"),
        ("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n", "HTTP status 500"),
        ("HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", "HTTP status 503, retrying after 7s"),
        ("HTTP/1.1 429 Slow\r\nretry-after: 2\r\ncontent-length: 0\r\n\r\n", "HTTP status 429, retrying after 2s"),
        ("HTTP/1.1 204 Empty\r\n\r\n", "HTTP status 204"),
        ("HTTP/1.1 206 Part\r\ncontent-length: 1\r\n\r\na", "HTTP status 206"),
        (
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            "status 302: redirects are not followed",
        ),
    ];
    for (response, message) in table {
        let server = Server::start(move |_| Response::raw(response)).await;
        let fixture = Fixture::new();
        let error = fixture.fails(&server.url("/a"), &Digest::of(b"artifact")).await;
        let text = error.to_string();
        assert!(text.contains(message) && text.contains(&server.url("/a")), "expected {message}: {text}");
        assert_eq!(error.retry_after().is_some(), response.contains("retry-after"), "{response}");
        assert_eq!(server.count(), 1, "{response}");
    }
}

#[tokio::test]
async fn a_url_with_retry_after_is_requested_once_for_all_callers() {
    let busy = "HTTP/1.1 503 Busy\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n";
    let server =
        Server::start(move |round| if round == 0 { Response::raw(busy) } else { Response::ok(b"artifact") }).await;
    let fixture = Fixture::new();
    let digest = Digest::of(b"artifact");
    let first = fixture.fails(&server.url("/a"), &digest).await;
    let again = fixture.fails(&server.url("/a"), &digest).await;
    assert_eq!(again.to_string(), first.to_string());
    assert!(again.retry_after() <= first.retry_after() && again.retry_after().is_some(), "{again:?}");
    assert_eq!(server.count(), 1);
    fixture.fetcher.fetch(&server.url("/b"), &digest, "apps").await.unwrap();
    assert_eq!(server.count(), 2, "the delay applies to one URL only");
}

#[tokio::test]
async fn a_missing_artifact_is_fetched_after_it_appears() {
    let server =
        Server::start(|round| if round == 0 { Response::not_found() } else { Response::ok(b"artifact") }).await;
    let fixture = Fixture::new();
    let url = server.url("/a");
    let error = fixture.fails(&url, &Digest::of(b"artifact")).await;
    assert_eq!(error, FetchError::NotFound { url: url.clone() });
    fixture.fetcher.fetch(&url, &Digest::of(b"artifact"), "apps").await.unwrap();
}

#[tokio::test]
async fn the_download_limit_is_exact_with_and_without_content_length() {
    for response in [Response::ok as fn(&[u8]) -> Response, Response::chunked] {
        let server = Server::start(move |_| response(b"artifact")).await;
        let fixture = Fixture::with(|settings| settings.download_bytes = 8);
        fixture.fetcher.fetch(&server.url("/a"), &Digest::of(b"artifact"), "apps").await.unwrap();
        let fixture = Fixture::with(|settings| settings.download_bytes = 7);
        let error = fixture.fails(&server.url("/a"), &Digest::of(b"artifact")).await;
        assert_eq!(error, FetchError::TooLarge { url: server.url("/a"), limit: 7 });
    }
}

#[tokio::test]
async fn a_wrong_content_length_is_detected() {
    let table = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nartifact", "do not match the digest"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nartifact", "connection closed after 8 bytes"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\nartifact", "exceeds the limit of 268435456 bytes"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\nartifact\r\n", "connection closed after 8 bytes"),
        ("HTTP/1.1 200 OK\r\ncontent-length: nine\r\n\r\nartifact", "connection closed after"),
    ];
    for (response, message) in table {
        let server = Server::start(move |_| Response::raw(response)).await;
        let error = Fixture::new().fails(&server.url("/a"), &Digest::of(b"artifact")).await.to_string();
        assert!(error.contains(message), "expected {message}: {error}");
    }
}

#[tokio::test]
async fn a_body_without_content_length_is_accepted_if_its_digest_matches() {
    let server = Server::start(|_| Response::raw("HTTP/1.1 200 OK\r\n\r\nartifact")).await;
    Fixture::new().fetcher.fetch(&server.url("/a"), &Digest::of(b"artifact"), "apps").await.unwrap();
}

#[tokio::test]
async fn a_broken_connection_is_retried_exactly_once() {
    let torn = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\narti";
    for first in ["", torn, "HTTP/1.1 200"] {
        let heals = move |round| if round == 0 { Response::raw(first) } else { Response::ok(b"artifact") };
        let server = Server::start(heals).await;
        let fixture = Fixture::new();
        fixture.fetcher.fetch(&server.url("/a"), &Digest::of(b"artifact"), "apps").await.unwrap();
        assert_eq!((server.count(), fixture.fetcher.download_attempts()), (2, 2), "{first:?}");
    }
    let server = Server::start(move |_| Response::raw(torn)).await;
    let fixture = Fixture::new();
    let error = fixture.fails(&server.url("/a"), &Digest::of(b"artifact")).await;
    assert!(matches!(error, FetchError::Truncated { received: 4, .. }), "{error}");
    assert_eq!((server.count(), fixture.fetcher.download_attempts()), (2, 2));
}

#[tokio::test]
async fn a_download_from_a_hanging_server_times_out() {
    let (idle, overall) = (Duration::from_millis(200), Duration::from_millis(300));
    let silent = Server::start(|_| Response::raw("").hanging()).await;
    let stalls = Server::start(|_| Response::raw("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nart").hanging()).await;
    let drips = Server::start(|_| Response::ok(&[0; 1000]).dripping(Duration::from_millis(20))).await;
    let table = [
        (&silent, idle, Duration::from_secs(20), "waiting for a response timed out after 300ms"),
        (&stalls, idle, Duration::from_secs(20), "waiting for data timed out after 200ms"),
        (&drips, Duration::from_secs(20), overall, "download timed out after 300ms"),
    ];
    for (server, idle_timeout, overall_timeout, message) in table {
        let fixture = Fixture::with(|settings| {
            settings.connect_timeout = Duration::from_millis(100);
            settings.idle_timeout = idle_timeout;
            settings.overall_timeout = overall_timeout;
        });
        let begun = Instant::now();
        let error = fixture.fails(&server.url("/a"), &Digest::of(b"artifact")).await.to_string();
        assert!(error.contains(message), "expected {message}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{message}: after {:?}", begun.elapsed());
        assert_eq!(server.count(), 1, "a server that hangs gets no further request");
    }
}

#[tokio::test]
async fn a_refused_connection_is_reported() {
    // Binds the socket but does not listen, so the port stays reserved and the kernel refuses connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let url = format!("http://{}/a", socket.local_addr().unwrap());
    let error = Fixture::new().fails(&url, &Digest::of(b"artifact")).await;
    assert!(matches!(&error, FetchError::Connect { .. }), "{error}");
    assert!(error.to_string().to_lowercase().contains("connection refused"), "{error}");
}

#[tokio::test]
async fn no_request_is_sent_to_a_disallowed_host() {
    let server = Server::start(|_| Response::ok(b"artifact")).await;
    let flux = AllowedHosts::services_of("flux-system", "cluster.local");
    let fixture = Fixture::with(|settings| settings.allowed_hosts = flux);
    let error = fixture.fails(&server.url("/a"), &Digest::of(b"artifact")).await;
    assert!(matches!(&error, FetchError::RefusedHost { host, .. } if host == "127.0.0.1"), "{error}");
    let with_user = server.url("/a").replace("http://", "http://user:secret@");
    let error = Fixture::new().fails(&with_user, &Digest::of(b"artifact")).await;
    assert!(matches!(&error, FetchError::Url { .. }) && !error.to_string().contains("secret"), "{error}");
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn source_controller_host_replaces_the_host_of_the_artifact_url() {
    let server = Server::start(|_| Response::ok(b"artifact")).await;
    let fixture = Fixture::with(|settings| {
        settings.allowed_hosts = AllowedHosts::services_of("flux-system", "cluster.local");
        settings.source_controller_host = Some(server.address());
    });
    let url = "http://source-controller.flux-system.svc.cluster.local./gitrepository/a.tar.gz";
    fixture.fetcher.fetch(url, &Digest::of(b"artifact"), "apps").await.unwrap();
    let request = server.requests()[0].to_lowercase();
    assert!(request.contains(&format!("\r\nhost: {}\r\n", server.address())), "{request}");
}

#[tokio::test]
async fn concurrent_fetches_of_one_digest_share_one_download() {
    let server = Server::start(|_| Response::ok(b"artifact").dripping(Duration::from_millis(5))).await;
    let fixture = Fixture::new();
    let (url, digest) = (server.url("/a"), Digest::of(b"artifact"));
    let all = join_all((0..50).map(|_| fixture.fetcher.fetch(&url, &digest, "apps"))).await;
    for fetched in all {
        assert_eq!(content(&fetched.unwrap()), b"artifact");
    }
    assert_eq!(
        (server.count(), fixture.fetcher.download_attempts(), fixture.fetcher.shared.downloads.count()),
        (1, 1, 0)
    );
}

#[tokio::test]
async fn a_download_that_another_caller_has_completed_is_not_repeated() {
    let fixture = Fixture::new();
    let mut incoming = fixture.store.begin(Algorithm::Sha256).unwrap();
    incoming.append(b"artifact").unwrap();
    drop(incoming.commit_as_is().unwrap());
    fixture.store.record_url(&Digest::of(b"artifact"), "http://127.0.0.1:1/a");
    let shared = &fixture.fetcher.shared;
    let target = Target::resolve("http://127.0.0.1:1/a", &shared.settings).unwrap();
    let flight = shared::join(shared, &target, &Digest::of(b"artifact"));
    assert_eq!(flight.await.unwrap().size(), 8);
    assert_eq!(fixture.fetcher.download_attempts(), 0);
}

#[tokio::test]
async fn callers_of_a_shared_download_share_its_failure() {
    let server = Server::start(|_| Response::not_found().dripping(Duration::from_millis(5))).await;
    let fixture = Fixture::new();
    let (url, digest) = (server.url("/a"), Digest::of(b"artifact"));
    let all = join_all((0..20).map(|_| fixture.fetcher.fetch(&url, &digest, "apps"))).await;
    assert!(all.into_iter().all(|result| result.unwrap_err() == FetchError::NotFound { url: url.clone() }));
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn a_canceled_caller_does_not_cancel_the_shared_download() {
    let server = Server::start(|_| Response::ok(b"artifact").dripping(Duration::from_millis(5))).await;
    let fixture = Fixture::new();
    let (url, digest) = (server.url("/a"), Digest::of(b"artifact"));
    let staying = fixture.fetcher.fetch(&url, &digest, "apps");
    let leaving = tokio::time::timeout(Duration::from_millis(50), fixture.fetcher.fetch(&url, &digest, "apps"));
    let (left, stayed) = tokio::join!(leaving, staying);
    assert!(left.is_err(), "should be canceled during the download");
    assert_eq!(content(&stayed.unwrap()), b"artifact");
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn a_download_without_callers_ends_and_can_be_restarted() {
    let server = Server::start(|round| {
        let response = Response::ok(b"artifact");
        if round == 0 { response.dripping(Duration::from_secs(1)) } else { response }
    })
    .await;
    let fixture = Fixture::new();
    let (url, digest) = (server.url("/a"), Digest::of(b"artifact"));
    let given_up = tokio::time::timeout(Duration::from_millis(100), fixture.fetcher.fetch(&url, &digest, "apps")).await;
    assert!(given_up.is_err());
    fixture.assert_nothing_left().await;
    fixture.fetcher.fetch(&url, &digest, "apps").await.unwrap();
    assert_eq!(server.count(), 2);
}

#[tokio::test]
async fn different_digests_are_fetched_concurrently() {
    let server = Server::start(|_| Response::ok(b"artifact").dripping(Duration::from_millis(20))).await;
    let fixture = Fixture::new();
    let url = server.url("/a");
    let (one, other) = (Digest::of(b"artifact"), Digest::of(b"other"));
    let both =
        async { tokio::join!(fixture.fetcher.fetch(&url, &one, "apps"), fixture.fetcher.fetch(&url, &other, "apps")) };
    let watch = async {
        server.until_requests(2).await;
        assert!(!fixture.store.contains(&one), "the first download has not ended yet");
    };
    let ((first, second), ()) = tokio::join!(both, watch);
    assert!(first.is_ok() && matches!(second, Err(FetchError::DigestMismatch { .. })));
}

#[tokio::test]
async fn a_full_artifact_store_is_reported() {
    let server = Server::start(|_| Response::ok(b"artifact")).await;
    let fixture = Fixture::new();
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 5).unwrap();
    let fetcher = Fetcher::new(fixture.fetcher.shared.settings.clone(), store).unwrap();
    let error = fetcher.fetch(&server.url("/a"), &Digest::of(b"artifact"), "apps").await.unwrap_err();
    assert!(matches!(&error, FetchError::Store { .. }), "{error}");
    assert!(error.to_string().contains("exceed its capacity of 5 bytes"), "{error}");
}

#[tokio::test]
async fn missing_certificates_are_reported_at_startup() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 5).unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for (path, message) in [(empty, "no valid certificates in"), ("/not/there.pem".into(), "/not/there.pem")] {
        let settings =
            FetchSettings { certificate_authorities: Some(path), ..FetchSettings::new(AllowedHosts::none()) };
        let error = Fetcher::new(settings, store.clone()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
