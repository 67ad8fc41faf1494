//! Exclusive lock of the workspace. A source installation or an operation holds the lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::refusal::Refusal;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Holder {
    #[default]
    Free,
    Source,
    Operation(String),
}

#[derive(Debug, Default)]
struct State {
    holder: Holder,
    draining: bool,
    terminating: bool,
}

/// Exclusive lock of the workspace. All clones share one lock.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceLock {
    state: Arc<Mutex<State>>,
}

/// Guard of the workspace lock. Dropping the guard releases the lock.
#[derive(Debug)]
pub struct WorkspaceGuard {
    workspace_lock: WorkspaceLock,
}

impl Drop for WorkspaceGuard {
    fn drop(&mut self) {
        self.workspace_lock.state().holder = Holder::Free;
    }
}

impl WorkspaceLock {
    /// Locks the workspace for the installation of a source.
    pub fn lock_for_source(&self) -> Result<WorkspaceGuard, Refusal> {
        let mut state = self.state();
        let is_closed = state.terminating;
        self.lock(&mut state, "install a source", Holder::Source, is_closed)
    }

    /// Locks the workspace for an operation. Returns `None` if another call already holds the lock for the same
    /// operation.
    pub fn lock_for_operation(&self, id: &str) -> Result<Option<WorkspaceGuard>, Refusal> {
        let operation = Holder::Operation(id.to_owned());
        let mut state = self.state();
        if state.holder == operation {
            return Ok(None);
        }
        let is_closed = state.terminating || state.draining;
        self.lock(&mut state, "start the operation", operation, is_closed).map(Some)
    }

    fn lock(&self, state: &mut State, what: &str, holder: Holder, is_closed: bool) -> Result<WorkspaceGuard, Refusal> {
        let reason = match &state.holder {
            _ if state.terminating && is_closed => Some("the pod is terminating".to_owned()),
            _ if is_closed => Some("the pod is draining before its replacement".to_owned()),
            Holder::Free => None,
            Holder::Source => Some("another source is being installed".to_owned()),
            Holder::Operation(id) => Some(format!("operation {id} is running")),
        };
        if let Some(reason) = reason {
            return Err(Refusal::Precondition(format!("cannot {what}: {reason}")));
        }
        state.holder = holder;
        Ok(WorkspaceGuard { workspace_lock: self.clone() })
    }

    pub fn open_operation(&self) -> Option<String> {
        match &self.state().holder {
            Holder::Operation(id) => Some(id.clone()),
            _ => None,
        }
    }

    /// Rejects new operations, but permits the installation of sources.
    pub fn drain(&self) {
        self.state().draining = true;
    }

    /// Rejects new operations and sources.
    pub fn terminate(&self) {
        self.state().terminating = true;
    }

    pub fn is_draining(&self) -> bool {
        let state = self.state();
        state.draining || state.terminating
    }

    pub fn is_terminating(&self) -> bool {
        self.state().terminating
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_has_one_holder_and_its_error_names_the_holder() {
        let workspace_lock = WorkspaceLock::default();
        let guard = workspace_lock.lock_for_operation("a").unwrap();
        assert!(
            guard.is_some() && workspace_lock.lock_for_operation("a").unwrap().is_none(),
            "the operation already holds the lock"
        );
        assert!(workspace_lock.lock_for_operation("b").unwrap_err().to_string().contains("operation a is running"));
        assert!(workspace_lock.lock_for_source().unwrap_err().to_string().contains("operation a is running"));
        assert_eq!(workspace_lock.open_operation().as_deref(), Some("a"));
        drop(guard);
        let _guard = workspace_lock.lock_for_source().unwrap();
        assert!(workspace_lock.lock_for_source().unwrap_err().to_string().contains("another source"));
        assert!(workspace_lock.lock_for_operation("b").unwrap_err().to_string().contains("another source"));
        assert_eq!(workspace_lock.open_operation(), None);
    }

    #[test]
    fn draining_prevents_new_runs_and_terminating_prevents_new_sources() {
        let workspace_lock = WorkspaceLock::default();
        workspace_lock.drain();
        workspace_lock.lock_for_operation("a").unwrap_err();
        let drained = WorkspaceLock::default();
        let _guard = drained.lock_for_operation("a").unwrap();
        drained.terminate();
        assert!(drained.lock_for_operation("a").unwrap().is_none(), "the running operation keeps its lock");
        drop(workspace_lock.lock_for_source().unwrap());
        workspace_lock.terminate();
        assert!(workspace_lock.lock_for_source().unwrap_err().to_string().contains("terminating"));
    }
}
