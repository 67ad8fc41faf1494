//! Sources whose status a test writes: who may write one in a cluster chooses what the controller is asked to fetch.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::Api;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::api::source::SourceArtifact;
use serde_json::{Value, json};

use super::scene::Scene;
use super::wait::api_call;

const KIND: &str = "ExternalArtifact";
const PLURAL: &str = "externalartifacts";

/// An object with `status.artifact` that no controller looks after.
pub struct Offer {
    api: Api<DynamicObject>,
    pub name: String,
}

impl Scene {
    /// A source without an artifact yet.
    pub async fn offer(&self, name: &str) -> Offer {
        let kind = GroupVersionKind::gvk("source.toolkit.fluxcd.io", "v1", KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        let api = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let mut object = DynamicObject::new(name, &resource);
        object.data = json!({"spec": {}});
        api_call(format!("creating the {KIND} {name}"), api.create(&PostParams::default(), &object)).await;
        Offer { api, name: name.to_owned() }
    }

    /// A Stack on such a source.
    pub fn stack_on_offer(&self, name: &str, offer: &Offer) -> Stack {
        let mut stack = self.stack_on(name, &offer.name);
        stack.spec.flux_source.source_ref.kind = KIND.to_owned();
        stack
    }
}

impl Offer {
    /// Makes it name an artifact.
    pub async fn serve(&self, artifact: &SourceArtifact) {
        self.write(json!({
            "url": artifact.url, "path": artifact.url.split_once("//").map_or("", |(_, rest)| rest),
            "revision": artifact.revision, "digest": artifact.digest, "size": artifact.size,
            "lastUpdateTime": "2026-01-01T00:00:00Z",
        }))
        .await;
    }

    /// The same without a digest.
    pub async fn serve_without_digest(&self, artifact: &SourceArtifact) {
        self.write(json!({
            "url": artifact.url, "path": "any", "revision": artifact.revision, "digest": null,
            "lastUpdateTime": "2026-01-01T00:00:00Z",
        }))
        .await;
    }

    async fn write(&self, artifact: Value) {
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Succeeded", "message": "stored artifact",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        });
        let status = json!({"status": {"artifact": artifact, "conditions": [ready]}});
        let written = self.api.patch_status(&self.name, &PatchParams::default(), &Patch::Merge(&status));
        api_call(format!("writing the status of the {KIND} {}", self.name), written).await;
    }

    /// Changes something of it that means nothing, as busy controllers do.
    pub async fn touch(&self, value: &str) {
        let patch = json!({"metadata": {"annotations": {"pulumi-controller.test/touched": value}}});
        let touched = self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch));
        api_call(format!("touching the {KIND} {}", self.name), touched).await;
    }
}
