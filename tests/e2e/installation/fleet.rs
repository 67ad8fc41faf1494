//! A fleet repository with the layout that `flux bootstrap` creates, and the objects that kustomize-controller applies
//! from the repository.

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::{NAMESPACE, manifest_files, project_path};
use crate::harness::{Commit, Environment, File, Poll, Scene, Source, WaitLimit, api_call, from_json, wait_until};

/// Repository directory that contains this project's manifests.
const VENDORED: &str = "pulumi-controller";
/// Name that all bootstrap objects share.
const BOOTSTRAP: &str = "flux-system";

/// The repository, and its current content.
pub struct Fleet<'a> {
    client: Client,
    repository: Source<'a>,
    vendored: Vec<File>,
    components: String,
    /// Controller image, or `None` if the repository does not install the controller.
    pub image: Option<String>,
    /// Files of the Kustomization `apps`, or `None` if the repository does not contain this Kustomization.
    pub apps: Option<Vec<File>>,
}

impl<'a> Fleet<'a> {
    pub async fn new(scene: &'a Scene) -> Fleet<'a> {
        let mut vendored = manifest_files(&project_path(""));
        vendored.iter_mut().for_each(|file| file.path = format!("{VENDORED}/{}", file.path));
        let components = &Environment::get().flux_components;
        let components =
            std::fs::read_to_string(components).unwrap_or_else(|error| panic!("reading {components}: {error}"));
        let repository = scene.source("fleet").await;
        Fleet { client: scene.client.clone(), repository, vendored, components, image: None, apps: None }
    }

    /// Commits and pushes the entire content.
    pub async fn push(&self) -> Commit {
        let folder = format!("clusters/test/{BOOTSTRAP}");
        let mut files = vec![
            file(format!("{folder}/gotk-components.yaml"), self.components.clone()),
            file(format!("{folder}/gotk-sync.yaml"), documents(&[self.git_repository(), self.kustomization()])),
            file(format!("{folder}/kustomization.yaml"), self.bootstrap_kustomization().to_string()),
        ];
        files.extend(self.vendored.clone());
        if let Some(apps) = &self.apps {
            files.push(file("clusters/test/apps.yaml".to_owned(), apps_kustomization().to_string()));
            files.extend(apps.clone());
        }
        self.repository.push_without_notification(&files).await
    }

    /// Applies the objects that `flux bootstrap` applies in its last step.
    pub async fn bootstrap(&self) {
        for object in [self.git_repository(), self.kustomization()] {
            let api = self.api(&object);
            let action = format!("creating the {} of the bootstrap", object["kind"]);
            api_call(action, api.create(&PostParams::default(), &from_json(object))).await;
        }
    }

    /// Pushes the content, requests a reconciliation, and waits until Flux has applied the commit.
    pub async fn roll_out(&self) -> Commit {
        let commit = self.push().await;
        self.request_reconciliation().await;
        self.until_kustomization(BOOTSTRAP, WaitLimit::Run, "to be Ready on its commit", |status| {
            status["lastAppliedRevision"] == json!(commit.revision()) && ready(status) == Some("True")
        })
        .await;
        commit
    }

    /// Requests a reconciliation of the repository.
    pub async fn request_reconciliation(&self) {
        let request = json!({"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": format!("{:?}", std::time::SystemTime::now())}}});
        let api = self.api(&self.git_repository());
        let patch = Patch::Merge(&request);
        api_call("requesting a reconciliation", api.patch(BOOTSTRAP, &PatchParams::default(), &patch)).await;
    }

    /// Waits until a Kustomization status matches `predicate`.
    pub async fn until_kustomization(
        &self,
        name: &str,
        wait_limit: WaitLimit,
        what: &str,
        predicate: impl Fn(&Value) -> bool,
    ) -> Value {
        let api = self.api(&self.kustomization());
        wait_until(format!("the Kustomization {name} {what}"), wait_limit, async || match api.get(name).await {
            Ok(object) => {
                let status = object.data.get("status").cloned().unwrap_or_default();
                if predicate(&status) {
                    Poll::Found(status)
                } else {
                    Poll::NotYet(format!("{:#}", status["conditions"]))
                }
            }
            Err(error) => Poll::NotYet(error.to_string()),
        })
        .await
    }

    /// Waits until a Kustomization and all its objects are deleted.
    pub async fn until_gone(&self, name: &str) {
        let api = self.api(&self.kustomization());
        wait_until(format!("the Kustomization {name} to be deleted"), WaitLimit::Run, async || {
            match api.get_opt(name).await {
                Ok(None) => Poll::Found(()),
                Ok(Some(object)) => Poll::NotYet(format!("{:?}", object.finalizers())),
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await;
    }

    /// Removes the bootstrap objects without pruning. The applied objects, which include Flux, remain.
    pub async fn end(&self) {
        let api = self.api(&self.kustomization());
        // Flux does not prune the objects of a suspended Kustomization. The Kustomization applies its own manifest, so
        // it would revert a change to `prune`.
        let patch = Patch::Merge(json!({"spec": {"suspend": true}}));
        api_call("suspending the bootstrap", api.patch(BOOTSTRAP, &PatchParams::default(), &patch)).await;
        let parameters = DeleteParams::default();
        drop(api_call("deleting the Kustomization of the bootstrap", api.delete(BOOTSTRAP, &parameters)).await);
        self.until_gone(BOOTSTRAP).await;
        let repositories = self.api(&self.git_repository());
        drop(
            api_call("deleting the GitRepository of the bootstrap", repositories.delete(BOOTSTRAP, &parameters)).await,
        );
    }

    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let (group, version) =
            object["apiVersion"].as_str().and_then(|text| text.split_once('/')).expect("a group and a version");
        let kind = object["kind"].as_str().expect("a kind");
        Api::namespaced_with(
            self.client.clone(),
            NAMESPACE,
            &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
        )
    }

    fn git_repository(&self) -> Value {
        json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
            "metadata": {"name": BOOTSTRAP, "namespace": NAMESPACE},
            "spec": {"interval": "1m0s", "ref": {"branch": "main"}, "url": self.repository.url()},
        })
    }

    fn kustomization(&self) -> Value {
        json!({
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
            "metadata": {"name": BOOTSTRAP, "namespace": NAMESPACE},
            "spec": {
                "interval": "10m0s", "path": "./clusters/test", "prune": true,
                "sourceRef": {"kind": "GitRepository", "name": BOOTSTRAP},
            },
        })
    }

    /// Returns the bootstrap's `kustomization.yaml`, which is the only bootstrap file that users edit.
    fn bootstrap_kustomization(&self) -> Value {
        let mut resources = vec!["gotk-components.yaml".to_owned(), "gotk-sync.yaml".to_owned()];
        let mut kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "components": [format!("../../../{VENDORED}/kustomize/components/notifications")],
        });
        if let Some(image) = &self.image {
            resources.push(format!("../../../{VENDORED}/kustomize/overlays/flux-system"));
            let (name, tag) = image.rsplit_once(':').expect("an image with a tag");
            kustomization["images"] = json!([{"name": "localhost/pulumi-controller", "newName": name, "newTag": tag}]);
        }
        kustomization["resources"] = json!(resources);
        kustomization
    }
}

fn apps_kustomization() -> Value {
    json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": {"name": "apps", "namespace": NAMESPACE},
        "spec": {
            "interval": "10m0s", "retryInterval": "10s", "timeout": "5m0s", "path": "./apps", "prune": true, "wait": true,
            "dependsOn": [{"name": BOOTSTRAP}],
            "sourceRef": {"kind": "GitRepository", "name": BOOTSTRAP},
        },
    })
}

/// Returns the status of a Kustomization's `Ready` condition.
pub fn ready(status: &Value) -> Option<&str> {
    condition(status, "Ready")?["status"].as_str()
}

pub fn condition<'v>(status: &'v Value, kind: &str) -> Option<&'v Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

pub fn documents(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{object:#}\n")).collect()
}

pub fn file(path: String, content: String) -> File {
    File { path, content }
}
