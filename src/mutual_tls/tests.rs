//! Tests for requests with SPIFFE mutual TLS against a Workload API and servers on the loopback interface.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use url::Url;

use super::test_runtime::{Authority, Runtime, Server, plain};
use super::*;

/// Timeout for each wait in these tests.
const TIMEOUT: Duration = Duration::from_secs(30);
const CONTROLLER: &str = "/flux/pulumi-controller";
const SOURCE: &str = "/flux/source-controller";

/// Sends a GET request. Returns the body of the response, or the message of the error.
async fn get(client: &Client, url: &str) -> Result<String, String> {
    let url: Url = url.parse().unwrap();
    let sent = timeout(TIMEOUT, client.send(&url, |client, url| client.get(url))).await.expect("the request ends");
    match sent {
        Ok(response) => Ok(response.text().await.unwrap()),
        Err(SendError::Refused(failure)) => Err(failure.to_string()),
        Err(SendError::Http(error)) => Err(format!("HTTP: {}", crate::text::chain(&error))),
    }
}

/// Sends GET requests until the result is as expected. A renewal reaches the client after a short time.
async fn get_until(client: &Client, url: &str, is_expected: impl Fn(&Result<String, String>) -> bool) {
    let until = async {
        while !is_expected(&get(client, url).await) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = timeout(TIMEOUT, until).await;
    assert!(in_time.is_ok(), "unexpected result: {:?}", get(client, url).await);
}

#[tokio::test]
async fn only_a_server_with_an_authorized_spiffe_id_receives_requests() {
    let (own, partner) = (Authority::new("example.org"), Authority::new("partner.org"));
    let controller = own.issue(CONTROLLER);
    let mut runtime = Runtime::issuing(&controller, &own, &[&partner]);
    let server = Server::start(&own.issue(SOURCE), &own).await;
    let federated = Server::start(&partner.issue(SOURCE), &own).await;
    // Columns: values of the flag, and the servers that the values authorize.
    let rows: [(&[&str], bool, bool); 10] = [
        (&["spiffe://example.org/flux/source-controller"], true, false),
        (&["spiffe://example.org/flux/other", "spiffe://example.org/flux/source-controller"], true, false),
        (&["spiffe://example.org/flux/other"], false, false),
        (&["spiffe://example.org/flux/"], true, false),
        (&["spiffe://example.org/other/"], false, false),
        (&["spiffe://example.org"], true, false),
        (&["spiffe://partner.org"], false, true),
        (&["spiffe://self"], true, false),
        (&["spiffe://self/flux/source-controller"], true, false),
        (&["spiffe://self/other/", "spiffe://partner.org/flux/"], false, true),
    ];
    for (authorized, accepts_server, accepts_federated) in rows {
        let client = runtime.client(Peer::ArtifactServer, authorized);
        for (server, id, is_accepted) in [
            (&server, "spiffe://example.org/flux/source-controller", accepts_server),
            (&federated, "spiffe://partner.org/flux/source-controller", accepts_federated),
        ] {
            let before = server.requests().len();
            let expected = match is_accepted {
                true => Ok("artifact".to_owned()),
                false => Err(format!(
                    "server has the SPIFFE ID {id}, which --authorized-artifact-server-spiffe-id does not authorize"
                )),
            };
            assert_eq!(get(&client, &server.url("/a")).await, expected, "{authorized:?} {id}");
            assert_eq!(server.requests().len() - before, usize::from(is_accepted), "{authorized:?} {id}");
        }
    }
    assert!(server.last_client_was(&controller), "the client presents its X.509-SVID");
}

#[tokio::test]
async fn a_server_without_a_valid_svid_receives_no_requests() {
    let (own, stranger) = (Authority::new("example.org"), Authority::new("stranger.org"));
    let imposter = Authority::new("example.org");
    let mut runtime = Runtime::issuing(&own.issue(CONTROLLER), &own, &[]);
    let client = runtime.client(Peer::ArtifactServer, &["spiffe://example.org", "spiffe://stranger.org"]);
    let rows = [
        (imposter.issue(SOURCE), "invalid peer certificate: BadSignature"),
        (own.issue_expired(SOURCE), "invalid peer certificate: certificate expired"),
        (stranger.issue(SOURCE), "x509 source has no bundle for trust domain stranger.org"),
    ];
    for (svid, cause) in rows {
        let server = Server::start(&svid, &own).await;
        let error = get(&client, &server.url("/a")).await.unwrap_err();
        assert!(error.starts_with(&format!("server has no valid X.509-SVID: {cause}")), "{error}");
        assert!(server.requests().is_empty());
    }
}

#[tokio::test]
async fn renewed_svids_and_trust_bundles_apply_to_the_next_connection() {
    let (own, next) = (Authority::new("example.org"), Authority::new("example.org"));
    let mut runtime = Runtime::issuing(&own.issue(CONTROLLER), &own, &[]);
    let client = runtime.client(Peer::ArtifactServer, &["spiffe://self"]);
    let server = Server::start(&own.issue(SOURCE), &own).await;
    assert_eq!(get(&client, &server.url("/a")).await.as_deref(), Ok("artifact"));

    let renewed = own.issue(CONTROLLER);
    runtime.issue(&renewed, &[&own], &[]);
    get_until(&client, &server.url("/a"), |_| server.last_client_was(&renewed)).await;

    // The trust domain changes its certificate authority.
    let successor = Server::start(&next.issue(SOURCE), &own).await;
    assert!(get(&client, &successor.url("/a")).await.is_err(), "the next authority is not trusted yet");
    runtime.issue(&renewed, &[&own, &next], &[]);
    get_until(&client, &successor.url("/a"), Result::is_ok).await;
    runtime.issue(&next.issue(CONTROLLER), &[&next], &[]);
    get_until(&client, &server.url("/a"), Result::is_err).await;
}

#[tokio::test]
async fn a_withdrawn_identity_is_not_used_until_it_is_issued_again() {
    let own = Authority::new("example.org");
    let controller = own.issue(CONTROLLER);
    let mut runtime = Runtime::issuing(&controller, &own, &[]);
    let client = runtime.client(Peer::ArtifactServer, &["spiffe://self"]);
    let server = Server::start(&own.issue(SOURCE), &own).await;
    assert!(get(&client, &server.url("/a")).await.is_ok());
    runtime.withdraw();
    let is_withdrawn = |result: &Result<String, String>| {
        result.as_ref().is_err_and(|error| error.starts_with("failed to obtain an X.509-SVID"))
    };
    get_until(&client, &server.url("/a"), is_withdrawn).await;
    runtime.issue(&controller, &[&own], &[]);
    get_until(&client, &server.url("/a"), Result::is_ok).await;
}

#[tokio::test]
async fn an_unavailable_workload_api_is_reported_and_retried() {
    let own = Authority::new("example.org");
    let mut runtime = Runtime::new();
    let client = runtime.client(Peer::ArtifactServer, &["spiffe://self"]);
    let server = Server::start(&own.issue(SOURCE), &own).await;
    let (endpoint, url) = (runtime.endpoint(), server.url("/a"));
    let error = get(&client, &url).await.unwrap_err();
    let start = format!("failed to obtain an X.509-SVID from the SPIFFE Workload API at {endpoint} (");
    assert!(error.starts_with(&start) && error.contains("No such file or directory"), "{error}");
    assert!(
        error.ends_with(
            "check that the SPIFFE runtime is running, and that its socket is mounted into the pod of the controller"
        ),
        "{error}"
    );

    runtime.listen();
    let not_issued = format!(
        "SPIFFE runtime at {endpoint} does not issue an X.509-SVID to the controller (no identity issued): register \
         the pod of the controller in the SPIFFE runtime"
    );
    get_until(&client, &url, |result| result.as_ref() == Err(&not_issued)).await;
    runtime.issue(&own.issue(CONTROLLER), &[&own], &[]);
    get_until(&client, &url, Result::is_ok).await;
    assert_eq!(server.requests().len(), 1);

    // The X.509-SVID stays valid while the runtime restarts.
    runtime.stop().await;
    assert!(get(&client, &url).await.is_ok());
    let renewed = own.issue(CONTROLLER);
    runtime.issue(&renewed, &[&own], &[]);
    runtime.listen();
    get_until(&client, &url, |_| server.last_client_was(&renewed)).await;
}

#[tokio::test]
async fn a_server_that_rejects_the_controller_or_speaks_no_tls_is_reported() {
    let (own, other) = (Authority::new("example.org"), Authority::new("other.org"));
    let mut runtime = Runtime::issuing(&own.issue(CONTROLLER), &own, &[]);
    let client = runtime.client(Peer::EventServer, &["spiffe://self"]);
    let strict = Server::start(&own.issue("/flux/notification-controller"), &other).await;
    let error = get(&client, &strict.url("/")).await.unwrap_err();
    assert!(
        error.starts_with(
            "server rejected the SPIFFE ID spiffe://example.org/flux/pulumi-controller of the controller ("
        ),
        "{error}"
    );
    assert!(error.ends_with("add this SPIFFE ID to --authorized-notifier-spiffe-id of the server"), "{error}");

    let mut tasks = JoinSet::new();
    let http = respond(&mut tasks, "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    let expected = "server does not use TLS: set --authorized-notifier-spiffe-id of the server, or remove \
                    --authorized-event-server-spiffe-id of the controller";
    assert_eq!(get(&client, &http).await, Err(expected.to_owned()));
}

#[tokio::test]
async fn a_server_that_requires_tls_is_reported_without_mutual_tls() {
    let client = Client::new(Peer::ArtifactServer, plain(), None);
    let mut tasks = JoinSet::new();
    let expected = "server does not accept requests without TLS: it may require SPIFFE mutual TLS; set \
                    --authorized-artifact-server-spiffe-id to the SPIFFE ID of the server";
    let response = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    let url = respond(&mut tasks, response).await;
    assert_eq!(get(&client, &url).await, Err(expected.to_owned()));
    let url = respond(&mut tasks, "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(get(&client, &url).await.as_deref(), Ok(""), "an HTTP server can reject the content of a request");
}

/// Starts a server that sends `response` on each connection as soon as it has received data. Returns its URL.
async fn respond(tasks: &mut JoinSet<()>, response: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(response.as_bytes()).await;
            let _ = stream.shutdown().await;
            let _ = stream.read(&mut [0; 4096]).await;
        }
    });
    url
}
