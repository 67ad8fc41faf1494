//! Installs the Helm chart from an OCI registry with an OCIRepository and a HelmRelease.

use serde_json::json;

use super::helm::package;
use super::{Installer, check};
use crate::harness::{Environment, FluxObject, Scene, in_scene, run_alone, run_program};

const RELEASE: &str = "pulumi-controller";

struct HelmRelease<'a> {
    folder: tempfile::TempDir,
    /// Path of the chart's parent directory in the registry.
    registry_path: String,
    repository: FluxObject<'a>,
    release: FluxObject<'a>,
}

impl<'a> HelmRelease<'a> {
    fn new(scene: &'a Scene) -> HelmRelease<'a> {
        HelmRelease {
            folder: tempfile::tempdir().expect("a temporary directory"),
            registry_path: format!("{}/charts", scene.namespace),
            repository: scene.flux_object("OCIRepository", "ocirepositories", RELEASE),
            release: scene.helm_release(RELEASE),
        }
    }

    async fn push(&self, image: &str) {
        let package = package(self.folder.path(), image).await;
        let registry = Environment::get().registry_url.replace("http://", "oci://");
        let destination = format!("{registry}/{}", self.registry_path);
        run_program("helm", &["push", &package, &destination, "--plain-http"], "").await;
    }
}

impl Installer for HelmRelease<'_> {
    async fn apply(&self, image: &str) {
        self.push(image).await;
        if self.release.exists().await {
            self.repository.request_reconciliation().await;
            return;
        }
        if !self.repository.exists().await {
            let host = &Environment::get().registry_host_in_cluster;
            let url = format!("oci://{host}/{}/{RELEASE}", self.registry_path);
            let layer =
                json!({"mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "operation": "copy"});
            self.repository
                .create(json!({"interval": "1h", "url": url, "insecure": true, "ref": {"semver": "0.1.x"}, "layerSelector": layer}))
                .await;
        }
        let chart = json!({"kind": "OCIRepository", "name": RELEASE});
        let values = json!({"image": {"registry": "localhost", "repository": "pulumi-controller"}});
        self.release
            .create(json!({
                "interval": "10m", "releaseName": RELEASE, "chartRef": chart, "values": values,
                "targetNamespace": "flux-system", "storageNamespace": "flux-system",
            }))
            .await;
    }

    async fn remove(&self) {
        self.release.delete().await;
    }
}

#[test]
fn a_helm_release_installs_upgrades_and_removes_the_controller() {
    run_alone(async || {
        in_scene("charts", async |scene| check("helm-release", &HelmRelease::new(scene)).await).await;
    });
}
