//! Repository in a temporary directory. The tests create the repository with the program `git`.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A working copy. The servers serve the working copy's `.git` directory.
pub struct Repository {
    directory: TempDir,
}

impl Repository {
    /// Creates an empty repository.
    pub fn empty() -> Self {
        Self::init(&["init", "--quiet", "--initial-branch=main", "app"])
    }

    /// Creates an empty repository with SHA-256 object IDs.
    pub fn sha256() -> Self {
        Self::init(&["init", "--quiet", "--initial-branch=main", "--object-format=sha256", "app"])
    }

    /// Creates a repository with a project on `main`.
    pub fn with_project() -> Self {
        let repository = Self::empty();
        repository.write("Pulumi.yaml", "name: app\nruntime: yaml\n");
        repository.commit();
        repository
    }

    fn init(arguments: &[&str]) -> Self {
        let repository = Repository { directory: TempDir::new().unwrap() };
        git(repository.root(), arguments);
        for (key, value) in [("http.receivepack", "true"), ("uploadpack.allowAnySHA1InWant", "true")] {
            repository.git(&["config", key, value]);
        }
        repository
    }

    /// Returns the root directory for servers, which contains the repository in the subdirectory `app`.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("app")
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn make_executable(&self, name: &str) {
        std::fs::set_permissions(self.path().join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn link(&self, name: &str, target: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// Commits all files, and returns the hash of the commit.
    pub fn commit(&self) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "a change"]);
        self.head()
    }

    pub fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"])
    }

    pub fn git(&self, arguments: &[&str]) -> String {
        git(&self.path(), arguments)
    }
}

/// Runs `git` without the settings and the identity of the user who runs the tests.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    for (name, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "Test"),
        ("GIT_AUTHOR_EMAIL", "test@example.com"),
        ("GIT_COMMITTER_NAME", "Test"),
        ("GIT_COMMITTER_EMAIL", "test@example.com"),
    ] {
        command.env(name, value);
    }
    let output = command.output().unwrap_or_else(|error| panic!("`git` failed to start: {error}"));
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`git {}` failed: {problem}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
