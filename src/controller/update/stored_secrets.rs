//! Remembers the Secrets that this process has stored for completed runs. The controller reconciles a completed run
//! again when the history task completes, and must not create the same Secrets again.
//!
//! After a restart, the controller creates the Secrets again. The API server then returns the existing Secrets.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;

use crate::api::auto::Update;

/// Maximum number of runs in memory.
const MAX_RUNS: usize = 1024;

/// Secrets with the outputs and the plans of completed runs whose results are not recorded yet. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub struct StoredSecrets {
    /// Names of the Secrets, by UID of the Update. Never hold the lock across an `.await`.
    names: Arc<Mutex<HashMap<String, BTreeSet<String>>>>,
}

impl StoredSecrets {
    /// Returns whether this process has stored the Secret of the run.
    pub(super) fn contains(&self, update: &Update, name: &str) -> bool {
        let uid = update.uid().unwrap_or_default();
        self.names().get(&uid).is_some_and(|names| names.contains(name))
    }

    /// Records that the Secret of the run exists. Call this method only after the API server has confirmed the Secret.
    pub(super) fn insert(&self, update: &Update, name: String) {
        let mut names = self.names();
        if names.len() >= MAX_RUNS {
            // The controller then creates the Secrets of these runs again, which has no effect.
            names.clear();
        }
        names.entry(update.uid().unwrap_or_default()).or_default().insert(name);
    }

    /// Removes the Secrets of a run whose result is recorded.
    pub(super) fn forget(&self, uid: &str) {
        self.names().remove(uid);
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, BTreeSet<String>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
