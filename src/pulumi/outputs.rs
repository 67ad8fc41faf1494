//! The outputs of a stack.

use std::collections::BTreeMap;

use serde_json::Value;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OutputsError {
    #[error("the outputs that the CLI printed are not a JSON object: {reason}")]
    Malformed { reason: String },
    #[error("the CLI printed no value for the secret output {name:?}")]
    NotRevealed { name: String },
}

/// One output of a stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub name: String,
    /// Blinded (the engine's secret signature in place of the value) as long as it comes from the event log.
    pub value: Value,
    /// Whether any part of it is secret.
    pub secret: bool,
}

/// Reads what `stack output --json --show-secrets` printed.
pub fn parse(stdout: &[u8]) -> Result<BTreeMap<String, Value>, OutputsError> {
    todo!()
}

/// Whether any value is blinded or elided in the event log, so that the CLI has to be asked for it.
pub fn need_values(outputs: &[Output]) -> bool {
    todo!()
}

/// The outputs of the event log with the real values of those that it hides, sorted by name.
pub fn combine(blinded: &[Output], revealed: &BTreeMap<String, Value>) -> Result<Vec<Output>, OutputsError> {
    todo!()
}
