//! Processes untrusted input in a short-lived child process that runs this binary, with limits for memory, CPU time,
//! wall-clock time and files.
//!
//! The parent starts the child with a role as its argument, without environment variables, and with three pipes as the
//! only file descriptors. The parent writes the limits and the input to the stdin of the child. The child applies the
//! limits to itself ([`confined_input`]), reads the input, and writes its response to stdout. The parent limits the
//! size of the response. If the child exceeds the wall-clock time or the caller drops the future, the parent kills the
//! child. A child that exceeds a limit does not affect the parent. The returned [`Failure`] contains the limit.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, nice, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// Path of the running binary, which remains valid after the file has been replaced.
const OWN_BINARY: &str = "/proc/self/exe";
/// Maximum size of the child's stored stderr output, in bytes.
const MAX_ERROR_OUTPUT: usize = 4 * 1024;
/// Maximum time that the parent waits for a killed child to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of the header that contains the limits, in bytes.
const MAX_HEADER: u64 = 4 * 1024;
/// OOM score adjustment of the child. With this value, the kernel kills the child before it kills the parent.
const OOM_SCORE_ADJUSTMENT: &str = "1000";

/// Resource limits for a child process. The parent enforces `wall` and `response`. The kernel enforces all other
/// limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum private writable memory in bytes, which includes the heap and the thread stacks. The limit does not
    /// include files that are mapped for reading.
    pub memory: u64,
    /// Maximum address space in bytes, which includes the memory, the binary and mapped files.
    pub address_space: u64,
    /// Maximum size of the main thread's stack in bytes.
    pub stack: u64,
    /// Maximum CPU time in whole seconds.
    pub cpu: Duration,
    /// Nice value, from 0 (normal priority) to 19 (lowest priority). Use a high value for work that takes many seconds.
    pub nice: u8,
    /// Maximum wall-clock time between the child's start and its exit.
    pub wall: Duration,
    /// Maximum size of a file that the child writes, in bytes. If the value is 0, the child cannot write files.
    pub file_size: u64,
    /// Maximum number of open file descriptors, including the three pipes.
    pub open_files: u64,
    /// Whether the child can start threads and processes. The value `false` has no effect if the child runs as root.
    pub threads: bool,
    /// Maximum size of the response in bytes.
    pub response: u64,
}

impl Limits {
    /// Returns the header, which is the first line of the child's input.
    fn header(&self) -> Vec<u8> {
        let mut header = serde_json::to_vec(self).unwrap_or_default();
        header.push(b'\n');
        header
    }

    fn parse(header: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(header)
    }
}

/// Launcher of child processes.
#[derive(Clone, Debug)]
pub struct Subprocess {
    program: PathBuf,
}

/// Reason why the child has not returned a response.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("memory limit of {} exceeded", format_bytes(*limit))]
    Memory { limit: u64 },
    #[error("CPU time limit of {} s exceeded", limit.as_secs())]
    Cpu { limit: Duration },
    #[error("file size limit of {} exceeded", format_bytes(*limit))]
    FileSize { limit: u64 },
    #[error("response size limit of {} exceeded", format_bytes(*limit))]
    Response { limit: u64 },
    #[error("timed out after {} s", limit.as_secs())]
    Time { limit: Duration },
    /// SIGKILL terminated the child, but the parent did not send the signal, and the child did not exceed a limit. The
    /// kernel probably sent the signal, because the container or the node was out of memory.
    #[error("the process was killed, probably because the controller's container or its node ran out of memory")]
    Killed,
    #[error("failed to start the process: {0}")]
    Start(io::Error),
    #[error("the process exited without a response ({status}){}", after_colon(error_output))]
    Ended { status: ExitStatus, error_output: String },
}

impl Failure {
    /// Returns whether the input caused the failure. If so, a retry with the same input would fail in the same way.
    pub fn is_caused_by_input(&self) -> bool {
        matches!(
            self,
            Failure::Memory { .. } | Failure::Cpu { .. } | Failure::FileSize { .. } | Failure::Response { .. }
        )
    }
}

impl Subprocess {
    /// Creates an instance that starts the running binary as the child.
    pub fn of_this_binary() -> Self {
        Self { program: OWN_BINARY.into() }
    }

    /// Creates an instance that starts another binary as the child. Tests use this function, because a test binary does
    /// not implement the roles.
    pub fn of(program: PathBuf) -> Self {
        Self { program }
    }

    /// Starts a child with a role, sends the input to the child, and waits for its response. Dropping the future kills
    /// the child.
    ///
    /// # Errors
    ///
    /// Returns an error if the child cannot start, exceeds a limit or exits unsuccessfully.
    pub async fn run(&self, role: &str, input: &[u8], limits: &Limits) -> Result<Vec<u8>, Failure> {
        let mut child = self.start(role).map_err(Failure::Start)?;
        let outcome = tokio::time::timeout(limits.wall, communicate(&mut child, input, limits)).await;
        let (status, response, error_output) = match outcome {
            Ok(Ok(Some(ended))) => ended,
            Ok(Ok(None)) => {
                end(&mut child, role).await;
                return Err(Failure::Response { limit: limits.response });
            }
            Ok(Err(cause)) => {
                end(&mut child, role).await;
                return Err(Failure::Start(cause));
            }
            Err(_) => {
                end(&mut child, role).await;
                return Err(Failure::Time { limit: limits.wall });
            }
        };
        match status.success() {
            true => Ok(response),
            false => Err(failure(status, &error_output, limits)),
        }
    }

