//! Installs the dependencies of a project, or reuses dependencies from the previous source or from other pods.

pub mod cache;
pub mod carry;
mod go_imports;
pub mod plugin_modules;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::command::{Call, CallError, Ended, Input, Stdout};
use super::environment;
use super::layout::Layout;
use super::output::PodLog;
use super::processes::RunProcesses;
use super::refusal::Refusal;
use crate::artifact::Directory;
use crate::pulumi::failure::{installation, rate_limit};
use crate::pulumi::install::{Files, InstallPlan, ProjectInSource, plugins};
use crate::pulumi::project::Project;
use crate::pulumi::{arguments, install as pulumi_install};
use crate::rpc::proto::EnvironmentVariable;

use carry::is_directory;

/// Timeout for the first attempt to install dependencies. Each failed attempt doubles the timeout, so that a large
/// installation can complete over a slow connection, and an installation that hangs is repeated early.
const FIRST_INSTALL_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum timeout for an installation.
const MAX_INSTALL_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Timeout for listing the plugins that a project uses.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of an installation input file in bytes. A large project can have a lock file of several megabytes.
const MAX_FILE: u64 = 32 * 1024 * 1024;

/// Cause of a failed installation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{0}")]
    Environment(#[from] Refusal),
    #[error("`pulumi install` failed: {0}")]
    Call(#[from] CallError),
    /// The message contains advice and the cause of the failure, which the agent finds in the redacted output.
    #[error("`pulumi install` failed: {message}")]
    Failed {
        message: String,
        /// Minimum time before the next attempt, because a server limits the number of requests.
        retry_after: Option<Duration>,
    },
    /// The controller has requested another source, or the agent is shutting down. All processes of the installation
    /// have exited.
    #[error("the installation was canceled")]
    Stopped,
}

/// Runs `pulumi install` in the directory of a project or policy pack, and copies the command's output to the pod log.
///
/// The installation runs at the final path of the project, because virtual environments and links to local packages
/// contain absolute paths. `failures` is the number of failed attempts.
pub async fn install(
    layout: &Layout,
    directory: &Path,
    desired: &[EnvironmentVariable],
    failures: u32,
    stop: &CancellationToken,
) -> Result<(), InstallError> {
    let command = Command { arguments: arguments::install(), limit: install_timeout(failures), stdout: Stdout::Logged };
    let ended = command.run(layout, directory, desired, stop).await?;
    if ended.exit.success() {
        return Ok(());
    }
    let (stdout, stderr) = (ended.stdout.text(), ended.stderr.text());
    let message = installation::message(&stdout, &stderr);
    let message = if message.is_empty() { ended.describe_exit() } else { message };
    let retry_after = rate_limit::retry_after([stdout.as_str(), stderr.as_str()].into_iter());
    Err(InstallError::Failed { message, retry_after })
}

fn install_timeout(failures: u32) -> Duration {
    FIRST_INSTALL_TIMEOUT.saturating_mul(2_u32.saturating_pow(failures)).min(MAX_INSTALL_TIMEOUT)
}

/// Returns the directory names of the CLI plugins that the installed project in `directory` uses. After an error,
/// returns the reason.
pub async fn used_plugins(
    layout: &Layout,
    directory: &Path,
    desired: &[EnvironmentVariable],
    stop: &CancellationToken,
) -> Result<BTreeSet<String>, String> {
    let command = Command { arguments: arguments::project_plugins(), limit: LIST_TIMEOUT, stdout: Stdout::Captured };
    let ended = command.run(layout, directory, desired, stop).await.map_err(|error| match error {
        InstallError::Call(error) => error.to_string(),
        error => error.to_string(),
    })?;
    if !ended.exit.success() {
        return Err(ended.describe_exit());
    }
    plugins::parse(&ended.captured).map_err(|error| error.to_string())
}

/// CLI command of an installation.
struct Command {
    arguments: Vec<OsString>,
    limit: Duration,
    stdout: Stdout,
}

impl Command {
    /// Runs the command until all its processes have exited.
    async fn run(
        self,
        layout: &Layout,
        directory: &Path,
        desired: &[EnvironmentVariable],
        stop: &CancellationToken,
    ) -> Result<Ended, InstallError> {
        let environment = environment::build(layout, desired)?;
        let call = Call {
            arguments: self.arguments,
            directory,
            environment: &environment.variables,
            operation: &operation(layout),
            log: PodLog { name: "install".to_owned(), redactor: environment.redactor(), transcript: None },
            input: Input::None,
            stdout: self.stdout,
            begun: &|_| {},
        };
        let end = async {
            match tokio::time::timeout(self.limit, stop.cancelled()).await {
                Ok(()) => InstallError::Stopped,
                Err(_) => CallError::Timeout(self.limit).into(),
            }
        };
        call.run_until(end).await
    }
}

/// Terminates the processes of an installation that a previous agent has started.
pub async fn end_leftover_processes(layout: &Layout) {
    RunProcesses::new(&operation(layout), Vec::new()).end().await;
}

/// Returns the ID that marks the processes of an installation. The ID is constant, because a workspace runs at most one
/// installation at a time.
fn operation(layout: &Layout) -> String {
    format!("install-{}", layout.root().display())
}

/// Plans the installation of a project in an unpacked source. `cli` is the CLI version, or empty if the version is
/// unknown.
pub fn plan(tree: &Path, directory: &Directory, project: &Project, cli: &str) -> InstallPlan {
    let project_in_source = ProjectInSource { project, directory: Path::new(directory.as_str()) };
    let mut files = Files::new();
    let mut unreadable = None;
    for path in pulumi_install::files(project_in_source) {
        match read(&tree.join(&path)) {
            Ok(Some(content)) => {
                files.insert(path, content);
            }
            Ok(None) => {}
            Err(error) => unreadable = Some(format!("failed to read {}: {error}", path.display())),
        }
    }
    let imports = match go_imports::of_module(tree, project_in_source, &files) {
        Ok(imports) => imports,
        Err(error) => {
            unreadable = Some(format!("failed to read the imports of the Go files: {error}"));
            BTreeSet::new()
        }
    };
    let mut plan = pulumi_install::plan(project_in_source, &files, &imports, cli);
    plan.contains_trees = plan.trees.iter().any(|path| exists(&tree.join(path)));
    // The agent does not move a directory from the previous source if the new source already contains this directory.
    plan.trees.retain(|path| {
        !exists(&tree.join(path)) && path.parent().is_none_or(|parent| is_directory(&tree.join(parent)))
    });
    plan.reinstall_reason = unreadable.or(plan.reinstall_reason);
    plan
}

fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Returns the content of a file, or `None` if the file does not exist.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        // `NotADirectory` means that a parent directory in the path is a file.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("file exceeds {MAX_FILE} bytes")));
    }
    Ok(Some(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(files: &[&str]) -> InstallPlan {
        let tree = tempfile::tempdir().unwrap();
        for path in files {
            let path = tree.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{}").unwrap();
        }
        let project = Project::parse(Path::new("Pulumi.yaml"), "name: a\nruntime: nodejs").unwrap();
        plan(tree.path(), &"infra".parse().unwrap(), &project, "v3.259.0")
    }

    #[test]
    fn each_failed_attempt_doubles_the_timeout_of_an_installation() {
        let minutes = [0, 1, 3, 4, 99].map(|failures| install_timeout(failures).as_secs() / 60);
        assert_eq!(minutes, [15, 30, 120, 240, 240]);
    }

    #[test]
    fn install_inputs_are_read_up_to_the_root_and_vendored_trees_are_kept() {
        let alone = planned(&["infra/package.json", "package-lock.json"]);
        assert_eq!(alone.reinstall_reason, None);
        assert_eq!(alone.trees, [Path::new("infra/node_modules"), Path::new("node_modules")]);
        let vendored = planned(&["infra/package.json", "package-lock.json", "infra/node_modules/a/package.json"]);
        assert_eq!(vendored.trees, [Path::new("node_modules")]);
        assert!(!alone.contains_trees && vendored.contains_trees);
        let odd = planned(&["infra/package.json", "package-lock.json/inner"]);
        assert!(odd.reinstall_reason.is_some_and(|why| why.contains("failed to read package-lock.json")));
    }

    #[test]
    fn only_imports_and_module_files_affect_the_installation_of_a_go_module() {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &str| {
            let path = tree.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        };
        let key = || {
            let project = Project::parse(Path::new("Pulumi.yaml"), "name: a\nruntime: go").unwrap();
            let plan = plan(tree.path(), &"infra".parse().unwrap(), &project, "v3.259.0");
            assert_eq!(plan.reinstall_reason, None);
            plan.installed.key
        };
        write("go.mod", "module a");
        write("go.sum", "");
        write("infra/main.go", "package main\n\nimport \"fmt\"\n");
        let first = key();
        write("infra/main.go", "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println() }\n");
        write("README.md", "text");
        for ignored in ["vendor", "testdata", "node_modules", ".git"] {
            write(&format!("{ignored}/x.go"), "import \"ignored.example\"");
        }
        assert_eq!(key(), first);
        write("library/library.go", "package library\n\nimport \"b.example\"\n");
        assert_ne!(key(), first, "go mod tidy reads all packages of the module");
        write("library/library.go", "package library\n");
        assert_eq!(key(), first);
        write("shared.txt", "package library\n\nimport \"b.example\"\n");
        std::os::unix::fs::symlink("../shared.txt", tree.path().join("library/shared.go")).unwrap();
        assert_ne!(key(), first, "the Go command follows links to files");
        std::fs::remove_file(tree.path().join("library/shared.go")).unwrap();
        write("go.sum", "b.example v1.0.0 h1:x");
        assert_ne!(key(), first);
    }
}
