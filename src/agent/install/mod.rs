//! Installs what a project depends on, or takes it over from the source before.

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

/// How long an installation may take.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How many lines of each of its outputs an error shows, and how many bytes in all.
const SHOWN: usize = 15;
const MAX_MESSAGE: usize = 4 * 1024;

/// Why there is no installation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{0}")]
    Environment(#[from] Refusal),
    #[error("`pulumi install` failed: {0}")]
    Call(#[from] CallError),
    /// How it ended, and what it said last, without the values of secrets, with what can be done about it.
    #[error("`pulumi install` failed ({how}):\n{said}")]
    Failed { how: String, said: String },
    /// Nobody wants it any more, or the agent ends. Nothing of it runs any more.
    #[error("the installation was stopped")]
    Stopped,
}

/// Runs `pulumi install` for the project in place; its output goes to the pod's log.
///
/// It runs where the project will be used: virtual environments and what is linked into them hold the paths that they were
/// made at.
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
    let said = [ended.stdout.last_lines(SHOWN), ended.stderr.last_lines(SHOWN)].join("\n");
    Err(InstallError::Failed { how: ended.how(), said: advice::with(end_of(said.trim())) })
}

/// Ends what an agent before this one left of an installation.
pub async fn end_leftovers(layout: &Layout) -> io::Result<()> {
    Family::new(&operation(layout), Vec::new()).end().await
}

/// Marks the processes of an installation: there is never more than one in a workspace.
fn operation(layout: &Layout) -> String {
    format!("install-{}", layout.root().display())
}

/// Where a message is too long, its end: the cause stands there.
fn end_of(text: &str) -> &str {
    let surplus = text.len().saturating_sub(MAX_MESSAGE);
    text.get(text.ceil_char_boundary(surplus)..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_message_the_end_is_kept() {
        assert_eq!(end_of("short"), "short");
        let long = format!("{}the cause", "ä".repeat(MAX_MESSAGE));
        assert!(end_of(&long).len() <= MAX_MESSAGE && end_of(&long).ends_with("äthe cause"));
    }
}
