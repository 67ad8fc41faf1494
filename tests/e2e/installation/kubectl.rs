//! Installs a release's `install.yaml` file with `kubectl`.

use super::{Installer, NAMESPACE, check, project_path};
use crate::harness::{kubectl, run_alone, run_program};

pub(super) struct Kubectl {
    folder: tempfile::TempDir,
}

impl Kubectl {
    pub(super) fn new() -> Kubectl {
        Kubectl { folder: tempfile::tempdir().expect("a temporary directory") }
    }

    fn install_yaml(&self) -> String {
        self.folder.path().join("install.yaml").display().to_string()
    }
}

impl Installer for Kubectl {
    async fn apply(&self, image: &str) {
        let build = project_path("deploy/manifests/build").display().to_string();
        let folder = self.folder.path().display().to_string();
        run_program(&build, &["--image", image, "--output", &folder], "").await;
        kubectl(&["apply", "--server-side", "--filename", &self.install_yaml()], "").await;
    }

    async fn remove(&self) {
        let kinds = "deployment,serviceaccount,service,networkpolicy,configmap,role,rolebinding,clusterrole,\
                     clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding";
        let selector = "app.kubernetes.io/part-of=pulumi-controller";
        kubectl(&["--namespace", NAMESPACE, "delete", kinds, "--selector", selector], "").await;
    }
}

#[test]
fn kubectl_installs_upgrades_and_removes_the_controller() {
    run_alone(async || check("kubectl", &Kubectl::new()).await);
}
