//! Reads the stack outputs after a successful `up`. If the agent cannot read the values of the secret outputs, the
//! result contains only the values of the other outputs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::{Run, RunCallError, StepCall};
use super::operation_result::OperationResult;
use crate::pulumi::arguments;
use crate::pulumi::outputs::{self, Output, OutputsError};

/// Delays before the agent reads the secret outputs again, for example after the state backend has limited the request
/// rate.
const RETRY_DELAYS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

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
                let error = match error {
                    RevealError::Call(error) if error.is_cancellation() => self.with_cause(&self.canceled_message()),
                    error => error.to_string(),
                };
                let message =
                    format!("failed to read the values of the secret outputs: {error}; the next run reads them");
                OperationResult { outputs: reported.to_vec(), ..OperationResult::without_outputs(&message) }
            }
        }
    }

    /// Returns the stack outputs, including the values of secret outputs. The function calls the CLI only if at least
    /// one output is secret, and calls the CLI again after a transient error.
    async fn reveal(&self, reported: &[Output]) -> Result<Vec<Output>, RevealError> {
        if !outputs::need_values(reported) {
            return Ok(outputs::combine(reported, &BTreeMap::new())?);
        }
        let mut delays = RETRY_DELAYS.into_iter();
        loop {
            let error = match self.read_values(reported).await {
                Ok(outputs) => return Ok(outputs),
                Err(error) => error,
            };
            let can_retry = error.is_transient() && !self.is_cancelled();
            let Some(delay) = delays.next().filter(|_| can_retry) else { return Err(error) };
            let operation = &self.record.request().id;
            tracing::warn!(operation, %error, "failed to read the secret outputs; retrying");
            tokio::time::sleep(delay).await;
        }
    }

    async fn read_values(&self, reported: &[Output]) -> Result<Vec<Output>, RevealError> {
        let call = StepCall::new("reading the secret outputs", arguments::stack_output(&self.stack));
        let ended = self.call(call.captured().with_grace()).await?;
        if !ended.exit.success() {
            return Err(RevealError::Failed(format!("{}: {}", ended.describe_exit(), ended.stderr.last_lines(5))));
        }
        Ok(outputs::combine(reported, &outputs::parse(&ended.captured)?)?)
    }
}
