//! Tests Node.js and Python package managers, and virtual environment names. After a commit that does not change the
//! dependencies, the agent must install nothing.

use serde_json::{Value, json};

use super::{destroy, first_outputs, installations, outputs_of, packages, program_files, replaced, stack};
use crate::harness::{File, Scene, run};

/// Pushes a program whose output `commit` is `one`, and then the same program with a different output.
async fn check(scene: &Scene, files: &[File], path: &str, expected: Value) {
    let source = scene.source("app").await;
    let first = source.push(files).await;
    let main = scene.start(stack(scene, &source)).await;
    let mut outputs = first_outputs(&main, &first).await;
    assert_eq!(outputs.as_object_mut().and_then(|outputs| outputs.remove("commit")), Some(json!("one")));
    assert_eq!(outputs, expected);
    assert_eq!(installations(&main).await, 1);

    let second = source.push(&replaced(files, path, "\"one\"", "\"two\"")).await;
    assert_eq!(outputs_of(&main, &second).await["commit"], json!("two"));
    assert_eq!(installations(&main).await, 1, "the dependencies are unchanged");
    destroy(&main).await;
}

/// Returns a program whose dependencies this Node.js package manager installs from the lock file.
fn node_program(manager: &str, lock: &str) -> Vec<File> {
    let shared = packages("npm-extended", &["package.json", "tsconfig.json", lock]);
    replaced(&[shared, program_files("managers-typescript")].concat(), "Pulumi.yaml", "MANAGER", manager)
}

#[test]
fn pnpm_installs_from_its_lock_file() {
    run("pnpm", async |scene| {
        let files = node_program("pnpm", "pnpm-lock.yaml");
        check(scene, &files, "index.ts", json!({"manager": "pnpm"})).await;
    });
}

#[test]
fn yarn_installs_from_its_lock_file() {
    run("yarn", async |scene| {
        let files = node_program("yarn", "yarn.lock");
        check(scene, &files, "index.ts", json!({"manager": "yarn"})).await;
    });
}

/// Returns a program whose dependencies a Python package manager installs. `options` are the runtime options in
/// `Pulumi.yaml`.
fn python_program(options: &str, dependencies: Vec<File>) -> Vec<File> {
    let project = format!("name: managers\nruntime:\n  name: python\n  options: {{{options}}}\n");
    let project = File { path: "Pulumi.yaml".to_owned(), content: project };
    [dependencies, program_files("managers-python"), vec![project]].concat()
}

fn python_outputs(environment: &str, is_of_uv: bool) -> Value {
    json!({"environment": environment, "uv": is_of_uv, "version": "1.17.0"})
}

#[test]
fn poetry_installs_from_its_lock_file() {
    run("poetry", async |scene| {
        let files = python_program("toolchain: poetry", packages("poetry", &["pyproject.toml", "poetry.lock"]));
        check(scene, &files, "__main__.py", python_outputs(".venv", false)).await;
    });
}

#[test]
fn uv_installs_from_its_lock_file() {
    run("uv", async |scene| {
        let files = python_program("toolchain: uv", packages("uv", &["pyproject.toml", "uv.lock"]));
        check(scene, &files, "__main__.py", python_outputs(".venv", true)).await;
    });
}

#[test]
fn a_virtual_environment_with_another_name_is_used() {
    run("virtualenv", async |scene| {
        let content = "pulumi==3.259.0\nsix==1.17.0\n".to_owned();
        let requirements = File { path: "requirements.txt".to_owned(), content };
        let files = python_program("virtualenv: environment", vec![requirements]);
        check(scene, &files, "__main__.py", python_outputs("environment", false)).await;
    });
}
