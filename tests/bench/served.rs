//! A GitRepository whose status the benchmark writes: so it knows the moment when an artifact is there.

use kube::api::{Api, Patch, PatchParams};
use pulumi_controller::api::source::SourceArtifact;
use serde_json::json;

use crate::harness::{GitRepository, Scene, api_call};

/// source-controller does not touch the status of a suspended object.
pub async fn create(scene: &Scene, name: &str) {
    scene
        .create::<GitRepository>(json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "metadata": {"name": name},
            "spec": {"url": "http://nowhere.invalid/app.git", "interval": "1h", "suspend": true},
        }))
        .await;
}

/// Makes it name an artifact.
pub async fn serve(api: &Api<GitRepository>, name: &str, artifact: &SourceArtifact) {
    let artifact = json!({
        "url": artifact.url, "path": artifact.url.split_once("//").map_or("", |(_, rest)| rest),
        "revision": artifact.revision, "digest": artifact.digest, "size": artifact.size,
        "lastUpdateTime": jiff::Timestamp::now().to_string(),
    });
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "Succeeded", "message": "stored artifact",
        "lastTransitionTime": jiff::Timestamp::now().to_string(), "observedGeneration": 1,
    });
    let status = json!({"status": {"observedGeneration": 1, "artifact": artifact, "conditions": [ready]}});
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(&status));
    api_call(format!("serving an artifact as {name}"), api.patch_status(name, &parameters, &patch)).await;
}
