//! Operations that `Run` calls are starting. The journal does not contain such an operation yet, but the operation can
//! still begin.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::cancellation::CancelRequest;

/// Operations that `Run` calls are starting, by ID. All clones share the operations.
#[derive(Clone, Debug, Default)]
pub struct StartingOperations {
    operations: Arc<Mutex<BTreeMap<String, StartingOperation>>>,
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
}

impl Drop for RunCall {
    fn drop(&mut self) {
        let mut operations = self.starting.lock();
        if let Some(operation) = operations.get_mut(&self.id) {
            operation.calls -= 1;
            if operation.calls == 0 {
                operations.remove(&self.id);
            }
        }
    }
}

impl StartingOperations {
    /// Registers an operation for the duration of a `Run` call.
    pub fn register(&self, id: &str) -> RunCall {
        let mut operations = self.lock();
        let operation = operations.entry(id.to_owned()).or_insert_with(|| StartingOperation {
            calls: 0,
            cancel_request: watch::Sender::new(CancelRequest::default()),
        });
        operation.calls += 1;
        let cancel_request = operation.cancel_request.clone();
        RunCall { starting: self.clone(), id: id.to_owned(), cancel_request }
    }

    /// Returns the cancellation of an operation, or `None` if no call is starting the operation.
    pub fn find(&self, id: &str) -> Option<watch::Sender<CancelRequest>> {
        self.lock().get(id).map(|operation| operation.cancel_request.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, StartingOperation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
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
}
