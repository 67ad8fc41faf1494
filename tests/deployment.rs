//! Checks the release manifests. The Deployment must have enough memory and disk space for the default flags. The
//! network policy in the overlay `single-namespace` must permit no traffic from pods that a tenant can create. Flux
//! must not delete the CustomResourceDefinitions, and all objects must have the label for their removal. The component
//! `notifications` must match the CustomResourceDefinitions of Flux. The test uses the kustomize files, because
//! `deploy/manifests/build` changes only the image.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a missing prerequisite fails the test")]

mod required_programs;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pulumi_controller::cli::{CommandLine, ManagerFlags, Role};
use pulumi_controller::controller::stack;
use pulumi_controller::source::git;

/// Memory that the controller process needs, in bytes. The value is one third higher than the measured memory with ten
/// thousand Stacks (`docs/performance.md`).
const OWN_MEMORY: u64 = 384 << 20;

fn pod() -> PodSpec {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/kustomize/base/deployment.yaml");
    let deployment: Deployment = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    deployment.spec.unwrap().template.spec.unwrap()
}

fn bytes(quantity: &Quantity) -> u64 {
    let text = quantity.0.as_str();
    let units = [("Gi", 1 << 30), ("Mi", 1 << 20)];
    let (number, unit) = units.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit))).unwrap();
    number.parse::<u64>().unwrap() * unit
}

fn default_flags() -> ManagerFlags {
    match CommandLine::parse_from(["pulumi-controller"]).into_role() {
        Role::Manager(flags) => flags,
        other => panic!("expected the manager role, got {other:?}"),
    }
}

/// If a container exceeds its memory limit, the kernel can kill all processes in the container. The sum of the
/// controller's memory and its child processes' memory limits must therefore be below the container's limit.
#[test]
fn the_memory_limit_covers_all_child_processes() {
    let container = pod().containers.into_iter().next().unwrap();
    let limit = bytes(container.resources.unwrap().limits.unwrap().get("memory").unwrap());
    let needed = OWN_MEMORY + git::max_memory() + stack::max_memory();
    assert!(limit >= needed, "the memory limit is {} MiB, but {} MiB may be required", limit >> 20, needed >> 20);
}

/// The kubelet evicts a pod if a volume exceeds its size limit.
#[test]
fn the_volume_limit_covers_artifacts_fetched_repositories_and_the_history() {
    let data = pod().volumes.unwrap().into_iter().find(|volume| volume.name == "data").unwrap();
    let limit = bytes(&data.empty_dir.unwrap().size_limit.unwrap());
    let flags = default_flags();
    let needed =
        flags.storage_size + git::Limits::default().volume_bytes(flags.artifact_max_size) + flags.history_max_size;
    assert!(limit >= needed, "the volume limit is {} MiB, but {} MiB may be required", limit >> 20, needed >> 20);
}

fn read_manifest<K: serde::de::DeserializeOwned>(path: &str) -> K {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn selected<'a>(peer: &'a NetworkPolicyPeer, label: &str) -> Option<&'a str> {
    let selector = if label == "app" { peer.pod_selector.as_ref() } else { peer.namespace_selector.as_ref() };
    selector?.match_labels.as_ref()?.get(label).map(String::as_str)
}

/// A tenant can set any label on its own pods. The policy must therefore permit only a namespace in which tenants
/// cannot create pods.
#[test]
fn only_the_controller_namespace_can_reach_flux_storage() {
    let overlay = "kustomize/overlays/single-namespace";
    let namespace = |part: &str| -> String {
        let kustomization: serde_json::Value = read_manifest(&format!("{overlay}/{part}/kustomization.yaml"));
        kustomization["namespace"].as_str().unwrap().to_owned()
    };
    let (controllers, teams) = (namespace("controller"), namespace("rights"));
    assert_ne!(controllers, teams);
    let policy: NetworkPolicy = read_manifest(&format!("{overlay}/network-policy.yaml"));
    assert_eq!(policy.metadata.namespace.as_deref(), Some("flux-system"));
    let rules = policy.spec.unwrap().ingress.unwrap();
    let peers: Vec<_> = rules.iter().map(|rule| rule.from.as_deref().unwrap_or_default()).collect();
    assert!(!peers.is_empty() && peers.iter().all(|from| !from.is_empty()), "no rule allows all peers: {rules:?}");
    for peer in peers.into_iter().flatten() {
        assert_eq!(selected(peer, "kubernetes.io/metadata.name"), Some(controllers.as_str()), "{peer:?}");
        assert_eq!(selected(peer, "app"), Some("pulumi-controller"), "{peer:?}");
    }
}

fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    assert!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn kustomize(folder: &Path) -> String {
    stdout(Command::new("kubectl").arg("kustomize").arg(folder))
}

const OVERLAYS: [&str; 6] = ["default", "flux-system", "multi-tenant", "no-flux", "sharded", "single-namespace"];

/// If Flux deleted a CustomResourceDefinition, Kubernetes would delete all objects of its kind.
#[test]
fn flux_never_deletes_the_definitions_of_an_overlay() {
    if !required_programs::has_programs("the annotations of the CustomResourceDefinitions", &["kubectl"]) {
        return;
    }
    for overlay in OVERLAYS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kustomize/overlays").join(overlay);
        let manifests = kustomize(&folder);
        let definitions = manifests.matches("\nkind: CustomResourceDefinition\n").count();
        let protected = manifests.matches("\n    kustomize.toolkit.fluxcd.io/prune: disabled\n").count();
        let expected = if overlay == "single-namespace" { 0 } else { 6 };
        assert_eq!([definitions, protected], [expected; 2], "{overlay}");
    }
}

