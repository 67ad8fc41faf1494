//! Installs a release's OCI artifact with an OCIRepository and a Flux Kustomization.

use serde_json::json;

use super::{Installer, check, manifest_files, project_path};
use crate::harness::{FluxObject, OciRepository, Scene, in_scene, run_alone, run_program};

struct OciArtifact<'a> {
    repository: OciRepository<'a>,
    kustomization: FluxObject<'a>,
}

impl<'a> OciArtifact<'a> {
    fn new(scene: &'a Scene) -> OciArtifact<'a> {
        let kustomization =
            scene.source_object("kustomize.toolkit.fluxcd.io", "Kustomization", "kustomizations", "controller");
        OciArtifact { repository: scene.oci_repository("manifests"), kustomization }
    }
}

impl Installer for OciArtifact<'_> {
    async fn apply(&self, image: &str) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let output = folder.path().display().to_string();
        let build = project_path("deploy/manifests/build").display().to_string();
        run_program(&build, &["--image", image, "--output", &output], "").await;
        self.repository.push(&manifest_files(&folder.path().join("oci"))).await;
        if !self.kustomization.exists().await {
            let source = json!({"kind": "OCIRepository", "name": self.repository.object.name});
            let path = "./kustomize/overlays/flux-system";
            let spec = json!({"interval": "10m", "path": path, "prune": true, "wait": true, "sourceRef": source});
            self.kustomization.create(spec).await;
        }
    }

    async fn remove(&self) {
        self.kustomization.delete().await;
    }
}

#[test]
fn flux_installs_upgrades_and_removes_the_controller_of_an_oci_artifact() {
    run_alone(async || {
        in_scene("manifests", async |scene| check("oci-artifact", &OciArtifact::new(scene)).await).await;
    });
}
