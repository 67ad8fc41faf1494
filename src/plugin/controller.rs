//! Finds the controller's Deployments in the cluster.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use kube::api::ListParams;
use pulumi_controller::api::names::CONTROLLER_SELECTOR;
use serde::Serialize;

use crate::plugin::cluster::{Cluster, Scope};
use crate::plugin::error::PluginError;

/// Name of the controller's container.
const CONTAINER: &str = "manager";

/// Version of the plugin, which equals the version of the controller in the same release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Deployment of the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Controller {
    pub namespace: String,
    pub name: String,
    pub image: String,
    pub available: i32,
    pub replicas: i32,
}

impl Controller {
    fn of(deployment: &Deployment) -> Self {
        let spec = deployment.spec.as_ref();
        let pod = spec.and_then(|spec| spec.template.spec.as_ref());
        let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
        let image = containers.find(|container| container.name == CONTAINER).and_then(|found| found.image.clone());
        Controller {
            namespace: deployment.namespace().unwrap_or_default(),
            name: deployment.name_any(),
            image: image.unwrap_or_default(),
            available: deployment.status.as_ref().and_then(|status| status.available_replicas).unwrap_or_default(),
            replicas: spec.and_then(|spec| spec.replicas).unwrap_or(1),
        }
    }

    /// Returns the version in the image tag, or `None` if the tag contains no version.
    pub fn version(&self) -> Option<&str> {
        let name = self.image.split('@').next().unwrap_or_default();
        let tag = name.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag)?;
        let version = tag.strip_prefix('v').unwrap_or(tag);
        version.starts_with(|first: char| first.is_ascii_digit()).then_some(version)
    }
}

/// Returns the controller's Deployments in all namespaces.
///
/// # Errors
///
/// Returns an error if the request fails, for example because the user lacks permission to list Deployments.
pub async fn find(cluster: &Cluster) -> Result<Vec<Controller>, PluginError> {
    let deployments: Vec<Deployment> =
        cluster.list(&Scope::All, ListParams::default().labels(CONTROLLER_SELECTOR)).await?;
    Ok(deployments.iter().map(Controller::of).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_image_and_the_replicas_are_those_of_the_manager() {
        let deployment = json!({
            "metadata": { "name": "pulumi-controller", "namespace": "flux-system" },
            "spec": { "replicas": 2, "selector": {}, "template": { "spec": { "containers": [
                { "name": "proxy", "image": "proxy:1" },
                { "name": "manager", "image": "ghcr.io/pulumi-controller/pulumi-controller:v0.1.0" },
            ] } } },
            "status": { "availableReplicas": 1 },
        });
        let found = Controller::of(&serde_json::from_value(deployment).unwrap());
        assert_eq!((found.available, found.replicas), (1, 2));
        assert_eq!(found.version(), Some("0.1.0"));
    }

    #[test]
    fn the_version_is_in_the_tag_of_the_image() {
        let version = |image: &str| {
            let image = image.to_owned();
            let found = Controller { image, namespace: String::new(), name: String::new(), available: 1, replicas: 1 };
            found.version().map(str::to_owned)
        };
        assert_eq!(version("host:5000/a/b:v1.2.3@sha256:0a").as_deref(), Some("1.2.3"));
        for image in ["", "host:5000/a/b", "a:latest", "a@sha256:0a"] {
            assert_eq!(version(image), None, "{image}");
        }
    }
}
