//! Tests the Node.js module systems and Go programs. The CLI builds a Go program to a selected path, or runs an
//! existing executable.

use serde_json::json;

use super::{destroy, first_outputs, go_modules, npm, outputs_of, program_files, replaced, stack};
use crate::harness::{File, run};

/// Returns a program with the packages in `directory`. The lines in `manifest` replace `main` in `package.json`.
fn node_program(name: &str, directory: &str, manifest: &str) -> Vec<File> {
    let own = program_files(name);
    let shared = npm(directory).into_iter().filter(|file| own.iter().all(|other| other.path != file.path));
    let files: Vec<File> = shared.chain(own.clone()).collect();
    replaced(&files, "package.json", "\"main\": \"index.ts\"", manifest)
}

#[test]
fn javascript_and_typescript_programs_run_as_commonjs_and_es_modules() {
    run("modules", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&node_program("modules-javascript", "npm", "\"main\": \"index.js\"")).await;
        let main = scene.start(stack(scene, &source)).await;
        assert_eq!(first_outputs(&main, &first).await, json!({"project": "modules", "system": "commonjs"}));

        let manifest = "\"main\": \"index.js\",\n  \"type\": \"module\"";
        let second = source.push(&node_program("modules-es", "npm", manifest)).await;
        assert_eq!(first_outputs(&main, &second).await, json!({"project": "modules", "system": "es module"}));

        let manifest = "\"main\": \"index.ts\",\n  \"type\": \"module\"";
        let third = source.push(&node_program("modules-typescript", "npm-extended", manifest)).await;
        let expected = json!({"project": "modules", "system": "typescript es module"});
        assert_eq!(first_outputs(&main, &third).await, expected);
        destroy(&main).await;
    });
}

/// Path of the executable that the program's runtime options contain.
const EXECUTABLE: &str = "/tmp/pulumi-program";

/// Returns a repository with the program in `app`. The program's `go.mod` replaces a required module with the directory
/// `library`.
fn go_repository(text: &str) -> Vec<File> {
    let module = "module pulumi-controller.test/packages";
    let local = "module pulumi-controller.test/app\n\nrequire pulumi-controller.test/library v0.0.0\n\nreplace \
                 pulumi-controller.test/library => ../library";
    let modules = super::below("app", replaced(&go_modules("go"), "go.mod", module, local));
    replaced(&[modules, program_files("build-go")].concat(), "library/library.go", "\"one\"", &format!("\"{text}\""))
}

#[test]
fn go_programs_use_build_target_binary_and_a_local_module() {
    run("build-go", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&go_repository("first")).await;
        let main = scene.start(stack(scene, &source)).await;
        assert_eq!(first_outputs(&main, &first).await, json!({"executable": EXECUTABLE, "library": "first"}));

        let second = source.push(&go_repository("second")).await;
        let expected = json!({"executable": EXECUTABLE, "library": "second"});
        assert_eq!(outputs_of(&main, &second).await, expected, "the program is built with the changed module");

        let prebuilt = replaced(&go_repository("third"), "Pulumi.yaml", "buildTarget:", "binary:");
        let third = source.push(&prebuilt).await;
        assert_eq!(outputs_of(&main, &third).await, expected, "the executable runs and nothing is built");
        destroy(&main).await;
    });
}
