//! Checks the krew manifest. `deploy/release/krew` fills the template with the archives of a release. Each platform in
//! `deploy/release/plugin` must have an archive.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a missing file fails the test")]

mod required_programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const PLATFORMS: [&str; 5] = ["darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64", "windows_amd64"];

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/release").join(name)
}

fn archive(platform: &str) -> String {
    format!("kubectl-pulumi_v{VERSION}_{platform}.tar.gz")
}

/// Returns the krew manifest for a release with archives for these platforms, or the script's error.
fn manifest(platforms: &[&str]) -> Result<Value, String> {
    let files = tempfile::tempdir().unwrap();
    for platform in platforms {
        std::fs::write(files.path().join(archive(platform)), platform).unwrap();
    }
    let output = Command::new(script("krew")).arg(files.path()).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(serde_saphyr::from_str(&String::from_utf8(output.stdout).unwrap()).unwrap())
}

#[test]
fn the_manifest_contains_the_archive_and_the_digest_of_each_platform() {
    if !required_programs::has_programs("krew", &["bash", "awk", "sha256sum"]) {
        return;
    }
    let manifest = manifest(&PLATFORMS).unwrap();
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!((&manifest["kind"], &manifest["metadata"]["name"]), (&json!("Plugin"), &json!("pulumi")));
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let description = manifest["spec"]["shortDescription"].as_str().unwrap();
    assert!(description.len() <= 50, "krew recommends at most 50 characters: {description}");
    let mut found = BTreeMap::new();
    for platform in manifest["spec"]["platforms"].as_array().unwrap() {
        let labels = &platform["selector"]["matchLabels"];
        let name = format!("{}_{}", labels["os"].as_str().unwrap(), labels["arch"].as_str().unwrap());
        let releases = "https://github.com/pulumi-controller/pulumi-controller/releases/download";
        assert_eq!(platform["uri"], format!("{releases}/v{VERSION}/{}", archive(&name)));
        assert_eq!(platform["sha256"], hex::encode(Sha256::digest(name.as_bytes())));
        found.insert(name, platform["bin"].as_str().unwrap().to_owned());
    }
    let binary = |platform: &str| if platform.starts_with("windows") { "kubectl-pulumi.exe" } else { "kubectl-pulumi" };
    let expected = PLATFORMS.map(|platform| (platform.to_owned(), binary(platform).to_owned()));
    assert_eq!(found, BTreeMap::from(expected));
}

#[test]
fn a_platform_without_an_archive_is_omitted() {
    if !required_programs::has_programs("krew", &["bash", "awk", "sha256sum"]) {
        return;
    }
    let only = manifest(&["windows_amd64"]).unwrap();
    let platforms = only["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 1, "{platforms:?}");
    assert_eq!(platforms[0]["selector"]["matchLabels"]["os"], "windows");
    assert!(manifest(&[]).unwrap_err().contains("no archive of the plugin"));
}

#[test]
fn the_release_builds_each_platform_of_the_manifest() {
    let plugin = std::fs::read_to_string(script("plugin")).unwrap();
    let workflow = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows/release.yaml");
    let workflow = std::fs::read_to_string(workflow).unwrap();
    for platform in PLATFORMS {
        assert!(plugin.contains(&format!("        {platform}) ")), "deploy/release/plugin does not build {platform}");
        assert!(workflow.contains(&format!("- platform: {platform}\n")), "the workflow does not build {platform}");
    }
}
