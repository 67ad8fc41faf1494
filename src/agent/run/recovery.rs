//! Cleans up after interrupted runs. Detects the pending creates that an interrupted run left in the state, and removes
//! them if a user confirms that the resources do not exist. Removes the lock of a dead run, unless a user has an
//! interactive session in the pod. A dead run is a run whose processes have provably exited, but whose lock may remain.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use super::context::{MAX_CHANGED, Run, RunError, StateFileError};
use super::operation_result::{self, OperationResult};
use crate::agent::command::{Ended, Stdout};
use crate::agent::journal::Reader;
use crate::agent::{durable, interactive_session};
use crate::pulumi::failure::lock::{DeadProcess, Lock, dead_holder, only_lock};
use crate::pulumi::failure::{self, FailureKind};
use crate::pulumi::run_summary::RunSummary;
use crate::pulumi::{arguments, state};
use crate::rpc::proto::PendingCreates;

impl Run {
    /// Handles pending creates according to the request. Returns a result if the operation must not run.
    pub(super) async fn settle_pending_creates(&self) -> Result<Option<OperationResult>, RunError> {
        let settled = match self.parameters.pending_creates {
            PendingCreates::Unspecified | PendingCreates::Keep => return Ok(None),
            PendingCreates::Stop => self.stop_on_creates().await,
            PendingCreates::Clear => self.clear_creates().await,
        };
        // Removes the exported state, because it can be large.
        let file = self.record.state_file();
        if let Err(error) = durable::remove(&file) {
            tracing::warn!(path = %file.display(), %error, "failed to remove the exported state");
        }
        settled
    }

    async fn stop_on_creates(&self) -> Result<Option<OperationResult>, RunError> {
        match self.export("find pending creates").await? {
            Exported::NoStack => return Ok(None),
            Exported::Failed(operation_result) => return Ok(Some(operation_result)),
            Exported::Written => {}
        }
        let file = self.record.state_file();
        let urns = run_blocking(move || read_pending(&file)).await.map_err(RunError::State)?;
        Ok((!urns.is_empty()).then(|| OperationResult::pending_creates(urns)))
    }

    /// Removes pending creates by importing the state. `pulumi stack import` removes all pending operations. This is
    /// safe, because the CLI only warns about pending operations that are not creates.
    async fn clear_creates(&self) -> Result<Option<OperationResult>, RunError> {
        match self.export("clear pending creates").await? {
            Exported::NoStack => return Ok(None),
            Exported::Failed(operation_result) => return Ok(Some(operation_result)),
            Exported::Written => {}
        }
        let file = self.record.state_file();
        if !run_blocking(move || clear_pending(&file)).await.map_err(RunError::State)? {
            return Ok(None);
        }
        let mut ended = self.import().await?;
        if !ended.exit.success() && self.remove_dead_lock(&ended.stderr.text()).await {
            ended = self.import().await?;
        }
        if ended.exit.success() {
            tracing::warn!(operation = self.record.request().id, "cleared pending creates from the state");
            return Ok(None);
        }
        Ok(Some(self.failed_call("failed to clear pending creates", &ended)))
    }

    async fn import(&self) -> Result<Ended, RunError> {
        let arguments = arguments::stack_import(&self.desired.stack, &self.record.state_file());
        self.locking_call(arguments).await.map_err(|error| RunError::Call { action: "import the state", error })
    }

    async fn export(&self, purpose: &str) -> Result<Exported, RunError> {
        let arguments = arguments::stack_export(&self.desired.stack, &self.record.state_file());
        let ended = self.call(arguments, Stdout::Logged).await;
        let ended = ended.map_err(|error| RunError::Call { action: "export the state", error })?;
        if ended.exit.success() {
            return Ok(Exported::Written);
        }
        let failure = classify(&ended);
        if failure.kind == FailureKind::StackMissing {
            return Ok(Exported::NoStack);
        }
        let what = format!("nothing was run: failed to export the state to {purpose}");
        Ok(Exported::Failed(self.failed_call(&what, &ended)))
    }

    /// Returns the result of an operation after a failed CLI call.
    pub(super) fn failed_call(&self, what: &str, ended: &Ended) -> OperationResult {
        let failure = classify(ended);
        let message = self.with_cause(&format!("{what}: {}", failure.message));
        let outcome = operation_result::outcome(&failure.kind, self.is_cancelled());
        let holders = operation_result::holders(failure.kind);
        OperationResult { outcome, message, holders, ..OperationResult::default() }
            .with_last_output(&ended.stdout, &ended.stderr)
    }
}

/// Outcome of an export of the state.
enum Exported {
    Written,
    NoStack,
    Failed(OperationResult),
}

