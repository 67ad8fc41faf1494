//! An API server for tests of faults: it notes each request and answers as the test says.

use std::sync::{Arc, Mutex};

use axum::http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

/// A request as it was made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
    pub(crate) query: String,
    /// In what form the answer is wanted, where that is said.
    pub(crate) accept: String,
    pub(crate) body: Value,
}

/// What the server does with it.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Json(u16, Value),
    /// Text as it is, such as the lines of a watch.
    Text(String),
    /// No answer, ever.
    Silence,
    /// This answer, once the test lets it out.
    Held(watch::Receiver<bool>, Box<Answer>),
}

impl Answer {
    /// The lines of a watch, each with its type first, as the API server writes them.
    pub(crate) fn events<'e>(events: impl IntoIterator<Item = (&'e str, Value)>) -> Self {
        let line = |(kind, object): (&str, Value)| format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        Answer::Text(events.into_iter().map(line).collect())
    }

    /// A refusal as the API server words it.
    pub(crate) fn refusal(code: u16, reason: &str) -> Self {
        let message = format!("it is {reason}");
        Answer::Json(
            code,
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code }),
        )
    }
}

impl Answer {
    /// Code and body, once it is given.
    async fn content(self) -> (u16, String) {
        let mut answer = self;
        loop {
            match answer {
                Answer::Json(code, value) => return (code, value.to_string()),
                Answer::Text(text) => return (200, text),
                Answer::Silence => std::future::pending().await,
                Answer::Held(mut is_out, held) => {
                    is_out.wait_for(|is_out| *is_out).await.unwrap();
                    answer = *held;
                }
            }
        }
    }
}

/// The requests so far.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<RecordedRequest>>>);

impl Log {
    pub(crate) fn all(&self) -> Vec<RecordedRequest> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn verbs(&self) -> Vec<String> {
        self.all().into_iter().map(|asked| format!("{} {}", asked.method, asked.path)).collect()
    }
}

/// A client whose requests are answered by `answer`.
pub(crate) fn client(answer: impl Fn(&RecordedRequest) -> Answer + Send + Sync + 'static) -> (Client, Log) {
    let log = Log::default();
    let (answer, noted) = (Arc::new(answer), log.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (answer, noted) = (answer.clone(), noted.clone());
        async move {
            let asked = read(request).await;
            noted.0.lock().unwrap().push(asked.clone());
            let (code, text) = answer(&asked).content().await;
            let response = Response::builder().status(code).header("content-type", "application/json");
            response.body(Body::from(text.into_bytes())).map_err(std::io::Error::other)
        }
    });
    (Client::new(service, "default"), log)
}

async fn read(request: Request<Body>) -> RecordedRequest {
    let (parts, body) = request.into_parts();
    let bytes = body.collect_bytes().await.unwrap();
    let accept = parts.headers.get("accept").and_then(|accept| accept.to_str().ok());
    RecordedRequest {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        accept: accept.unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    }
}

/// RFC 7386, as the API server applies it.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
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
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
