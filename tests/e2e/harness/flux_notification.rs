//! Objects of the Flux notification-controller, and the HTTP requests that this controller receives and sends.

use axum::http::Request;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;

use super::environment::Environment;
use super::http;
use super::scene::{Scene, from_json};
use super::wait::{Poll, WaitLimit, api_call, wait_until};

const GROUP: &str = "notification.toolkit.fluxcd.io";

/// A request to the `source-faults` server, which simulates a chat service or a Git provider.
#[derive(Clone, Debug, Deserialize)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub body: Value,
}

impl Scene {
    /// Creates an Alert, a Provider or a Receiver.
    pub async fn create_notification(&self, kind: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().expect("object name").to_owned();
        let action = format!("creating the {kind} {}/{name}", self.namespace);
        let api = self.notifications(kind);
        let object: DynamicObject = from_json(with_type(&self.notification(kind), object));
        api_call(action, api.create(&PostParams::default(), &object)).await;
    }

    /// Waits until a Receiver is Ready, and returns the path of its webhook.
    pub async fn webhook_path(&self, receiver: &str) -> String {
        let api = self.notifications("Receiver");
        wait_until(format!("the Receiver {receiver} to be Ready"), WaitLimit::Reaction, async || {
            match api.get(receiver).await {
                Ok(object) => {
                    let status = object.data.get("status").cloned().unwrap_or_default();
                    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
                    let is_ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
                    match status["webhookPath"].as_str().filter(|_| is_ready) {
                        Some(path) => Poll::Found(path.to_owned()),
                        None => Poll::NotYet(status.to_string()),
                    }
                }
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await
    }

    /// Calls a Flux Receiver through the API server's Service proxy, and returns the status code of the response.
    pub async fn call_webhook(&self, path: &str, headers: &[(&str, String)], body: &str) -> u16 {
        let url = format!("/api/v1/namespaces/flux-system/services/webhook-receiver:80/proxy{path}");
        let mut request = Request::post(&url).header("Content-Type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Body::from(body.as_bytes().to_vec())).expect("a request");
        let response = api_call(format!("calling {url}"), self.client.send(request)).await;
        response.status().as_u16()
    }

    /// Returns the in-cluster URL at which the server records this scene's requests.
    pub fn hook_url(&self, name: &str) -> String {
        format!("{}/hooks/{}/{name}", Environment::get().source_faults_url_in_cluster, self.namespace)
    }

    /// Returns the URL of a repository on a Git provider that accepts commit statuses.
    pub fn git_host(&self, repository: &str) -> String {
        format!("{}/{}/{repository}", Environment::get().source_faults_url_in_cluster, self.namespace)
    }

    /// Returns all requests that the server has recorded.
    pub async fn calls(&self) -> Vec<Call> {
        let url = format!("{}/control/calls/{}", Environment::get().source_faults_url, self.namespace);
        let action = format!("requesting {url}");
        let text = http::send(&action, http::client().get(&url)).await.text().await;
        let text = text.unwrap_or_else(|error| panic!("{action}: {error:?}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{action}: invalid response {text}: {error}"))
    }

    /// Waits for a recorded request that matches `is_match`, and returns the request.
    pub async fn until_called(&self, what: &str, is_match: impl Fn(&Call) -> bool) -> Call {
        wait_until(format!("{what} to be posted"), WaitLimit::Reaction, async || {
            let calls = self.calls().await;
            match calls.iter().find(|call| is_match(call)) {
                Some(call) => Poll::Found(call.clone()),
                None => Poll::NotYet(format!("{calls:#?}")),
            }
        })
        .await
    }

    fn notifications(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &self.notification(kind))
    }

    fn notification(&self, kind: &str) -> ApiResource {
        let version = if kind == "Receiver" { "v1" } else { "v1beta3" };
        let plural = format!("{}s", kind.to_lowercase());
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, version, kind), &plural)
    }
}

fn with_type(resource: &ApiResource, mut object: Value) -> Value {
    object["apiVersion"] = resource.api_version.clone().into();
    object["kind"] = resource.kind.clone().into();
    object
}
