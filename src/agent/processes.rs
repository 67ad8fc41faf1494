//! Starts, finds and terminates the processes of a run. A run is complete when all its processes have exited.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{Pid, Resource, Signal};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use super::resource_limits::{Failures, RETRY_INTERVAL};

/// Environment variable that contains the operation ID. The agent sets this variable for every process of a run, so
/// that it can find processes that have created their own process session.
pub const MARKER: &str = "PULUMI_CONTROLLER_OPERATION";

/// Resource limit that marks the processes of a run. The kernel applies this limit, in microseconds, to the CPU time of
/// processes with a real-time scheduling policy. A descendant inherits the limit even if it creates its own process
/// session and clears its environment. Programs rarely change this limit. The value is too high to restrict a process.
/// Processes that a user starts in the container do not have this limit.
const LIMIT: Resource = Resource::Rttime;
/// Name of the limit in `/proc/<pid>/limits`.
const LIMIT_NAME: &str = "Max realtime timeout";
/// Upper bits of the limit, which identify the value as a mark. The lower bits identify the operation.
const MARKED: u64 = 0x5043 << OPERATION_BITS;
/// Number of lower bits that identify the operation.
const OPERATION_BITS: u32 = 44;

/// Delay before the agent sends SIGTERM to the remaining processes of a run. The delay starts when the CLI exits, and
/// lets the remaining processes exit on their own.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Delay between SIGTERM and SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// Interval at which the agent sends SIGKILL again and logs the remaining processes.
const KILL_INTERVAL: Duration = Duration::from_secs(10);
/// Name, in log messages, of the system operation that lists the processes of a run.
const LIST_PROCESSES: &str = "list the processes of a run";
/// Exit code that a shell returns if it could not start a program.
const NOT_STARTED: u8 = 127;

/// A process that has not exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// First 15 bytes of the program name.
    pub name: String,
    pub session: u32,
    /// Start time in kernel ticks since the node booted.
    pub started: u64,
}

/// Returns all visible processes except zombies.
pub fn living() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let is_process = name.as_bytes().iter().all(u8::is_ascii_digit);
        if !is_process {
            continue;
        }
        let Some(stat) = read_file(&Path::new("/proc").join(&name).join("stat"))? else { continue };
        processes.extend(parse_stat(&String::from_utf8_lossy(&stat)));
    }
    Ok(processes)
}

/// Reads a file of a process. Returns `None` if the process has exited or runs as another user. Returns any other
/// error, for example if the agent has no free file descriptor. Otherwise, a process could remain undetected.
fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses the content of `/proc/<pid>/stat`. Returns `None` for zombies and dead processes.
fn parse_stat(stat: &str) -> Option<Process> {
    // The name is in parentheses and can contain any character, including parentheses and spaces.
    let (before, rest) = stat.rsplit_once(')')?;
    let (pid, name) = before.split_once(" (")?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let session = fields.nth(2)?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    let started = fields.nth(15)?;
    Some(Process {
        pid: pid.trim().parse().ok()?,
        name: name.to_owned(),
        session: session.parse().ok()?,
        started: started.parse().ok()?,
    })
}

