//! Tests programs in TypeScript, Python and Go with Pulumi's language hosts and with packages from a registry in the
//! cluster.
//!
//! The suite `languages` of `tests/run` runs tests in `push_to_destroy`, and the suite `languages-all` runs all other
//! tests. `coverage.yaml` lists the test of each feature. The programs are in `programs/`.

mod components;
mod dynamic_resources;
mod failed_installations;
mod features;
mod kept_caches;
mod lock_files;
mod memory;
mod modules;
mod monorepos;
mod package_managers;
mod plugins;
mod policies;
mod push_to_destroy;
mod registries;

use std::path::{Path, PathBuf};

use pulumi_controller::api::conditions::READY;
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::harness::languages::{IMAGE, registry_variables};
use crate::harness::{Commit, File, Scene, Source, StackHandle, WaitLimit, condition};

/// First line that each installation writes to the pod log.
const INSTALLATION: &str = "install: Installing dependencies...\n";

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files of a program in `programs/`.
fn program_files(name: &str) -> Vec<File> {
    files_in(&repository().join("tests/e2e/languages/programs").join(name))
}

/// Returns the files with these names from a directory of registry packages.
fn packages(directory: &str, names: &[&str]) -> Vec<File> {
    let root = repository().join("tests/cluster/languages/packages").join(directory);
    names.iter().map(|name| read(&root, &root.join(name))).collect()
}

/// Returns `package.json`, the lock file and the TypeScript settings. `directory` is `npm` or `npm-extended`.
fn npm(directory: &str) -> Vec<File> {
    packages(directory, &["package.json", "package-lock.json", "tsconfig.json"])
}

/// Returns `go.mod` and `go.sum`. `directory` is `go`, `go-extended` or `go-older`.
fn go_modules(directory: &str) -> Vec<File> {
    packages(directory, &["go.mod", "go.sum"])
}

fn files_in(root: &Path) -> Vec<File> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for path in entries.map(|entry| entry.expect("an entry of a directory").path()) {
            if path.is_dir() { directories.push(path) } else { files.push(read(root, &path)) }
        }
    }
    files
}

fn read(root: &Path, path: &Path) -> File {
    let content = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let relative: PathBuf = path.strip_prefix(root).expect("a path below the root").to_owned();
    File { path: relative.display().to_string(), content }
}

/// Returns the files after replacing a string in the file at `path`.
fn replaced(files: &[File], path: &str, from: &str, to: &str) -> Vec<File> {
    let mut files = files.to_vec();
    let file = files.iter_mut().find(|file| file.path == path).unwrap_or_else(|| panic!("{path} does not exist"));
    assert!(file.content.contains(from), "{path} does not contain {from:?}");
    file.content = file.content.replace(from, to);
    files
}

/// Moves the files into a directory.
fn below(directory: &str, files: Vec<File>) -> Vec<File> {
    let moved = |file: File| File { path: format!("{directory}/{}", file.path), ..file };
    files.into_iter().map(moved).collect()
}

/// Returns a Stack whose pod has the language runtimes and installs packages from the in-cluster registry.
fn stack(scene: &Scene, source: &Source<'_>) -> Stack {
    let mut stack = scene.stack("main", source);
    with_languages(&mut stack);
    stack
}

fn with_languages(stack: &mut Stack) {
    template(stack)["image"] = json!(IMAGE);
    template(stack)["env"] = registry_variables();
    stack.spec.destroy_on_finalize = Some(true);
}

/// Returns the spec in a Stack's workspace template.
fn template(stack: &mut Stack) -> &mut Value {
    &mut stack.spec.workspace_template.as_mut().expect("the harness sets a template")["spec"]
}

/// Sets environment variables in the pod. A variable replaces an existing variable with the same name.
fn set_environment(stack: &mut Stack, variables: &[(&str, &str)]) {
    let list = template(stack)["env"].as_array_mut().expect("a list");
    for (name, value) in variables {
        list.retain(|variable| variable["name"] != *name);
        list.push(json!({"name": name, "value": value}));
    }
}

fn set_config(stack: &mut Stack, key: &str, value: &str) {
    stack.spec.config.insert(key.to_owned(), json!(value));
}

/// Waits until the Stack has applied a commit whose dependencies the agent must install, and returns the Stack's
/// outputs.
async fn first_outputs(main: &StackHandle<'_>, commit: &Commit) -> Value {
    outputs(&main.until_applied_within(WaitLimit::Compilation, commit).await)
}

/// Waits until the Stack has applied a commit, and returns the Stack's outputs.
async fn outputs_of(main: &StackHandle<'_>, commit: &Commit) -> Value {
    outputs(&main.until_applied(commit).await)
}

fn outputs(stack: &Stack) -> Value {
    json!(stack.status.as_ref().expect("a status").outputs)
}

/// Waits until the `Ready` condition's message contains this string, and returns the Stack and the message.
async fn until_message(main: &StackHandle<'_>, text: &str) -> (Stack, String) {
    let stack =
        main.until(&format!("to report {text:?}"), WaitLimit::Long, |stack| message(stack).contains(text)).await;
    let message = message(&stack);
    (stack, message)
}

fn message(stack: &Stack) -> String {
    condition(stack, READY).map(|ready| ready.message.clone()).unwrap_or_default()
}

/// Returns the number of installations that the pod log records.
async fn installations(main: &StackHandle<'_>) -> usize {
    main.pod_log("pulumi").await.matches(INSTALLATION).count()
}

/// Deletes the Stack, which destroys its resources.
async fn destroy(main: &StackHandle<'_>) {
    main.delete().await;
    main.until_gone().await;
}
