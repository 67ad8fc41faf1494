//! Installs what a project depends on, before its source is put in place.

use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::command::{Call, CallError, Stdout};
use super::environment;
use super::layout::Layout;
use super::output::PodLog;
use super::refusal::Refusal;
use crate::pulumi::arguments;

/// How long an installation may take; less than the controller waits for the whole call.
const LIMIT: Duration = Duration::from_secs(12 * 60);
/// How many lines of its output an error shows.
const SHOWN: usize = 15;

/// Runs `pulumi install` in a project's directory; its output goes to the pod's log.
pub async fn install(layout: &Layout, project: &Path, stop: &CancellationToken) -> Result<(), Refusal> {
    let mut environment = environment::build(layout, &[])?;
    environment.variables.insert("PWD".into(), project.into());
    let log = PodLog { name: "install".to_owned(), redactor: environment.redactor() };
    let call = Call {
        arguments: arguments::install(),
        directory: project,
        environment: &environment.variables,
        operation: &format!("install-{}", uuid::Uuid::new_v4()),
        limit: LIMIT,
        log,
        stdout: Stdout::Logged,
    };
    let refused = |error: CallError| Refusal::Precondition(format!("the dependencies were not installed: {error}"));
    let ended = tokio::select! {
        ended = call.run() => ended.map_err(refused)?,
        () = stop.cancelled() => {
            call.end().await.map_err(Refusal::system("cannot end the installation"))?;
            return Err(Refusal::Precondition("the dependencies were not installed: the agent ends".to_owned()));
        }
    };
    if ended.exit.success() {
        return Ok(());
    }
    let said = [ended.stderr.last_lines(SHOWN), ended.stdout.last_lines(SHOWN)].join("\n");
    Err(Refusal::Precondition(format!("`pulumi install` failed ({}):\n{}", ended.how(), said.trim())))
}
