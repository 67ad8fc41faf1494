//! A copy of the project, in which a test edits an example and runs the example's commands.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{Environment, GIT_ENVIRONMENT};

/// Total timeout of the commands in one code block. The commands in the READMEs have shorter timeouts.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(960);

/// Directories to which the examples' commands refer.
const DIRECTORIES: [&str; 3] = ["config", "examples", "kustomize"];

/// Copy of the project. Each test has its own copy, so the commands start in a fresh directory.
pub struct Project {
    root: TempDir,
    example: PathBuf,
}

impl Project {
    /// Copies the project. The copy is a Git repository with a remote, like a clone.
    pub async fn with_example(name: &str) -> Project {
        let root = tempfile::tempdir().expect("a temporary directory for the project");
        for directory in DIRECTORIES {
            copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory), &root.path().join(directory));
        }
        let example = root.path().join("examples").join(name);
        let project = Project { root, example };
        project
            .bash(
                "git -C ../.. init --quiet --initial-branch=main
                git -C ../.. remote add origin https://git.example.com/project.git
                git -C ../.. commit --quiet --allow-empty --message 'The project'",
            )
            .await;
        project
    }

    pub fn example(&self) -> &Path {
        &self.example
    }

    /// Applies `change` to the text of every manifest below `examples`.
    pub fn edit_manifests(&self, change: impl Fn(&str) -> String) {
        for file in manifests(&self.root.path().join("examples")) {
            let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            std::fs::write(&file, change(&text)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
    }

    /// Runs commands in the example's directory, and returns their stdout. The commands use the cluster's tools, and
    /// ignore the settings of the user who runs the tests.
    pub async fn bash(&self, commands: &str) -> String {
        let environment = Environment::get();
        // If a command fails, the trap terminates `kubectl port-forward`, which would otherwise keep stdout open.
        let script = format!("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{commands}");
        let mut command = tokio::process::Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &script]).current_dir(&self.example).env_clear();
        let replacements = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/examples/bin");
        command.env("PATH", format!("{}:{}", replacements.display(), std::env::var("PATH").unwrap_or_default()));
        command.env("KUBECONFIG", std::env::var_os("KUBECONFIG").unwrap_or_default());
        let variables = [
            ("HOME", self.root.path().to_str().expect("the path of a temporary directory is UTF-8")),
            ("AWS_ENDPOINT_URL", environment.s3_url.as_str()),
            ("AWS_ACCESS_KEY_ID", environment.s3_access_key.as_str()),
            ("AWS_SECRET_ACCESS_KEY", environment.s3_secret_key.as_str()),
        ];
        command.envs(GIT_ENVIRONMENT).envs(variables).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(BLOCK_TIMEOUT, command.output())
            .await
            .unwrap_or_else(|_| panic!("these commands did not end within {BLOCK_TIMEOUT:?}:\n{commands}"))
            .unwrap_or_else(|error| panic!("bash failed to start: {error}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "these commands failed:\n{commands}\n{error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn manifests(folder: &Path) -> Vec<PathBuf> {
    let paths = entries(folder);
    let files = paths.flat_map(|path| if path.is_dir() { manifests(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    for path in entries(from) {
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

pub fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("listing {}: {error}", folder.display()));
    entries.map(|entry| entry.expect("a directory can be listed").path())
}
