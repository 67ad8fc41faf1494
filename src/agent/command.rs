//! Starts the Pulumi CLI in a new process session, runs CLI calls to completion, and queries the CLI version.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout};
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use super::environment;
use super::layout::Layout;
use super::output::{self, PodLog, Tail};
use super::processes::{MARKER, RunProcesses};
use crate::pulumi::arguments;
use crate::pulumi::failure::exit::Exit;

const OWN_EXECUTABLE: &str = "/proc/self/exe";
const CLI: &str = "pulumi";
/// Maximum number of bytes to read from a captured stdout.
const MAX_CAPTURE: u64 = 16 * 1024 * 1024;
/// Maximum time that the agent waits for output after the last process of the call has exited.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the version query.
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time that a caller waits for the version. The query continues after this time, so that a later call can
/// return the version. The maximum is long, because the agent reinstalls a source's dependencies if it does not know
/// the version, and this takes longer than a slow query.
const VERSION_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("failed to start the CLI: {0}")]
    Start(io::Error),
    #[error("failed to wait for the CLI: {0}")]
    Wait(io::Error),
    #[error("the CLI exceeded the timeout of {} s and was killed", .0.as_secs())]
    Timeout(Duration),
    #[error("the CLI was killed, because the run was canceled")]
    Canceled,
}

/// Starts the CLI in a new process session, with pipes for stdout and stderr. The CLI and all its descendants carry the
/// mark of the operation `operation`. The variable `PWD` contains `directory`, so that the CLI and the programs do not
/// resolve symbolic links in this path.
pub fn spawn(
    arguments: &[OsString],
    directory: &Path,
    environment: &BTreeMap<OsString, OsString>,
    operation: &str,
    stdin: Stdio,
) -> io::Result<Child> {
    tokio::process::Command::new(OWN_EXECUTABLE)
        .args(["launch", "--", CLI])
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .envs(environment)
        .env("PWD", directory)
        .env(MARKER, operation)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

pub fn exit(status: ExitStatus) -> Exit {
    Exit { code: status.code(), signal: status.signal() }
}

/// Destination of a call's stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdout {
    /// The log of the pod.
    Logged,
    /// Passes the output only to the caller, because the output is data and can contain secrets.
    Captured,
}

/// Data for a call that its arguments cannot contain, because every user on the node can read the arguments of a
/// process.
#[derive(Clone, Debug, Default)]
pub enum Input {
    #[default]
    None,
    Stdin(Zeroizing<Vec<u8>>),
    /// Environment variable with its value.
    Variable(&'static str, Zeroizing<String>),
}

/// A CLI call that runs to completion.
pub struct Call<'a> {
    pub arguments: Vec<OsString>,
    pub directory: &'a Path,
    pub environment: &'a BTreeMap<OsString, OsString>,
    /// ID that marks the processes of this call.
    pub operation: &'a str,
    pub log: PodLog,
    pub input: Input,
    pub stdout: Stdout,
    /// Callback that receives the process ID after the CLI has started.
    pub begun: &'a (dyn Fn(u32) + Send + Sync),
}

/// Exit status and output of a call.
#[derive(Debug)]
pub struct Ended {
    pub exit: Exit,
    pub stdout: Tail,
    pub captured: Vec<u8>,
    pub stderr: Tail,
}

impl Ended {
    /// Returns a description of the exit status for a message.
    pub fn describe_exit(&self) -> String {
        match (self.exit.code, self.exit.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended without an exit code".to_owned(),
        }
    }
}

