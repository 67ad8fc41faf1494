//! The current source and the candidate that will replace it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::candidate::Candidate;
use super::record::CurrentSource;
use crate::agent::layout::Layout;
use crate::agent::settings::Settings;
use crate::agent::version::CliVersion;
use crate::agent::workspace_lock::WorkspaceLock;

/// Puts sources in place.
pub struct Source {
    pub(super) layout: Layout,
    pub(super) workspace_lock: WorkspaceLock,
    pub(super) settings: Arc<Settings>,
    pub(super) boot_id: String,
    pub(super) state: Mutex<State>,
    /// Cancels the candidate when the agent ends.
    pub(super) stop: CancellationToken,
    /// Tasks that put sources in place.
    pub tasks: TaskTracker,
    pub version: CliVersion,
    /// Whether dependencies are installed. The init container has no CLI to install them.
    pub(super) installs: bool,
}

/// The current source and the candidate that will replace it.
#[derive(Default)]
pub(super) struct State {
    pub(super) current_source: Option<CurrentSource>,
    pub(super) candidate: Option<Arc<Candidate>>,
}

impl Source {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
