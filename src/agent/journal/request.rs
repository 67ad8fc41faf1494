//! The request for an operation.

use serde::{Deserialize, Serialize};

/// The request for an operation, without the environment, which can contain secrets.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Request {
    pub id: String,
    /// Name of the Update.
    pub name: String,
    /// Number of [`crate::rpc::proto::OperationKind`].
    pub kind: i32,
    pub digest: String,
    pub directory: String,
    pub stack: String,
    pub settings_digest: String,
    pub refresh: bool,
    pub message: String,
    /// Start ID of the agent that received it.
    pub start_id: String,
    /// Process space in which the process IDs of the operation are valid.
    pub process_space: String,
    /// Milliseconds since 1970.
    pub started: i64,
    /// Name and runtime of the project.
    #[serde(default)]
    pub project: Option<String>,
    #[serde(default)]
    pub runtime: Option<String>,
    /// URL of the state backend, without credentials.
    #[serde(default)]
    pub backend: Option<String>,
}
