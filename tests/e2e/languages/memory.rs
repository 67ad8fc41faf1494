//! Tests the memory limits that the documentation recommends for the container `pulumi`. With these limits, the
//! installation of a program with few dependencies, its first run, and a run after a code change must succeed.

use serde_json::json;

use super::{
    destroy, first_outputs, go_modules, npm, outputs_of, program_files, replaced, set_config, stack, template,
};
use crate::harness::{File, Scene, run};

async fn check(scene: &Scene, files: &[File], path: &str, limit: &str) {
    let source = scene.source("app").await;
    let first = source.push(files).await;
    let mut stack = stack(scene, &source);
    template(&mut stack)["resources"]["limits"] = json!({"memory": limit});
    set_config(&mut stack, "greeting", "hello");
    stack.spec.secrets = [("password".to_owned(), "hunter22".to_owned())].into();
    let main = scene.start(stack).await;
    assert_eq!(first_outputs(&main, &first).await["version"], json!("one"));
    let second = source.push(&replaced(files, path, "\"one\"", "\"two\"")).await;
    assert_eq!(outputs_of(&main, &second).await["version"], json!("two"));
    let (_, restarts) = main.pod_and_restarts().await;
    assert_eq!(restarts, 0, "no container exceeded its limit");
    assert_eq!(main.updates().await.len(), 2, "no run was repeated");
    destroy(&main).await;
}

#[test]
fn a_typescript_run_needs_at_most_512_mebibytes() {
    run("memory-ts", async |scene| {
        check(scene, &[npm("npm"), program_files("typescript")].concat(), "index.ts", "512Mi").await;
    });
}

#[test]
fn a_python_run_needs_at_most_256_mebibytes() {
    run("memory-py", async |scene| check(scene, &program_files("python"), "__main__.py", "256Mi").await);
}

/// The Go compiler uses most of the memory.
#[test]
fn a_go_run_needs_at_most_1280_mebibytes() {
    run("memory-go", async |scene| {
        check(scene, &[go_modules("go"), program_files("go")].concat(), "main.go", "1280Mi").await;
    });
}
