//! Tests repositories in which the program depends on a package in another directory. `modules.rs` contains the test of Go.

use serde_json::json;

use super::{destroy, first_outputs, program, replaced, stack};
use crate::harness::{File, Scene, run};

/// Pushes a repository with the program in `app`, and then a change of the package only. `directory` is the directory of the project
/// file.
async fn check(scene: &Scene, files: &[File], directory: &str, path: &str) {
    let source = scene.source("app").await;
    let first = source.push(files).await;
    let mut stack = stack(scene, &source);
    stack.spec.flux_source.as_mut().expect("a source").dir = Some(directory.to_owned());
    let main = scene.start(stack).await;
    assert_eq!(first_outputs(&main, &first).await, json!({"library": "one"}));

    let second = source.push(&replaced(files, path, "\"one\"", "\"two\"")).await;
    assert_eq!(first_outputs(&main, &second).await, json!({"library": "two"}));
    destroy(&main).await;
}

#[test]
fn a_member_of_an_npm_workspace_uses_a_changed_local_package() {
    run("monorepo-ts", async |scene| check(scene, &program("monorepo-typescript"), ".", "library/index.js").await);
}

#[test]
fn a_python_program_uses_a_changed_local_package() {
    run("monorepo-py", async |scene| {
        check(scene, &program("monorepo-python"), "app", "library/greetings/__init__.py").await;
    });
}
