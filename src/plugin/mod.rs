//! The kubectl plugin `kubectl pulumi`. It is part of the binary `kubectl-pulumi` and not of the library, so that the
//! controller contains none of its code.
//!
//! Each command consists of a pure function from objects to a screen, and of a small asynchronous function that reads
//! or changes the objects.

pub mod args;
mod cluster;
mod commands;
mod completion;
mod controller;
mod error;
#[cfg(test)]
mod fixtures;
mod follow;
mod phase;
mod progress;
#[cfg(test)]
mod reference_tests;
mod screen;
mod select;
mod sources;
mod updates;

use crate::plugin::args::CommandLine;
use crate::plugin::error::PluginError;

/// Runs a command.
///
/// # Errors
///
/// Returns an error with a message for the user and with the exit code of the process.
pub fn run(line: CommandLine) -> Result<(), PluginError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| PluginError::Failed(format!("failed to start the asynchronous runtime: {cause}")))?;
    let ended = runtime.block_on(Box::pin(commands::run(line)));
    // Does not wait for a blocking read of the standard input.
    runtime.shutdown_background();
    ended
}
