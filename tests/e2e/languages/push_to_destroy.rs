//! Tests each language from the first push until the Stack is deleted.

use pulumi_controller::api::conditions::stack_reason;
use serde_json::json;

use super::{
    destroy, first_outputs, go_modules, installations, npm, outputs_of, program_files, replaced, set_config, stack,
    until_message,
};
use crate::harness::{File, Scene, is_stalled, run};

/// A program in one language.
struct Language {
    name: &'static str,
    /// Files of the program. The program's outputs are the configuration values `greeting` and `password`, and
    /// `version` with the value `one`.
    files: Vec<File>,
    /// Path of the program's main file.
    path: &'static str,
    /// Name of a program in `programs/` with an error in line 3.
    broken: &'static str,
    /// Start of the message that reports this error.
    error: &'static str,
}

fn typescript() -> Language {
    Language {
        name: "typescript",
        files: [npm("npm"), program_files("typescript")].concat(),
        path: "index.ts",
        broken: "typescript-broken",
        error: "index.ts line 3: error TS2322: Type 'string' is not assignable to type 'number'.",
    }
}

fn python() -> Language {
    Language {
        name: "python",
        files: program_files("python"),
        path: "__main__.py",
        broken: "python-broken",
        error: "__main__.py line 3: KeyError: 'http'",
    }
}

fn go() -> Language {
    Language {
        name: "go",
        files: [go_modules("go"), program_files("go")].concat(),
        path: "main.go",
        broken: "go-broken",
        error: "main.go line 3: undefined: undefined",
    }
}

async fn check(scene: &Scene, language: &Language) {
    let source = scene.source(language.name).await;
    let version = |version: &str| replaced(&language.files, language.path, "\"one\"", &format!("\"{version}\""));
    let first = source.push(&language.files).await;
    let mut stack = stack(scene, &source);
    set_config(&mut stack, "greeting", "hello");
    stack.spec.secrets = [("password".to_owned(), "hunter22".to_owned())].into();
    let main = scene.start(stack).await;
    let outputs = first_outputs(&main, &first).await;
    assert_eq!(outputs, json!({"greeting": "hello", "password": "[secret]", "version": "one"}));
    assert_eq!(installations(&main).await, 1);

    let second = source.push(&version("two")).await;
    assert_eq!(outputs_of(&main, &second).await["version"], json!("two"));
    assert_eq!(installations(&main).await, 1, "a commit without changed dependencies installs nothing");

    let without_program = language.files.iter().filter(|file| file.path != language.path).cloned();
    source.push(&without_program.chain(program_files(language.broken)).collect::<Vec<_>>()).await;
    let (failed, message) = until_message(&main, language.error).await;
    assert!(message.lines().next().is_some_and(|line| line.contains(language.error)), "{message}");
    assert!(!is_stalled(&failed, stack_reason::WORKSPACE_FAILED), "{message}");

    let third = source.push(&version("three")).await;
    assert_eq!(outputs_of(&main, &third).await["version"], json!("three"));
    let log = main.pod_log("pulumi").await;
    assert!(!log.contains("hunter22"), "the log contains the secret: {log}");
    destroy(&main).await;
}

#[test]
fn a_typescript_program_runs_from_push_to_destroy() {
    run("typescript", async |scene| check(scene, &typescript()).await);
}

#[test]
fn a_python_program_runs_from_push_to_destroy() {
    run("python", async |scene| check(scene, &python()).await);
}

#[test]
fn a_go_program_runs_from_push_to_destroy() {
    run("go", async |scene| check(scene, &go()).await);
}
