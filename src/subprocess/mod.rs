//! Runs work on untrusted input in a short-lived child process of this binary, with limits on memory, CPU time, wall-clock time and files.
//!
//! The parent starts the child with a role of the command line, no environment and no file descriptors besides three pipes, and writes the
//! limits and then the input to the child's stdin. The child applies the limits to itself before it reads the input
//! ([`confined_input`]) and writes its answer to stdout. The parent reads a bounded answer, and kills the child when time is over or when
//! nobody waits for the answer any more. A child that exceeds a limit dies alone; [`Failure`] says which limit it was.

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

/// The running binary, also when its file was replaced.
const OWN_BINARY: &str = "/proc/self/exe";
/// How much of what a child writes to stderr is kept.
const MAX_COMPLAINTS: usize = 4 * 1024;
/// How long a killed child may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts child processes.
#[derive(Clone, Debug)]
pub struct Subprocess {
    program: PathBuf,
}

/// Why a child gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("it needs more than the limit of {} of memory", quantity(*limit))]
    Memory { limit: u64 },
    #[error("it takes more than the limit of {} s of CPU time", limit.as_secs())]
    Cpu { limit: Duration },
    #[error("it writes a file that is larger than the limit of {}", quantity(*limit))]
    FileSize { limit: u64 },
    #[error("its answer is larger than the limit of {}", quantity(*limit))]
    Answer { limit: u64 },
    #[error("it was not done within {} s", limit.as_secs())]
    Time { limit: Duration },
    /// Not by the parent and not by one of the limits: most likely by the kernel, because the container or the node ran out of memory.
    #[error(
        "its process was killed from outside, which happens when the controller's container or the node is out of memory"
    )]
    Killed,
    #[error("its process could not be started: {0}")]
    Start(io::Error),
    #[error("its process ended without an answer ({status}){}", after_colon(complaint))]
    Ended { status: ExitStatus, complaint: String },
}

impl Failure {
    /// Whether the same input would exceed the same limit again. The other failures may be gone the next time.
    pub fn is_of_input(&self) -> bool {
        matches!(self, Failure::Memory { .. } | Failure::Cpu { .. } | Failure::FileSize { .. } | Failure::Answer { .. })
    }
}

impl Subprocess {
    /// Children of the running binary.
    pub fn of_this_binary() -> Self {
        Self { program: OWN_BINARY.into() }
    }

    /// Children of another binary. For tests, whose own binary does not know the roles.
    pub fn of(program: PathBuf) -> Self {
        Self { program }
    }

    /// Starts a child in a role, gives it the input, and waits for its answer. The child is killed when the future is dropped.
    ///
    /// # Errors
    /// The child exceeds a limit, or ends with anything but success.
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
        // A group of its own: a signal for the parent's group is not for the child.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn()
    }
}

/// Writes the input and reads the answer at the same time, then waits for the end. Nothing when the answer is too large.
async fn talk(child: &mut Child, input: &[u8], limits: &Limits) -> io::Result<Option<(ExitStatus, Vec<u8>, String)>> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(io::Error::other("the child has no pipes"));
    };
    let write = async move {
        // A child that ends early does not read all of it; its exit status says why.
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

/// All that comes; nothing if that is more than `most`.
async fn read(from: impl AsyncRead + Unpin, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut read = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    from.take(limit).read_to_end(&mut read).await?;
    Ok((read.len() <= most).then_some(read))
}

/// The first bytes of what comes. The rest is read as well, so that who writes it is not held up.
async fn read_and_discard_rest(mut from: impl AsyncRead + Unpin, most: usize) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(kept);
        }
        let room = most.saturating_sub(kept.len());
        kept.extend(buffer.iter().take(count.min(room)));
    }
}

/// Kills a child and waits for its end, so that what it used is free.
async fn end(child: &mut Child, role: &str) {
    match tokio::time::timeout(KILL_TIMEOUT, child.kill()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(role, %error, "a child process could not be killed"),
        Err(_) => tracing::warn!(role, "a child process that was killed does not end"),
    }
}

/// What an unsuccessful end says.
fn failure(status: ExitStatus, complaint: &str, limits: &Limits) -> Failure {
    use rustix::process::Signal;
    let signal = status.signal().and_then(Signal::from_named_raw);
    // What the Rust runtime writes before it aborts.
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

/// As Kubernetes writes it.
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
