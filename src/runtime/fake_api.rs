//! Fake API server for tests that simulate failures. The fake server records each request and responds as the test
//! specifies.

use std::sync::{Arc, Mutex};

use axum::http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Recorded request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    /// Path without the query.
    pub(crate) path: String,
    pub(crate) query: String,
    /// Value of the header `Accept`. Empty if the request has no such header.
    pub(crate) accept: String,
    /// Value of the header `Authorization`. Empty if the request has no such header.
    pub(crate) authorization: String,
    pub(crate) body: Value,
}

/// Response of the server.
#[derive(Clone, Debug)]
pub(crate) enum FakeResponse {
    Json(u16, Value),
    /// Raw response text, such as the lines of a watch response.
    Text(String),
    /// No response.
    Silence,
    /// Response that the server sends after the test releases it.
    Held(watch::Receiver<bool>, Box<FakeResponse>),
}

impl FakeResponse {
    /// Returns the lines of a watch response. As in a real watch response, the event type precedes the object on each
    /// line.
    pub(crate) fn events<'e>(events: impl IntoIterator<Item = (&'e str, Value)>) -> Self {
        let line = |(kind, object): (&str, Value)| format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        FakeResponse::Text(events.into_iter().map(line).collect())
    }

    /// Returns an error response in the format of the API server.
    pub(crate) fn refusal(code: u16, reason: &str) -> Self {
        let message = format!("it is {reason}");
        FakeResponse::Json(
            code,
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code }),
        )
    }
}

impl FakeResponse {
    /// Waits until the test releases the response, and returns the code and the body of the response.
    async fn content(self) -> (u16, String) {
        let mut response = self;
        loop {
            match response {
                FakeResponse::Json(code, value) => return (code, value.to_string()),
                FakeResponse::Text(text) => return (200, text),
                FakeResponse::Silence => std::future::pending().await,
                FakeResponse::Held(mut is_released, held) => {
                    is_released.wait_for(|is_released| *is_released).await.unwrap();
                    response = *held;
                }
            }
        }
    }
}

/// Log of the requests that the fake server has received.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<RecordedRequest>>>);

impl Log {
    pub(crate) fn all(&self) -> Vec<RecordedRequest> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn verbs(&self) -> Vec<String> {
        self.all().into_iter().map(|request| format!("{} {}", request.method, request.path)).collect()
    }
}

/// Returns a client for a fake server, and the log of the server's requests. `respond` returns the response to each
/// request.
pub(crate) fn client(respond: impl Fn(&RecordedRequest) -> FakeResponse + Send + Sync + 'static) -> (Client, Log) {
    let log = Log::default();
    let (respond, recorded) = (Arc::new(respond), log.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (respond, recorded) = (respond.clone(), recorded.clone());
        async move {
            let request = read(request).await;
            recorded.0.lock().unwrap().push(request.clone());
            let (code, text) = respond(&request).content().await;
            let response = Response::builder().status(code).header("content-type", "application/json");
            response.body(Body::from(text.into_bytes())).map_err(std::io::Error::other)
        }
    });
    (Client::new(service, "default"), log)
}

async fn read(request: Request<Body>) -> RecordedRequest {
    let (parts, body) = request.into_parts();
    let bytes = body.collect_bytes().await.unwrap();
    let header = |name: &str| {
        let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let (accept, authorization) = (header("accept"), header("authorization"));
    RecordedRequest {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        accept,
        authorization,
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    }
}

/// Applies a JSON merge patch (RFC 7386) in the same way as the API server.
pub(crate) fn apply_json_merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            apply_json_merge_patch(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
