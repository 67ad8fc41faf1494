//! Cleans up after interrupted runs:
//! - Detects the pending creates of an interrupted run in the state, and removes them if a user confirms that the
//!   resources do not exist.
//! - Removes the lock of an interrupted run, or cancels the run's update in Pulumi Cloud, after all processes of the
//!   run have exited. The lock remains during an interactive session in the pod.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::context::{MAX_CHANGED, Run, RunCallError, RunError, StateFileError, StepCall};
use super::operation_result::{self, OperationResult};
use crate::agent::command::Ended;
use crate::agent::journal::{Reader, StartedProcess};
use crate::agent::{durable, interactive_session};
use crate::pulumi::active_update::ActiveUpdate;
use crate::pulumi::failure::lock::{ExitedProcess, Lock, exited_holder, only_lock};
use crate::pulumi::failure::{self, FailureKind};
use crate::pulumi::run_summary::RunSummary;
use crate::pulumi::{active_update, arguments, state};
use crate::rpc::proto::{self, PendingCreates};

/// Message for a state that has changed before the agent could import the state without the pending creates.
const STATE_CHANGED: &str = "failed to clear pending creates: another client has changed the state in the meantime; \
                             the Pulumi command was not started";

impl Run {
    /// Handles pending creates as requested. If the agent must not start the operation, the function returns its
    /// result.
    pub(super) async fn settle_pending_creates(&self) -> Result<Option<OperationResult>, RunError> {
        let settled = match self.parameters.pending_creates {
            PendingCreates::Unspecified | PendingCreates::Keep => return Ok(None),
            PendingCreates::Stop => self.stop_on_creates().await,
            PendingCreates::Clear => self.clear_creates().await,
        };
        self.remove_exported();
        settled
    }

    /// Removes the exported state, because the file can be large.
    pub(super) fn remove_exported(&self) {
        let file = self.record.state_file();
        if let Err(error) = durable::remove(&file) {
            tracing::warn!(path = %file.display(), %error, "failed to remove the exported state");
        }
    }

    async fn stop_on_creates(&self) -> Result<Option<OperationResult>, RunError> {
        match self.export("find pending creates").await? {
            Exported::NoStack => return Ok(None),
            Exported::Failed(operation_result) => return Ok(Some(*operation_result)),
            Exported::Written => {}
        }
        let file = self.record.state_file();
        // An interrupted destroy can have deleted all resources.
        let expects_resources = !self.parameters.kind.is_destroy() && self.expects_state();
        let (urns, is_empty) =
            run_blocking(move || Ok((read_pending(&file)?, expects_resources && has_no_resources(&file)?)))
                .await
                .map_err(RunError::State)?;
        Ok(match urns.is_empty() {
            false => Some(OperationResult::pending_creates(urns)),
            true => is_empty.then(|| OperationResult::state_empty(&self.stack)),
        })
    }

    /// Imports the state without the pending creates. `pulumi stack import` removes all pending operations. This is
    /// safe, because the CLI only prints a warning for pending operations that are not creates.
    async fn clear_creates(&self) -> Result<Option<OperationResult>, RunError> {
        match self.export("clear pending creates").await? {
            Exported::NoStack => return Ok(None),
            Exported::Failed(operation_result) => return Ok(Some(*operation_result)),
            Exported::Written => {}
        }
        let file = self.record.state_file();
        let Some(found) = run_blocking(move || clear_pending(&file)).await.map_err(RunError::State)? else {
            return Ok(None);
        };
        let mut imported = self.import_without_creates(&found).await?;
        if let Imported::Failed(ended) = &imported
            && let Some(holder) = self.holder(&ended.stderr.text()).await
            && self.remove_stale_lock(&holder).await
        {
            imported = self.import_without_creates(&found).await?;
        }
        match imported {
            Imported::Written => {
                tracing::warn!(operation = self.record.request().id, "cleared pending creates from the state");
                Ok(None)
            }
            Imported::Failed(ended) => Ok(Some(self.failed_call("failed to clear pending creates", &ended))),
            Imported::Rejected(operation_result) => Ok(Some(*operation_result)),
        }
    }

