//! Errors of a run.

use std::io;

use crate::agent::command::CallError;
use crate::agent::settings::ApplyError;
use crate::pulumi::outputs::OutputsError;
use crate::pulumi::state::StateError;

/// Maximum size in bytes of a state that the agent changes, which requires two copies in memory. A state that is only
/// read can be larger.
pub(super) const MAX_CHANGED: u64 = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("failed to apply the stack settings: {0}")]
    Settings(#[from] ApplyError),
    #[error(transparent)]
    Attempt(#[from] AttemptError),
    #[error("failed to {action}: {error}")]
    Call { action: &'static str, error: CallError },
    #[error("failed to process pending creates, nothing was run: {0}")]
    State(StateFileError),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error("failed to start the CLI: {0}")]
    Start(io::Error),
    #[error("failed to wait for the CLI: {0}")]
    Wait(io::Error),
    #[error("failed to find the processes of the run: {0}")]
    Processes(io::Error),
    #[error("failed to prepare the event log: {0}")]
    EventLog(io::Error),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StateFileError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("failed to read or write the exported state: {0}")]
    File(#[from] io::Error),
    #[error(
        "the state of {size} bytes exceeds the limit of {MAX_CHANGED} bytes for changes by the agent; run \
         `pulumi refresh --clear-pending-creates` in the pod, then request another run"
    )]
    TooLarge { size: u64 },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RevealError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("`pulumi stack output` failed: {0}")]
    Failed(String),
    #[error(transparent)]
    Outputs(#[from] OutputsError),
}
