//! Tests for the events that reach the API.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::auto::Workspace;
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, client};
use crate::runtime::writes::{Leadership, Writer};
use crate::telemetry::metrics::Metrics;

fn workspace() -> Workspace {
    serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
        "metadata": { "name": "web", "namespace": "apps", "uid": "u1", "resourceVersion": "7" }, "spec": {},
    }))
    .unwrap()
}

fn event(message: &str) -> Event {
    Event::new(&workspace(), EventKind::Warning, "PodFailed", message).with("pulumi.com/revision", "main@sha1:a")
}

fn accept(request: &RecordedRequest) -> FakeResponse {
    let mut object = request.body.clone();
    if object.pointer("/metadata").is_none() {
        object["metadata"] = json!({ "name": "patched" });
        object["involvedObject"] = json!({});
    }
    FakeResponse::Json(200, object)
}

/// Publishes the events, waits until the task has written them, and returns the requests that the fake API server
/// received.
async fn written(respond: fn(&RecordedRequest) -> FakeResponse, events: Vec<Event>) -> (Vec<RecordedRequest>, Metrics) {
    let (client, log): (_, Log) = client(respond);
    let metrics = Metrics::default();
    let writer = Writer::new(client, Duration::from_secs(5), Leadership::sole(), metrics.clone());
    let (publisher, task) = Events::new(writer, "pulumi-controller", "pod-1", metrics.clone());
    events.into_iter().for_each(|event| publisher.publish(event));
    let end = CancellationToken::new();
    end.cancel();
    task.run(end).await;
    (log.all(), metrics)
}

#[tokio::test]
async fn an_event_has_the_same_fields_as_in_flux() {
    let notification = Event { kind: EventKind::Notification, ..event("only for notification-controller") };
    let (requests, _) = written(accept, vec![notification, event("no image")]).await;
    assert_eq!(requests.len(), 1);
    let mut body = requests[0].body.clone();
    assert_eq!(requests[0].path, "/api/v1/namespaces/apps/events");
    let name = body["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("web.") && name.len() > 10, "{name}");
    for time in ["firstTimestamp", "lastTimestamp"] {
        assert!(body.as_object_mut().unwrap().remove(time).unwrap().is_string());
    }
    let expected = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": { "name": name, "namespace": "apps", "annotations": { "pulumi.com/revision": "main@sha1:a" } },
        "involvedObject": { "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace", "name": "web",
            "namespace": "apps", "uid": "u1", "resourceVersion": "7" },
        "type": "Warning", "reason": "PodFailed", "message": "no image", "count": 1,
        "source": { "component": "pulumi-controller" },
        "reportingComponent": "pulumi-controller", "reportingInstance": "pod-1",
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn repeated_events_are_counted_and_new_messages_create_new_events() {
    let (requests, _) =
        written(accept, vec![event("no image"), event("no image"), event("no quota"), event("no image")]).await;
    let methods: Vec<&str> = requests.iter().map(|request| request.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "POST", "PATCH"]);
    let name = requests[0].body["metadata"]["name"].as_str().unwrap();
    assert_eq!(requests[1].path, format!("/api/v1/namespaces/apps/events/{name}"));
    assert_eq!((&requests[1].body["count"], &requests[3].body["count"]), (&json!(2), &json!(3)));
    assert!(requests[1].body["lastTimestamp"].is_string());
}

#[tokio::test]
async fn a_repeated_event_that_was_deleted_is_recreated() {
    let forgetful = |request: &RecordedRequest| {
        if request.method == "PATCH" { FakeResponse::refusal(404, "NotFound") } else { accept(request) }
    };
    let (requests, _) = written(forgetful, vec![event("no image"), event("no image"), event("no image")]).await;
    let methods: Vec<&str> = requests.iter().map(|request| request.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "POST", "PATCH", "POST"]);
    assert_eq!(requests[4].body["count"], json!(1));
}

#[tokio::test]
async fn event_messages_are_bounded_and_contain_no_credentials() {
    let message = format!("https://user:pass@host/ {}", "ä".repeat(2000));
    let (requests, _) = written(accept, vec![event(&message)]).await;
    let Value::String(message) = &requests[0].body["message"] else { panic!("expected a string") };
    assert!(message.len() <= 1024 && message.ends_with("..."), "{}", message.len());
    assert!(message.starts_with("https://***@host/ ä"), "{message}");
}

#[tokio::test]
async fn events_that_cannot_be_written_are_counted_as_dropped() {
    let (_, metrics) = written(|_| FakeResponse::refusal(403, "Forbidden"), vec![event("a"), event("b")]).await;
    assert!(metrics.encode().unwrap().contains("events_dropped_total 2\n"));
}

#[tokio::test]
async fn excess_events_are_dropped_and_counted_without_blocking() {
    let (client, _log) = client(|_| FakeResponse::Silence);
    let metrics = Metrics::default();
    let writer = Writer::new(client, Duration::from_secs(5), Leadership::sole(), metrics.clone());
    let (events, _task) = Events::new(writer, "pulumi-controller", "pod-1", metrics.clone());
    (0..1030).for_each(|number| events.publish(event(&number.to_string())));
    assert!(metrics.encode().unwrap().contains("events_dropped_total 6\n"));
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_server_does_not_block_shutdown() {
    let (client, _log) = client(|_| FakeResponse::Silence);
    let metrics = Metrics::default();
    let writer = Writer::new(client, Duration::from_secs(30), Leadership::sole(), metrics.clone());
    let (events, task) = Events::new(writer, "pulumi-controller", "pod-1", metrics);
    (0..100).for_each(|number| events.publish(event(&number.to_string())));
    let end = CancellationToken::new();
    end.cancel();
    let begun = tokio::time::Instant::now();
    task.run(end).await;
    assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_in_flight_event_does_not_block_shutdown() {
    let (client, log) = client(|_| FakeResponse::Silence);
    let metrics = Metrics::default();
    let writer = Writer::new(client, Duration::from_secs(30), Leadership::sole(), metrics.clone());
    let (events, task) = Events::new(writer, "pulumi-controller", "pod-1", metrics);
    events.publish(event("a"));
    let end = CancellationToken::new();
    let task = tokio::spawn(task.run(end.clone()));
    while log.all().is_empty() {
        tokio::task::yield_now().await;
    }
    let begun = tokio::time::Instant::now();
    end.cancel();
    task.await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
}
