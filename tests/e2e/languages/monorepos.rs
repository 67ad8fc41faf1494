//! Tests repositories in which the program depends on a package in another directory. `modules.rs` also tests a local
//! Go module.

use serde_json::json;

use super::{below, destroy, first_outputs, go_modules, program_files, replaced, stack};
use crate::harness::{File, Scene, run};

/// Pushes a repository with the program in `app`, and then a change that affects only the package. `directory` is the
/// directory that contains the project file.
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
    run("monorepo-ts", async |scene| {
        check(scene, &program_files("monorepo-typescript"), ".", "library/index.js").await;
    });
}

#[test]
fn a_python_program_uses_a_changed_local_package() {
    run("monorepo-py", async |scene| {
        check(scene, &program_files("monorepo-python"), "app", "library/greetings/__init__.py").await;
    });
}

/// The project file is in the program directory, and the lock file is in the root directory.
#[test]
fn a_project_in_an_npm_workspace_directory_uses_a_changed_package() {
    run("monorepo-ts-app", async |scene| {
        let mut files = program_files("monorepo-typescript");
        files.retain(|file| file.path != "Pulumi.yaml");
        let project =
            File { path: "app/Pulumi.yaml".to_owned(), content: "name: monorepo\nruntime: nodejs\n".to_owned() };
        files.push(project);
        check(scene, &files, "app", "library/index.js").await;
    });
}

#[test]
fn a_go_project_in_a_subdirectory_uses_a_changed_local_module() {
    run("monorepo-go", async |scene| {
        let files = below("app", go_modules("go"));
        let local = "module pulumi-controller.test/app\n\nrequire pulumi-controller.test/library v0.0.0\n\nreplace \
                     pulumi-controller.test/library => ../library";
        let files = replaced(&files, "app/go.mod", "module pulumi-controller.test/packages", local);
        check(scene, &[files, program_files("monorepo-go")].concat(), "app", "library/library.go").await;
    });
}
