//! User views of the API objects: the phase of a Stack, the next steps, the runs and their logs, and the objects that
//! request actions. The kubectl plugin and the web UI share these pure functions.

pub mod decisions;
pub mod dependencies;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod links;
pub mod phase;
pub mod requests;
pub mod run_log;
pub mod runs;
pub mod steps;
pub mod time;

// The module `fixtures` imports these types from here.
#[cfg(test)]
use crate::api::{auto::Update, pulumi::Stack};
