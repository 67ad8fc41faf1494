//! Generated files are what their sources say. `REGENERATE=1 cargo test --test generated` writes them anew.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use pulumi_controller::api::schema::custom_resource_definitions;

/// What a generated YAML file begins with.
const GENERATED: &str = "# Generated from the types in src/api: change those, then run `make generate`.\n";

/// The API server keeps no more than this in all annotations of an object, and `kubectl apply` keeps there what it applied.
const ANNOTATION_LIMIT: usize = 256 * 1024;

/// Compares a file with what it shall be, or writes it when asked to.
fn expect_file(path: &Path, wanted: &str) -> Result<()> {
    if std::env::var_os("REGENERATE").is_some() {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        return std::fs::write(path, wanted).with_context(|| format!("cannot write {}", path.display()));
    }
    let found = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(found == wanted, "{} is out of date: run `make generate`", path.display());
    Ok(())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_rpc_code_is_what_the_proto_says() -> Result<()> {
    let protos = root().join("src/rpc/protos");
    let descriptors = protox::compile(["agent.proto"], [&protos])?;
    let directory = tempfile::tempdir()?;
    tonic_prost_build::configure().out_dir(directory.path()).compile_fds(descriptors)?;
    let code = std::fs::read_to_string(directory.path().join("pulumi.controller.agent.v1.rs"))?;
    expect_file(&root().join("src/rpc/proto.rs"), &code)
}

/// `pulumi.com_stacks.yaml`: the name that controller-gen would give it.
fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

#[test]
fn the_resource_definitions_are_what_the_types_say_and_no_others_are_there() -> Result<()> {
    let folder = root().join("config/crd");
    let mut names = Vec::new();
    for crd in custom_resource_definitions() {
        let name = file_name(&crd);
        let yaml = serde_saphyr::to_string(&crd).with_context(|| format!("cannot write {name} as YAML"))?;
        expect_file(&folder.join(&name), &format!("{GENERATED}{yaml}"))?;
        names.push(name);
    }
    names.sort();
    expect_file(&folder.join("kustomization.yaml"), &kustomization_of(&names))?;
    assert_eq!(resource_files(&folder)?, names, "config/crd holds a file that no type stands behind");
    Ok(())
}

fn kustomization_of(names: &[String]) -> String {
    let resources: String = names.iter().map(|name| format!("  - {name}\n")).collect();
    format!("{GENERATED}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}")
}

fn resource_files(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "kustomization.yaml" {
            files.push(name);
        }
    }
    files.sort();
    Ok(files)
}

#[test]
fn the_resource_definitions_are_small_enough_for_plain_kubectl_apply() -> Result<()> {
    for crd in custom_resource_definitions() {
        let size = serde_json::to_string(&crd)?.len();
        assert!(
            size < ANNOTATION_LIMIT,
            "{} takes {size} bytes, and kubectl apply can keep {ANNOTATION_LIMIT}",
            file_name(&crd)
        );
    }
    Ok(())
}
