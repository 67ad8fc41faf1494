//! Checks the manifests in `examples` and in the documentation without a cluster. The manifests must protect production
//! resources from an unintended destroy, use fixed image versions, and set the intervals of Stacks and sources.
//! `tests/e2e/examples` runs the examples.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a missing prerequisite fails the test"
)]

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A manifest in an example or in the documentation.
struct Manifest {
    path: PathBuf,
    object: Value,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.flat_map(|path| if path.is_dir() { files(&path, extension) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Returns the content of the `yaml` blocks in a document.
fn yaml_blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n```yaml\n").skip(1).map(|after| after.split("\n```").next().unwrap())
}

fn parse(path: &Path, text: &str) -> Vec<Manifest> {
    let documents = format!("\n{text}\n");
    // The file Chart.yaml of a Helm chart has an `apiVersion` and no `kind`.
    let is_object = |document: &&str| document.contains("apiVersion: ") && document.contains("kind: ");
    let documents = documents.split("\n---\n").filter(is_object);
    let parse = |document: &str| {
        let object = serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Manifest { path: path.to_owned(), object }
    };
    documents.map(parse).collect()
}

fn examples() -> Vec<Manifest> {
    files(&root().join("examples"), "yaml").iter().flat_map(|path| parse(path, &read(path))).collect()
}

/// Guides with complete manifests. The manifests in other guides contain only the fields that are relevant to the
/// guide.
const COMPLETE_GUIDES: [&str; 3] =
    ["docs/guides/flux-bootstrap.md", "docs/guides/without-flux.md", "docs/installation.md"];

/// Returns the manifests from all documents below a directory.
fn documented(folder: &str) -> Vec<Manifest> {
    files(&root().join(folder), "md").iter().flat_map(|path| of_document(path)).collect()
}

fn of_document(path: &Path) -> Vec<Manifest> {
    yaml_blocks(&read(path)).flat_map(|text| parse(path, text)).collect()
}

/// Returns the complete manifests, without Stack patches.
fn examples_and_guides() -> Vec<Manifest> {
    let mut manifests = examples();
    for guide in COMPLETE_GUIDES {
        manifests.extend(of_document(&root().join(guide)));
    }
    manifests.retain(|manifest| manifest.object["kind"] != "Stack" || !manifest.object["spec"]["stack"].is_null());
    manifests
}

#[test]
fn every_stack_and_source_has_an_interval() {
    let mut checked = 0;
    for Manifest { path, object } in examples_and_guides() {
        let fields: &[&str] = match (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap()) {
            ("pulumi.com/v1", "Stack") | ("kustomize.toolkit.fluxcd.io/v1", "Kustomization") => {
                &["interval", "retryInterval"]
            }
            (_, "GitRepository" | "OCIRepository" | "Bucket" | "HelmRelease") => &["interval"],
            _ => continue,
        };
        for field in fields {
            assert!(object["spec"][field].is_string(), "{}: {} without {field}", path.display(), object["kind"]);
        }
        checked += 1;
    }
    assert!(checked > 25, "found only {checked} Stacks and sources");
}

#[test]
fn no_production_stack_is_destroyed_by_mistake() {
    let mut checked = 0;
    for Manifest { path, object } in examples_and_guides() {
        let stack = object["spec"]["stack"].as_str().unwrap_or_default();
        if object["kind"] == "Stack" && stack.ends_with("production") {
            let destroy = &object["spec"]["destroyOnFinalize"];
            assert_eq!(destroy, &Value::Bool(false), "{}: destroyOnFinalize of {stack}", path.display());
            checked += 1;
        }
    }
    assert!(checked >= 4, "found only {checked} production Stacks");
}

/// Flux prunes objects that the fleet repository no longer contains, so the production Stack needs an annotation that
/// disables pruning.
#[test]
fn flux_does_not_prune_the_production_stack() {
    let path = root().join("examples/flux-bootstrap/apps/production/web.yaml");
    let mut protected = 0;
    for Manifest { object, .. } in
        parse(&path, &read(&path)).iter().chain(&of_document(&root().join(COMPLETE_GUIDES[0])))
    {
        if object["kind"] == "Stack" && object["spec"]["fluxSource"].is_object() {
            let annotation = &object["metadata"]["annotations"]["kustomize.toolkit.fluxcd.io/prune"];
            assert_eq!(annotation, "disabled", "{object:#}");
            protected += 1;
        }
    }
    assert_eq!(protected, 2, "the Stack in the example and in the guide");
}

#[test]
fn every_destroy_on_finalize_has_a_comment() {
    let mut found = 0;
    for path in files(&root().join("examples"), "yaml") {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[1].starts_with("destroyOnFinalize: true")) {
            assert!(pair[0].starts_with('#'), "{}: no comment about the destruction", path.display());
            found += 1;
        }
    }
    assert!(found > 5, "found only {found} fields");
}

fn images<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("image").and_then(Value::as_str));
            fields.values().for_each(|value| images(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| images(value, found)),
        _ => {}
    }
}

