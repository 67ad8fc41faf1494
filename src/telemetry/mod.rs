//! Logs, metrics, traces, and the redaction of secrets.

pub mod fair_buffer;
pub mod logging;
pub mod metrics;
pub mod process;
pub mod reconciles;
pub mod redact;
pub mod runs;
pub mod slots;
pub mod stacks;
pub mod traces;

pub use crate::text::chain;
