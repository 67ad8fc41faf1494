//! The two servers.

use futures::AsyncBufReadExt as _;
use http::Request;
use kube::Client;
use kube::client::Body;
use kube_sim::{Kinds, Options, Server};
use serde_json::{Value, json};

/// One of the two servers.
#[derive(Clone)]
pub struct Side {
    pub client: Client,
}

#[derive(Clone, Debug)]
pub struct Response {
    pub code: u16,
    pub body: Value,
}

impl Side {
    pub async fn real() -> Self {
        Side { client: Client::try_default().await.unwrap() }
    }

    /// Creates a simulation with a namespace.
    pub fn simulated(kinds: &Kinds, namespace: &str, seed: u64) -> (Self, Server) {
        let options = Options { seed, clock: Box::new(jiff::Timestamp::now), history: 10_000 };
        let server = Server::with_kinds(options, kinds.clone());
        server.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })).unwrap();
        (Side { client: server.client("test") }, server)
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        accept: &str,
        body: Option<&Value>,
    ) -> Response {
        let mut request = Request::builder().method(method).uri(path).header("user-agent", "conformance/1");
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        if !accept.is_empty() {
            request = request.header("accept", accept);
        }
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let response = self.client.send(request.body(Body::from(bytes)).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let text = response.into_body().collect_bytes().await.unwrap();
        let body =
            serde_json::from_slice(&text).unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&text).into_owned()));
        Response { code, body }
    }

    /// Returns the events of a watch until the object `last` appears.
    pub async fn watch(&self, path: &str, accept: &str, last: &str) -> Vec<Value> {
        let request = Request::get(path).header("accept", if accept.is_empty() { "application/json" } else { accept });
        let stream = self.client.request_stream(request.body(Vec::new()).unwrap()).await.unwrap();
        let mut lines = std::pin::pin!(stream.lines());
        let mut events = Vec::new();
        let read = async {
            while let Some(line) = futures::StreamExt::next(&mut lines).await {
                let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
                if event["object"]["metadata"]["name"] == last {
                    return;
                }
                events.push(event);
            }
        };
        let _ = tokio::time::timeout(std::time::Duration::from_secs(10), read).await;
        events
    }
}
