//! Pending creates, which an interrupted run leaves in the state: detects them before a run, and removes them if a user
//! confirms that the resources do not exist.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use super::context::Run;
use super::ending::{self, Ending};
use super::error::{LookError, MAX_CHANGED, RunError};
use crate::agent::command::{Ended, Stdout};
use crate::agent::durable;
use crate::pulumi::arguments;
use crate::pulumi::failure::{self, FailureKind};
use crate::pulumi::run_summary::RunSummary;
use crate::pulumi::state;
use crate::rpc::proto::PendingCreates;

impl Run {
    /// Handles pending creates as requested. Returns an ending if the operation must not run.
    pub(super) async fn settle_pending_creates(&self) -> Result<Option<Ending>, RunError> {
        let settled = match self.asked.pending_creates {
            PendingCreates::Unspecified | PendingCreates::Keep => return Ok(None),
            PendingCreates::Stop => self.look_for_creates().await,
            PendingCreates::Clear => self.clear_creates().await,
        };
        // The exported state can be large.
        let file = self.record.state_file();
        if let Err(error) = durable::remove(&file) {
            tracing::warn!(path = %file.display(), %error, "cannot remove the state that was looked at");
        }
        settled
    }

    async fn look_for_creates(&self) -> Result<Option<Ending>, RunError> {
        match self.export("looked for creations that an earlier run left under way").await? {
            Exported::NoStack => return Ok(None),
            Exported::Failed(ending) => return Ok(Some(ending)),
            Exported::Written => {}
        }
        let file = self.record.state_file();
        let urns = blocking(move || look(&file)).await.map_err(RunError::State)?;
        Ok((!urns.is_empty()).then(|| Ending::pending_creates(urns)))
    }

    /// Removes pending creates by importing the state. According to the CLI, an import removes all pending operations.
    /// That is safe: pending operations other than creates are only reported.
    async fn clear_creates(&self) -> Result<Option<Ending>, RunError> {
        match self.export("took creations out of it that an earlier run left under way").await? {
            Exported::NoStack => return Ok(None),
            Exported::Failed(ending) => return Ok(Some(ending)),
            Exported::Written => {}
        }
        let file = self.record.state_file();
        if !blocking(move || clear(&file)).await.map_err(RunError::State)? {
            return Ok(None);
        }
        let mut ended = self.import().await?;
        if !ended.exit.success() && self.removed_dead_lock(&ended.stderr.text()).await {
            ended = self.import().await?;
        }
        if ended.exit.success() {
            tracing::warn!(operation = self.record.request().id, "took creations out of the state that were under way");
            return Ok(None);
        }
        Ok(Some(self.failed_call("creations that were under way cannot be taken out of the state", &ended)))
    }

    async fn import(&self) -> Result<Ended, RunError> {
        let arguments = arguments::stack_import(&self.wanted.stack, &self.record.state_file());
        self.locking_call(arguments).await.map_err(|error| RunError::Call { doing: "import the state", error })
    }

    async fn export(&self, purpose: &str) -> Result<Exported, RunError> {
        let arguments = arguments::stack_export(&self.wanted.stack, &self.record.state_file());
        let ended = self.call(arguments, Stdout::Logged).await;
        let ended = ended.map_err(|error| RunError::Call { doing: "export the state", error })?;
        if ended.exit.success() {
            return Ok(Exported::Written);
        }
        let failure = classify(&ended);
        if failure.kind == FailureKind::StackMissing {
            return Ok(Exported::NoStack);
        }
        let what = format!("the state cannot be read, nobody has {purpose}, and nothing was run");
        Ok(Exported::Failed(self.failed_call(&what, &ended)))
    }

    /// Returns the ending of an operation after a failed call of the CLI.
    pub(super) fn failed_call(&self, what: &str, ended: &Ended) -> Ending {
        let failure = classify(ended);
        let message = self.explained(&format!("{what}: {}", failure.message));
        let outcome = ending::outcome(&failure.kind, self.is_cancelled());
        let holders = ending::holders(failure.kind);
        Ending { outcome, message, holders, ..Ending::default() }.after(&ended.stdout, &ended.stderr)
    }
}

/// Outcome of an export of the state.
enum Exported {
    Written,
    NoStack,
    Failed(Ending),
}

/// Returns the cause of a failed call of the CLI.
pub(super) fn classify(ended: &Ended) -> failure::Failure {
    failure::classify(ended.exit, &ended.stdout.text(), &ended.stderr.text(), &RunSummary::default())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LookError> + Send + 'static,
) -> Result<T, LookError> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn look(file: &Path) -> Result<Vec<String>, LookError> {
    Ok(state::pending_creates(BufReader::new(File::open(file)?))?)
}

/// Removes the pending creates from a state file; returns `false` if there are none.
fn clear(file: &Path) -> Result<bool, LookError> {
    let size = std::fs::metadata(file)?.len();
    if size > MAX_CHANGED {
        return Err(LookError::TooLarge { size });
    }
    let Some(changed) = state::without_pending_creates(&std::fs::read_to_string(file)?)? else { return Ok(false) };
    durable::write_atomically(file, changed.as_bytes())?;
    Ok(true)
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
        assert_eq!(look(&file).unwrap(), ["urn:a"]);
        assert!(clear(&file).unwrap());
        assert_eq!(look(&file).unwrap(), Vec::<String>::new());
        assert!(!clear(&file).unwrap());
    }

    #[test]
    fn a_state_file_over_the_size_limit_is_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        std::fs::write(&file, STATE).unwrap();
        File::options().write(true).open(&file).unwrap().set_len(MAX_CHANGED + 1).unwrap();
        let error = clear(&file).unwrap_err().to_string();
        assert!(error.contains(&(MAX_CHANGED + 1).to_string()) && error.contains("pulumi refresh"), "{error}");
    }
}
