//! Tests that send calls to a real server on the loopback interface. The server reads objects from a fake API server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::call_limits::MAX_DELAYED_REFUSALS;
use super::issuers::{self, tests::TestIssuer};
use super::run_requests::{MAX_WAITING, SLOTS};
use super::{IssuerSettings, Settings, connection_limits, start};
use crate::api::names::{webhook_path, webhook_path_without_token};
use crate::runtime::fake_api::{FakeResponse, Log, client};
use crate::runtime::scope::Scope;
use crate::server::Limits;
use crate::telemetry::metrics::Metrics;

const BODY: &str = r#"{"ref":"refs/heads/main"}"#;
/// Timeout for each wait in these tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const RECEIVERS: &str = "/apis/pulumi.com/v1alpha1/stackreceivers";
const STACKS: &str = "/apis/pulumi.com/v1/namespaces/apps/stacks";

/// Objects that the fake API server contains.
#[derive(Clone, Default)]
struct World {
    receivers: Vec<Value>,
    /// Token in the Secret `hook`. `None` if the Secret does not exist.
    token: Option<String>,
    /// Names and labels of the Stacks in `apps`.
    stacks: Vec<(&'static str, Value)>,
    /// Name of a Stack. The API server rejects all writes to this Stack.
    read_only: Option<&'static str>,
    /// The API server responds to writes only after the value is `true`.
    released: Option<watch::Receiver<bool>>,
}

/// A running webhook server.
struct Server {
    address: SocketAddr,
    world: Arc<Mutex<World>>,
    log: Log,
    metrics: Metrics,
    _end: DropGuard,
}

impl Server {
    async fn start(world: World) -> Server {
        Server::start_with(world, connection_limits()).await
    }

    async fn start_with(world: World, limits: Limits) -> Server {
        Server::start_with_issuers(world, limits, IssuerSettings::default()).await
    }

    async fn start_with_issuers(world: World, limits: Limits, issuers: IssuerSettings) -> Server {
        let world = Arc::new(Mutex::new(world));
        let seen = world.clone();
        let (client, log) =
            client(move |request| seen.lock().unwrap().respond(&request.method, &request.path, &request.query));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, metrics) = (CancellationToken::new(), Metrics::default());
        let settings = Settings {
            client,
            scope: Scope::default(),
            metrics: metrics.clone(),
            tasks: TaskTracker::new(),
            component: "test",
            instance: "test-0".to_owned(),
            limits,
            issuers,
        };
        let listed = start(settings, listener, &end);
        tokio::time::timeout(TEST_TIMEOUT, listed).await.expect("receivers are listed");
        Server { address, world, log, metrics, _end: end.drop_guard() }
    }

