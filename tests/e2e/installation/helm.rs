//! Installs the packaged Helm chart with `helm`.

use std::path::Path;

use super::kubectl::Kubectl;
use super::{IMAGE, Installer, NAMESPACE, check, project_path};
use crate::harness::{run_alone, run_program};

const RELEASE: &str = "pulumi-controller";

/// Packages the chart into a directory, and returns the path of the package. Each image has its own chart version, as
/// in the releases of this project.
pub(super) async fn package(folder: &Path, image: &str) -> String {
    let version = if image == IMAGE { "0.1.0" } else { "0.1.1" };
    let (_, tag) = image.rsplit_once(':').expect("an image with a tag");
    let (chart, folder) = (project_path("deploy/chart").display().to_string(), folder.display().to_string());
    let arguments = ["package", &chart, "--version", version, "--app-version", tag, "--destination", &folder];
    run_program("helm", &arguments, "").await;
    format!("{folder}/pulumi-controller-{version}.tgz")
}

struct Helm {
    folder: tempfile::TempDir,
    /// Additional arguments for `helm upgrade --install`.
    arguments: &'static [&'static str],
}

impl Helm {
    fn new(arguments: &'static [&'static str]) -> Helm {
        Helm { folder: tempfile::tempdir().expect("a temporary directory"), arguments }
    }
}

impl Installer for Helm {
    async fn apply(&self, image: &str) {
        let package = package(self.folder.path(), image).await;
        let image = "image.registry=localhost,image.repository=pulumi-controller";
        let arguments = ["upgrade", "--install", RELEASE, &package, "--namespace", NAMESPACE, "--set", image];
        run_program("helm", &[&arguments, self.arguments].concat(), "").await;
    }

    async fn remove(&self) {
        run_program("helm", &["uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found"], "").await;
    }
}

#[test]
fn helm_installs_upgrades_and_removes_the_controller() {
    run_alone(async || check("helm", &Helm::new(&[])).await);
}

/// An installer that installs the first version with `kubectl`, and later versions with `helm`.
struct Takeover {
    kubectl: Kubectl,
    helm: Helm,
}

impl Installer for Takeover {
    async fn apply(&self, image: &str) {
        match image {
            IMAGE => self.kubectl.apply(image).await,
            _ => self.helm.apply(image).await,
        }
    }

    async fn remove(&self) {
        self.helm.remove().await;
        self.kubectl.remove().await;
    }
}

#[test]
fn helm_takes_over_an_installation_with_kubectl_during_a_run() {
    run_alone(async || {
        let takeover = Takeover { kubectl: Kubectl::new(), helm: Helm::new(&["--take-ownership"]) };
        check("helm-takeover", &takeover).await;
    });
}
