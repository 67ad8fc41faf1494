//! How the custom resource definitions are installed.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::run;

/// Client-side apply keeps the whole object in an annotation, which the API server limits.
#[test]
fn plain_kubectl_apply_takes_the_definitions() {
    run("install", async |_| {
        let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/crd");
        let mut kubectl = tokio::process::Command::new("kubectl");
        kubectl
            .args(["apply", "--dry-run=server", "--kustomize"])
            .arg(&definitions)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(60), kubectl.output())
            .await
            .expect("kubectl ends in a minute")
            .expect("kubectl is on the PATH that `tests/cluster/cluster exec` sets");
        let (out, problem) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl apply of {}: {out}{problem}", definitions.display());
        for definition in ["stacks.pulumi.com", "workspaces.auto.pulumi.com", "updates.auto.pulumi.com"] {
            assert!(out.contains(definition), "{definition} is applied: {out}");
        }
    });
}
