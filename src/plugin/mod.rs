//! The kubectl plugin `kubectl pulumi`. The plugin belongs to the binary `kubectl-pulumi` and not to the library, so
//! the controller binary contains no plugin code.
//!
//! Each command consists of a pure function that converts objects to a screen, and a small asynchronous function that
//! reads or changes the objects.

pub mod args;
mod cluster;
mod commands;
mod completion;
mod confirm;
mod controller;
mod duplicates;
mod error;
mod exec;
#[cfg(test)]
mod fixtures;
mod follow;
mod kubeconfig;
mod plan;
mod pod_cli;
mod progress;
#[cfg(test)]
mod reference_tests;
mod screen;
mod select;
mod sources;
mod updates;
mod workspace_pod;

use pulumi_controller::text::printable;

use crate::plugin::args::CommandLine;
use crate::plugin::error::PluginError;

/// Prints an error on stderr.
pub fn report(error: &PluginError) {
    progress::write_error(&format!("{}\n", message(error)));
}

/// Returns the error message for the terminal. The message can contain text from the cluster.
fn message(error: &PluginError) -> String {
    let symbol = if matches!(error, PluginError::Changes(_) | PluginError::Waiting(_)) { "ℹ" } else { "✗" };
    format!("{symbol} {}", printable(&error.to_string()))
}

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
    // Shut down without waiting for a blocking read of stdin.
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_message_cannot_control_the_terminal() {
        let error = PluginError::NotReady("Stack apps/web is not ready: a\u{1b}]52;c;eA==\u{7}\u{202e}b".to_owned());
        assert_eq!(message(&error), "✗ Stack apps/web is not ready: a\u{fffd}]52;c;eA==\u{fffd}\u{fffd}b");
    }
}
