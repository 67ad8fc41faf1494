//! Fixture that consists of a repository poller and an artifact store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::Receiver;
use pulumi_controller::api::pulumi::StackSpec;
use pulumi_controller::artifact::{self, Store};
use pulumi_controller::source::git::{self, Follower, Git, Limits, Lookup, RepositorySpec, Settings};
use pulumi_controller::source::{Origin, Resolved, Unavailable};
use pulumi_controller::subprocess::Subprocess;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::secrets::Secrets;

/// Timeout for a response. The value is sufficient on a slow machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Controller {
    pub git: Git,
    pub store: Store,
    pub secrets: Secrets,
    pub directory: TempDir,
    requeued: Receiver<Follower>,
    end: CancellationToken,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl Controller {
    pub async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    /// Creates a controller that can connect to the test servers on loopback addresses.
    pub async fn with(limits: Limits) -> Self {
        Self::with_addresses(Limits { local_addresses: true, ..limits }).await
    }

    /// Creates a controller that connects only to the addresses that the limits permit.
    pub async fn with_addresses(limits: Limits) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = TempDir::new().unwrap();
        let secrets = Secrets::default();
        let store = Store::open(&directory.path().join("store"), 1 << 30).unwrap();
        let (work, trust) = (directory.path().join("work"), directory.path().join("trust"));
        let settings = Settings {
            work,
            trust,
            limits,
            artifact_limits: Default::default(),
            slots: git::Slots::default(),
            subprocess: Subprocess::of(env!("CARGO_BIN_EXE_pulumi-controller").into()),
        };
        std::fs::create_dir(directory.path().join("trust")).unwrap();
        let end = CancellationToken::new();
        git::prepare(&settings.work).unwrap();
        let client = secrets.client().await;
        let (git, requeued) = Git::new(client, store.clone(), settings, TaskTracker::new(), end.clone());
        Controller { git, store, secrets, directory, requeued, end }
    }

    /// Writes a file with CA certificates or host keys. The controller trusts the file's content for all Stacks.
    pub fn trust(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join("trust").join(name), text).unwrap();
    }

    /// Returns the current result for a Stack. Does not wait for a poll.
    pub fn immediate_result(&self, stack: &str, fields: &Value, lookup: &Lookup) -> Result<Resolved, Unavailable> {
        self.immediate_result_in("apps", stack, fields, lookup)
    }

    /// Returns the current result for a Stack in another namespace. Does not wait for a poll.
    pub fn immediate_result_in(
        &self,
        namespace: &str,
        stack: &str,
        fields: &Value,
        lookup: &Lookup,
    ) -> Result<Resolved, Unavailable> {
        let mut spec = json!({"stack": "dev"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let spec: StackSpec = serde_json::from_value(spec).unwrap();
        let repository =
            RepositorySpec::of_stack(&spec, namespace).map_err(Unavailable::Invalid)?.expect("a repository");
        self.git.resolve(&(namespace.to_owned(), stack.to_owned()), &repository, lookup)
    }

    /// Waits for the final result for a Stack. Like the real controller, reads the result again only after the poller
    /// has requeued the Stack.
    pub async fn resolve_as(&mut self, stack: &str, fields: &Value, lookup: &Lookup) -> Result<Resolved, String> {
        loop {
            match self.immediate_result(stack, fields, lookup) {
                Ok(resolved) => return Ok(resolved),
                Err(Unavailable::Resolving(what)) => self.until_requeued(stack, &what).await,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Waits for the final result for a Stack in another namespace.
    pub async fn resolve_in(&mut self, namespace: &str, stack: &str, fields: &Value) -> Result<Resolved, String> {
        loop {
            match self.immediate_result_in(namespace, stack, fields, &Lookup::default()) {
                Ok(resolved) => return Ok(resolved),
                Err(Unavailable::Resolving(what)) => self.until_requeued(stack, &what).await,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Returns the files that unfinished fetches have written.
    pub fn leftover_files(&self) -> Vec<PathBuf> {
        let directories = [self.directory.path().join("work"), self.directory.path().join("store/incoming")];
        directories
            .iter()
            .flat_map(|path| std::fs::read_dir(path).unwrap())
            .map(|entry| entry.unwrap().path())
            .collect()
    }

    pub async fn resolve(&mut self, fields: &Value) -> Result<Resolved, String> {
        self.resolve_as("app", fields, &Lookup::default()).await
    }

    /// Waits for the result after a new reconcile request.
    pub async fn resolve_now(&mut self, fields: &Value, request: &str) -> Result<Resolved, String> {
        let lookup = Lookup { request: Some(request.to_owned()), is_new: true, known: None };
        self.resolve_as("app", fields, &lookup).await
    }

    pub async fn until_requeued(&mut self, stack: &str, what: &str) {
        let requeued = async {
            while let Some((_, name)) = self.requeued.next().await {
                if name == stack {
                    return;
                }
            }
            panic!("the channel for requeued Stacks is closed");
        };
        let requeued = tokio::time::timeout(TEST_TIMEOUT, requeued).await;
        assert!(requeued.is_ok(), "{stack} was not requeued within {TEST_TIMEOUT:?}: {what}");
    }

    /// Maps the name of each file in an artifact to the file's type and its content or target.
    pub fn files(&self, resolved: &Resolved) -> BTreeMap<String, String> {
        let archive = self.store.open_artifact(&resolved.digest).unwrap().expect("stored artifact");
        let to = TempDir::new().unwrap();
        artifact::unpack(archive.file().unwrap(), to.path(), &artifact::Limits::default()).unwrap();
        let mut files = BTreeMap::new();
        describe(to.path(), to.path(), &mut files);
        files
    }
}

/// Returns the Git repository and commit from which an artifact was built.
pub fn origin(resolved: &Resolved) -> &git::Origin {
    match &resolved.origin {
        Origin::Git(origin) => origin,
        other => panic!("expected a Git origin, got {other:?}"),
    }
}

fn describe(directory: &Path, root: &Path, into: &mut BTreeMap<String, String>) {
    use std::os::unix::fs::PermissionsExt;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        if metadata.is_symlink() {
            into.insert(name, format!("-> {}", std::fs::read_link(&path).unwrap().display()));
        } else if metadata.is_dir() {
            describe(&path, root, into);
        } else {
            let content = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            let mark = if metadata.permissions().mode() & 0o111 == 0 { "" } else { "* " };
            into.insert(name, format!("{mark}{content}"));
        }
    }
}