/// Returns the served versions of a definition, with the values that the schema allows in the field `kind` of the items
/// of a list in `spec`.
fn allowed_kinds(definition: &serde_json::Value, list: &str) -> Vec<(String, Vec<String>)> {
    let path = format!("/schema/openAPIV3Schema/properties/spec/properties/{list}/items/properties/kind/enum");
    let versions = definition.pointer("/spec/versions").unwrap().as_array().unwrap().iter();
    let served = versions.filter(|version| version.get("served").unwrap() == true);
    let kinds = |version: &serde_json::Value| serde_json::from_value(version.pointer(&path).unwrap().clone()).unwrap();
    served.map(|version| (version.get("name").unwrap().as_str().unwrap().to_owned(), kinds(version))).collect()
}

/// Flux 2.10 serves Alerts in two versions. If the component patched only one version, the API server would reject the
/// Alerts of the other version.
#[test]
fn the_component_adds_the_kinds_to_every_version_of_the_flux_definitions() {
    if !required_programs::has_programs("the component for the definitions of Flux", &["kubectl"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let component = root.join("kustomize/components/notifications");
    let own = ["Stack", "Workspace", "Update", "Program"];
    for (file, list, versions, added) in [
        ("alerts-2.9.yaml", "eventSources", &["v1beta3"][..], &own[..]),
        ("alerts-2.10.yaml", "eventSources", &["v1", "v1beta3"], &own),
        ("receivers.yaml", "resources", &["v1"], &["Stack"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("component")).unwrap();
        for path in files(&component) {
            std::fs::copy(&path, folder.path().join("component").join(path.file_name().unwrap())).unwrap();
        }
        let definition: serde_json::Value = read_manifest(&format!("tests/manifests/flux/{file}"));
        std::fs::write(folder.path().join("definition.yaml"), definition.to_string()).unwrap();
        let kustomization = "resources: [definition.yaml]\ncomponents: [component]\n";
        std::fs::write(folder.path().join("kustomization.yaml"), kustomization).unwrap();
        let built = kustomize(folder.path());
        let is_definition = |document: &&str| document.contains("\nkind: CustomResourceDefinition\n");
        let patched = built.split("\n---\n").find(is_definition).unwrap();
        let patched: serde_json::Value = serde_saphyr::from_str(patched).unwrap();
        let before = allowed_kinds(&definition, list);
        assert_eq!(before.iter().map(|(version, _)| version.as_str()).collect::<Vec<_>>(), versions, "{file}");
        let expected: Vec<(String, Vec<String>)> = before
            .into_iter()
            .map(|(version, mut kinds)| {
                kinds.extend(added.iter().map(|kind| (*kind).to_owned()));
                (version, kinds)
            })
            .collect();
        assert_eq!(allowed_kinds(&patched, list), expected, "{file}");
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The documented command that removes an installation with `kubectl` selects objects by this label.
#[test]
fn the_objects_of_the_overlays_and_components_have_the_label_for_their_removal() {
    let mut checked = 0;
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("kustomize")) {
        // kustomize adds the label to the objects in the base.
        if path.components().any(|part| part.as_os_str() == "base") {
            continue;
        }
        for document in std::fs::read_to_string(&path).unwrap().split("\n---\n") {
            let object: serde_json::Value = serde_saphyr::from_str(document).unwrap();
            if ["Component", "Kustomization", "Namespace"].iter().any(|kind| object["kind"] == *kind) {
                continue;
            }
            let label = &object["metadata"]["labels"]["app.kubernetes.io/part-of"];
            assert_eq!(label, "pulumi-controller", "{}: {}", path.display(), object["kind"]);
            checked += 1;
        }
    }
    assert!(checked > 15, "found only {checked} objects");
}

#[test]
fn the_built_manifests_differ_from_the_overlays_only_in_the_image() {
    if !required_programs::has_programs("the comparison of the built manifests with the overlays", &["kubectl"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = OVERLAYS.map(|overlay| kustomize(&root.join("kustomize/overlays").join(overlay)));
    let digest = format!("registry.example.com:5000/pulumi-controller@sha256:{}", "0".repeat(64));
    for image in ["registry.example.com/pulumi-controller:1.2", digest.as_str()] {
        let folder = tempfile::tempdir().unwrap();
        let build = root.join("deploy/manifests/build");
        stdout(Command::new(build).args(["--image", image, "--output"]).arg(folder.path()));
        for (overlay, source) in OVERLAYS.iter().zip(&sources) {
            let built = match *overlay {
                "default" => std::fs::read_to_string(folder.path().join("install.yaml")).unwrap(),
                "no-flux" => std::fs::read_to_string(folder.path().join("install-no-flux.yaml")).unwrap(),
                other => kustomize(&folder.path().join("oci/kustomize/overlays").join(other)),
            };
            assert_ne!(&built, source, "{overlay}, {image}");
            assert_eq!(built, source.replace("localhost/pulumi-controller:dev", image), "{overlay}, {image}");
        }
    }
}
