//! The source server that lies (`tests/cluster/services/faultserver`): what it serves, and how badly.

use std::time::Duration;

use pulumi_controller::api::source::SourceArtifact;
use serde::Deserialize;
use serde_json::Value;

use super::environment::Environment;
use super::scene::Scene;

/// What the server says of a file.
#[derive(Clone, Debug, Deserialize)]
pub struct Described {
    pub size: i64,
    pub digest: String,
    /// How often it was asked for.
    pub requests: u64,
}

/// The server, seen through the files of one scene.
pub struct FaultServer {
    client: reqwest::Client,
    folder: String,
}

/// Generating a large archive takes its time.
const LIMIT: Duration = Duration::from_secs(120);

impl FaultServer {
    pub fn of(scene: &Scene) -> FaultServer {
        let client =
            reqwest::Client::builder().no_proxy().timeout(LIMIT).build().expect("a client for the source server");
        FaultServer { client, folder: scene.namespace.clone() }
    }

    /// Uploads a file, which is served well from now on; its name is its revision.
    pub async fn upload(&self, name: &str, content: Vec<u8>) -> SourceArtifact {
        let described = self.put(&format!("content/{}/{name}", self.folder), content).await;
        self.artifact(name, &described)
    }

    /// Says how a file is served from now on; `{}` is well.
    pub async fn behave(&self, name: &str, behaviour: Value) -> SourceArtifact {
        let described = self.put(&format!("behaviour/{}/{name}", self.folder), behaviour.to_string().into_bytes()).await;
        self.artifact(name, &described)
    }

    pub async fn requests(&self, name: &str) -> u64 {
        let url = format!("{}/control/described/{}/{name}", Environment::get().source_faults_url, self.folder);
        self.ask(self.client.get(&url), &url).await.requests
    }

    fn artifact(&self, name: &str, described: &Described) -> SourceArtifact {
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

    async fn put(&self, order: &str, body: Vec<u8>) -> Described {
        let url = format!("{}/control/{order}", Environment::get().source_faults_url);
        self.ask(self.client.put(&url).body(body), &url).await
    }

    async fn ask(&self, request: reqwest::RequestBuilder, url: &str) -> Described {
        let answer = async {
            let response = request.send().await?;
            Ok::<_, reqwest::Error>((response.status(), response.text().await?))
        };
        let (status, text) =
            answer.await.unwrap_or_else(|error| panic!("asking the source server {url}: {error:?}"));
        assert!(status.is_success(), "the source server answered {url} with {status}: {text}");
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("the source server answered {url} with {text}: {error}"))
    }
}
