//! State that all clones of `Git` share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::channel::mpsc;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::artifact::Store;
use crate::source::git::cache::Cache;
use crate::source::git::clients::Clients;
use crate::source::git::github_app::Tokens;
use crate::source::git::lookup::Follower;
use crate::source::git::settings::Settings;

pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) clients: Clients,
    pub(super) tokens: Tokens,
    pub(super) store: Store,
    pub(super) settings: Settings,
    pub(super) wake: mpsc::Sender<Follower>,
    pub(super) tasks: TaskTracker,
    pub(super) end: CancellationToken,
    /// Locked for short sections only, never across an await.
    pub(super) cache: Mutex<Cache>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
