//! A run that needs a slot.

use jiff::Timestamp;

/// A run that needs a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub uid: String,
    pub namespace: String,
    /// Name of its Workspace.
    pub workspace: String,
    /// Node of its pod.
    pub node: String,
    /// Runs with a higher priority start first within their namespace.
    pub priority: i32,
    /// Of runs with the same priority the one that has been pending longest starts first.
    pub pending_since: Timestamp,
}
