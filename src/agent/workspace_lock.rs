//! Exclusive lock of the workspace: held either by a source that is being put in place or by an operation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::refusal::Refusal;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Holder {
    #[default]
    Nobody,
    Source,
    Operation(String),
}

#[derive(Debug, Default)]
struct State {
    occupant: Holder,
    draining: bool,
    terminating: bool,
}

/// The lock of the workspace. Clones share the same lock.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceLock {
    state: Arc<Mutex<State>>,
}

/// Holds the workspace lock until it is dropped.
#[derive(Debug)]
pub struct WorkspaceGuard {
    workspace_lock: WorkspaceLock,
}

impl Drop for WorkspaceGuard {
    fn drop(&mut self) {
        self.workspace_lock.state().occupant = Holder::Nobody;
    }
}

impl WorkspaceLock {
    /// Locks the workspace to put a source in place.
    pub fn enter_source(&self) -> Result<WorkspaceGuard, Refusal> {
        let mut state = self.state();
        let is_closed = state.terminating;
        self.enter(&mut state, "put a source in place", Holder::Source, is_closed)
    }

    /// Locks the workspace for an operation. Returns `None` if another call has locked it for the same operation.
    pub fn enter_operation(&self, id: &str) -> Result<Option<WorkspaceGuard>, Refusal> {
        let operation = Holder::Operation(id.to_owned());
        let mut state = self.state();
        if state.occupant == operation {
            return Ok(None);
        }
        let is_closed = state.terminating || state.draining;
        self.enter(&mut state, "start the operation", operation, is_closed).map(Some)
    }

    fn enter(
        &self,
        state: &mut State,
        what: &str,
        occupant: Holder,
        is_closed: bool,
    ) -> Result<WorkspaceGuard, Refusal> {
        let hindrance = match &state.occupant {
            _ if state.terminating && is_closed => Some("the pod is being terminated".to_owned()),
            _ if is_closed => Some("the pod is drained: it is about to be replaced".to_owned()),
            Holder::Nobody => None,
            Holder::Source => Some("another source is being put in place".to_owned()),
            Holder::Operation(id) => Some(format!("operation {id} is open")),
        };
        if let Some(hindrance) = hindrance {
            return Err(Refusal::Precondition(format!("cannot {what}: {hindrance}")));
        }
        state.occupant = occupant;
        Ok(WorkspaceGuard { workspace_lock: self.clone() })
    }

    pub fn open_operation(&self) -> Option<String> {
        match &self.state().occupant {
            Holder::Operation(id) => Some(id.clone()),
            _ => None,
        }
    }

    /// Refuses new operations.
    pub fn drain(&self) {
        self.state().draining = true;
    }

    /// Refuses new operations and sources.
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
    fn the_lock_admits_one_holder_and_its_error_names_the_holder() {
        let workspace_lock = WorkspaceLock::default();
        let pass = workspace_lock.enter_operation("a").unwrap();
        assert!(pass.is_some() && workspace_lock.enter_operation("a").unwrap().is_none(), "it is in already");
        assert!(workspace_lock.enter_operation("b").unwrap_err().to_string().contains("operation a is open"));
        assert!(workspace_lock.enter_source().unwrap_err().to_string().contains("operation a is open"));
        assert_eq!(workspace_lock.open_operation().as_deref(), Some("a"));
        drop(pass);
        let _pass = workspace_lock.enter_source().unwrap();
        assert!(workspace_lock.enter_source().unwrap_err().to_string().contains("another source"));
        assert!(workspace_lock.enter_operation("b").unwrap_err().to_string().contains("another source"));
        assert_eq!(workspace_lock.open_operation(), None);
    }

    #[test]
    fn a_drained_lock_admits_sources_and_a_terminating_lock_admits_nothing() {
        let workspace_lock = WorkspaceLock::default();
        workspace_lock.drain();
        workspace_lock.enter_operation("a").unwrap_err();
        let drained = WorkspaceLock::default();
        let _pass = drained.enter_operation("a").unwrap();
        drained.terminate();
        assert!(drained.enter_operation("a").unwrap().is_none(), "it goes on");
        drop(workspace_lock.enter_source().unwrap());
        workspace_lock.terminate();
        assert!(workspace_lock.enter_source().unwrap_err().to_string().contains("terminated"));
    }
}
