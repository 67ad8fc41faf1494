//! The API server of our own node, taken away and brought back by the cluster's own command.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long it may take to end, or to be ready again.
const LIMIT: Duration = Duration::from_secs(90);

/// How the API server is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It is killed: connections end, watches have expired when it is back.
    Stopped,
    /// It hangs: connections stay, and nobody answers.
    Paused,
}

impl Absence {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Absence::Stopped => ("stop", "start"),
            Absence::Paused => ("pause", "resume"),
        }
    }
}

/// The API server is away until this is told to bring it back, or dropped.
pub struct AwayApiServer {
    back: Option<&'static str>,
}

impl AwayApiServer {
    /// Whether the cluster is our own: another one's is not ours to stop.
    pub fn is_possible() -> bool {
        std::env::var_os("CLUSTER_RUN_DIR").is_some()
    }

    pub async fn take(absence: Absence) -> AwayApiServer {
        let (away, back) = absence.words();
        // From now on, whatever comes of it.
        let server = AwayApiServer { back: Some(back) };
        run(away).await;
        server
    }

    /// It answers again afterwards.
    pub async fn bring_back(mut self) {
        if let Some(word) = self.back.take() {
            run(word).await;
        }
    }
}

impl Drop for AwayApiServer {
    fn drop(&mut self) {
        let Some(word) = self.back.take() else { return };
        match command(word).status() {
            Ok(status) if status.success() => {}
            other => println!(
                "the API server could not be brought back ({other:?}): tests/cluster/cluster up makes a new cluster"
            ),
        }
    }
}

async fn run(word: &'static str) {
    let running = timeout(LIMIT, spawn_blocking(move || command(word).output())).await;
    let output = running
        .unwrap_or_else(|_| panic!("`cluster api-server {word}` did not end in {LIMIT:?}"))
        .expect("nothing cancels it")
        .unwrap_or_else(|error| panic!("`cluster api-server {word}` could not be started: {error}"));
    assert!(output.status.success(), "`cluster api-server {word}` failed: {}", String::from_utf8_lossy(&output.stderr));
}

fn command(word: &str) -> Command {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/cluster");
    let mut command = Command::new(script);
    command.args(["api-server", word]).stdin(Stdio::null());
    command
}

/// Says that a test has not run, past what keeps the words of tests that pass: `tests/run` lists these lines.
pub fn not_run(test: &str, why: &str) {
    drop(writeln!(std::io::stderr(), "NOT RUN: {test}: {why}"));
}