/// The workspace pod image must contain the CLI version that the tests use, because the tests check the documented
/// outputs only with this version.
#[test]
fn every_image_has_a_fixed_version() {
    let modules = read(&root().join("tests/cluster/tools/common/go.mod"));
    let version = modules.split("github.com/pulumi/pulumi/pkg/v3 v").nth(1).unwrap().split_whitespace().next().unwrap();
    let expected = format!("pulumi/pulumi:{version}-nonroot");
    let mut checked = 0;
    let manifests: Vec<Manifest> = examples().into_iter().chain(documented("docs")).collect();
    for Manifest { path, object } in &manifests {
        let mut found = Vec::new();
        images(object, &mut found);
        for image in found {
            let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
            assert!(tag.contains(|c: char| c.is_ascii_digit()), "{}: {image} has no version", path.display());
            if image.starts_with("pulumi/pulumi:") {
                assert_eq!(image, expected, "{}", path.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 15, "found only {checked} images");
    assert!(read(&root().join("README.md")).contains(&format!("image: {expected}\n")), "README.md: {expected}");
}

/// The Flux Operator does not support kustomize components, so its example repeats the patches of the component.
#[test]
fn the_flux_instance_has_the_patches_of_the_notifications_component() {
    let manifest = |path: &str| parse(&root().join(path), &read(&root().join(path))).remove(0).object;
    let component = manifest("kustomize/components/notifications/kustomization.yaml");
    let instance = manifest("examples/flux-operator/fluxinstance.yaml");
    assert!(component["patches"].is_array());
    assert_eq!(instance["spec"]["kustomize"]["patches"], component["patches"]);
}

/// Parts of commands that need no `--namespace` flag. These commands select cluster-scoped objects or all namespaces,
/// use a manifest that contains the namespace, or do not use the cluster.
const WITHOUT_NAMESPACE: [&str; 10] = [
    " --all-namespaces",
    " customresourcedefinition/",
    " -f application.yaml",
    " -f cluster-role.yaml",
    "flux push artifact ",
    "kubectl create namespace ",
    "kubectl delete crd ",
    "kubectl delete namespace ",
    "kubectl kustomize ",
    "kubectl label namespace ",
];

/// The result of a command must not depend on the kubeconfig context's namespace.
#[test]
fn every_command_of_an_example_names_its_namespace() {
    let mut checked = 0;
    for path in files(&root().join("examples"), "md") {
        let text = read(&path).replace("\\\n", " ");
        let blocks = text.split("\n```sh\n").skip(1).map(|after| after.split("\n```").next().unwrap());
        let commands = blocks.flat_map(str::lines).flat_map(|line| line.split("&&"));
        let commands = commands.flat_map(|command| command.split("$(")).flat_map(|command| command.split('|'));
        for command in commands.map(str::trim) {
            if !["flux ", "helm ", "kubectl "].iter().any(|program| command.starts_with(program)) {
                continue;
            }
            let is_complete = [" --namespace ", " -n "].iter().any(|flag| command.contains(flag))
                || WITHOUT_NAMESPACE.iter().any(|part| command.contains(part));
            assert!(is_complete, "{}: no namespace in `{command}`", path.display());
            checked += 1;
        }
    }
    assert!(checked > 200, "found only {checked} commands");
}