    /// Sends bytes and returns the response, which ends when the server closes the connection.
    async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server can respond and close the connection before receiving all bytes.
        let _ = stream.write_all(bytes).await;
        let mut response = Vec::new();
        let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await;
        read.expect("the server closes the connection").unwrap_or_default();
        // Removes the `date` header, which can differ between otherwise equal responses.
        let text = String::from_utf8(response).unwrap();
        text.split_inclusive("\r\n").filter(|line| !line.starts_with("date:")).collect()
    }

    async fn call(&self, path: &str, headers: &[(&str, &str)], body: &str) -> String {
        self.send(request("POST", path, headers, body).as_bytes()).await
    }

    /// Returns the Stacks for which the server has requested a run, sorted by name.
    fn requested(&self) -> Vec<String> {
        let patches =
            self.log.all().into_iter().filter(|request| request.method == "PATCH" && request.path.starts_with(STACKS));
        let mut names: Vec<String> = patches
            .map(|request| {
                let annotations = &request.body["metadata"]["annotations"];
                let at = annotations["reconcile.fluxcd.io/requestedAt"].as_str().expect("a request");
                at.parse::<jiff::Timestamp>().expect("a time");
                assert_eq!(
                    request.body["metadata"].as_object().unwrap().len(),
                    2,
                    "only annotations and the UID: {}",
                    request.body
                );
                assert_eq!(request.body.as_object().unwrap().len(), 1, "only metadata: {}", request.body);
                request.path.rsplit('/').next().unwrap().to_owned()
            })
            .collect();
        names.sort();
        names
    }

    /// Waits until the server has published `number` events, and returns the reason and message of each event.
    async fn wait_for_events(&self, number: usize) -> Vec<String> {
        let mut events = Vec::new();
        for _ in 0..200 {
            let requests = self
                .log
                .all()
                .into_iter()
                .filter(|request| request.method == "POST" && request.path.ends_with("/events"));
            events = requests
                .map(|request| format!("{}: {}", text(&request.body["reason"]), text(&request.body["message"])))
                .collect();
            if events.len() >= number {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("expected {number} events: {events:?}");
    }

    fn counted(&self, result: &str) -> u64 {
        let text = self.metrics.encode().unwrap();
        let line = format!("pulumi_controller_webhooks_total{{result=\"{result}\"}} ");
        let count = text.lines().find_map(|found| found.strip_prefix(&line)?.parse().ok());
        count.unwrap_or_default()
    }
}

impl World {
    fn respond(&self, method: &str, path: &str, query: &str) -> FakeResponse {
        let name = path.rsplit('/').next().unwrap_or_default();
        let stack = |name: &str, labels: &Value| {
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": name, "namespace": "apps", "uid": format!("uid-{name}"), "labels": labels}})
        };
        match (method, path) {
            ("GET", RECEIVERS) if query.contains("watch") => FakeResponse::Silence,
            ("GET", RECEIVERS) => list(self.receivers.clone()),
            ("GET", "/api/v1/namespaces/apps/secrets/hook") => match &self.token {
                Some(token) => FakeResponse::Json(
                    200,
                    json!({"apiVersion": "v1", "kind": "Secret",
                    "metadata": {"name": "hook", "namespace": "apps"}, "data": {"token": BASE64_STANDARD.encode(token)}}),
                ),
                None => FakeResponse::refusal(404, "NotFound"),
            },
            ("GET", STACKS) => {
                let stacks = self.stacks.iter().filter(|(_, labels)| {
                    labels.as_object().unwrap().iter().any(|(key, value)| {
                        query.contains(&format!("labelSelector={key}%3D{}", value.as_str().unwrap()))
                    })
                });
                list(stacks.map(|(name, labels)| stack(name, labels)).collect())
            }
            ("PATCH", _) if self.read_only == Some(name) => FakeResponse::refusal(403, "Forbidden"),
            ("GET" | "PATCH", path) if path.starts_with(STACKS) => {
                let response = match self.stacks.iter().find(|(stack, _)| *stack == name) {
                    Some((name, labels)) => FakeResponse::Json(200, stack(name, labels)),
                    None => FakeResponse::refusal(404, "NotFound"),
                };
                match &self.released {
                    Some(released) if method == "PATCH" => FakeResponse::Held(released.clone(), Box::new(response)),
                    _ => response,
                }
            }
            ("POST", "/api/v1/namespaces/apps/events") => FakeResponse::Json(
                201,
                json!({"apiVersion": "v1", "kind": "Event",
                "metadata": {"name": "e", "namespace": "apps"}, "involvedObject": {}}),
            ),
            _ => FakeResponse::refusal(404, "NotFound"),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(items: Vec<Value>) -> FakeResponse {
    FakeResponse::Json(
        200,
        json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}),
    )
}

fn receiver(name: &str, spec: Value) -> Value {
    let mut all = json!({"secretRef": {"name": "hook"}, "resources": [{"kind": "Stack", "name": "web"}]});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({
        "apiVersion": "pulumi.com/v1alpha1", "kind": "StackReceiver",
        "metadata": {"name": name, "namespace": "apps", "uid": name, "resourceVersion": "1"},
        "spec": all, "status": {"webhookPath": path(name)},
    })
}

fn world(receivers: Vec<Value>) -> World {
    let stacks =
        vec![("web", json!({"tier": "front"})), ("api", json!({"tier": "back"})), ("worker", json!({"tier": "back"}))];
    World { receivers, token: Some("s3cret".to_owned()), stacks, read_only: None, released: None }
}

fn path(name: &str) -> String {
    webhook_path(b"s3cret", name, "apps")
}

fn signature(token: &str, body: &str) -> String {
    let hmac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).unwrap().chain_update(body);
    format!("sha256={}", hex::encode(hmac.finalize().into_bytes()))
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{method} {path} HTTP/1.1\r\nHost: hooks\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn is_ok(response: &str) -> bool {
    response.starts_with("HTTP/1.1 200 ")
}

#[tokio::test]
async fn a_signed_push_requests_runs_of_the_matching_stacks() {
    let resources = json!([{"name": "web"}, {"name": "*", "matchLabels": {"tier": "back"}}, {"name": "api"}]);
    let server = Server::start(world(vec![
        receiver("push", json!({"type": "github", "events": ["push"]})),
        receiver("many", json!({"type": "generic-hmac", "resources": resources})),
        receiver("lab", json!({"type": "gitlab", "events": ["Push Hook"]})),
        receiver("plain", json!({"type": "generic"})),
    ]))
    .await;
    let signature = signature("s3cret", BODY);
    let hub = ("X-Hub-Signature-256", signature.as_str());
    assert!(is_ok(&server.call(&path("push"), &[hub, ("X-GitHub-Event", "push")], BODY).await));
    assert_eq!(server.requested(), ["web"]);
    assert!(is_ok(&server.call(&path("push"), &[hub, ("X-GitHub-Event", "ping")], BODY).await));
    assert!(is_ok(&server.call(&path("push"), &[hub, ("X-GitHub-Event", "issues")], BODY).await));
    assert_eq!(server.requested(), ["web"], "a ping and an event of another type request no run");
    assert!(is_ok(&server.call(&path("many"), &[("X-Signature", &signature)], BODY).await));
    assert_eq!(server.requested(), ["api", "web", "web", "worker"], "each Stack once, although one matches twice");
    let lab = [("X-Gitlab-Token", "s3cret"), ("X-Gitlab-Event", "Push Hook")];
    assert!(is_ok(&server.call(&path("lab"), &lab, BODY).await));
    assert!(is_ok(&server.call(&path("plain"), &[], "").await));
    assert_eq!(server.requested().len(), 6);
    assert_eq!(["accepted", "ignored", "refused", "failed"].map(|result| server.counted(result)), [4, 2, 0, 0]);
}

#[tokio::test]
async fn all_rejected_calls_get_the_same_response_and_request_no_run() {
    let server = Server::start(world(vec![
        receiver("push", json!({"type": "github"})),
        receiver("held", json!({"type": "github", "suspend": true})),
        receiver("lost", json!({"type": "github", "secretRef": {"name": "gone"}})),
    ]))
    .await;
    let good = signature("s3cret", BODY);
    let hub = ("X-Hub-Signature-256", good.as_str());
    let wrong = signature("other", BODY);
    let unknown = server.call(&webhook_path(b"s3cret", "unknown", "apps"), &[hub], BODY).await;
    assert!(unknown.starts_with("HTTP/1.1 404 "), "{unknown}");
    let responses = [
        ("the root", server.call("/", &[hub], BODY).await),
        ("a different method", server.send(request("PUT", &path("push"), &[hub], BODY).as_bytes()).await),
        ("wrong signature", server.call(&path("push"), &[("X-Hub-Signature-256", &wrong)], BODY).await),
        ("no signature", server.call(&path("push"), &[], BODY).await),
        ("a different body", server.call(&path("push"), &[hub], "{}").await),
        ("suspended", server.call(&path("held"), &[hub], BODY).await),
        ("no Secret", server.call(&path("lost"), &[hub], BODY).await),
    ];
    for (what, response) in responses {
        assert_eq!(response, unknown, "{what}");
    }
    assert_eq!(server.requested(), Vec::<String>::new());
    assert_eq!(server.counted("refused"), 8);
    // A receiver has only one event, although the server rejected several calls to `push`, because callers must not
    // control the number of events.
    let mut events = server.wait_for_events(2).await;
    events.sort();
    assert_eq!(
        events,
        [
            "ValidationFailed: webhook call rejected: Secret apps/gone not found; create it with the key `token`",
            "ValidationFailed: webhook call rejected: header X-Hub-Signature-256 is not valid for this token and \
             body; check that the caller uses the token in the Secret",
        ]
    );
}

#[tokio::test]
async fn a_rotated_token_takes_effect_immediately_and_revokes_the_old_token() {
    let receivers = vec![receiver("push", json!({"type": "github"})), receiver("plain", json!({"type": "generic"}))];
    let server = Server::start(world(receivers)).await;
    server.world.lock().unwrap().token = Some("another".to_owned());
    let (old, new) = (signature("s3cret", BODY), signature("another", BODY));
    assert!(!is_ok(&server.call(&path("push"), &[("X-Hub-Signature-256", &old)], BODY).await));
    assert!(!is_ok(&server.call(&path("plain"), &[], BODY).await));
    assert_eq!(server.requested(), Vec::<String>::new());
    assert!(is_ok(&server.call(&path("push"), &[("X-Hub-Signature-256", &new)], BODY).await));
    assert_eq!(server.requested(), ["web"]);
}

#[tokio::test]
async fn rate_limited_calls_look_like_unknown_paths_and_share_secret_reads() {
    let server = Server::start(world(vec![receiver("plain", json!({"type": "generic"}))])).await;
    let path = path("plain");
    let calls = futures::future::join_all((0..40).map(|_| server.call(&path, &[], ""))).await;
    let accepted = calls.iter().filter(|response| is_ok(response)).count();
    assert!((20..40).contains(&accepted), "{accepted} of 40 concurrent calls were accepted");
    let unknown = server.call("/hook/0", &[], "").await;
    assert!(calls.iter().all(|response| is_ok(response) || *response == unknown));
    let reads = server.log.verbs().into_iter().filter(|verb| verb.ends_with("/secrets/hook")).count();
    assert!(reads < 10, "{reads} reads of the Secret for 40 concurrent calls");
    assert!(
        server.wait_for_events(1).await[0].starts_with("ValidationFailed: webhook call rejected: rate limit exceeded")
    );
}

#[tokio::test]
async fn unauthenticated_calls_do_not_consume_the_rate_limit_of_valid_calls() {
    let server = Server::start(world(vec![receiver("push", json!({"type": "github"}))])).await;
    let (good, wrong) = (signature("s3cret", BODY), signature("other", BODY));
    let path = path("push");
    let headers = [("X-Hub-Signature-256", wrong.as_str())];
    let attacks = (0..100).map(|_| server.call(&path, &headers, BODY));
    let responses = futures::future::join_all(attacks).await;
    assert!(!responses.iter().any(|response| is_ok(response)));
    let reads = server.log.verbs().into_iter().filter(|verb| verb.ends_with("/secrets/hook")).count();
    assert!(reads < 20, "{reads} reads of the Secret for 100 concurrent calls");
    for _ in 0..20 {
        let response = server.call(&path, &[("X-Hub-Signature-256", &good)], BODY).await;
        assert!(is_ok(&response), "{response}");
    }
}

#[tokio::test]
async fn ignored_events_do_not_consume_the_rate_limit_of_the_namespace() {
    let names: Vec<String> = (0..6).map(|number| format!("push-{number}")).collect();
    let spec = || json!({"type": "github", "events": ["push"]});
    let mut receivers: Vec<Value> = names.iter().map(|name| receiver(name, spec())).collect();
    receivers.push(receiver("plain", json!({"type": "generic"})));
    let server = &Server::start(world(receivers)).await;
    let signature = signature("s3cret", BODY);
    let headers = [("X-Hub-Signature-256", signature.as_str()), ("X-GitHub-Event", "issues")];
    // These calls exceed the burst of the namespace, but not the bursts of the receivers.
    let ignored = names.iter().map(|name| async move {
        let path = path(name);
        for _ in 0..20 {
            let response = server.call(&path, &headers, BODY).await;
            assert!(is_ok(&response), "{response}");
        }
    });
    futures::future::join_all(ignored).await;
    assert_eq!(server.counted("ignored"), 120);
    assert!(is_ok(&server.call(&path("plain"), &[], "").await));
    assert_eq!(server.requested(), ["web"]);
}

#[tokio::test]
async fn further_calls_are_rejected_while_many_calls_of_the_namespace_wait() {
    let (release, released) = watch::channel(false);
    let names = ["first", "second", "third", "fourth"];
    let receivers = names.map(|name| receiver(name, json!({"type": "generic"}))).to_vec();
    let limits = Limits { waiting_per_peer: 128, ..connection_limits() };
    let server = Server::start_with(World { released: Some(released), ..world(receivers) }, limits).await;
    let paths = names.map(path);
    let calls = futures::future::join_all((0..69).map(|number| server.call(&paths[number / 20], &[], "")));
    let until_rejected = async {
        while server.counted("refused") < 5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        release.send_replace(true);
    };
    let all = async { tokio::join!(calls, until_rejected) };
    let (responses, ()) = tokio::time::timeout(TEST_TIMEOUT, all).await.expect("5 calls are rejected immediately");
    let rejected: Vec<&String> = responses.iter().filter(|response| !is_ok(response)).collect();
    assert_eq!(rejected.len(), 5, "4 calls are in progress, and 60 calls wait: {responses:?}");
    for response in rejected {
        assert!(response.starts_with("HTTP/1.1 503 ") && response.contains("retry-after: 10\r\n"), "{response}");
    }
    let events = server.wait_for_events(1).await;
    let expected = "ValidationFailed: webhook call rejected: too many calls are waiting, 60 of them in this namespace";
    assert_eq!(events[0], expected);
}

#[test]
fn waiting_calls_and_delayed_responses_leave_connections_for_other_clients() {
    let kept = SLOTS.total + MAX_WAITING + issuers::SLOTS.total + issuers::MAX_WAITING + MAX_DELAYED_REFUSALS;
    let limits = connection_limits();
    assert!(kept + 32 <= limits.connections, "{kept} of {} connections", limits.connections);
    assert!(SLOTS.per_key + SLOTS.waiting_per_key <= limits.waiting_per_peer, "a namespace can call through one proxy");
}

#[tokio::test]
async fn a_failed_run_request_returns_500_and_does_not_block_other_requests() {
    let resources = json!([{"name": "web"}, {"name": "gone"}, {"matchLabels": {"tier": "back"}}]);
    let mut world = world(vec![receiver("many", json!({"type": "generic", "resources": resources}))]);
    world.read_only = Some("api");
    let server = Server::start(world).await;
    let response = server.call(&path("many"), &[], "").await;
    assert!(response.starts_with("HTTP/1.1 500 "), "{response}");
    assert_eq!(server.requested(), ["api", "web", "worker"], "a run of every Stack was requested");
    let events = server.wait_for_events(1).await;
    assert!(
        events[0].starts_with("Failed: failed to request runs of some Stacks: Stack apps/gone not found; "),
        "{events:?}"
    );
    assert!(events[0].contains("failed to annotate Stack apps/api"), "{events:?}");
}

#[tokio::test]
async fn an_oversized_body_is_rejected_for_known_and_unknown_paths() {
    let server = Server::start(world(vec![receiver("plain", json!({"type": "generic"}))])).await;
    let body = "x".repeat(3 * 1024 * 1024 + 1);
    let largest = "x".repeat(3 * 1024 * 1024);
    let known = server.call(&path("plain"), &[], &body).await;
    let unknown = server.call("/hook/0", &[], &body).await;
    for response in [known, unknown] {
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 413 "), "{response}");
    }
    assert_eq!(server.requested(), Vec::<String>::new());
    assert!(is_ok(&server.call(&path("plain"), &[], &largest).await));
}

#[tokio::test]
async fn slow_clients_are_disconnected_and_do_not_block_other_clients() {
    let (header, all) = (Duration::from_millis(300), Duration::from_millis(1500));
    let limits = Limits { connections: 1, waiting_per_peer: 1, header, all };
    let server = Server::start_with(world(vec![receiver("plain", json!({"type": "generic"}))]), limits).await;
    // The server permits only one connection, and an unfinished request occupies this connection.
    let unfinished = format!("POST {} HTTP/1.1\r\nHost: hooks\r\nContent-Length: 10\r\n\r\nabc", path("plain"));
    for bytes in ["", "POST /hook", &unfinished] {
        let mut slow = TcpStream::connect(server.address).await.unwrap();
        slow.write_all(bytes.as_bytes()).await.unwrap();
        let good = server.call(&path("plain"), &[], "").await;
        assert!(is_ok(&good), "after {bytes:?}: {good}");
    }
    assert_eq!(server.requested().len(), 3);
}

#[tokio::test]
async fn an_oidc_token_requests_runs_without_a_secret() {
    let issuer = TestIssuer::start().await;
    let mut ci = receiver("ci", json!({"type": "generic-oidc", "oidcProviders": [issuer.provider()]}));
    ci["spec"].as_object_mut().unwrap().remove("secretRef");
    let path = webhook_path_without_token("ci", "apps");
    ci["status"]["webhookPath"] = json!(path);
    let world = World { token: None, ..world(vec![ci]) };
    let server = Server::start_with_issuers(world, connection_limits(), issuer.settings()).await;
    let call = async |changes: Value| {
        let header = format!("Bearer {}", issuer.token(changes));
        server.call(&path, &[("Authorization", &header)], BODY).await
    };
    let unknown = server.call("/hook/0", &[], BODY).await;
    assert_eq!(server.call(&path, &[], BODY).await, unknown, "no token");
    for changes in [json!({"repository": "evil/web"}), json!({"aud": "other"}), json!({"exp": 1})] {
        assert_eq!(call(changes.clone()).await, unknown, "{changes}");
    }
    assert_eq!(server.requested(), Vec::<String>::new());
    assert!(is_ok(&call(json!({})).await));
    assert_eq!(server.requested(), ["web"]);
    // A repeated token requests another run, within the rate limit of the receiver.
    let calls = futures::future::join_all((0..40).map(|_| call(json!({})))).await;
    let accepted = calls.iter().filter(|response| is_ok(response)).count();
    assert!((10..30).contains(&accepted), "{accepted} of 40 calls were accepted");
    let events = server.wait_for_events(1).await;
    let expected =
        "ValidationFailed: webhook call rejected: header Authorization must have the form Bearer <OIDC token>";
    assert!(events[0].starts_with(expected), "{events:?}");
    assert!(!server.log.verbs().iter().any(|verb| verb.contains("/secrets")));
}