impl Call<'_> {
    /// Runs the call until all its processes have exited. If the call exceeds `limit`, the function kills the
    /// processes.
    pub async fn run_within(&self, limit: Duration) -> Result<Ended, CallError> {
        let timeout = async {
            tokio::time::sleep(limit).await;
            CallError::Timeout(limit)
        };
        self.run_until(timeout).await
    }

    /// Runs the call until all its processes have exited. If `end` completes first, the function kills the processes
    /// and returns the error.
    pub async fn run_until<E: From<CallError>>(&self, end: impl Future<Output = E>) -> Result<Ended, E> {
        tokio::select! {
            ended = self.run() => Ok(ended?),
            error = end => {
                self.kill().await;
                Err(error)
            }
        }
    }

    /// Kills all processes of the call and waits until they have exited.
    async fn kill(&self) {
        let run_processes = RunProcesses::new(self.operation, Vec::new());
        run_processes.kill().await;
        run_processes.end().await;
    }

    fn start(&self) -> io::Result<Child> {
        let start = |environment, stdin| spawn(&self.arguments, self.directory, environment, self.operation, stdin);
        match &self.input {
            Input::None => start(self.environment, Stdio::null()),
            Input::Stdin(_) => start(self.environment, Stdio::piped()),
            Input::Variable(name, value) => {
                let mut environment = self.environment.clone();
                environment.insert(name.into(), value.as_str().into());
                start(&environment, Stdio::null())
            }
        }
    }

    async fn run(&self) -> Result<Ended, CallError> {
        let mut child = self.start().map_err(CallError::Start)?;
        child.id().into_iter().for_each(self.begun);
        let run_processes = RunProcesses::new(self.operation, child.id().into_iter().collect());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            // Ignores write errors, because the CLI error message explains why the CLI did not read its input.
            if let (Some(mut pipe), Input::Stdin(input)) = (stdin, &self.input) {
                let _ = pipe.write_all(input).await;
            }
        };
        let out = async {
            match (stdout, self.stdout) {
                (None, _) => (Tail::default(), Vec::new()),
                (Some(stdout), Stdout::Logged) => (output::copy(stdout, self.log.clone(), |_| {}).await, Vec::new()),
                (Some(stdout), Stdout::Captured) => (Tail::default(), capture(stdout).await),
            }
        };
        let err = async {
            match stderr {
                Some(stderr) => output::copy(stderr, self.log.clone(), |_| {}).await,
                None => Tail::default(),
            }
        };
        let ending = async {
            let status = child.wait().await?;
            run_processes.end().await;
            Ok::<ExitStatus, io::Error>(status)
        };
        let mut reading = std::pin::pin!(async {
            let (out, err, ()) = tokio::join!(out, err, feed);
            (out, err)
        });
        let mut ending = std::pin::pin!(ending);
        // Reads the output while the process is running, because a full pipe would block the CLI.
        let (status, read) = tokio::select! {
            status = &mut ending => (status, None),
            read = &mut reading => (ending.await, Some(read)),
        };
        let status = status.map_err(CallError::Wait)?;
        let ((stdout, captured), stderr) = match read {
            Some(read) => read,
            None => tokio::time::timeout(OUTPUT_TIMEOUT, reading).await.unwrap_or_default(),
        };
        Ok(Ended { exit: exit(status), stdout, captured, stderr })
    }
}

async fn capture(stdout: ChildStdout) -> Vec<u8> {
    let mut captured = Vec::new();
    let mut limited = stdout.take(MAX_CAPTURE);
    // Ignores read errors: the caller parses the output, and rejects incomplete output.
    let _ = limited.read_to_end(&mut captured).await;
    captured
}

/// Cache of the CLI version. The agent queries the version on first use, or after the delay that
/// [`CliVersion::query_later`] adds.
#[derive(Clone)]
pub struct CliVersion {
    layout: Layout,
    tasks: TaskTracker,
    found: Arc<OnceCell<String>>,
}

impl CliVersion {
    pub fn new(layout: Layout, tasks: TaskTracker) -> Self {
        CliVersion { layout, tasks, found: Arc::default() }
    }

    /// Returns the cached version, or an empty string if the agent does not know the version yet.
    pub fn known(&self) -> String {
        self.found.get().cloned().unwrap_or_default()
    }

    /// Queries the version after a random delay between `after` and twice `after`. The query takes about a third as
    /// long as a small run. The delay prevents the query from slowing down a new pod, and spreads the queries of
    /// different pods over time.
    pub async fn query_later(&self, after: Duration) {
        tokio::time::sleep(after.mul_f64(1.0 + fastrand::f64())).await;
        self.get().await;
    }

    /// Returns the version that the CLI prints. The first call queries the version. Returns an empty string if the
    /// image has no working CLI, or if the CLI does not respond in time.
    pub async fn get(&self) -> String {
        if let Some(version) = self.found.get() {
            return version.clone();
        }
        let finder = self.clone();
        // Runs the query in a separate task, so that the query continues after the timeout of the caller. The cell runs
        // only one query at a time.
        let finding = self.tasks.spawn(async move { finder.found.get_or_try_init(|| finder.query()).await.cloned() });
        match tokio::time::timeout(VERSION_ANSWER_TIMEOUT, finding).await {
            Ok(Ok(Ok(version))) => version,
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "failed to query the version of the CLI");
                String::new()
            }
            _ => String::new(),
        }
    }

    async fn query(&self) -> Result<String, CallError> {
        let environment = match environment::build(&self.layout, &[]) {
            Ok(environment) => environment,
            Err(error) => return Err(CallError::Start(io::Error::other(error))),
        };
        let call = Call {
            arguments: arguments::version(),
            directory: self.layout.root(),
            environment: &environment.variables,
            operation: &format!("version-{}", uuid::Uuid::new_v4()),
            log: PodLog { name: "version".to_owned(), redactor: environment.redactor(), transcript: None },
            input: Input::None,
            stdout: Stdout::Captured,
            begun: &|_| {},
        };
        let ended = call.run_within(VERSION_TIMEOUT).await?;
        if !ended.exit.success() {
            tracing::warn!(how = ended.describe_exit(), "the image has no working CLI");
            return Ok(String::new());
        }
        let printed = String::from_utf8_lossy(&ended.captured);
        Ok(printed.lines().next().unwrap_or_default().trim().chars().take(64).collect())
    }
}