    /// Imports the state without the pending creates, unless the state differs from the state that the agent has found.
    /// An export does not lock the stack, so another client can change the state after an export. The import would undo
    /// this change.
    async fn import_without_creates(&self, found: &str) -> Result<Imported, RunError> {
        let file = self.record.state_file();
        let current = match self.export("clear pending creates").await? {
            Exported::Written => run_blocking(move || clear_pending(&file)).await.map_err(RunError::State)?,
            Exported::NoStack => None,
            Exported::Failed(operation_result) => return Ok(Imported::Rejected(operation_result)),
        };
        if current.as_deref() != Some(found) {
            return Ok(Imported::Rejected(Box::new(OperationResult::failed(STATE_CHANGED.to_owned()))));
        }
        let ended = self.import().await?;
        Ok(if ended.exit.success() { Imported::Written } else { Imported::Failed(ended) })
    }

    async fn import(&self) -> Result<Ended, RunError> {
        let arguments = arguments::stack_import(&self.stack, &self.record.state_file());
        let call = StepCall::new("importing the state", arguments).that_locks_stack();
        self.call(call).await.map_err(|error| RunError::Call { action: "import the state", error })
    }

    /// Exports the stack state to the operation's state file.
    pub(super) async fn export(&self, purpose: &str) -> Result<Exported, RunError> {
        let arguments = arguments::stack_export(&self.stack, &self.record.state_file());
        let ended = self.call(StepCall::new("exporting the state", arguments)).await;
        let ended = ended.map_err(|error| RunError::Call { action: "export the state", error })?;
        if ended.exit.success() {
            return Ok(Exported::Written);
        }
        let failure = classify(&ended);
        if failure.kind == FailureKind::StackMissing {
            return Ok(Exported::NoStack);
        }
        let what = format!("the Pulumi command was not started: failed to export the state to {purpose}");
        Ok(Exported::Failed(Box::new(self.failed_call(&what, &ended))))
    }

    /// Returns the secrets provider in the exported state.
    pub(super) async fn secrets_provider_in_export(&self) -> Result<Option<String>, RunError> {
        let file = self.record.state_file();
        run_blocking(move || read_secrets_provider(&file)).await.map_err(RunError::State)
    }

    /// Returns the result of an operation that fails because a CLI call has failed.
    pub(super) fn failed_call(&self, what: &str, ended: &Ended) -> OperationResult {
        let failure = classify(ended);
        let message = self.with_cause(&format!("{what}: {}", failure.message));
        let outcome = operation_result::outcome(&failure.kind, self.is_cancelled());
        let holders = operation_result::holders(failure.kind);
        OperationResult { outcome, message, holders, ..OperationResult::default() }
            .with_last_output(&ended.stdout, &ended.stderr)
    }
}

/// Outcome of an attempt to import the state without the pending creates.
enum Imported {
    Written,
    Failed(Ended),
    /// The agent did not start the import.
    Rejected(Box<OperationResult>),
}

/// Outcome of a state export.
pub(super) enum Exported {
    Written,
    NoStack,
    Failed(Box<OperationResult>),
}

/// Returns the reason why a CLI call failed.
pub(super) fn classify(ended: &Ended) -> failure::Failure {
    failure::classify(ended.exit, &ended.stdout.text(), &ended.stderr.text(), &RunSummary::default())
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StateFileError> + Send + 'static,
) -> Result<T, StateFileError> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn read_secrets_provider(file: &Path) -> Result<Option<String>, StateFileError> {
    Ok(state::secrets_provider(BufReader::new(File::open(file)?))?)
}

fn read_pending(file: &Path) -> Result<Vec<String>, StateFileError> {
    Ok(state::pending_creates(BufReader::new(File::open(file)?))?)
}

fn has_no_resources(file: &Path) -> Result<bool, StateFileError> {
    Ok(state::resources(BufReader::new(File::open(file)?))?.is_empty())
}

/// Removes the pending creates from a state file, and returns the SHA-256 digest of the previous content. Returns
/// `None` if the file contains no pending creates.
fn clear_pending(file: &Path) -> Result<Option<String>, StateFileError> {
    let size = std::fs::metadata(file)?.len();
    if size > MAX_CHANGED {
        return Err(StateFileError::TooLarge { size });
    }
    let state = std::fs::read_to_string(file)?;
    let Some(changed) = state::without_pending_creates(&state)? else { return Ok(None) };
    durable::write_atomically(file, changed.as_bytes())?;
    Ok(Some(hex::encode(Sha256::digest(state.as_bytes()))))
}

/// Lock or update that blocked a CLI call.
pub(super) enum Holder {
    /// The only lock of the stack in a DIY backend.
    Lock(Lock),
    /// The update that is in progress in Pulumi Cloud.
    Update(ActiveUpdate),
}

