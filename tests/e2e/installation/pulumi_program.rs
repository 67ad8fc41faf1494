//! Installs Flux and the packaged Helm chart with the program of the example `pulumi-yaml-install`.

use std::path::{Path, PathBuf};

use super::helm::package;
use super::{Installer, NAMESPACE, check, project_path};
use crate::harness::{Environment, kubectl, run_alone, run_program, run_with_cleanup};

const STACK: &str = "production";

struct PulumiProgram {
    /// The program, the manifests of Flux, the chart packages and the state backend.
    folder: tempfile::TempDir,
}

impl PulumiProgram {
    async fn new() -> PulumiProgram {
        let program = PulumiProgram { folder: tempfile::tempdir().expect("a temporary directory") };
        program.write("flux.yaml", &flux_manifests());
        program.write_program("0.1.0");
        std::fs::create_dir(program.folder.path().join("state")).expect("a directory for the state");
        program.pulumi(&["stack", "init", STACK]).await;
        program
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.folder.path().join(name), content).expect("a file of the program");
    }

    /// Writes the program of the example with this version of the chart, the image of the test, and one replica, which
    /// the harness expects.
    fn write_program(&self, version: &str) {
        let example = project_path("examples/pulumi-yaml-install/Pulumi.yaml");
        let example = std::fs::read_to_string(example).expect("the program of the example");
        let program = example
            .replace("replicaCount: 2", "replicaCount: 1")
            .replace("version: 0.1.0", &format!("version: {version}"))
            .replace("values:\n", "values:\n        image: {registry: localhost, repository: pulumi-controller}\n");
        assert!(program.contains("registry: localhost"), "the program sets values of the chart: {program}");
        self.write("Pulumi.yaml", &program);
    }

    async fn pulumi(&self, arguments: &[&str]) -> String {
        let folder = self.folder.path().display().to_string();
        let backend = format!("PULUMI_BACKEND_URL=file://{folder}/state");
        let command =
            [&backend, "PULUMI_CONFIG_PASSPHRASE=test", "PULUMI_SKIP_UPDATE_CHECK=1", "pulumi", "-C", &folder];
        run_program("env", &[&command, arguments].concat(), "").await
    }
}

impl Installer for PulumiProgram {
    async fn apply(&self, image: &str) {
        let package = package(self.folder.path(), image).await;
        let (_, version) = package.trim_end_matches(".tgz").rsplit_once('-').expect("a package with a version");
        self.write_program(version);
        let settings = ["config", "set-all", "--plaintext", "fluxManifests=flux.yaml", "--plaintext"];
        self.pulumi(&[&settings[..], &[&format!("chart={package}")]].concat()).await;
        self.pulumi(&["up", "--yes", "--skip-preview"]).await;
        assert_eq!(self.pulumi(&["stack", "output", "status"]).await.trim(), "deployed");
    }

    async fn remove(&self) {
        self.pulumi(&["state", "unprotect", "--all", "--yes"]).await;
        self.pulumi(&["destroy", "--yes", "--skip-preview"]).await;
        let deployments = kubectl(&["--namespace", NAMESPACE, "get", "deployments", "--output", "name"], "").await;
        assert!(deployments.contains("/source-controller"), "the program keeps Flux: {deployments}");
        uninstall_flux().await;
    }
}

/// Deletes the Flux controllers, and keeps their definitions, which other tests need.
async fn uninstall_flux() {
    let selector = "app.kubernetes.io/part-of=flux";
    kubectl(&["--namespace", NAMESPACE, "delete", "deployments", "--selector", selector], "").await;
}

/// Returns the manifests of Flux, with the definitions that the test cluster contains.
fn flux_manifests() -> String {
    let read = |name: &str| std::fs::read_to_string(flux_file(name)).expect("the manifests of Flux");
    ["namespace.yaml", "crds.yaml", "controllers.yaml"].map(read).join("\n---\n")
}

fn flux_file(name: &str) -> PathBuf {
    Path::new(&Environment::get().flux_components).with_file_name(name)
}

#[test]
fn a_pulumi_program_installs_upgrades_and_removes_the_controller() {
    run_alone(async || {
        uninstall_flux().await;
        let test = async || check("pulumi-program", &PulumiProgram::new().await).await;
        run_with_cleanup(test, async || {
            let controllers = flux_file("controllers.yaml").display().to_string();
            kubectl(&["apply", "--server-side", "--force-conflicts", "--filename", &controllers], "").await;
        })
        .await;
    });
}