/// Returns the cause of a failed CLI call.
pub(super) fn classify(ended: &Ended) -> failure::Failure {
    failure::classify(ended.exit, &ended.stdout.text(), &ended.stderr.text(), &RunSummary::default())
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StateFileError> + Send + 'static,
) -> Result<T, StateFileError> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn read_pending(file: &Path) -> Result<Vec<String>, StateFileError> {
    Ok(state::pending_creates(BufReader::new(File::open(file)?))?)
}

/// Removes the pending creates from a state file. Returns `false` if the file contains none.
fn clear_pending(file: &Path) -> Result<bool, StateFileError> {
    let size = std::fs::metadata(file)?.len();
    if size > MAX_CHANGED {
        return Err(StateFileError::TooLarge { size });
    }
    let Some(changed) = state::without_pending_creates(&std::fs::read_to_string(file)?)? else { return Ok(false) };
    durable::write_atomically(file, changed.as_bytes())?;
    Ok(true)
}

impl Run {
    /// Removes the lock that blocked a CLI call if the holder of the lock is a dead run. `stderr` is the standard error
    /// of the call, which names the holder. Returns whether the lock was removed.
    ///
    /// The CLI removes all locks of the stack. This is safe, because no other run can lock the stack while the lock of
    /// the dead run exists.
    pub(super) async fn remove_dead_lock(&self, stderr: &str) -> bool {
        let operation = &self.record.request().id;
        let Some(lock) = self.lock_of_dead_run(stderr) else { return false };
        let Lock { user, host, pid, time, .. } = &lock;
        // Also keeps the lock if the search fails, because an interactive session may exist.
        let session = interactive_session::find(&self.layout);
        if !matches!(session, Ok(None)) {
            tracing::warn!(
                operation,
                host,
                pid,
                time,
                ?session,
                "keeping the lock of a run that has ended: interactive session in the pod"
            );
            return false;
        }
        match self.call(arguments::cancel(&self.desired.stack), Stdout::Logged).await {
            Ok(ended) if ended.exit.success() => {
                tracing::warn!(operation, user, host, pid, time, "removed the lock of a run that has ended");
                true
            }
            Ok(ended) => {
                let output = ended.stderr.last_lines(5);
                tracing::error!(
                    operation,
                    host,
                    pid,
                    time,
                    output,
                    "failed to remove the lock of a run that has ended"
                );
                false
            }
            Err(error) => {
                tracing::error!(
                    operation,
                    host,
                    pid,
                    time,
                    %error,
                    "failed to remove the lock of a run that has ended"
                );
                false
            }
        }
    }

    /// Returns the lock if it is the only lock in the error message and its holder is a dead run.
    fn lock_of_dead_run(&self, stderr: &str) -> Option<Lock> {
        let lock = only_lock(stderr)?;
        let reported = self.parameters.dead_runs.as_ref()?;
        let known: Vec<_> = reported.iter().cloned().chain(self.own_dead_processes()).collect();
        dead_holder(&lock, &known)?;
        Some(lock)
    }

    /// Returns the processes of finished operations in this pod. These processes have exited, because the agent writes
    /// a result only after all processes of the operation have exited.
    fn own_dead_processes(&self) -> Vec<DeadProcess> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut dead = Vec::new();
        for record in self.journal.finished(&self.desired.stack) {
            let Some(result) = record.result() else { continue };
            match Reader::sessions(record.clone()) {
                Ok(pids) => dead.extend(pids.into_iter().map(|pid| DeadProcess {
                    host: host.clone(),
                    pid,
                    started: record.request().started,
                    ended: result.ended,
                })),
                Err(error) => {
                    tracing::warn!(operation = record.request().id, %error, "failed to read the processes of the operation");
                }
            }
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str =
        r#"{"deployment": {"pending_operations": [{"resource": {"urn": "urn:a"}, "type": "creating"}]}}"#;

    #[test]
    fn pending_creates_in_a_state_file_are_read_and_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        std::fs::write(&file, STATE).unwrap();
        assert_eq!(read_pending(&file).unwrap(), ["urn:a"]);
        assert!(clear_pending(&file).unwrap());
        assert_eq!(read_pending(&file).unwrap(), Vec::<String>::new());
        assert!(!clear_pending(&file).unwrap());
    }

    #[test]
    fn a_state_file_above_the_size_limit_is_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        std::fs::write(&file, STATE).unwrap();
        File::options().write(true).open(&file).unwrap().set_len(MAX_CHANGED + 1).unwrap();
        let error = clear_pending(&file).unwrap_err().to_string();
        assert!(error.contains(&(MAX_CHANGED + 1).to_string()) && error.contains("pulumi refresh"), "{error}");
    }
}
