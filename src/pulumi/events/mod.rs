//! Event log of the engine, with one JSON object per line.

mod event;
mod lines;
mod summary;

pub use event::{Diagnostic, EngineEvent, EventError, EventKind, PluginProgress, ResourceStep, Summary};
pub use lines::{LineSplitter, MAXIMUM_LINE};
pub use summary::RunSummary;
#[cfg(test)]
pub(crate) use summary::summary_of;
