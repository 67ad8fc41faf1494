//! Operations that `Run` calls are starting. The journal does not contain such an operation yet, but the operation can
//! still begin.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::cancellation::CancelRequest;

/// Maximum number of operations whose start is prevented. The oldest entries are dropped first, because an unread call
/// for an old operation is unlikely.
const MAX_PREVENTED: usize = 256;

/// Operations that `Run` calls are starting. All clones share the operations.
#[derive(Clone, Debug, Default)]
pub struct StartingOperations {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Operations that `Run` calls are starting, by ID.
    operations: BTreeMap<String, StartingOperation>,
    /// IDs of the operations whose start is prevented, oldest first. A restart of the agent can drop these IDs, because
    /// the new agent rejects all calls for the previous agent.
    prevented: VecDeque<String>,
}

#[derive(Debug)]
struct StartingOperation {
    /// Number of open `Run` calls for the operation.
    calls: usize,
    cancel_request: watch::Sender<CancelRequest>,
}

/// Guard of a `Run` call. The operation is registered until the guards of all its calls are dropped.
#[derive(Debug)]
pub struct RunCall {
    starting: StartingOperations,
    id: String,
    /// Cancellation of the operation. All calls for the operation share the cancellation, and the operation keeps it
    /// when it begins. A cancellation during the start is therefore not lost.
    pub cancel_request: watch::Sender<CancelRequest>,
    /// Whether the start of the operation was prevented before the call.
    pub is_prevented: bool,
}

impl Drop for RunCall {
    fn drop(&mut self) {
        let mut state = self.starting.lock();
        if let Some(operation) = state.operations.get_mut(&self.id) {
            operation.calls -= 1;
            if operation.calls == 0 {
                state.operations.remove(&self.id);
            }
        }
    }
}

impl StartingOperations {
    /// Registers an operation for the duration of a `Run` call.
    pub fn register(&self, id: &str) -> RunCall {
        let mut state = self.lock();
        let is_prevented = state.is_prevented(id);
        let operation = state.operations.entry(id.to_owned()).or_insert_with(|| StartingOperation {
            calls: 0,
            cancel_request: watch::Sender::new(CancelRequest::default()),
        });
        operation.calls += 1;
        let cancel_request = operation.cancel_request.clone();
        RunCall { starting: self.clone(), id: id.to_owned(), cancel_request, is_prevented }
    }

    /// Prevents the start of an operation by later calls. Returns `false` and has no effect if a call is starting the
    /// operation.
    pub fn prevent(&self, id: &str) -> bool {
        let mut state = self.lock();
        if state.operations.contains_key(id) {
            return false;
        }
        if !state.is_prevented(id) {
            if state.prevented.len() >= MAX_PREVENTED {
                state.prevented.pop_front();
            }
            state.prevented.push_back(id.to_owned());
        }
        true
    }

    /// Returns the cancellation of an operation, or `None` if no call is starting the operation.
    pub fn find(&self, id: &str) -> Option<watch::Sender<CancelRequest>> {
        self.lock().operations.get(id).map(|operation| operation.cancel_request.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_prevented(&self, id: &str) -> bool {
        self.prevented.iter().any(|prevented| prevented == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_starting_until_all_its_calls_end() {
        let starting = StartingOperations::default();
        assert!(starting.find("one").is_none());
        let (first, second) = (starting.register("one"), starting.register("one"));
        assert!(second.cancel_request.same_channel(&first.cancel_request));
        assert!(starting.find("one").is_some_and(|found| found.same_channel(&first.cancel_request)));
        assert!(starting.find("two").is_none());
        drop(first);
        assert!(starting.find("one").is_some());
        drop(second);
        assert!(starting.find("one").is_none());
    }

    #[test]
    fn the_start_of_an_operation_is_prevented_only_if_no_call_is_starting_it() {
        let starting = StartingOperations::default();
        let call = starting.register("one");
        assert!(!starting.prevent("one") && !starting.register("one").is_prevented);
        drop(call);
        assert!(starting.prevent("one") && starting.prevent("one"), "a repeated request has no effect");
        assert!(starting.register("one").is_prevented && !starting.register("two").is_prevented);
        for number in 1..MAX_PREVENTED {
            assert!(starting.prevent(&format!("later-{number}")));
        }
        assert!(starting.register("one").is_prevented);
        assert!(starting.prevent("last"));
        assert!(!starting.register("one").is_prevented, "the number of IDs is limited");
    }
}
