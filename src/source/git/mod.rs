//! Git repositories that the controller follows itself: one question per repository, however many Stacks want the same of it.
//!
//! [`wanted`] makes sense of a Stack's fields; [`Git::look`] says what the repository has, from memory. Behind it a task for each
//! repository (`follow`) asks the server, at the pace of the Stack that asks most often, and fetches a commit once somebody needs it.
//!
//! What a server sends is never read here: `child` starts a process with limits for each question, each fetch and each packing
//! (`worker`, `remote`, `http`, `ssh`, `pack_index`, `content`), and takes a short answer and an archive from it.

mod access;
mod addresses;
mod budget;
mod cache;
mod child;
mod clients;
mod content;
mod credentials;
mod error;
mod github_app;
mod http;
mod known_hosts;
mod limits;
mod origin;
mod pack_index;
mod paths;
mod poller;
mod question;
mod reference;
mod remote;
mod request;
mod semver_range;
mod settings;
mod shared;
mod slots;
mod spec;
mod ssh;
mod url;
mod wildcards;
mod worker;
mod workspace_source;

use std::fmt;
use std::sync::{Arc, Mutex};

use futures::channel::mpsc;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::artifact::Store;
use crate::source::git::clients::Clients;
use crate::source::git::github_app::Tokens;
use crate::source::git::shared::Shared;
use crate::source::{Resolved, Unavailable};

pub use budget::Pace;
pub use child::most_memory;
pub use error::GitError;
pub use limits::Limits;
pub use origin::Origin;
pub use question::{Follower, Known, Question};
pub use settings::Settings;
pub use slots::Slots;
pub use spec::{Key, RepositorySpec, field, interval, names_git, wanted};
pub use worker::work_on_stdin;
pub use workspace_source::of_workspace;

/// How many Stacks may wait to be woken; who has more waits until there is room.
const WAITING: usize = 1024;

/// Follows repositories. Cheap to clone; all clones share what they know.
#[derive(Clone)]
pub struct Git(Arc<Shared>);

impl fmt::Debug for Git {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Git").finish_non_exhaustive()
    }
}

impl Git {
    /// Nothing is followed yet. The stream is of the Stacks that are to look again. The working directory has to be there.
    pub fn new(
        client: Client,
        store: Store,
        settings: Settings,
        tasks: TaskTracker,
        end: CancellationToken,
    ) -> (Self, mpsc::Receiver<Follower>) {
        let (wake, woken) = mpsc::channel(WAITING);
        let shared = Shared {
            client,
            clients: Clients::of_environment(),
            tokens: Tokens::default(),
            store,
            settings,
            wake,
            tasks,
            end,
            answers: Mutex::default(),
        };
        (Git(Arc::new(shared)), woken)
    }

    /// What a repository has for a Stack, as far as it is known. A Stack that is told to wait is woken once there is more, and
    /// whenever the answer is another one.
    pub fn look(
        &self,
        follower: &Follower,
        wanted: &RepositorySpec,
        question: &Question,
    ) -> Result<Resolved, Unavailable> {
        let mut answers = self.0.lock();
        if answers.enlist(follower, wanted, question) {
            let (shared, key) = (Arc::clone(&self.0), Arc::new(wanted.key.clone()));
            self.0.tasks.spawn(async move { shared.follow(&key).await });
        }
        let resolved = answers.answer(follower, wanted, question)?;
        // What was fetched for this reference is the follower's; what only its status says is not.
        if answers.is_fetched(&wanted.key, &resolved.digest) {
            let granted = self.0.store.grant(&resolved.digest, &follower.0);
            granted.map_err(|error| Unavailable::NotYet(format!("cannot keep what was fetched: {error}")))?;
        }
        Ok(resolved)
    }

    /// The bytes of an artifact are gone: they are fetched again, and who waits for them is woken.
    pub fn fetch_again(&self, origin: &Origin) {
        self.0.lock().fetch_again(origin);
    }

    /// A Stack follows no repository, or not any more.
    pub fn forget(&self, follower: &Follower) {
        self.0.lock().forget(follower);
    }
}

/// Makes the working directory, without what an earlier process left in it.
///
/// # Errors
/// The disk refuses.
pub fn prepare(directory: &std::path::Path) -> Result<(), GitError> {
    let failed = |cause: std::io::Error| GitError::disk(directory, &cause);
    match std::fs::remove_dir_all(directory) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => return Err(failed(cause)),
        _ => {}
    }
    std::fs::create_dir_all(directory).map_err(failed)
}
