//! Calls of the CLI: a process in a session of its own, and short calls that are waited for.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout};
use zeroize::Zeroizing;

use super::output::{self, PodLog, Tail};
use super::processes::{Family, MARKER};
use crate::pulumi::failure::Exit;

const OWN_EXECUTABLE: &str = "/proc/self/exe";
const CLI: &str = "pulumi";
/// How much of an output is read that is not for the log.
const MAX_CAPTURE: u64 = 16 * 1024 * 1024;
/// How long the output may stay open after the last process of the call has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("cannot start the CLI: {0}")]
    Start(io::Error),
    #[error("cannot wait for the CLI: {0}")]
    Wait(io::Error),
    #[error("it took longer than {} s and was ended", .0.as_secs())]
    TooLong(Duration),
}

/// Starts the CLI in a session of its own, with its output in pipes. `operation` marks all its descendants.
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
        .env(MARKER, operation)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

pub fn exit(status: ExitStatus) -> Exit {
    Exit { code: status.code(), signal: status.signal() }
}

/// What becomes of a call's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdout {
    /// It is for people.
    Logged,
    /// It is data, perhaps secret: it goes nowhere but to the caller.
    Captured,
}

/// A call of the CLI that is waited for.
pub struct Call<'a> {
    pub arguments: Vec<OsString>,
    pub directory: &'a Path,
    pub environment: &'a BTreeMap<OsString, OsString>,
    /// Marks the processes of this call.
    pub operation: &'a str,
    pub limit: Duration,
    pub log: PodLog,
    /// What it reads from its standard input; nothing where there is none.
    pub stdin: Option<Zeroizing<Vec<u8>>>,
    pub stdout: Stdout,
    /// Is told the process id when it is started.
    pub begun: &'a (dyn Fn(u32) + Send + Sync),
}

/// How a call ended.
#[derive(Debug)]
pub struct Ended {
    pub exit: Exit,
    pub stdout: Tail,
    pub captured: Vec<u8>,
    pub stderr: Tail,
}

impl Ended {
    /// In words.
    pub fn how(&self) -> String {
        match (self.exit.code, self.exit.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "it ended without a code".to_owned(),
        }
    }
}

impl Call<'_> {
    /// Runs it until all its processes have ended, within its limit.
    pub async fn run(&self) -> Result<Ended, CallError> {
        match tokio::time::timeout(self.limit, self.run_unlimited()).await {
            Ok(ended) => ended,
            Err(_) => {
                self.end().await.map_err(CallError::Wait)?;
                Err(CallError::TooLong(self.limit))
            }
        }
    }

    /// Kills all processes of the call.
    pub async fn end(&self) -> io::Result<()> {
        let family = Family::new(self.operation, Vec::new());
        family.signal(Signal::KILL)?;
        family.end().await
    }

    async fn run_unlimited(&self) -> Result<Ended, CallError> {
        let stdin = if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
        let mut child = spawn(&self.arguments, self.directory, self.environment, self.operation, stdin)
            .map_err(CallError::Start)?;
        child.id().into_iter().for_each(self.begun);
        let family = Family::new(self.operation, child.id().into_iter().collect());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            // One that does not read it ends with an error of its own.
            if let (Some(mut pipe), Some(input)) = (stdin, &self.stdin) {
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
            family.end().await?;
            Ok::<ExitStatus, io::Error>(status)
        };
        let mut reading = std::pin::pin!(async {
            let (out, err, ()) = tokio::join!(out, err, feed);
            (out, err)
        });
        let mut ending = std::pin::pin!(ending);
        // Both go on at once: a full pipe would keep the CLI from ending.
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
    // What was read up to an error is judged by who parses it.
    let _ = limited.read_to_end(&mut captured).await;
    captured
}
