//! `version`: prints the plugin and controller versions.

use serde::Serialize;

use crate::plugin::args::Format;
use crate::plugin::cluster::Cluster;
use crate::plugin::controller::{self, Controller, VERSION};
use crate::plugin::error::PluginError;
use crate::plugin::screen::{self, Screen};

/// Prints the plugin and controller versions. Without a cluster, prints only the plugin version.
///
/// # Errors
///
/// Returns an error if the plugin cannot connect to a cluster, or cannot list the Deployments.
pub async fn run(cluster: Result<Cluster, PluginError>, format: Format) -> Result<(), PluginError> {
    let found = match cluster {
        Ok(cluster) => controller::find(&cluster).await,
        Err(error) => Err(error),
    };
    let (controllers, error) = match found {
        Ok(controllers) => (controllers, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    screen::print(&Versions { client: VERSION, controllers }, format)?;
    error.map_or(Ok(()), Err)
}

#[derive(Serialize)]
struct Versions {
    client: &'static str,
    controllers: Vec<Controller>,
}

impl Screen for Versions {
    fn text(&self) -> String {
        let mut out = format!("client: v{}\n", self.client);
        if self.controllers.is_empty() {
            out.push_str("controller: not found\n");
        }
        for controller in &self.controllers {
            let Controller { namespace, name, image, .. } = controller;
            out.push_str(&format!("controller: {image} (Deployment {namespace}/{name})\n"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::reference_tests::assert_example;

    #[test]
    fn the_versions_of_client_and_controller_are_printed() {
        let controller = Controller {
            namespace: "flux-system".to_owned(),
            name: "pulumi-controller".to_owned(),
            image: "ghcr.io/pulumi-controller/pulumi-controller:v0.1.0".to_owned(),
            available: 1,
            replicas: 1,
        };
        let versions = Versions { client: "0.1.0", controllers: vec![controller] };
        assert_example("kubectl pulumi version", &versions.text());
        assert!(Versions { client: "0.1.0", controllers: Vec::new() }.text().ends_with("controller: not found\n"));
    }
}