/// Returns the working directory of a process, or `None` if the process has exited or runs as another user.
pub fn working_directory(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Returns the ID of the process space, which consists of the boot ID and the PID namespace. A process ID is valid only
/// within a process space.
pub fn process_space() -> io::Result<String> {
    let namespace = std::fs::read_link("/proc/self/ns/pid")?;
    Ok(format!("{} {}", boot_id()?, namespace.display()))
}

/// Returns the boot ID, which the kernel generates randomly each time the node boots.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Marks this process and its future descendants as processes of the operation. If this function fails, the agent can
/// still use the process session and the environment to identify these processes.
fn mark(operation: &str) -> io::Result<()> {
    let mut limit = rustix::process::getrlimit(LIMIT);
    limit.current = Some(limit_of(operation));
    Ok(rustix::process::setrlimit(LIMIT, limit)?)
}

fn limit_of(operation: &str) -> u64 {
    let digest = Sha256::digest(operation.as_bytes());
    let first = digest.iter().take(size_of::<u64>()).fold(0, |number, byte| (number << 8) | u64::from(*byte));
    MARKED | (first & ((1 << OPERATION_BITS) - 1))
}

/// Returns whether a process belongs to an operation of any agent.
pub fn belongs_to_operation(pid: u32) -> io::Result<bool> {
    let is_limited = limit(pid)?.is_some_and(|limit| limit >> OPERATION_BITS == MARKED >> OPERATION_BITS);
    Ok(is_limited || has_variable(pid, |variable| variable.starts_with(MARKER.as_bytes()))?)
}

/// The processes of a run or an installation.
#[derive(Clone, Debug)]
pub struct RunProcesses {
    operation: String,
    sessions: Vec<u32>,
}

impl RunProcesses {
    pub fn new(operation: &str, sessions: Vec<u32>) -> Self {
        RunProcesses { operation: operation.to_owned(), sessions }
    }

    /// Returns the processes that belong to a process session of the run, or that have the mark of the operation.
    pub fn living(&self) -> io::Result<Vec<Process>> {
        let own = std::process::id();
        let mut found = Vec::new();
        for process in living()?.into_iter().filter(|process| process.pid != own) {
            if self.sessions.contains(&process.session) || is_marked(process.pid, &self.operation)? {
                found.push(process);
            }
        }
        Ok(found)
    }

    /// Sends a signal to all processes of the run.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        for process in self.living()? {
            send(process.pid, signal);
        }
        Ok(())
    }

    /// Sends SIGKILL to all processes of the run. If the agent cannot list the processes, the function retries. After
    /// too many failures, the function terminates the agent.
    pub async fn kill(&self) {
        let mut failures = Failures::default();
        while let Err(error) = self.signal(Signal::KILL) {
            failures.record(LIST_PROCESSES, &error);
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Waits until all processes of the run have exited. If the agent cannot list the processes, the function retries.
    /// After too many failures, the function terminates the agent, because the agent must not report a result while a
    /// process is running.
    pub async fn end(&self) {
        let mut failures = Failures::default();
        while let Err(error) = self.try_end().await {
            failures.record(LIST_PROCESSES, &error);
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Waits until all processes of the run have exited. The function first waits without a signal, then sends SIGTERM,
    /// and finally sends SIGKILL repeatedly. The wait has no timeout, but the function logs the remaining processes.
    async fn try_end(&self) -> io::Result<()> {
        if self.exited_within(SETTLE_TIME).await? {
            return Ok(());
        }
        tracing::warn!(operation = self.operation, left = ?self.living()?, "ending the remaining processes of the run");
        self.signal(Signal::TERM)?;
        if self.exited_within(TERMINATION_GRACE).await? {
            return Ok(());
        }
        loop {
            self.signal(Signal::KILL)?;
            if self.exited_within(KILL_INTERVAL).await? {
                return Ok(());
            }
            tracing::error!(operation = self.operation, left = ?self.living()?, "processes of the run have not exited after SIGKILL");
        }
    }

    /// Returns whether all processes exit within `limit`. Two consecutive checks must find no process, because a
    /// process has an empty environment during `execve`, and because `/proc` lists a new process with a delay.
    async fn exited_within(&self, limit: Duration) -> io::Result<bool> {
        let end = Instant::now() + limit;
        let mut was_empty = false;
        loop {
            let is_empty = self.living()?.is_empty();
            if is_empty && was_empty {
                return Ok(true);
            }
            if Instant::now() >= end && !is_empty {
                return Ok(false);
            }
            was_empty = is_empty;
            sleep(POLL).await;
        }
    }
}

/// Sends a signal to a process. The function ignores errors, because the process may have exited already.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn is_marked(pid: u32, operation: &str) -> io::Result<bool> {
    let mark = format!("{MARKER}={operation}");
    Ok(limit(pid)? == Some(limit_of(operation)) || has_variable(pid, |variable| variable == mark.as_bytes())?)
}

fn has_variable(pid: u32, is_meant: impl Fn(&[u8]) -> bool) -> io::Result<bool> {
    let environment = read_file(Path::new(&format!("/proc/{pid}/environ")))?.unwrap_or_default();
    Ok(environment.split(|byte| *byte == 0).any(is_meant))
}

/// Returns the value of [`LIMIT`] for a process. The value is a mark if its upper bits equal those of [`MARKED`].
fn limit(pid: u32) -> io::Result<Option<u64>> {
    let limits = read_file(Path::new(&format!("/proc/{pid}/limits")))?.unwrap_or_default();
    Ok(parse_limit(&String::from_utf8_lossy(&limits)))
}

fn parse_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(LIMIT_NAME))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Runs the `launch` role, which starts a process of a run. The role creates a process session, sets the operation's
/// mark and executes the program. The session ID equals the process ID, and descendants inherit the session and the
/// mark. The function returns only if it cannot start the program.
pub fn launch(command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        eprintln!("error: missing program; usage: launch -- PROGRAM ARGUMENTS");
        return ExitCode::from(NOT_STARTED);
    };
    // `setsid` fails only if this process is the leader of a process group.
    if let Err(error) = rustix::process::setsid() {
        eprintln!("error: failed to create a session for {}: {error}", program.to_string_lossy());
        return ExitCode::from(NOT_STARTED);
    }
    if let Some(operation) = std::env::var_os(MARKER)
        && let Err(error) = mark(&operation.to_string_lossy())
    {
        // This error is not fatal: the process session and the environment also identify the process.
        eprintln!("warning: failed to mark {} as a process of the operation: {error}", program.to_string_lossy());
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("error: failed to start {}: {error}", program.to_string_lossy());
    ExitCode::from(NOT_STARTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_process_name_in_a_stat_line_is_parsed() {
        let process = |name: &str| Some(Process { pid: 42, name: name.to_owned(), session: 40, started: 4711 });
        let rest = "1 41 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 100 200";
        for (line, expected) in [
            (format!("42 (pulumi) S {rest}").as_str(), process("pulumi")),
            (format!("42 (a) b (c)) R {rest}").as_str(), process("a) b (c)")),
            ("42 (gone) Z 1 41 40 0 -1 4194560", None),
            ("42 (short) S 1", None),
            ("", None),
        ] {
            assert_eq!(parse_stat(line), expected, "{line}");
        }
    }

    #[test]
    fn the_operation_marker_is_read_from_the_resource_limits() {
        let limits = |limit: &str| {
            format!(
                "Limit Soft Limit Hard Limit Units\nMax cpu time 1 2 seconds\n{LIMIT_NAME}      {limit} unlimited us\n"
            )
        };
        let mark = limit_of("one");
        for (text, expected) in [
            (limits("unlimited"), None),
            (limits("17"), Some(17)),
            (limits(&mark.to_string()), Some(mark)),
            (String::new(), None),
        ] {
            assert_eq!(parse_limit(&text), expected, "{text}");
        }
        assert_eq!(mark >> OPERATION_BITS, MARKED >> OPERATION_BITS);
        assert_ne!(mark, limit_of("another"));
        assert!(mark < i64::MAX.cast_unsigned(), "the mark differs from the value for an unlimited resource");
    }

    #[tokio::test]
    async fn a_detached_child_that_ignores_sigterm_is_found_and_killed_by_marker() {
        let operation = uuid::Uuid::new_v4().to_string();
        let mut child = tokio::process::Command::new("setsid")
            .args(["--wait", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
            .env(MARKER, &operation)
            .spawn()
            .unwrap();
        let run_processes = RunProcesses::new(&operation, Vec::new());
        // During `execve`, the environment of the process is unreadable, so the first checks may miss the process.
        let found = async {
            while run_processes.living().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), found).await.expect("the child process is found");
        let ((), _) = tokio::join!(run_processes.end(), child.wait());
        assert_eq!(run_processes.living().unwrap(), Vec::new());
    }
}
