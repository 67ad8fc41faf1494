//! Stops and restarts the API server of the test cluster through `tests/cluster/cluster`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Timeout for a command that stops the API server or waits until it is ready.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Kind of an API server outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageKind {
    /// The test kills the process, and all connections close. After the restart, the resource versions of the watches
    /// have expired.
    Stopped,
    /// The test suspends the process. Connections stay open, but requests receive no response.
    Paused,
}

impl OutageKind {
    fn commands(self) -> (&'static str, &'static str) {
        match self {
            OutageKind::Stopped => ("stop", "start"),
            OutageKind::Paused => ("pause", "resume"),
        }
    }
}

/// Guard of an API server outage. Call `finish` or drop the guard to end the outage.
pub struct ApiServerOutage {
    end: Option<&'static str>,
}

impl ApiServerOutage {
    /// Returns whether the tests have started this cluster. The tests must not stop the API server of another cluster.
    pub fn is_possible() -> bool {
        std::env::var_os("CLUSTER_RUN_DIR").is_some()
    }

    pub async fn start(kind: OutageKind) -> ApiServerOutage {
        let (begin, end) = kind.commands();
        // The function creates the guard before it runs the command, so that a failed command also restarts the API
        // server.
        let outage = ApiServerOutage { end: Some(end) };
        run(begin).await;
        outage
    }

    /// Ends the outage, and waits until the API server is ready.
    pub async fn finish(mut self) {
        if let Some(word) = self.end.take() {
            run(word).await;
        }
    }
}

impl Drop for ApiServerOutage {
    fn drop(&mut self) {
        let Some(word) = self.end.take() else { return };
        match command(word).status() {
            Ok(status) if status.success() => {}
            other => println!(
                "failed to restore the API server ({other:?}): run `tests/cluster/cluster up` to create a new cluster"
            ),
        }
    }
}

async fn run(word: &'static str) {
    let running = timeout(TIMEOUT, spawn_blocking(move || command(word).output())).await;
    let output = running
        .unwrap_or_else(|_| panic!("`cluster api-server {word}` did not end within {TIMEOUT:?}"))
        .expect("the task is not canceled")
        .unwrap_or_else(|error| panic!("`cluster api-server {word}` failed to start: {error}"));
    assert!(output.status.success(), "`cluster api-server {word}` failed: {}", String::from_utf8_lossy(&output.stderr));
}

fn command(word: &str) -> Command {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/cluster");
    let mut command = Command::new(script);
    command.args(["api-server", word]).stdin(Stdio::null());
    command
}

/// Reports a skipped test. The function writes directly to stderr, because Rust's test harness does not capture direct
/// writes. `tests/run` lists these lines.
pub fn report_skipped(test: &str, why: &str) {
    drop(writeln!(std::io::stderr(), "NOT RUN: {test}: {why}"));
}
