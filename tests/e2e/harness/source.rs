//! Git repositories, and the GitRepository objects that track these repositories. The tests push with the program
//! `git`.

use std::path::Path;
use std::process::Stdio;

use kube::{CustomResource, ResourceExt};
use pulumi_controller::api::names::ANNOTATION_REQUESTED_AT;
use pulumi_controller::api::pulumi::SourceArtifact;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::environment::Environment;
use super::program::File;
use super::scene::Scene;
use super::wait::{Poll, WaitLimit, wait_until};

/// Git environment variables that disable the settings of the user who runs the tests.
pub const GIT_ENVIRONMENT: [(&str, &str); 7] = [
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_AUTHOR_NAME", "Test"),
    ("GIT_AUTHOR_EMAIL", "test@example.com"),
    ("GIT_COMMITTER_NAME", "Test"),
    ("GIT_COMMITTER_EMAIL", "test@example.com"),
];

/// Flux GitRepository fields that the tests read.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize)]
#[kube(group = "source.toolkit.fluxcd.io", version = "v1", kind = "GitRepository", plural = "gitrepositories")]
#[kube(namespaced, schema = "disabled", status = "GitRepositoryStatus")]
pub struct GitRepositorySpec {
    #[serde(flatten)]
    pub fields: Value,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitRepositoryStatus {
    pub artifact: Option<SourceArtifact>,
    pub last_handled_reconcile_at: Option<String>,
    #[serde(default)]
    pub conditions: Vec<Value>,
}

/// A pushed commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub sha: String,
}

impl Commit {
    /// Returns the revision in the Flux format: `main@sha1:…`.
    pub fn revision(&self) -> String {
        format!("main@sha1:{}", self.sha)
    }
}

/// A repository on the test Git server, and a working copy of the repository.
pub struct Source<'a> {
    scene: &'a Scene,
    pub name: String,
    working_copy: TempDir,
}

