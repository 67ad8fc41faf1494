//! Compares the patch for the Argo CD ConfigMap with the health check files that the patch must contain.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{expect_file, root};

/// Patch content that precedes the health checks.
const HEADER: &str = "\
# Generated from the files health.lua in this directory: change those, then run `make generate`.
apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
data:
";

/// Maps each key that Argo CD reads from the ConfigMap to the health check script for this key.
fn health_checks() -> Result<BTreeMap<String, String>> {
    let mut checks = BTreeMap::new();
    for group in std::fs::read_dir(root().join("config/argocd"))? {
        let group = group?;
        if !group.file_type()?.is_dir() {
            continue;
        }
        for kind in std::fs::read_dir(group.path())? {
            let kind = kind?;
            let path = kind.path().join("health.lua");
            let script = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let [group, kind] = [group.file_name(), kind.file_name()].map(|name| name.to_string_lossy().into_owned());
            checks.insert(format!("resource.customizations.health.{group}_{kind}"), script);
        }
    }
    Ok(checks)
}

#[test]
fn the_argo_cd_patch_contains_every_health_check() -> Result<()> {
    let checks = health_checks()?;
    assert!(!checks.is_empty(), "config/argocd has no health checks");
    let mut expected = HEADER.to_owned();
    for (key, script) in &checks {
        let lines = script.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") });
        expected.push_str(&format!("  {key}: |\n{}", lines.collect::<String>()));
    }
    expect_file(&root().join("config/argocd/argocd-cm.yaml"), &expected)?;
    let patch: Value = serde_saphyr::from_str(&expected)?;
    assert_eq!(patch["data"], json!(checks));
    Ok(())
}
