//! Finds the Flux sources of Stacks, and requests their reconciliation.

use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::{SourceReference, Stack};
use pulumi_controller::view::requests::request;
use serde_json::Value;
use tokio::time::Instant;

use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::follow::{Outcome, POLL_INTERVAL};
use crate::plugin::progress::Progress;

/// API group of the Flux sources.
const FLUX_GROUP: &str = "source.toolkit.fluxcd.io";

/// Object that is the source of a Stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl Source {
    /// Returns the Flux source of a Stack, or `None` if the Stack has no Flux source.
    pub fn of(stack: &Stack) -> Option<Self> {
        let reference = &stack.spec.flux_source.as_ref()?.source_ref;
        Some(Source::of_reference(reference, &stack.namespace().unwrap_or_default()))
    }

    /// Returns the source to which a Stack in the namespace `own` refers.
    pub fn of_reference(reference: &SourceReference, own: &str) -> Self {
        Source {
            group: group(reference),
            kind: reference.kind.clone(),
            namespace: reference.namespace.clone().unwrap_or_else(|| own.to_owned()),
            name: reference.name.clone(),
        }
    }

    /// Returns the kind and the name for messages.
    pub fn describe(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    /// Checks the namespace and the name. With an invalid name, for example from another user's spec, the request path
    /// could address a different resource.
    fn check(&self) -> Result<(), PluginError> {
        match names::is_object_name(&self.namespace) && names::is_object_name(&self.name) {
            true => Ok(()),
            false => Err(PluginError::Failed(format!(
                "failed to reconcile {}: the name is invalid; correct spec.fluxSource of the Stack",
                self.describe()
            ))),
        }
    }

    /// Requests a reconciliation of the source, and waits for the result. `value` is the new value of the reconcile
    /// annotation.
    ///
    /// # Errors
    ///
    /// Returns an error if the source does not become ready, if a request fails, or if the timeout expires.
    pub async fn reconcile(
        &self,
        cluster: &Cluster,
        value: &str,
        progress: &mut Progress,
    ) -> Result<String, PluginError> {
        self.check()?;
        let resource = self.resource(cluster).await?;
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &self.namespace, &resource);
        let patch = Patch::Merge(request(value));
        let parameters = PatchParams::default();
        cluster.call(|| format!("annotate {}", self.describe()), api.patch(&self.name, &parameters, &patch)).await?;
        loop {
            let object = cluster.call(|| format!("read {}", self.describe()), api.get(&self.name)).await?;
            let state = match outcome(&object.data, value) {
                Outcome::Done(revision) => return Ok(revision),
                Outcome::Failed(cause) | Outcome::Blocked(cause) => {
                    return Err(PluginError::NotReady(format!("{} is not ready: {cause}", self.describe())));
                }
                Outcome::Waiting(state) => state,
            };
            progress.state(&state);
            if Instant::now() + POLL_INTERVAL > cluster.deadline() {
                let what = self.describe();
                return Err(PluginError::TimedOut(format!("timed out while waiting for {what}: {state}")));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the API resource of the source kind in the version that the API server prefers.
    async fn resource(&self, cluster: &Cluster) -> Result<ApiResource, PluginError> {
        let client = cluster.client();
        let groups = cluster.call(|| "list the API groups".to_owned(), client.list_api_groups()).await?;
        let group = groups.groups.into_iter().find(|group| group.name == self.group);
        let version = group.and_then(|group| {
            let first = group.versions.first().map(|version| version.version.clone());
            group.preferred_version.map(|version| version.version).or(first)
        });
        let missing = || {
            PluginError::Failed(format!(
                "failed to reconcile {}: the API server does not serve the kind {}.{}; install its \
                 CustomResourceDefinition, or correct spec.fluxSource of the Stack",
                self.describe(),
                self.kind,
                self.group
            ))
        };
        let version = version.ok_or_else(missing)?;
        let api_version = format!("{}/{version}", self.group);
        let resources = cluster
            .call(|| format!("list the kinds of {api_version}"), client.list_api_group_resources(&api_version))
            .await?;
        let is_kind = |kind: &str, plural: &str| kind == self.kind && !plural.contains('/');
        let resource = resources.resources.into_iter().find(|resource| is_kind(&resource.kind, &resource.name));
        let plural = resource.ok_or_else(missing)?.name;
        let kind = GroupVersionKind::gvk(&self.group, &version, &self.kind);
        Ok(ApiResource::from_gvk_with_plural(&kind, &plural))
    }
}

/// Returns the API group of a source reference.
fn group(reference: &SourceReference) -> String {
    let group = reference.api_version.as_deref().and_then(|version| version.split_once('/')).map(|(group, _)| group);
    group.unwrap_or(FLUX_GROUP).to_owned()
}

/// Returns the state of a source after a reconcile request with this annotation value.
fn outcome(object: &Value, value: &str) -> Outcome {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if object.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true) {
        return Outcome::Failed("the source is suspended; resume it with the flux CLI".to_owned());
    }
    if text("/status/lastHandledReconcileAt") != value {
        return Outcome::Waiting("waiting for the controller of the source".to_owned());
    }
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let is_ready = |condition: &&Value| condition.get("type").and_then(Value::as_str) == Some("Ready");
    let ready = conditions.into_iter().flatten().find(is_ready);
    let field = |name: &str| ready.and_then(|ready| ready.get(name)).and_then(Value::as_str).unwrap_or_default();
    match field("status") {
        "True" => Outcome::Done(text("/status/artifact/revision").to_owned()),
        "False" => Outcome::Failed(field("message").to_owned()),
        _ => Outcome::Waiting(format!("waiting for the source: {}", field("message"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::stack;

    #[test]
    fn the_source_has_the_group_and_the_namespace_of_the_reference() {
        let source = |reference: Value| {
            let spec = json!({ "fluxSource": { "sourceRef": reference } });
            Source::of(&stack("web", &spec, &json!({}))).unwrap()
        };
        let flux = source(json!({ "kind": "GitRepository", "name": "web" }));
        assert_eq!((flux.group.as_str(), flux.describe().as_str()), (FLUX_GROUP, "GitRepository apps/web"));
        let other = source(json!({ "apiVersion": "a.example.com/v1", "kind": "B", "name": "c", "namespace": "d" }));
        assert_eq!((other.group.as_str(), other.describe().as_str()), ("a.example.com", "B d/c"));
        assert!(flux.check().is_ok());
        assert!(source(json!({ "kind": "GitRepository", "name": "web/status" })).check().is_err());
        assert!(source(json!({ "kind": "Bucket", "name": "web", "namespace": "../x" })).check().is_err());
        assert_eq!(Source::of(&stack("web", &json!({ "projectRepo": "https://x" }), &json!({}))), None);
    }

    #[test]
    fn the_wait_for_a_source_ends_after_the_request_is_handled() {
        let object = |handled: &str, status: &str| {
            json!({ "status": { "lastHandledReconcileAt": handled, "artifact": { "revision": "main@sha1:a" },
                "conditions": [{ "type": "Ready", "status": status, "message": "why" }] } })
        };
        assert_eq!(outcome(&object("1", "True"), "1"), Outcome::Done("main@sha1:a".to_owned()));
        assert_eq!(outcome(&object("1", "False"), "1"), Outcome::Failed("why".to_owned()));
        assert!(matches!(outcome(&object("1", "Unknown"), "1"), Outcome::Waiting(_)));
        assert!(matches!(outcome(&object("0", "True"), "1"), Outcome::Waiting(_)));
        assert!(matches!(outcome(&json!({ "spec": { "suspend": true } }), "1"), Outcome::Failed(_)));
    }
}
