//! Runs all commands in the READMEs of the examples `typescript`, `python` and `go`, and compares their output with the
//! output blocks in these READMEs. The test replaces only the URLs, the credentials, the namespace and the image.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::languages::{IMAGE, registry_variables};
use crate::harness::{Environment, File, Scene, run};

/// Timeout for the commands in one block, longer than the timeouts in the READMEs.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(960);

/// Commands that the test skips, because the scene creates and deletes the namespace.
const SCENE_COMMANDS: [&str; 2] = ["kubectl create namespace ", "kubectl delete namespace "];

/// A code block in a README.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    /// `sh`: commands.
    Commands(String),
    /// `json` or `text`: the output of the previous commands.
    Output(String),
}

fn blocks(readme: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, String)> = None;
    for line in readme.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some((kind, String::new())),
            (Some((_, text)), None) => text.push_str(&format!("{line}\n")),
            (Some(_), Some(_)) => match open.take().expect("the block is open") {
                ("sh", text) => blocks.push(Block::Commands(text)),
                ("json" | "text", text) => blocks.push(Block::Output(text)),
                (kind, text) => panic!("a block of the kind {kind:?} is neither run nor compared: {text}"),
            },
            (None, None) => {}
        }
    }
    blocks
}

/// Replaces a text that occurs exactly `times` times.
fn replaced(text: &str, from: &str, to: &str, times: usize) -> String {
    assert_eq!(text.matches(from).count(), times, "{from:?} in:\n{text}");
    text.replace(from, to)
}

/// Edits a file as the README instructs.
fn edit(file: &Path, replacements: &[(&str, &str)]) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let text = replacements.iter().fold(text, |text, (from, to)| replaced(&text, from, to, 1));
    std::fs::write(file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    let entries = std::fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    for entry in entries.flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

/// Runs commands in a directory with the tools of the cluster and without the settings of the user who runs the tests.
/// Returns the standard output.
async fn bash(directory: &Path, commands: &str) -> String {
    let mut command = tokio::process::Command::new("bash");
    command.args(["-euo", "pipefail", "-c", commands]).current_dir(directory).env_clear();
    for name in ["PATH", "KUBECONFIG"] {
        command.env(name, std::env::var_os(name).unwrap_or_default());
    }
    let git = [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_AUTHOR_NAME", "Test"),
        ("GIT_AUTHOR_EMAIL", "test@example.com"),
        ("GIT_COMMITTER_NAME", "Test"),
        ("GIT_COMMITTER_EMAIL", "test@example.com"),
    ];
    command.envs(git).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(BLOCK_TIMEOUT, command.output())
        .await
        .unwrap_or_else(|_| panic!("these commands did not end within {BLOCK_TIMEOUT:?}:\n{commands}"))
        .unwrap_or_else(|error| panic!("bash failed to start: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "these commands failed:\n{commands}\n{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn run_readme(scene: &Scene, language: &str) {
    let environment = Environment::get();
    let name = format!("network-{language}");
    let url = format!("https://git.example.com/{name}.git");
    // The README assumes that the user's repository exists and has the branch `main`.
    let source = scene.source(&name).await;
    let readme = File { path: "README.md".to_owned(), content: "A repository\n".to_owned() };
    source.push_without_notification(&[readme]).await;
    let url_outside = source.url().replacen(&environment.git_url_in_cluster, &environment.git_url, 1);

    let folder = tempfile::tempdir().expect("a temporary directory for the example");
    let example = folder.path();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(language), example);
    edit(&example.join("gitrepository.yaml"), &[(&url, &source.url())]);
    let access_key = format!("AWS_ACCESS_KEY_ID: {}", environment.s3_access_key);
    let secret_key = format!("AWS_SECRET_ACCESS_KEY: {}", environment.s3_secret_key);
    let credentials =
        [("AWS_ACCESS_KEY_ID: change-me", &*access_key), ("AWS_SECRET_ACCESS_KEY: change-me", &*secret_key)];
    edit(&example.join("secret.yaml"), &credentials);
    // Each run of the test has its own state.
    let backend = environment.s3_backend_url.replacen('?', &format!("/{}?", scene.namespace), 1);
    let image = format!("      image: {IMAGE}\n      env: {}", registry_variables());
    let stack =
        [("s3://network-state?region=eu-central-1", &*backend), ("      image: pulumi/pulumi:latest-nonroot", &*image)];
    edit(&example.join("stack.yaml"), &stack);

    let readme = std::fs::read_to_string(example.join("README.md")).expect("the example has a README");
    let readme = replaced(&readme, &url, &url_outside, 1);
    let readme = readme.replace(&format!("namespace {name}"), &format!("namespace {}", scene.namespace));
    let (mut output, mut compared) = (String::new(), 0);
    for block in blocks(&readme) {
        match block {
            Block::Commands(commands) => {
                let is_of_test = |line: &&str| !SCENE_COMMANDS.iter().any(|command| line.starts_with(command));
                let commands: Vec<&str> = commands.lines().filter(is_of_test).collect();
                output = bash(example, &commands.join("\n")).await;
            }
            Block::Output(expected) => {
                assert_eq!(
                    output.trim(),
                    expected.trim(),
                    "the output differs from the README of the example {language}"
                );
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 3, "the README shows the outputs, the secret output and an error");
}

#[test]
fn readme_blocks_are_parsed_in_order() {
    let readme = "text\n\n```sh\none\ntwo\n```\n\ntext\n\n```json\n{}\n```\n```text\nthree\n```\n";
    let expected = [
        Block::Commands("one\ntwo\n".to_owned()),
        Block::Output("{}\n".to_owned()),
        Block::Output("three\n".to_owned()),
    ];
    assert_eq!(blocks(readme), expected);
}

#[test]
fn the_typescript_example_runs_as_its_readme_describes() {
    run("example-typescript", async |scene| run_readme(scene, "typescript").await);
}

#[test]
fn the_python_example_runs_as_its_readme_describes() {
    run("example-python", async |scene| run_readme(scene, "python").await);
}

#[test]
fn the_go_example_runs_as_its_readme_describes() {
    run("example-go", async |scene| run_readme(scene, "go").await);
}
