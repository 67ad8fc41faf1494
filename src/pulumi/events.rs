//! The event log of the engine: one JSON object per line.

use std::collections::BTreeMap;

use super::outputs::Output;

/// No line of the event log may be longer, in bytes.
pub const MAXIMUM_LINE: usize = 64 * 1024 * 1024;

/// Why a line of the event log was not understood. Reading goes on with the next line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EventError {
    #[error("a line of the event log is longer than {MAXIMUM_LINE} bytes")]
    Oversized,
    #[error("a line of the event log is not an engine event: {reason}")]
    Malformed { reason: String },
}

/// One event of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineEvent {
    /// Rises with each event of a run.
    pub sequence: u64,
    /// Seconds since 1970.
    pub timestamp: i64,
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// The engine began. From here on it takes signals as a request to stop gracefully.
    Prelude,
    /// A step on a resource begins.
    ResourcePre(ResourceStep),
    /// A step on a resource is done.
    ResourceOutputs(ResourceStep),
    /// A step on a resource failed.
    ResourceFailed(ResourceStep),
    Diagnostic(Diagnostic),
    Summary(Summary),
    /// What the engine says for itself, such as that it stops.
    Stdout { message: String },
    /// A plugin is being downloaded or installed.
    Progress(PluginProgress),
    /// The last event, also of a run that succeeded.
    Cancel,
    /// An event of a kind that is of no interest, or newer than this code.
    Other,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceStep {
    pub urn: String,
    /// The engine's word: create, update, delete, same, ...
    pub operation: String,
    /// The resource's type token.
    pub resource_type: String,
    /// The outputs of the stack itself; only with the root stack resource's `ResourceOutputs`.
    pub stack_outputs: Option<Vec<Output>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// `debug`, `info`, `info#err`, `warning` or `error`.
    pub severity: String,
    /// Empty when it is about no resource.
    pub urn: String,
    /// Without colour tags.
    pub message: String,
    /// Whether it is of the moment only: shown while the run goes on, not kept.
    pub ephemeral: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginProgress {
    /// `plugin-download` or `plugin-install`.
    pub kind: String,
    pub message: String,
    pub done: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub duration_seconds: u64,
    /// Number of resources by the engine's word for what was done.
    pub resource_changes: BTreeMap<String, u64>,
    /// `succeeded`, `failed` or `canceled`; absent before CLI 3.237.
    pub result: Option<String>,
}

impl EngineEvent {
    /// Reads one line. Never panics, whatever the bytes.
    pub fn parse(line: &[u8]) -> Result<EngineEvent, EventError> {
        todo!()
    }
}

/// Cuts the bytes of a growing file into complete lines. Keeps at most [`MAXIMUM_LINE`] bytes.
#[derive(Debug, Default)]
pub struct LineSplitter {}

impl LineSplitter {
    /// Takes the next bytes of the file; gives the lines that are complete now, without their newline, empty ones left out.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<Result<Vec<u8>, EventError>> {
        todo!()
    }
}

/// What is to be remembered of the events of one run; bounded.
#[derive(Clone, Debug, Default)]
pub struct RunSummary {}

impl RunSummary {
    pub fn observe(&mut self, event: &EngineEvent) {
        todo!()
    }

    /// The engine's own summary, when it came that far.
    pub fn summary(&self) -> Option<&Summary> {
        todo!()
    }

    /// Number of resources by the engine's word; counted from the steps when the engine gave no summary.
    pub fn resource_changes(&self) -> BTreeMap<String, u64> {
        todo!()
    }

    /// The first and the last error diagnostics, 16 KiB in total.
    pub fn errors(&self) -> Vec<Diagnostic> {
        todo!()
    }

    /// The outputs of the stack as the engine's last word on them; secrets are blinded. `None` when it said nothing.
    pub fn outputs(&self) -> Option<&[Output]> {
        todo!()
    }

    /// Whether any event came: if not, the CLI failed before the engine began.
    pub fn began(&self) -> bool {
        todo!()
    }
}
