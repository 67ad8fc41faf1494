//! Installs the dependencies of a project, or carries them over from the previous source.

pub mod carry;
mod inputs;

use std::io;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::command::{Call, CallError, Stdout};
use super::environment;
use super::layout::Layout;
use super::output::PodLog;
use super::processes::Family;
use super::refusal::Refusal;
use crate::pulumi::{advice, arguments};
use crate::rpc::proto::EnvironmentVariable;

pub use inputs::plan;

/// Timeout of an installation.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum number of lines of each output in an error message; [`MAX_MESSAGE`] limits its bytes.
const MAX_LINES: usize = 15;
const MAX_MESSAGE: usize = 4 * 1024;

/// Cause of a failed installation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{0}")]
    Environment(#[from] Refusal),
    #[error("`pulumi install` failed: {0}")]
    Call(#[from] CallError),
    /// `how` is the exit status; `output` is the last output without secrets, with advice.
    #[error("`pulumi install` failed ({how}):\n{output}")]
    Failed { how: String, output: String },
    /// Another source is requested, or the agent is shutting down. No process of the installation is left.
    #[error("the installation was cancelled")]
    Stopped,
}

/// Runs `pulumi install` in the current project. Its output goes to the pod's log.
///
/// The installation runs at the final path of the project, because virtual environments and links into them contain
/// absolute paths.
pub async fn install(
    layout: &Layout,
    wanted: &[EnvironmentVariable],
    stop: &CancellationToken,
) -> Result<(), InstallError> {
    let environment = environment::build(layout, wanted)?;
    let directory = layout.workspace();
    let call = Call {
        arguments: arguments::install(),
        directory: &directory,
        environment: &environment.variables,
        operation: &operation(layout),
        limit: INSTALL_TIMEOUT,
        log: PodLog { name: "install".to_owned(), redactor: environment.redactor() },
        stdin: None,
        stdout: Stdout::Logged,
        begun: &|_| {},
    };
    let ended = tokio::select! {
        ended = call.run() => ended?,
        () = stop.cancelled() => {
            call.end().await.map_err(CallError::Wait)?;
            return Err(InstallError::Stopped);
        }
    };
    if ended.exit.success() {
        return Ok(());
    }
    let output = [ended.stdout.last_lines(MAX_LINES), ended.stderr.last_lines(MAX_LINES)].join("\n");
    Err(InstallError::Failed { how: ended.how(), output: advice::with(end_of(output.trim())) })
}

/// Ends processes of an installation that a previous agent started.
pub async fn end_leftovers(layout: &Layout) -> io::Result<()> {
    Family::new(&operation(layout), Vec::new()).end().await
}

/// Returns the mark of the processes of an installation. A workspace has at most one installation at a time.
fn operation(layout: &Layout) -> String {
    format!("install-{}", layout.root().display())
}

/// Returns at most [`MAX_MESSAGE`] bytes from the end of a text, which names the cause.
fn end_of(text: &str) -> &str {
    let surplus = text.len().saturating_sub(MAX_MESSAGE);
    text.get(text.ceil_char_boundary(surplus)..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_keep_their_end() {
        assert_eq!(end_of("short"), "short");
        let long = format!("{}the cause", "ä".repeat(MAX_MESSAGE));
        assert!(end_of(&long).len() <= MAX_MESSAGE && end_of(&long).ends_with("äthe cause"));
    }
}
