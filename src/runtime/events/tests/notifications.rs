//! Tests for the events that reach notification-controller.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::pulumi::{Stack, StackSpec};
use crate::mutual_tls::test_runtime::{Authority, Runtime, plain};
use crate::mutual_tls::{Client, Peer, test_runtime};
use crate::runtime::events::{Event, EventKind, EventTask, Events, NotificationController, RetryPolicy};
use crate::runtime::fake_api::{FakeResponse, client};
use crate::runtime::writes::{Leadership, Writer};
use crate::telemetry::metrics::Metrics;

/// Timeout for each wait in these tests.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Server on the loopback interface that records request bodies. The server responds with the given status
/// codes in order, and then repeats the last code.
struct Server {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Value>>>,
}

/// Pseudo status code for a server that does not respond.
const SILENCE: u16 = 0;

impl Server {
    async fn responding_with(codes: &'static [u16]) -> Server {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let (recorded, requests) = (bodies.clone(), Arc::new(AtomicUsize::new(0)));
        let handler = move |headers: HeaderMap, body: Bytes| async move {
            assert_eq!(headers.get("content-type").unwrap(), "application/json");
            recorded.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            let code = codes[requests.fetch_add(1, Ordering::Relaxed).min(codes.len() - 1)];
            if code == SILENCE {
                std::future::pending::<()>().await;
            }
            StatusCode::from_u16(code).unwrap()
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
        Server { address, bodies }
    }

    fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().unwrap().clone()
    }

