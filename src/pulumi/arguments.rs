//! The command lines of the Pulumi CLI.

use std::ffi::OsString;
use std::path::Path;

/// What a run does to its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    Up,
    Destroy,
}

/// One run of the engine.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    pub kind: OperationKind,
    /// The stack's name as the CLI takes it: `dev`, `organization/dev`, `organization/project/dev`.
    pub stack: &'a str,
    /// A file that the CLI truncates and writes its events to, one JSON object per line.
    pub event_log: &'a Path,
    /// Whether the state is refreshed from the providers first.
    pub refresh: bool,
    /// Kept in the history of the stack.
    pub message: Option<&'a str>,
}

/// The arguments of a run, without the name of the program. `PULUMI_DEBUG_COMMANDS` has to be set: without it the CLI does
/// not know `--event-log` (see [`super::environment::engine_environment`]).
pub fn arguments(operation: &Operation<'_>) -> Vec<OsString> {
    todo!()
}

/// Makes a stack without selecting it. Fails when it exists: see [`super::failure::stack_exists`].
pub fn stack_init(stack: &str) -> Vec<OsString> {
    todo!()
}

/// Selects a stack that exists, so that a person's commands in the pod find it.
pub fn stack_select(stack: &str) -> Vec<OsString> {
    todo!()
}

/// Prints the outputs of a stack with the values of secrets: see [`super::outputs::parse`].
pub fn stack_output(stack: &str) -> Vec<OsString> {
    todo!()
}

/// Prints the version of the CLI.
pub fn version() -> Vec<OsString> {
    todo!()
}

/// Installs what the project in the working directory depends on.
pub fn install() -> Vec<OsString> {
    todo!()
}
