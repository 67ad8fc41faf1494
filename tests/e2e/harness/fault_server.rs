//! Client for the source server that injects faults (`tests/cluster/services/faultserver`).

use std::time::Duration;

use pulumi_controller::api::pulumi::SourceArtifact;
use serde::Deserialize;
use serde_json::Value;

use super::environment::Environment;
use super::http;
use super::scene::Scene;

/// Description of a file on the server.
#[derive(Clone, Debug, Deserialize)]
pub struct ServedFile {
    pub size: i64,
    pub digest: String,
    /// Number of requests for the file that the server has received.
    pub requests: u64,
}

/// Fault server client for the files of one scene.
pub struct FaultServer {
    folder: String,
}

/// Timeout of a request. The server needs a long time to generate a large archive.
const TIMEOUT: Duration = Duration::from_secs(120);

impl FaultServer {
    pub fn of(scene: &Scene) -> FaultServer {
        FaultServer { folder: scene.namespace.clone() }
    }

    /// Uploads a file, which the server then provides without faults. Returns an artifact whose revision is the file
    /// name.
    pub async fn upload(&self, name: &str, content: Vec<u8>) -> SourceArtifact {
        let described = self.put(&format!("content/{}/{name}", self.folder), content).await;
        self.artifact(name, &described)
    }

    /// Sets the faults that the server injects into its responses to requests for a file. `{}` removes all faults.
    pub async fn set_faults(&self, name: &str, behavior: Value) -> SourceArtifact {
        let described = self.put(&format!("behavior/{}/{name}", self.folder), behavior.to_string().into_bytes()).await;
        self.artifact(name, &described)
    }

    pub async fn requests(&self, name: &str) -> u64 {
        let url = format!("{}/control/described/{}/{name}", Environment::get().source_faults_url, self.folder);
        request_json(http::client().get(&url), &url).await.requests
    }

    fn artifact(&self, name: &str, described: &ServedFile) -> SourceArtifact {
        let url = format!("{}/files/{}/{name}", Environment::get().source_faults_url_in_cluster, self.folder);
        let checksum = described.digest.clone();
        SourceArtifact {
            url,
            revision: format!("{name}@{checksum}"),
            digest: checksum,
            size: Some(described.size),
            ..SourceArtifact::default()
        }
    }

    async fn put(&self, order: &str, body: Vec<u8>) -> ServedFile {
        let url = format!("{}/control/{order}", Environment::get().source_faults_url);
        request_json(http::client().put(&url).body(body), &url).await
    }
}

async fn request_json(request: reqwest::RequestBuilder, url: &str) -> ServedFile {
    let action = format!("requesting {url}");
    let response = http::send(&action, request.timeout(TIMEOUT)).await.text().await;
    let text = response.unwrap_or_else(|error| panic!("{action}: {error:?}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{action}: invalid response {text}: {error}"))
}