    fn start(&self, role: &str) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg(role).env_clear().current_dir("/");
        // The child has its own process group, so signals to the parent's process group do not reach the child.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn()
    }
}

/// Writes the input and reads the response concurrently, and then waits until the child exits. Returns `None` if the
/// response exceeds its size limit.
async fn communicate(
    child: &mut Child,
    input: &[u8],
    limits: &Limits,
) -> io::Result<Option<(ExitStatus, Vec<u8>, String)>> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(io::Error::other("child process has no pipes"));
    };
    let write = async move {
        // Ignores errors: a child that exits early does not read its complete input, and its exit status contains the
        // cause.
        let _ = stdin.write_all(&limits.header()).await;
        let _ = stdin.write_all(input).await;
        Ok(())
    };
    let max_bytes = usize::try_from(limits.response).unwrap_or(usize::MAX);
    let response = async move {
        let response = read(stdout, max_bytes).await?;
        response.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))
    };
    let error_output = async move {
        let error_output = read_and_discard_rest(stderr, MAX_ERROR_OUTPUT).await?;
        Ok(String::from_utf8_lossy(&error_output).into_owned())
    };
    match tokio::try_join!(write, response, error_output) {
        Ok(((), response, error_output)) => Ok(Some((child.wait().await?, response, error_output))),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads all bytes, or returns `None` if there are more than `max_bytes` bytes.
async fn read(from: impl AsyncRead + Unpin, max_bytes: usize) -> io::Result<Option<Vec<u8>>> {
    let mut read = Vec::new();
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    from.take(limit).read_to_end(&mut read).await?;
    Ok((read.len() <= max_bytes).then_some(read))
}

/// Returns the first `max_bytes` bytes. The function reads and discards the rest, because a full pipe would block the
/// writer.
async fn read_and_discard_rest(mut from: impl AsyncRead + Unpin, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(kept);
        }
        let remaining = max_bytes.saturating_sub(kept.len());
        kept.extend(buffer.iter().take(count.min(remaining)));
    }
}

/// Kills a child, and waits until the child has exited and its resources are free.
async fn end(child: &mut Child, role: &str) {
    match tokio::time::timeout(KILL_TIMEOUT, child.kill()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(role, %error, "failed to kill child process"),
        Err(_) => tracing::warn!(role, "the killed child process did not exit"),
    }
}

/// Returns the reason why the child exited unsuccessfully.
fn failure(status: ExitStatus, error_output: &str, limits: &Limits) -> Failure {
    let signal = status.signal().and_then(Signal::from_named_raw);
    // The Rust runtime prints these messages before it aborts the process.
    let is_out_of_memory =
        ["memory allocation of", "overflowed its stack"].iter().any(|text| error_output.contains(text));
    match signal {
        Some(Signal::XCPU) => Failure::Cpu { limit: limits.cpu },
        Some(Signal::XFSZ) => Failure::FileSize { limit: limits.file_size },
        Some(Signal::ABORT) if is_out_of_memory => Failure::Memory { limit: limits.memory },
        Some(Signal::SEGV) => Failure::Memory { limit: limits.memory },
        Some(Signal::KILL) => Failure::Killed,
        _ => Failure::Ended { status, error_output: error_output.split_whitespace().collect::<Vec<_>>().join(" ") },
    }
}

fn after_colon(error_output: &str) -> String {
    if error_output.is_empty() {
        String::new()
    } else {
        format!(": {}", error_output.chars().take(300).collect::<String>())
    }
}

/// Formats a number of bytes for a message.
fn format_bytes(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    if bytes > 0 && bytes.is_multiple_of(MEBIBYTE) {
        format!("{}Mi", bytes / MEBIBYTE)
    } else {
        format!("{bytes} bytes")
    }
}

/// Applies the parent's limits to this process, and returns a reader for the input, which is the rest of stdin. The
/// caller must call this function while the process has only one thread.
///
/// # Errors
///
/// Returns an error if the header is missing or invalid, or if the process cannot set a limit.
pub fn confined_input() -> io::Result<impl Read> {
    let mut stdin = BufReader::new(io::stdin());
    let mut header = Vec::new();
    stdin.by_ref().take(MAX_HEADER).read_until(b'\n', &mut header)?;
    let limits = Limits::parse(&header).map_err(|error| {
        io::Error::other(format!("failed to read the limits: {error}; only the controller starts this role"))
    })?;
    apply_limits(&limits)?;
    Ok(stdin)
}

fn apply_limits(limits: &Limits) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJUSTMENT)?;
    set_no_new_privs(true)?;
    // Disables debuggers and core dumps, because the memory can contain credentials.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    nice(i32::from(limits.nice))?;
    set_limit(Resource::Stack, limits.stack)?;
    set_limit(Resource::Data, limits.memory)?;
    set_limit(Resource::As, limits.address_space)?;
    // If the process ignores SIGXCPU, the kernel kills it one second later.
    let cpu = limits.cpu.as_secs();
    setrlimit(Resource::Cpu, Rlimit { current: Some(cpu), maximum: Some(cpu + 1) })?;
    set_limit(Resource::Fsize, limits.file_size)?;
    set_limit(Resource::Core, 0)?;
    set_limit(Resource::Nofile, limits.open_files)?;
    if !limits.threads {
        set_limit(Resource::Nproc, 0)?;
    }
    Ok(())
}

fn set_limit(resource: Resource, limit: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?)
}

#[cfg(test)]
mod tests;
