//! Runs work on untrusted input in a short-lived child process of this binary, with limits on memory, CPU time,
//! wall-clock time and files.
//!
//! The parent starts the child with a role as its argument, no environment and no file descriptors except three pipes.
//! It writes the limits and then the input to the child's stdin. The child applies the limits to itself before it reads
//! the input ([`confined_input`]), and writes its answer to stdout. The parent reads a bounded answer. It kills the
//! child when the wall-clock time is exceeded or the caller no longer waits for the answer. A child that exceeds a
//! limit does not affect the parent; [`Failure`] reports the limit.

mod confine;
mod limits;

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

pub use confine::confined_input;
pub use limits::Limits;

/// The running binary, even if its file has been replaced.
const OWN_BINARY: &str = "/proc/self/exe";
/// Maximum number of bytes of the child's stderr that are kept.
const MAX_COMPLAINTS: usize = 4 * 1024;
/// Maximum time for a killed child to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts child processes.
#[derive(Clone, Debug)]
pub struct Subprocess {
    program: PathBuf,
}

/// Cause of a missing answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("memory limit of {} exceeded", quantity(*limit))]
    Memory { limit: u64 },
    #[error("CPU time limit of {} s exceeded", limit.as_secs())]
    Cpu { limit: Duration },
    #[error("file size limit of {} exceeded", quantity(*limit))]
    FileSize { limit: u64 },
    #[error("response size limit of {} exceeded", quantity(*limit))]
    Answer { limit: u64 },
    #[error("timed out after {} s", limit.as_secs())]
    Time { limit: Duration },
    /// The child was killed, but neither by the parent nor by one of its limits: most likely by the kernel, because the
    /// container or the node ran out of memory.
    #[error("the process was killed, probably because the controller's container or its node ran out of memory")]
    Killed,
    #[error("failed to start the process: {0}")]
    Start(io::Error),
    #[error("the process exited without a response ({status}){}", after_colon(complaint))]
    Ended { status: ExitStatus, complaint: String },
}

impl Failure {
    /// Returns whether the same input would exceed the same limit again. Other failures can be temporary.
    pub fn is_of_input(&self) -> bool {
        matches!(self, Failure::Memory { .. } | Failure::Cpu { .. } | Failure::FileSize { .. } | Failure::Answer { .. })
    }
}

impl Subprocess {
    /// Starts children from the running binary.
    pub fn of_this_binary() -> Self {
        Self { program: OWN_BINARY.into() }
    }

    /// Starts children from another binary. For tests, whose own binary does not implement the roles.
    pub fn of(program: PathBuf) -> Self {
        Self { program }
    }

    /// Starts a child in a role, sends it the input, and waits for its answer. Dropping the future kills the child.
    ///
    /// # Errors
    ///
    /// Returns an error if the child exceeds a limit or exits unsuccessfully.
    pub async fn run(&self, role: &str, input: &[u8], limits: &Limits) -> Result<Vec<u8>, Failure> {
        let mut child = self.start(role).map_err(Failure::Start)?;
        let talked = tokio::time::timeout(limits.wall, talk(&mut child, input, limits)).await;
        let (status, answer, complaint) = match talked {
            Ok(Ok(Some(ended))) => ended,
            Ok(Ok(None)) => {
                end(&mut child, role).await;
                return Err(Failure::Answer { limit: limits.answer });
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
            true => Ok(answer),
            false => Err(failure(status, &complaint, limits)),
        }
    }

    fn start(&self, role: &str) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg(role).env_clear().current_dir("/");
        // A separate process group: signals to the parent's group do not reach the child.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn()
    }
}

/// Writes the input and reads the answer concurrently, then waits for the exit. Returns `None` if the answer is too
/// large.
async fn talk(child: &mut Child, input: &[u8], limits: &Limits) -> io::Result<Option<(ExitStatus, Vec<u8>, String)>> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(io::Error::other("child process has no pipes"));
    };
    let write = async move {
        // A child that exits early does not read all of its input; its exit status reports the cause.
        let _ = stdin.write_all(&limits.header()).await;
        let _ = stdin.write_all(input).await;
        Ok(())
    };
    let most = usize::try_from(limits.answer).unwrap_or(usize::MAX);
    let answer = async move {
        let answer = read(stdout, most).await?;
        answer.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))
    };
    let complaint = async move {
        let complaint = read_and_discard_rest(stderr, MAX_COMPLAINTS).await?;
        Ok(String::from_utf8_lossy(&complaint).into_owned())
    };
    match tokio::try_join!(write, answer, complaint) {
        Ok(((), answer, complaint)) => Ok(Some((child.wait().await?, answer, complaint))),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads everything, or returns `None` if that is more than `most` bytes.
async fn read(from: impl AsyncRead + Unpin, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut read = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    from.take(limit).read_to_end(&mut read).await?;
    Ok((read.len() <= most).then_some(read))
}

/// Returns the first `most` bytes. Reads and discards the rest, so that the writer does not block.
async fn read_and_discard_rest(mut from: impl AsyncRead + Unpin, most: usize) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(kept);
        }
        let remaining = most.saturating_sub(kept.len());
        kept.extend(buffer.iter().take(count.min(remaining)));
    }
}

/// Kills a child and waits for its exit, so that its resources are free.
async fn end(child: &mut Child, role: &str) {
    match tokio::time::timeout(KILL_TIMEOUT, child.kill()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(role, %error, "failed to kill child process"),
        Err(_) => tracing::warn!(role, "killed child process did not exit"),
    }
}

/// Returns the cause of an unsuccessful exit.
fn failure(status: ExitStatus, complaint: &str, limits: &Limits) -> Failure {
    use rustix::process::Signal;
    let signal = status.signal().and_then(Signal::from_named_raw);
    // Messages of the Rust runtime before it aborts.
    let is_out_of_memory = ["memory allocation of", "overflowed its stack"].iter().any(|text| complaint.contains(text));
    match signal {
        Some(Signal::XCPU) => Failure::Cpu { limit: limits.cpu },
        Some(Signal::XFSZ) => Failure::FileSize { limit: limits.file_size },
        Some(Signal::ABORT) if is_out_of_memory => Failure::Memory { limit: limits.memory },
        Some(Signal::SEGV) => Failure::Memory { limit: limits.memory },
        Some(Signal::KILL) => Failure::Killed,
        _ => Failure::Ended { status, complaint: complaint.split_whitespace().collect::<Vec<_>>().join(" ") },
    }
}

fn after_colon(complaint: &str) -> String {
    if complaint.is_empty() { String::new() } else { format!(": {}", complaint.chars().take(300).collect::<String>()) }
}

/// Formats bytes as a Kubernetes quantity.
fn quantity(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    if bytes.is_multiple_of(MEBIBYTE) { format!("{}Mi", bytes / MEBIBYTE) } else { format!("{bytes} bytes") }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of memory, {} s of CPU time", quantity(self.memory), self.cpu.as_secs())
    }
}

#[cfg(test)]
mod tests;
