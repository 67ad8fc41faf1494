//! Tests components that programs in other languages use.

use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use super::{below, destroy, first_outputs, go_modules, npm, program_files, stack, template};
use crate::harness::languages::IMAGE;
use crate::harness::{File, Scene, run};

/// Command that installs the component's dependencies in the directory `greetings`.
const NPM_INSTALL: &str = "cd /share/workspace/greetings && npm install";
const PIP_INSTALL: &str =
    "cd /share/workspace/greetings && python3 -m venv venv && venv/bin/pip install --requirement requirements.txt";

/// Adds an init container that waits until the source is in the pod, and then runs a script.
fn prepare(stack: &mut Stack, script: &str) {
    let container = json!({
        "name": "component",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "env": template(stack)["env"],
        "volumeMounts": [{"name": "share", "mountPath": "/share"}],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    template(stack)["podTemplate"] = json!({"spec": {"initContainers": [container]}});
}

/// Pushes a program that uses a component, and checks the program's output. For a YAML program, the CLI installs the
/// component's dependencies.
async fn check(scene: &Scene, files: &[File], script: Option<&str>, expected: &str) {
    let source = scene.source("app").await;
    let commit = source.push(files).await;
    let mut stack = stack(scene, &source);
    if let Some(script) = script {
        prepare(&mut stack, script);
    }
    let main = scene.start(stack).await;
    assert_eq!(first_outputs(&main, &commit).await, json!({"text": expected}));
    destroy(&main).await;
}

/// Adds the TypeScript component and its packages to a program.
fn with_typescript_component(files: Vec<File>) -> Vec<File> {
    let own = program_files("component-typescript");
    let shared = npm("npm").into_iter().filter(|file| own.iter().all(|other| other.path != file.path)).collect();
    [files, below("greetings", [shared, own].concat())].concat()
}

fn with_python_component(files: Vec<File>) -> Vec<File> {
    [files, below("greetings", program_files("component-python"))].concat()
}

#[test]
fn a_yaml_program_uses_a_component_in_typescript() {
    run("component-ts", async |scene| {
        let files = with_typescript_component(program_files("component-user-yaml"));
        check(scene, &files, None, "typescript greets yaml").await;
    });
}

#[test]
fn a_yaml_program_uses_a_component_in_python() {
    run("component-py", async |scene| {
        let files = with_python_component(program_files("component-user-yaml"));
        check(scene, &files, None, "python greets yaml").await;
    });
}

#[test]
fn a_typescript_program_uses_a_component_in_python() {
    run("component-user-ts", async |scene| {
        let files = with_python_component([npm("npm"), program_files("component-user-typescript")].concat());
        check(scene, &files, Some(PIP_INSTALL), "python greets typescript").await;
    });
}

#[test]
fn a_python_program_uses_a_component_in_typescript() {
    run("component-user-py", async |scene| {
        let files = with_typescript_component(program_files("component-user-python"));
        check(scene, &files, Some(NPM_INSTALL), "typescript greets python").await;
    });
}

#[test]
fn a_go_program_uses_a_component_in_typescript() {
    run("component-user-go", async |scene| {
        let files = with_typescript_component([go_modules("go"), program_files("component-user-go")].concat());
        check(scene, &files, Some(NPM_INSTALL), "typescript greets go").await;
    });
}
