//! An Argo CD Application, and its observed state.

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{Commit, Poll, WaitLimit, api_call, wait_until};

/// Namespace of Argo CD.
pub const NAMESPACE: &str = "argocd";

pub struct Application {
    api: Api<DynamicObject>,
    name: String,
}

impl Application {
    /// Returns a handle. Does not create the object.
    pub fn new(client: &Client, name: &str) -> Application {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Application"));
        Application { api: Api::namespaced_with(client.clone(), NAMESPACE, &kind), name: name.to_owned() }
    }

    /// Creates or changes the Application. Deleting the Application also deletes its objects.
    pub async fn apply(&self, spec: Value) {
        let metadata = json!({
            "name": self.name, "namespace": NAMESPACE, "finalizers": ["resources-finalizer.argocd.argoproj.io"],
        });
        let object = json!({
            "apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": metadata, "spec": spec,
        });
        let (parameters, patch) = (PatchParams::apply("e2e").force(), Patch::Apply(&object));
        let action = format!("applying the Application {}", self.name);
        let applied = api_call(action, self.api.patch(&self.name, &parameters, &patch)).await;
        assert_eq!(applied.name_any(), self.name);
    }

    /// Requests a comparison with the repository, like a webhook.
    pub async fn refresh(&self) {
        let patch = json!({"metadata": {"annotations": {"argocd.argoproj.io/refresh": "normal"}}});
        let action = format!("annotating the Application {}", self.name);
        api_call(action, self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch))).await;
    }

    /// Waits until the Application status matches `predicate`.
    pub async fn until(&self, what: &str, predicate: impl Fn(&Value) -> bool) -> Value {
        wait_until(format!("the Application {} {what}", self.name), WaitLimit::Long, async || {
            match self.api.get(&self.name).await {
                Ok(object) => {
                    let status = object.data.get("status").cloned().unwrap_or_default();
                    if predicate(&status) { Poll::Found(status) } else { Poll::NotYet(describe(&status)) }
                }
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await
    }

    /// Waits until Argo CD has applied the objects of a commit, and all objects are healthy.
    pub async fn until_healthy(&self, commit: &Commit) -> Value {
        let is_healthy = |status: &Value| {
            status["sync"]["revision"] == json!(commit.sha)
                && status["sync"]["status"] == "Synced"
                && status["health"]["status"] == "Healthy"
                && status["operationState"]["phase"] == "Succeeded"
        };
        self.until("to be synced and healthy", is_healthy).await
    }

    pub async fn exists(&self) -> bool {
        api_call(format!("reading the Application {}", self.name), self.api.get_opt(&self.name)).await.is_some()
    }

    /// Deletes the Application if it exists. Does not wait until the Application's objects are deleted.
    pub async fn delete(&self) {
        if self.exists().await {
            let action = format!("deleting the Application {}", self.name);
            drop(api_call(action, self.api.delete(&self.name, &DeleteParams::default())).await);
        }
    }

    pub async fn until_gone(&self) {
        wait_until(format!("the Application {} to be deleted", self.name), WaitLimit::Long, async || {
            match self.api.get_opt(&self.name).await {
                Ok(None) => Poll::Found(()),
                Ok(Some(object)) => Poll::NotYet(describe(&object.data["status"])),
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await;
    }
}

/// Returns the kind and the sync status of each object in an Application.
pub fn objects(status: &Value) -> Vec<(&str, &str)> {
    let objects = status["resources"].as_array().into_iter().flatten();
    objects.filter_map(|object| Some((object["kind"].as_str()?, object["status"].as_str()?))).collect()
}

fn describe(status: &Value) -> String {
    let operation = &status["operationState"];
    format!(
        "sync {}, health {}, operation {}: {}, conditions {}, objects {:?}",
        status["sync"]["status"],
        status["health"]["status"],
        operation["phase"],
        operation["message"],
        status["conditions"],
        objects(status)
    )
}
