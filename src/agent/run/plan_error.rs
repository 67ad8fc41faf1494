//! Errors that concern a run's plan.

use std::io;

/// Maximum size of a plan in bytes.
pub(super) const MAX_PLAN: u64 = 32 * 1024 * 1024;
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error("the compressed plan of the request is invalid: {0}")]
    Compressed(io::Error),
    #[error("the plan of the request exceeds the limit of {MAX_PLAN} bytes")]
    Bomb,
    #[error("the plan of the request is invalid: {what} at line {}, column {}", .error.line(), .error.column())]
    Malformed { what: &'static str, error: serde_json::Error },
    #[error(
        "the {what} of {size} bytes exceeds the limit of {limit} bytes: split the stack into smaller stacks, or set \
         spec.approval.mode to Never"
    )]
    TooLarge { what: &'static str, size: u64, limit: u64 },
    #[error(
        "the list of the resources to delete exceeds the limit of {MAX_PLAN} bytes: split the stack into smaller stacks, or set spec.approval.mode to Never"
    )]
    TooManyDeletions,
    #[error("failed to {action} the plan: {error}")]
    File { action: &'static str, error: io::Error },
}