impl<'a> Source<'a> {
    pub async fn new(scene: &'a Scene, name: &str) -> Source<'a> {
        let working_copy = tempfile::tempdir().expect("a temporary folder for a working copy");
        let source = Source { scene, name: name.to_owned(), working_copy };
        source.git(&["init", "--quiet", "--initial-branch=main"]).await;
        let remote = format!("{}/{}.git", Environment::get().git_url, source.repository());
        source.git(&["remote", "add", "origin", &remote]).await;
        source
    }

    /// Pushes the files as the entire content of `main`, and requests a reconciliation with the same annotation as a
    /// Receiver.
    pub async fn push(&self, files: &[File]) -> Commit {
        let commit = self.push_without_notification(files).await;
        match self.scene.api::<GitRepository>().get_opt(&self.name).await {
            Ok(Some(_)) => drop(self.request_reconciliation().await),
            _ => self.create_object().await,
        }
        commit
    }

    /// Pushes the files without a reconcile request to Flux, for tests in which the controller polls the repository.
    pub async fn push_without_notification(&self, files: &[File]) -> Commit {
        self.write(files);
        self.git(&["add", "--all"]).await;
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "A change made by a test"]).await;
        self.git(&["push", "--quiet", "origin", "main"]).await;
        let sha = self.git(&["rev-parse", "HEAD"]).await;
        Commit { sha }
    }

    /// Returns the in-cluster URL of the repository.
    pub fn url(&self) -> String {
        format!("{}/{}.git", Environment::get().git_url_in_cluster, self.repository())
    }

    /// Requests a GitRepository reconciliation, and returns the annotation value.
    pub async fn request_reconciliation(&self) -> String {
        let request = format!("{:?}", std::time::SystemTime::now());
        let patch = json!({"metadata": {"annotations": {ANNOTATION_REQUESTED_AT: request}}});
        self.scene.patch::<GitRepository>(&self.name, patch).await;
        request
    }

    /// Waits until Flux has handled a reconcile request.
    pub async fn until_handled(&self, request: &str) {
        self.until(&format!("to have handled the request {request}"), |status| {
            status.last_handled_reconcile_at.as_deref() == Some(request)
        })
        .await;
    }

    /// Waits until the GitRepository status contains the artifact of a commit.
    pub async fn artifact_of(&self, commit: &Commit) -> SourceArtifact {
        self.scene.until_served(&self.name, commit).await
    }

    async fn until(&self, what: &str, predicate: impl Fn(&GitRepositoryStatus) -> bool) -> GitRepositoryStatus {
        self.scene.until_git_repository(&self.name, what, predicate).await
    }

    /// Creates a GitRepository with the same name for this repository in another scene. The artifacts of both
    /// GitRepositories have the same digest.
    pub async fn track_in(&self, scene: &Scene) {
        self.create_object_in(scene).await;
    }

    async fn create_object(&self) {
        self.create_object_in(self.scene).await;
    }

    async fn create_object_in(&self, scene: &Scene) {
        let spec = json!({"url": self.url(), "interval": "1h", "timeout": "30s", "ref": {"branch": "main"}});
        let object: GitRepository = scene
            .create(json!({
                "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
                "metadata": {"name": self.name}, "spec": spec,
            }))
            .await;
        assert_eq!(object.name_any(), self.name);
    }

    /// Returns the name of the repository on the Git server. All scenes share the server, so the name contains the
    /// namespace.
    fn repository(&self) -> String {
        format!("{}-{}", self.scene.namespace, self.name)
    }

    fn write(&self, files: &[File]) {
        let root = self.working_copy.path();
        for entry in std::fs::read_dir(root).expect("the working copy can be listed").flatten() {
            if entry.file_name() != ".git" {
                remove(&entry.path());
            }
        }
        for file in files {
            let path = root.join(&file.path);
            let folder = path.parent().expect("a file of a repository is in a folder");
            std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("creating {}: {error}", folder.display()));
            std::fs::write(&path, &file.content).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
        }
    }

    /// Runs `git` without the settings, proxies and identity of the user who runs the tests.
    async fn git(&self, arguments: &[&str]) -> String {
        let mut command = tokio::process::Command::new("git");
        command
            .args(arguments)
            .current_dir(self.working_copy.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(GIT_ENVIRONMENT);
        let limit = std::time::Duration::from_secs(60);
        let output = tokio::time::timeout(limit, command.output())
            .await
            .unwrap_or_else(|_| panic!("`git {}` did not end within {limit:?}", arguments.join(" ")))
            .unwrap_or_else(|error| panic!("`git` failed to start: {error}"));
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`git {}` failed with {}: {problem}", arguments.join(" "), output.status);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Scene {
    /// Waits until the status of a GitRepository in this scene contains the commit's artifact.
    pub async fn until_served(&self, repository: &str, commit: &Commit) -> SourceArtifact {
        let revision = commit.revision();
        let is_there = |status: &GitRepositoryStatus| {
            status.artifact.as_ref().is_some_and(|artifact| artifact.revision == revision)
        };
        let status = self.until_git_repository(repository, &format!("to serve {revision}"), is_there).await;
        status.artifact.expect("the value is set")
    }

    async fn until_git_repository(
        &self,
        name: &str,
        what: &str,
        predicate: impl Fn(&GitRepositoryStatus) -> bool,
    ) -> GitRepositoryStatus {
        wait_until(format!("the GitRepository {name} {what}"), WaitLimit::Reaction, async || {
            match self.api::<GitRepository>().get(name).await {
                Ok(repository) => {
                    let status = repository.status.unwrap_or_default();
                    if predicate(&status) { Poll::Found(status) } else { Poll::NotYet(format!("{status:?}")) }
                }
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await
    }
}

fn remove(path: &Path) {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    removed.unwrap_or_else(|error| panic!("removing {}: {error}", path.display()));
}
