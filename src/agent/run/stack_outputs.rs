//! Reads the stack outputs after a successful `up`. If the agent cannot determine all outputs, the result contains no
//! outputs.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::context::{Run, RunCallError};
use super::operation_result::OperationResult;
use crate::agent::command::Stdout;
use crate::pulumi::arguments;
use crate::pulumi::outputs::{self, Output, OutputsError};

/// Delays before the agent reads the secret outputs again, for example after the state backend has limited the request
/// rate.
const RETRY_DELAYS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// Time after which the agent starts no further attempt to read the secret outputs.
const RETRY_TIME: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
enum RevealError {
    #[error(transparent)]
    Call(#[from] RunCallError),
    #[error("`pulumi stack output` failed: {0}")]
    Failed(String),
    #[error(transparent)]
    Outputs(#[from] OutputsError),
}

impl RevealError {
    /// Returns whether another attempt can succeed.
    fn is_transient(&self) -> bool {
        match self {
            RevealError::Call(_) | RevealError::Failed(_) => true,
            RevealError::Outputs(_) => false,
        }
    }
}

impl Run {
    /// Returns the result of a successful `up` with the stack outputs. The event log contains the outputs `reported`.
    pub(super) async fn with_outputs(&self, reported: &[Output]) -> OperationResult {
        match self.reveal(reported).await {
            Ok(outputs) => OperationResult { outputs, ..OperationResult::succeeded("") },
            Err(error) => {
                let message = format!("failed to read the values of the secret outputs: {error}");
                OperationResult::without_outputs(&message)
            }
        }
    }

    /// Returns the stack outputs, including the values of secret outputs. The function calls the CLI only if at least
    /// one output is secret, and calls the CLI again after a transient error.
    async fn reveal(&self, reported: &[Output]) -> Result<Vec<Output>, RevealError> {
        if !outputs::need_values(reported) {
            return Ok(outputs::combine(reported, &BTreeMap::new())?);
        }
        let start = Instant::now();
        let mut delays = RETRY_DELAYS.into_iter();
        loop {
            let error = match self.read_values(reported).await {
                Ok(outputs) => return Ok(outputs),
                Err(error) => error,
            };
            let can_retry = error.is_transient() && start.elapsed() < RETRY_TIME && !self.is_cancelled();
            let Some(delay) = delays.next().filter(|_| can_retry) else { return Err(error) };
            let operation = &self.record.request().id;
            tracing::warn!(operation, %error, "failed to read the secret outputs; retrying");
            tokio::time::sleep(delay).await;
        }
    }

    async fn read_values(&self, reported: &[Output]) -> Result<Vec<Output>, RevealError> {
        let ended = self.call(arguments::stack_output(&self.stack), Stdout::Captured).await?;
        if !ended.exit.success() {
            return Err(RevealError::Failed(format!("{}: {}", ended.describe_exit(), ended.stderr.last_lines(5))));
        }
        Ok(outputs::combine(reported, &outputs::parse(&ended.captured)?)?)
    }
}
