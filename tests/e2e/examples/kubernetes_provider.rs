//! Tests the examples that need Pulumi's Kubernetes provider. The suite `kubernetes` of `tests/run` runs these
//! tests.

use super::project::Project;
use super::{Example, test};
use crate::harness::Scene;

pub static EXAMPLES: [Example; 7] = [
    Example::new("kubernetes-go", "web", 2).with_repository("web-go").with_languages().with_kubernetes_provider(),
    Example::new("kubernetes-helm", "web", 1).with_kubernetes_provider(),
    Example::new("kubernetes-patch", "web", 2).with_kubernetes_provider().without_repository(),
    Example::new("kubernetes-python", "web", 2)
        .with_repository("web-python")
        .with_languages()
        .with_kubernetes_provider(),
    Example::new("kubernetes-stacks", "teams", 1).with_kubernetes_provider().without_repository(),
    Example::new("kubernetes-typescript", "web", 2)
        .with_repository("web-typescript")
        .with_languages()
        .with_kubernetes_provider(),
    Example::new("kubernetes-yaml", "web", 5).with_kubernetes_provider().without_repository(),
];

/// Copies the project, and edits the manifests of the example in this directory for the scene.
pub async fn prepare(scene: &Scene, directory: &str) -> Project {
    let example = EXAMPLES.iter().find(|example| example.directory == directory).expect("an example with this name");
    example.prepare(scene).await
}

#[test]
fn kubernetes_go() {
    test(&EXAMPLES, "kubernetes-go");
}

#[test]
fn kubernetes_helm() {
    test(&EXAMPLES, "kubernetes-helm");
}

#[test]
fn kubernetes_patch() {
    test(&EXAMPLES, "kubernetes-patch");
}

#[test]
fn kubernetes_python() {
    test(&EXAMPLES, "kubernetes-python");
}

#[test]
fn kubernetes_stacks() {
    test(&EXAMPLES, "kubernetes-stacks");
}

#[test]
fn kubernetes_typescript() {
    test(&EXAMPLES, "kubernetes-typescript");
}

#[test]
fn kubernetes_yaml() {
    test(&EXAMPLES, "kubernetes-yaml");
}
