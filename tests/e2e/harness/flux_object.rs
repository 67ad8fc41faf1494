//! Creates and reads Flux source objects of any kind.

use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use pulumi_controller::api::names::ANNOTATION_REQUESTED_AT;
use pulumi_controller::api::pulumi::{FluxSource, SourceArtifact, SourceReference, Stack};
use serde_json::{Value, json};

use super::scene::{Scene, from_json};
use super::wait::{Poll, WaitLimit, api_call, wait_until};

/// A source object of any kind in a scene.
pub struct FluxObject<'a> {
    scene: &'a Scene,
    resource: ApiResource,
    pub name: String,
}

impl Scene {
    /// Returns a handle for a source in the Flux API group. Does not create the object.
    pub fn flux_object(&self, kind: &str, plural: &str, name: &str) -> FluxObject<'_> {
        self.source_object("source.toolkit.fluxcd.io", kind, plural, name)
    }

    /// Returns a handle for a source with the version `v1` of an API group. Does not create the object.
    pub fn source_object(&self, group: &str, kind: &str, plural: &str, name: &str) -> FluxObject<'_> {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
        FluxObject { scene: self, resource, name: name.to_owned() }
    }

    /// Returns a handle for a HelmRelease. Does not create the object.
    pub fn helm_release(&self, name: &str) -> FluxObject<'_> {
        let kind = GroupVersionKind::gvk("helm.toolkit.fluxcd.io", "v2", "HelmRelease");
        let resource = ApiResource::from_gvk_with_plural(&kind, "helmreleases");
        FluxObject { scene: self, resource, name: name.to_owned() }
    }

    /// Returns a Stack with a source of any kind. `api_version` is the optional `apiVersion` of the source reference.
    pub fn stack_on_kind(&self, name: &str, api_version: Option<&str>, source: &FluxObject<'_>) -> Stack {
        let mut stack = self.stack_on(name, &source.name);
        let source_ref = SourceReference {
            api_version: api_version.map(str::to_owned),
            kind: source.resource.kind.clone(),
            name: source.name.clone(),
            namespace: None,
        };
        stack.spec.flux_source = Some(FluxSource { source_ref, dir: None });
        stack
    }
}

impl FluxObject<'_> {
    fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.scene.client.clone(), &self.scene.namespace, &self.resource)
    }

    fn what(&self) -> String {
        format!("the {} {}/{}", self.resource.kind, self.scene.namespace, self.name)
    }

    pub async fn create(&self, spec: Value) {
        let object: DynamicObject = from_json(json!({
            "apiVersion": self.resource.api_version, "kind": self.resource.kind,
            "metadata": {"name": self.name}, "spec": spec,
        }));
        let created =
            api_call(format!("creating {}", self.what()), self.api().create(&PostParams::default(), &object)).await;
        assert_eq!(created.name_any(), self.name);
    }

    pub async fn exists(&self) -> bool {
        let call = self.api();
        api_call(format!("reading {}", self.what()), call.get_opt(&self.name)).await.is_some()
    }

    /// Deletes the object if the object exists, and waits until the deletion is complete.
    pub async fn delete(&self) {
        if !self.exists().await {
            return;
        }
        let call = self.api();
        let parameters = DeleteParams::default();
        drop(api_call(format!("deleting {}", self.what()), call.delete(&self.name, &parameters)).await);
        wait_until(format!("{} to be deleted", self.what()), WaitLimit::Run, async || {
            match self.api().get_opt(&self.name).await {
                Ok(None) => Poll::Found(()),
                Ok(Some(object)) => Poll::NotYet(format!("{:?}", object.data.get("status"))),
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await;
    }

    /// Requests a Flux reconciliation with the same annotation as a Receiver.
    pub async fn request_reconciliation(&self) {
        let request = format!("{:?}", std::time::SystemTime::now());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION_REQUESTED_AT: request}}}));
        let call = self.api();
        api_call(format!("annotating {}", self.what()), call.patch(&self.name, &PatchParams::default(), &patch)).await;
    }

    /// Waits until the source status contains an artifact that matches `expected`.
    pub async fn artifact(&self, what: &str, expected: impl Fn(&SourceArtifact) -> bool) -> SourceArtifact {
        wait_until(format!("{} to serve {what}", self.what()), WaitLimit::Reaction, async || {
            match self.api().get(&self.name).await {
                Err(error) => Poll::NotYet(error.to_string()),
                Ok(object) => {
                    let status = object.data.get("status").cloned().unwrap_or_default();
                    let artifact: Option<SourceArtifact> =
                        status.get("artifact").and_then(|artifact| serde_json::from_value(artifact.clone()).ok());
                    match artifact {
                        Some(artifact) if expected(&artifact) => Poll::Found(artifact),
                        _ => Poll::NotYet(status.to_string()),
                    }
                }
            }
        })
        .await
    }

    /// Writes an artifact to the source status, like source-controller.
    pub async fn publish(&self, artifact: &SourceArtifact) {
        let path =
            artifact.url.split_once("//").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Succeeded", "message": "stored artifact",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        });
        let artifact = json!({
            "url": artifact.url, "path": path, "revision": artifact.revision, "digest": artifact.digest,
            "size": artifact.size, "lastUpdateTime": "2026-01-01T00:00:00Z",
        });
        self.write_status(json!({"artifact": artifact, "conditions": [ready]})).await;
    }

    /// Removes the artifact from the source status.
    pub async fn withdraw(&self) {
        self.write_status(json!({"artifact": null})).await;
    }

    async fn write_status(&self, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let action = format!("writing the status of {}", self.what());
        let call = self.api();
        api_call(action, call.patch_status(&self.name, &PatchParams::default(), &patch)).await;
    }
}
