//! Runs that need a slot.

use jiff::Timestamp;

/// A run that needs a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub uid: String,
    pub namespace: String,
    /// Name of the Workspace of the run.
    pub workspace: String,
    /// Node of the workspace pod.
    pub node: String,
    /// Runs with a higher priority start first within their namespace.
    pub priority: i32,
    /// Among runs with the same priority, the run that has been pending longest starts first.
    pub pending_since: Timestamp,
}
