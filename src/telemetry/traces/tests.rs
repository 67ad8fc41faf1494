//! Tests for the span queue, and for the export to a server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use jiff::Timestamp;
use opentelemetry::trace::Status;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::*;

fn completed(name: &'static str) -> SpanData {
    let at = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap();
    let times = (at(1_760_000_000_123), at(1_760_000_001_000));
    let ids = (span_id(&["uid", name]), span_id(&["uid", "root"]));
    SpanData {
        attributes: vec![KeyValue::new("text", "a"), KeyValue::new("number", 7_i64)],
        status: Status::error("boom"),
        ..span(trace_id(&["uid"]), ids, name, times)
    }
}

/// Requests that a server has received, and the responses to the next requests.
#[derive(Clone, Default)]
struct Collector {
    received: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    refusals: Arc<Mutex<Vec<StatusCode>>>,
}

async fn collect(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if let Some(refusal) = collector.refusals.lock().unwrap().pop() {
        return refusal;
    }
    collector.received.lock().unwrap().push((headers, body));
    StatusCode::OK
}

async fn serve(collector: Collector) -> Settings {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Url::parse(&format!("http://{}/v1/traces", listener.local_addr().unwrap())).unwrap();
    let router = Router::new().route("/v1/traces", post(collect)).with_state(collector);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let headers = [(reqwest::header::AUTHORIZATION, "Bearer t".parse().unwrap())].into_iter().collect();
    Settings { endpoint, headers }
}

/// Returns a client without trusted certificates, because the server does not use TLS.
fn http_client() -> reqwest::Client {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap()
}

/// Exports spans until the queue is empty, and returns the metrics as text.
async fn export(settings: Settings, spans: Vec<SpanData>) -> String {
    let (metrics, end) = (Metrics::default(), CancellationToken::new());
    let (traces, task) = Traces::new(&settings, http_client(), ("pod-1", "prod"), metrics.clone()).unwrap();
    traces.export("apps", spans);
    end.cancel();
    task.run(end).await;
    metrics.encode().unwrap()
}

#[tokio::test]
async fn spans_are_exported_with_their_times_and_identifiers() {
    let collector = Collector::default();
    let text = export(serve(collector.clone()).await, vec![completed("one"), completed("two")]).await;
    assert!(text.contains("pulumi_controller_spans_exported_total 2"), "{text}");
    let received = collector.received.lock().unwrap();
    let [(headers, body)] = received.as_slice() else { panic!("one request: {received:?}") };
    assert_eq!(headers["authorization"], "Bearer t");
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body.clone()).unwrap();
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    assert_eq!(spans.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(spans[0].trace_id, trace_id(&["uid"]).to_bytes());
    assert_eq!(spans[0].parent_span_id, span_id(&["uid", "root"]).to_bytes());
    assert_eq!(spans[0].start_time_unix_nano, 1_760_000_000_123_000_000);
    assert_eq!(spans[0].status.as_ref().map(|status| (status.message.as_str(), status.code)), Some(("boom", 2)));
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    let keys: Vec<&str> = resource.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    for key in ["service.name", "service.version", "service.instance.id", "k8s.cluster.name"] {
        assert_eq!(keys.iter().filter(|found| **found == key).count(), 1, "{keys:?}");
    }
}

#[tokio::test]
async fn a_rejected_request_is_not_repeated_and_its_spans_are_counted() {
    let collector = Collector::default();
    collector.refusals.lock().unwrap().push(StatusCode::UNAUTHORIZED);
    let text = export(serve(collector.clone()).await, vec![completed("one")]).await;
    assert!(text.contains("pulumi_controller_spans_dropped_total 1"), "{text}");
    assert!(collector.received.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_unavailable_collector_is_called_again() {
    let collector = Collector::default();
    collector.refusals.lock().unwrap().extend([StatusCode::SERVICE_UNAVAILABLE]);
    let settings = serve(collector.clone()).await;
    let (metrics, end) = (Metrics::default(), CancellationToken::new());
    let (traces, task) = Traces::new(&settings, http_client(), ("", ""), metrics).unwrap();
    let task = tokio::spawn(task.run(end.clone()));
    traces.export("apps", vec![completed("one")]);
    for _ in 0..1000 {
        if !collector.received.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(collector.received.lock().unwrap().len(), 1);
    end.cancel();
    task.await.unwrap();
}

#[test]
fn spans_that_exceed_the_queue_are_dropped_and_counted() {
    let metrics = Metrics::default();
    let endpoint = Url::parse("http://collector:4318/v1/traces").unwrap();
    let settings = Settings { endpoint, headers: HeaderMap::new() };
    let (traces, _task) = Traces::new(&settings, http_client(), ("", ""), metrics.clone()).unwrap();
    traces.export("apps", vec![completed("one"); queue::CAPACITY + 3]);
    let text = metrics.encode().unwrap();
    assert!(text.contains("pulumi_controller_spans_dropped_total 3"), "{text}");
}

#[test]
fn without_a_collector_nothing_is_queued() {
    let traces = Traces::default();
    assert!(!traces.is_enabled());
    traces.export("apps", vec![completed("one")]);
}