impl Holder {
    pub(super) fn into_update(self) -> Option<ActiveUpdate> {
        match self {
            Holder::Lock(_) => None,
            Holder::Update(update) => Some(update),
        }
    }

    /// Returns whether the holder is one of these exited processes, which belong to interrupted runs.
    fn is_one_of(&self, exited: &[ExitedProcess]) -> bool {
        match self {
            Holder::Lock(lock) => exited_holder(lock, exited).is_some(),
            Holder::Update(update) => exited.iter().any(|process| update.is_of(process)),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Lock(Lock { user, host, pid, time, .. }) => write!(f, "{user}@{host} (pid {pid}) since {time}"),
            Holder::Update(update) => f.write_str(&update.describe()),
        }
    }
}

impl Run {
    /// Returns the lock or the update that blocked a CLI call. `stderr` is the stderr output of the call. Returns
    /// `None` if several locks block the call, or if the holder is unknown.
    pub(super) async fn holder(&self, stderr: &str) -> Option<Holder> {
        if !failure::conflicts_with_update(stderr) {
            return only_lock(stderr).map(Holder::Lock);
        }
        match self.active_update().await {
            Ok(update) => update.map(Holder::Update),
            Err(error) => {
                tracing::warn!(operation = self.record.request().id, %error, "failed to read the update in progress from the CLI");
                None
            }
        }
    }

    /// Returns the update of the stack that is in progress in Pulumi Cloud.
    async fn active_update(&self) -> Result<Option<ActiveUpdate>, ActiveUpdateError> {
        let stack = &self.stack;
        // Reads the history last, because the history identifies the update, and little time should pass before the
        // agent cancels this update.
        let read = |arguments| self.call(StepCall::new("reading the update in progress", arguments).captured());
        let description = read(arguments::stack_description(stack)).await?;
        let history = read(arguments::newest_update(stack)).await?;
        let Some(update) = active_update::parse_history(&history.captured)? else { return Ok(None) };
        let update = active_update::parse_stack(update, &String::from_utf8_lossy(&description.captured));
        // The user is missing if the update started between the two calls. Such an update did not block the run.
        Ok(Some(update).filter(|update| update.author.is_some()))
    }

    /// Removes a lock, or cancels an update in Pulumi Cloud, if the holder is an interrupted run whose processes have
    /// exited. Returns whether the agent has removed the lock or canceled the update.
    ///
    /// The CLI removes all locks of the stack, or cancels the update that is currently in progress. This is safe,
    /// because no other run can start while the lock or the update of the interrupted run exists.
    pub(super) async fn remove_stale_lock(&self, holder: &Holder) -> bool {
        let operation = &self.record.request().id;
        if !self.has_ended(holder) {
            return false;
        }
        // Keeps the lock if the search for sessions fails, because an interactive session may exist.
        let session = interactive_session::find(&self.layout);
        if !matches!(session, Ok(None)) {
            tracing::warn!(
                operation,
                %holder,
                ?session,
                "keeping the lock of a run that has ended: interactive session in the pod"
            );
            return false;
        }
        let call = StepCall::new("removing the lock of an interrupted run", arguments::cancel(&self.stack));
        match self.call(call).await {
            Ok(ended) if ended.exit.success() => {
                tracing::warn!(operation, %holder, "removed the lock of a run that has ended");
                true
            }
            Ok(ended) => {
                let output = ended.stderr.last_lines(5);
                tracing::error!(operation, %holder, output, "failed to remove the lock of a run that has ended");
                false
            }
            Err(error) => {
                tracing::error!(operation, %holder, %error, "failed to remove the lock of a run that has ended");
                false
            }
        }
    }

    /// Returns whether the holder is an interrupted run whose processes have exited.
    fn has_ended(&self, holder: &Holder) -> bool {
        let Some(reported) = &self.parameters.exited_processes else { return false };
        let known: Vec<_> = reported.iter().cloned().chain(self.own_exited_processes()).collect();
        holder.is_one_of(&known)
    }

