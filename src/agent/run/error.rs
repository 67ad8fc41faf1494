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
    #[error("the stack's settings cannot be put in force: {0}")]
    Settings(#[from] ApplyError),
    #[error(transparent)]
    Attempt(#[from] AttemptError),
    #[error("cannot {doing}: {error}")]
    Call { doing: &'static str, error: CallError },
    #[error("nobody knows of creations that an earlier run left under way, and nothing was run: {0}")]
    State(LookError),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error("cannot start the CLI: {0}")]
    Start(io::Error),
    #[error("cannot wait for the CLI: {0}")]
    Wait(io::Error),
    #[error("cannot look for the processes of the run: {0}")]
    Processes(io::Error),
    #[error("cannot use the event log: {0}")]
    EventLog(io::Error),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LookError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot read or write the state that the CLI exported: {0}")]
    File(#[from] io::Error),
    #[error(
        "the state has {size} bytes, and the agent changes none of more than {MAX_CHANGED}; take them out with \
         `pulumi refresh --clear-pending-creates` in the pod, then have it run again"
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