    async fn wait_for_requests(&self, times: usize) {
        let requests = async {
            while self.bodies().len() < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(TIMEOUT, requests).await;
        assert!(in_time.is_ok(), "got {} requests, expected {times}", self.bodies().len());
    }

    fn controller(&self, policy: RetryPolicy) -> NotificationController {
        let address = format!("http://{}/", self.address).parse().unwrap();
        let client = Client::new(Peer::EventServer, plain(), None);
        NotificationController { address, client, retry_policy: policy }
    }
}

fn quick() -> RetryPolicy {
    let backoff = Duration::from_millis(1);
    RetryPolicy { timeout: TIMEOUT, retries: 4, initial_backoff: backoff, max_backoff: backoff }
}

fn stack() -> Stack {
    let mut stack = Stack::new("web", StackSpec::default());
    stack.metadata.namespace = Some("apps".to_owned());
    stack.metadata.uid = Some("u1".to_owned());
    stack.metadata.resource_version = Some("7".to_owned());
    let annotations = [("event.toolkit.fluxcd.io/change_request", "7"), ("other", "x")];
    stack.metadata.annotations = Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    stack
}

fn event(message: &str) -> Event {
    Event::new(&stack(), EventKind::Warning, "StackUpdateFailure", message)
        .with("pulumi.com/revision", "main@sha1:a")
        .with("pulumi.com/commit_status", "update")
}

/// Returns the event queues and the task that delivers their events. The fake API accepts all events.
fn publisher(controller: NotificationController, metrics: &Metrics) -> (Events, EventTask) {
    let (api, _) = client(|request| FakeResponse::Json(200, request.body.clone()));
    let writer = Writer::new(api, TIMEOUT, Leadership::sole(), metrics.clone());
    Events::with_notifications(writer, Some(controller), "pulumi-controller", "pod-1", metrics.clone())
}

/// Publishes the events, waits until the server has received the given number of requests, and stops the task.
async fn publish_and_wait(server: &Server, policy: RetryPolicy, published: Vec<Event>, requests: usize) -> Metrics {
    let metrics = Metrics::default();
    let controller = server.controller(policy);
    let (events, task) = publisher(controller, &metrics);
    let end = CancellationToken::new();
    let task = tokio::spawn(task.run(end.clone()));
    published.into_iter().for_each(|event| events.publish(event));
    server.wait_for_requests(requests).await;
    end.cancel();
    tokio::time::timeout(TIMEOUT, task).await.expect("the task ends").unwrap();
    metrics
}

fn dropped(metrics: &Metrics) -> String {
    let text = metrics.encode().unwrap();
    let line = text.lines().find(|line| line.starts_with("pulumi_controller_notifications_dropped_total"));
    line.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn an_event_is_posted_in_the_flux_format() {
    let server = Server::responding_with(&[202]).await;
    let metrics = publish_and_wait(&server, quick(), vec![event("https://user:pass@host/ boom")], 1).await;
    let mut body = server.bodies().remove(0);
    let timestamp = body.as_object_mut().unwrap().remove("timestamp").unwrap();
    let timestamp = timestamp.as_str().unwrap();
    assert!(timestamp.ends_with('Z') && timestamp.len() == "2026-08-01T10:00:00Z".len(), "{timestamp}");
    let expected = json!({
        "involvedObject": { "apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "web", "namespace": "apps", "uid": "u1",
            "resourceVersion": "7" },
        "severity": "error", "message": "https://***@host/ boom", "reason": "StackUpdateFailure",
        "action": "Reconcile",
        "metadata": { "pulumi.com/revision": "main@sha1:a", "pulumi.com/commit_status": "update",
            "event.toolkit.fluxcd.io/change_request": "7" },
        "reportingController": "pulumi-controller", "reportingInstance": "pod-1",
    });
    assert_eq!(body, expected);
    assert_eq!(dropped(&metrics), "pulumi_controller_notifications_dropped_total 0");
}

#[tokio::test]
async fn a_message_is_truncated_at_the_flux_limit() {
    let server = Server::responding_with(&[202]).await;
    publish_and_wait(&server, quick(), vec![event(&"ä".repeat(30_000))], 1).await;
    let body = server.bodies().remove(0);
    let message = body["message"].as_str().unwrap();
    assert!(message.len() <= 39_000 && message.len() > 38_900 && message.ends_with("..."), "{}", message.len());
}

#[test]
fn the_default_retry_policy_matches_flux() {
    let seconds = Duration::from_secs;
    let expected =
        RetryPolicy { timeout: seconds(5), retries: 4, initial_backoff: seconds(1), max_backoff: seconds(30) };
    assert_eq!(RetryPolicy::default(), expected);
}

#[tokio::test]
async fn only_transient_failures_of_notifications_are_retried() {
    let rows: [(&str, &[u16], usize, usize); 5] = [
        ("a temporary server error", &[500, 503, 202], 3, 0),
        ("a permanent error", &[500, 500, 500, 500, 500, 202], 5, 1),
        ("a repeated event", &[429, 202], 1, 0),
        ("a rejected event", &[400, 202], 1, 1),
        ("an unknown object", &[501, 202], 1, 1),
    ];
    for (name, codes, requests, lost) in rows {
        let server = Server::responding_with(codes).await;
        let metrics = Metrics::default();
        let controller = server.controller(quick());
        let (events, task) = publisher(controller, &metrics);
        let end = CancellationToken::new();
        let task = tokio::spawn(task.run(end.clone()));
        events.publish(event("first"));
        // The task posts the second event after all attempts to post the first event.
        events.publish(event("second"));
        let is_second = |body: &Value| body["message"] == "second";
        let second = async {
            while !server.bodies().iter().any(is_second) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(TIMEOUT, second).await.is_ok(), "{name}: {:?}", server.bodies());
        let counted = dropped(&metrics);
        end.cancel();
        tokio::time::timeout(TIMEOUT, task).await.expect("the task ends").unwrap();
        let first = server.bodies().iter().filter(|body| !is_second(body)).count();
        assert_eq!(first, requests, "{name}");
        assert_eq!(counted, format!("pulumi_controller_notifications_dropped_total {lost}"), "{name}");
    }
}

#[tokio::test]
async fn a_request_to_a_hanging_server_times_out_without_blocking() {
    let server = Server::responding_with(&[SILENCE]).await;
    let policy = RetryPolicy { timeout: Duration::from_millis(50), retries: 1, ..quick() };
    let metrics = Metrics::default();
    let controller = server.controller(policy);
    let (events, task) = publisher(controller, &metrics);
    let task = tokio::spawn(task.run(CancellationToken::new()));
    events.publish(event("first"));
    events.publish(event("second"));
    let both = async {
        while !dropped(&metrics).ends_with(" 2") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, both).await.is_ok(), "{}", dropped(&metrics));
    task.abort();
}

#[tokio::test]
async fn a_hanging_server_does_not_block_shutdown() {
    let server = Server::responding_with(&[SILENCE]).await;
    let policy = RetryPolicy { timeout: TIMEOUT * 10, ..quick() };
    // `publish_and_wait` fails if the task does not stop before the timeout.
    publish_and_wait(&server, policy, vec![event("first"), event("second")], 1).await;
    assert_eq!(server.bodies().len(), 1);
}

#[tokio::test]
async fn excess_events_are_dropped_and_counted() {
    let server = Server::responding_with(&[202]).await;
    let metrics = Metrics::default();
    let controller = server.controller(quick());
    let (events, _task) = publisher(controller, &metrics);
    (0..1030).for_each(|number| events.publish(event(&number.to_string())));
    assert_eq!(dropped(&metrics), "pulumi_controller_notifications_dropped_total 6");
}

#[tokio::test]
async fn a_duplicate_event_is_posted_only_if_the_first_was_rejected() {
    let server = Server::responding_with(&[202]).await;
    publish_and_wait(&server, quick(), vec![event("a"), event("a"), event("b"), event("a"), event("last")], 3).await;
    let messages: Vec<Value> = server.bodies().iter().map(|body| body["message"].clone()).collect();
    assert_eq!(messages, ["a", "b", "last"]);

    let server = Server::responding_with(&[400, 202]).await;
    publish_and_wait(&server, quick(), vec![event("a"), event("a")], 2).await;
    assert_eq!(server.bodies().len(), 2, "the first request was rejected");
}

#[tokio::test]
async fn events_that_no_alert_can_reference_are_not_posted() {
    let server = Server::responding_with(&[202]).await;
    let mut lease = event("led");
    lease.object.api_version = Some("coordination.k8s.io/v1".to_owned());
    let mut other = event("object of a foreign group");
    other.object.api_version = Some("notpulumi.com/v1".to_owned());
    let trace = Event { kind: EventKind::Trace, ..event("trace event") };
    let mut workspace = event("ready");
    workspace.object.api_version = Some("auto.pulumi.com/v1alpha1".to_owned());
    let started = Event { kind: EventKind::Notification, ..event("started") };
    let info = Event { kind: EventKind::Normal, ..event("last") };
    publish_and_wait(&server, quick(), vec![lease, other, trace, workspace, started, info], 3).await;
    let posted: Vec<(Value, Value)> =
        server.bodies().iter().map(|body| (body["message"].clone(), body["severity"].clone())).collect();
    let expected = [("ready", "error"), ("started", "info"), ("last", "info")];
    assert_eq!(posted, expected.map(|(message, severity)| (json!(message), json!(severity))));
}

#[tokio::test]
async fn events_are_posted_with_mutual_tls_only_to_an_authorized_server() {
    let own = Authority::new("example.org");
    let mut runtime = Runtime::issuing(&own.issue("/flux/pulumi-controller"), &own, &[]);
    let server = test_runtime::Server::start(&own.issue("/flux/notification-controller"), &own).await;
    for (authorized, requests) in [("spiffe://self/flux/other", 0), ("spiffe://self/flux/", 1)] {
        let client = runtime.client(Peer::EventServer, &[authorized]);
        let address = server.url("/").parse().unwrap();
        let controller = NotificationController { address, client, retry_policy: quick() };
        let metrics = Metrics::default();
        let (events, task) = publisher(controller, &metrics);
        let end = CancellationToken::new();
        let task = tokio::spawn(task.run(end.clone()));
        events.publish(event("message"));
        let expected = format!("pulumi_controller_notifications_dropped_total {}", 1 - requests);
        let settled = async {
            while server.requests().len() < requests || dropped(&metrics) != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(TIMEOUT, settled).await;
        assert!(in_time.is_ok(), "{authorized}: {} requests, {}", server.requests().len(), dropped(&metrics));
        end.cancel();
        tokio::time::timeout(TIMEOUT, task).await.expect("the task ends").unwrap();
        assert_eq!(server.requests().len(), requests, "{authorized}");
    }
    let request = &server.requests()[0];
    assert!(request.starts_with("POST / HTTP/1.1\r\n") && request.contains("application/json"), "{request}");
}