    /// Returns the interrupted processes of the finished operations in this pod. All these processes have exited,
    /// because the agent writes a result only after all processes of the operation have exited.
    ///
    /// A process that exited on its own has unlocked the stack. Its host name and process ID do not identify a lock,
    /// because a process in another namespace or cluster can have the same ones.
    fn own_exited_processes(&self) -> Vec<ExitedProcess> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut exited = Vec::new();
        for record in self.journal.finished(&self.desired.stack) {
            let Some(result) = record.result() else { continue };
            match Reader::processes(record.clone()) {
                Ok(processes) => {
                    let interrupted = processes.into_iter().filter(|process| can_hold_lock(process, &result));
                    exited.extend(interrupted.map(|process| ExitedProcess {
                        host: host.clone(),
                        pid: process.pid,
                        started: record.request().started,
                        ended: result.ended,
                        // Only an interrupted run can leave an update in progress.
                        permalink: process.permalink.filter(|_| result.interrupted),
                    }));
                }
                Err(error) => {
                    tracing::warn!(operation = record.request().id, %error, "failed to read the processes of the operation");
                }
            }
        }
        exited
    }
}

/// Returns whether a process of a finished operation can have left its lock in the state backend. If the journal does
/// not contain the end of the process, the result determines whether the process was interrupted. A run that ended with
/// a conflict has no lock. Its result can be marked as interrupted because of an earlier run's pending creates.
pub fn can_hold_lock(process: &StartedProcess, result: &proto::Result) -> bool {
    process.interrupted.unwrap_or_else(|| match result.outcome() {
        proto::Outcome::Interrupted => true,
        proto::Outcome::Succeeded | proto::Outcome::Conflict => false,
        _ => result.interrupted,
    })
}

#[derive(Debug, thiserror::Error)]
enum ActiveUpdateError {
    #[error(transparent)]
    Call(#[from] RunCallError),
    #[error(transparent)]
    History(#[from] serde_json::Error),
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
        for (state, expected) in [(STATE, true), (r#"{"deployment": {"resources": [{"urn": "urn:a"}]}}"#, false)] {
            std::fs::write(&file, state).unwrap();
            assert_eq!(has_no_resources(&file).unwrap(), expected, "{state}");
        }
        std::fs::write(&file, STATE).unwrap();
        assert_eq!(read_pending(&file).unwrap(), ["urn:a"]);
        let found = clear_pending(&file).unwrap();
        assert!(found.is_some());
        assert_eq!(read_pending(&file).unwrap(), Vec::<String>::new());
        assert_eq!(clear_pending(&file).unwrap(), None);
        for (state, is_same) in [(STATE.to_owned(), true), (STATE.replace("urn:a", "urn:b"), false)] {
            std::fs::write(&file, &state).unwrap();
            assert_eq!(clear_pending(&file).unwrap() == found, is_same, "{state}");
        }
    }

    #[test]
    fn only_an_interrupted_process_can_hold_a_lock() {
        use proto::Outcome::{Canceled, Conflict, Failed, Interrupted, Succeeded};
        let rows = [
            (Some(false), Interrupted, true, false),
            (Some(false), Conflict, true, false),
            (Some(true), Interrupted, true, true),
            (Some(true), Conflict, false, true),
            // The journal of an earlier agent version, or of an agent that was killed.
            (None, Interrupted, true, true),
            (None, Interrupted, false, true),
            (None, Canceled, true, true),
            (None, Failed, true, true),
            (None, Failed, false, false),
            (None, Succeeded, false, false),
            (None, Conflict, false, false),
            (None, Conflict, true, false),
        ];
        for (interrupted, outcome, is_marked, expected) in rows {
            let process = StartedProcess { pid: 40, permalink: None, interrupted };
            let result = proto::Result { outcome: outcome.into(), interrupted: is_marked, ..Default::default() };
            assert_eq!(can_hold_lock(&process, &result), expected, "{interrupted:?} {outcome:?} {is_marked}");
        }
    }

    #[test]
    fn only_the_recorded_update_of_an_exited_process_is_a_stale_holder() {
        let url = |version: u64| format!("https://app.pulumi.com/acme/web/dev/updates/{version}");
        let exited = |permalink: Option<String>| {
            vec![ExitedProcess { host: "web-0".to_owned(), pid: 1, started: 0, ended: 1, permalink }]
        };
        let started = "1970-01-01T00:00:00.000Z".to_owned();
        let holder = |url: Option<String>| {
            Holder::Update(ActiveUpdate { version: 7, url, started: started.clone(), ..ActiveUpdate::default() })
        };
        for (holder, exited, expected) in [
            (holder(Some(url(7))), exited(Some(url(7))), true),
            (holder(Some(url(7))), exited(Some(url(6))), false),
            (holder(Some(url(7))), exited(None), false),
            (holder(Some(url(7))), vec![], false),
            (holder(None), exited(None), false),
        ] {
            assert_eq!(holder.is_one_of(&exited), expected, "{holder}");
        }
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
