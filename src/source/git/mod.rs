//! Polls Git repositories. The followers of a repository are the Stacks and Workspaces that use it. Followers that
//! specify the same repository, reference and credentials share polls.
//!
//! [`RepositorySpec::of_stack`] parses a Stack's repository fields, and [`Git::resolve`] returns the cached state of a
//! repository. For each repository, an async task (`Shared::follow`) polls the server at the shortest interval that a
//! follower specifies. The task fetches a commit when a follower needs the commit.
//!
//! The controller process never parses data from a server. To query a server, and to fetch or pack a commit, `child`
//! starts a child process with resource limits. The child process runs the code in `remote`, `http`, `ssh`,
//! `pack_index` or `content`, and returns a short response. A child process that packs a commit also writes an archive.

mod budget;
mod cache;
mod child;
mod content;
mod credentials;
mod error;
mod github_app;
mod http;
mod http_client;
mod known_hosts;
mod metadata;
mod pack_index;
mod paths;
mod poller;
mod reference;
mod remote;
mod request;
mod semver_range;
mod slots;
mod spec;
mod ssh;
mod url;
mod wildcards;

use std::fmt;
use std::sync::{Arc, Mutex};

use futures::channel::mpsc;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::artifact::Store;
use crate::source::git::credentials::AccessReader;
use crate::source::git::poller::Shared;
use crate::source::{Resolved, Unavailable};

pub use budget::MinRate;
pub use cache::{Follower, KnownArtifact, Lookup};
pub use child::{max_memory, run_child};
pub use error::GitError;
pub use metadata::{directory_name, full_name, name_and_commit, repository_url};
pub use poller::Settings;
pub use request::Limits;
pub use slots::Slots;
pub use spec::{Key, Origin, RepositorySpec, field, has_git_fields, interval};

/// Capacity of the channel that yields the followers to reconcile. If the channel is full, the sender waits.
const CHANNEL_CAPACITY: usize = 1024;

/// A poller for Git repositories. Clones are cheap and share the cache.
#[derive(Clone)]
pub struct Git(Arc<Shared>);

impl fmt::Debug for Git {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Git").finish_non_exhaustive()
    }
}

impl Git {
    /// Creates a poller without repositories. The returned channel yields the followers to reconcile. The working
    /// directory in `settings` must exist.
    pub fn new(
        client: Client,
        store: Store,
        settings: Settings,
        tasks: TaskTracker,
        end: CancellationToken,
    ) -> (Self, mpsc::Receiver<Follower>) {
        let (requeue, requeued) = mpsc::channel(CHANNEL_CAPACITY);
        let access = AccessReader::new(client, settings.trust.clone(), settings.limits.local_addresses);
        let shared = Shared { access, store, settings, requeue, tasks, end, cache: Mutex::default() };
        (Git(Arc::new(shared)), requeued)
    }

    /// Returns the cached artifact of a repository for a follower. The channel yields the follower whenever the result
    /// changes, for example from [`Unavailable::Resolving`] to an artifact.
    pub fn resolve(
        &self,
        follower: &Follower,
        spec: &RepositorySpec,
        lookup: &Lookup,
    ) -> Result<Resolved, Unavailable> {
        let mut cache = self.0.lock();
        if cache.add_follower(follower, spec, lookup) {
            let (shared, key) = (Arc::clone(&self.0), Arc::new(spec.key.clone()));
            self.0.tasks.spawn(async move { shared.follow(&key).await });
        }
        let resolved = cache.resolve(follower, spec, lookup)?;
        // Grants access only if this process fetched the artifact for this reference. A digest from the follower's
        // status must not grant access.
        if cache.is_fetched(&spec.key, &resolved.digest) {
            let granted = self.0.store.grant(&resolved.digest, &follower.0);
            granted.map_err(|error| Unavailable::NotYet(format!("failed to grant access to the artifact: {error}")))?;
        }
        Ok(resolved)
    }

    /// Requests another fetch if the store no longer contains a commit's artifact. After the fetch, the channel yields
    /// the followers.
    pub fn fetch_again(&self, origin: &Origin) {
        self.0.lock().fetch_again(origin);
    }

    /// Removes a follower that no longer uses a repository.
    pub fn forget(&self, follower: &Follower) {
        self.0.lock().forget(follower);
    }
}

/// Creates an empty working directory. Removes files that an earlier process left.
///
/// # Errors
/// Fails if the directory cannot be removed or created.
pub fn prepare(directory: &std::path::Path) -> Result<(), GitError> {
    let failed = |cause: std::io::Error| GitError::disk(directory, &cause);
    match std::fs::remove_dir_all(directory) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => return Err(failed(cause)),
        _ => {}
    }
    std::fs::create_dir_all(directory).map_err(failed)
}
