//! Creates many idle Stacks as copies, which need no runs. While the controller is stopped, this module copies all
//! objects of a Stack whose run is complete. Each copy has a different name, and its pods run on the fake node.

use futures::{StreamExt, stream};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::harness::{Scene, api_call};

/// Maximum number of copies that the benchmark creates concurrently.
const CONCURRENCY: usize = 16;
/// Metadata fields that the API server sets.
const SERVER_FIELDS: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"];

/// All objects of one Stack, in creation order.
pub struct Original {
    client: Client,
    namespace: String,
    name: String,
    objects: Vec<Part>,
}

struct Part {
    resource: ApiResource,
    uid: String,
    object: Value,
    /// Status to write after the object has been created, or `None` if the measured controller does not write the
    /// status of this kind.
    status: Option<Value>,
}

impl Original {
    pub async fn read(scene: &Scene, name: &str) -> Original {
        let kinds = [
            (ApiResource::erase::<Stack>(&()), true),
            (ApiResource::erase::<Workspace>(&()), true),
            (ApiResource::erase::<Update>(&()), true),
            (ApiResource::erase::<Secret>(&()), false),
            (ApiResource::erase::<Service>(&()), false),
            (ApiResource::erase::<PodDisruptionBudget>(&()), false),
            // The pod precedes the StatefulSet, so the copied StatefulSet adopts the copied pod instead of creating
            // another pod.
            (ApiResource::erase::<Pod>(&()), false),
            (ApiResource::erase::<StatefulSet>(&()), false),
        ];
        let mut objects = Vec::new();
        for (resource, with_status) in kinds {
            let api: Api<DynamicObject> = Api::namespaced_with(scene.client.clone(), &scene.namespace, &resource);
            let found = api_call(format!("listing {}", resource.plural), api.list(&ListParams::default())).await;
            let begin = format!("{name}-");
            let selected = found.items.into_iter().filter(|object| {
                let found = object.name_any();
                found == name || found.starts_with(&begin)
            });
            objects.extend(selected.map(|object| Part::of(&resource, &object, with_status)));
        }
        Original { client: scene.client.clone(), namespace: scene.namespace.clone(), name: name.to_owned(), objects }
    }

    /// Creates one copy of the Stack for each name.
    pub async fn copy(&self, names: impl Iterator<Item = String>) {
        stream::iter(names)
            .map(|name| async move { self.copy_as(&name).await })
            .buffer_unordered(CONCURRENCY)
            .for_each(|()| std::future::ready(()))
            .await;
    }

    async fn copy_as(&self, name: &str) {
        let mut created = vec![(self.name.clone(), name.to_owned())];
        let mut statuses = Vec::new();
        for part in &self.objects {
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &part.resource);
            let copy: DynamicObject = serde_json::from_value(with(&part.object, &created)).expect("an object");
            let action = format!("copying the {} {}", part.resource.kind, copy.name_any());
            let copy = api_call(action, api.create(&PostParams::default(), &copy)).await;
            created.push((part.uid.clone(), copy.uid().expect("object UID")));
            statuses.extend(part.status.as_ref().map(|status| (api, copy.name_any(), status)));
        }
        for (api, name, status) in statuses {
            let patch = Patch::Merge(json!({"status": with(status, &created)}));
            api_call(format!("copying the status of {name}"), api.patch_status(&name, &PatchParams::default(), &patch))
                .await;
        }
    }
}

impl Part {
    fn of(resource: &ApiResource, object: &DynamicObject, with_status: bool) -> Part {
        let uid = object.uid().expect("object UID");
        let mut object = serde_json::to_value(object).expect("valid JSON");
        let fields = object.as_object_mut().expect("an object");
        let status = fields.remove("status").filter(|_| with_status);
        let metadata = fields["metadata"].as_object_mut().expect("metadata");
        for field in SERVER_FIELDS {
            metadata.remove(field);
        }
        if resource.kind == "Pod" {
            metadata.remove("ownerReferences");
        }
        Part { resource: resource.clone(), uid, object, status }
    }
}

/// Applies all replacements to a value's JSON text, and returns the resulting value.
fn with(value: &Value, texts: &[(String, String)]) -> Value {
    let text = texts.iter().fold(value.to_string(), |text, (from, to)| text.replace(from.as_str(), to));
    serde_json::from_str(&text).expect("valid JSON")
}
