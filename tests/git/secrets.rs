//! A minimal API server for Secrets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use base64::Engine as _;
use kube::{Client, Config};
use serde_json::json;

/// Maps each Secret's name to its keys and values.
type Data = Arc<Mutex<BTreeMap<String, BTreeMap<String, String>>>>;

#[derive(Clone, Default)]
pub struct Secrets(Data);

impl Secrets {
    /// Sets the content of a Secret.
    pub fn set(&self, name: &str, entries: &[(&str, &str)]) {
        let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.0.lock().unwrap().insert(name.to_owned(), entries);
    }

    /// Starts an API server that provides only these Secrets, and returns a client for the API server.
    pub async fn client(&self) -> Client {
        let router =
            Router::new().route("/api/v1/namespaces/{namespace}/secrets/{name}", get(secret)).with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        Client::try_from(config).unwrap()
    }
}

async fn secret(
    State(secrets): State<Secrets>,
    Path((namespace, name)): Path<(String, String)>,
) -> (StatusCode, [(axum::http::HeaderName, &'static str); 1], String) {
    let headers = [(CONTENT_TYPE, "application/json")];
    let data = secrets.0.lock().unwrap().get(&name).cloned();
    let Some(data) = data.filter(|_| namespace == "apps") else {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": format!("secrets {name:?} not found"), "details": {"name": name},
        });
        return (StatusCode::NOT_FOUND, headers, status.to_string());
    };
    let encode = |value: String| base64::engine::general_purpose::STANDARD.encode(value);
    let data: BTreeMap<String, String> = data.into_iter().map(|(key, value)| (key, encode(value))).collect();
    let metadata = json!({"name": name, "namespace": namespace});
    let secret = json!({"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": data});
    (StatusCode::OK, headers, secret.to_string())
}
