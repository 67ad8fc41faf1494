//! The `init` process is the first process of the container. The process starts the agent as its child, reaps orphaned
//! processes and forwards signals. If another process suspends the agent (for example with SIGSTOP), the `init` process
//! resumes the agent. When the agent exits, the `init` process exits with the same exit code. The agent cannot reap
//! orphaned processes itself, because `waitpid(-1)` would consume the exit codes of its children.

use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Path of the running executable, which remains valid after the file has been replaced.
const OWN_EXECUTABLE: &str = "/proc/self/exe";
/// Offset that shells add to a signal number to form the exit code of a killed process.
const SIGNAL_OFFSET: i32 = 128;

#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("failed to change to the root directory: {0}")]
    Directory(io::Error),
    #[error("failed to register signal handlers: {0}")]
    Signals(io::Error),
    #[error("failed to become the reaper of orphaned processes: {0}")]
    Subreaper(io::Error),
    #[error("failed to start the agent: {0}")]
    Start(io::Error),
    #[error("failed to wait for processes: {0}")]
    Wait(io::Error),
}

/// Maximum number of times that the `init` process resumes a suspended agent. A program runs as the same user as the
/// agent, so the program could suspend the agent repeatedly and thereby disable the run timeout. Beyond the maximum,
/// the `init` process kills the agent. This terminates the container and the run.
const MAX_STOPS: u32 = 100;

/// Argument that makes this executable run as the agent instead of as the `init` process.
const CHILD_FLAG: &str = "--child";

/// Runs this executable with `arguments` and `--child` until the child exits, and returns the exit code of the child.
pub fn run_as_init(arguments: &[OsString]) -> ExitCode {
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[OsString]) -> Result<ExitCode, InitError> {
    // Each new source replaces the project directory, which is the initial working directory. The `init` process
    // therefore changes to `/`, and the child inherits this directory.
    std::env::set_current_dir("/").map_err(InitError::Directory)?;
    // Registers the handlers before the child starts, because the process would otherwise miss an early SIGCHLD.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD]).map_err(InitError::Signals)?;
    let own = rustix::process::getpid();
    if own != Pid::INIT {
        // If another process has PID 1 in the namespace, that process adopts orphaned processes unless this process is
        // a subreaper.
        rustix::process::set_child_subreaper(Some(own)).map_err(|error| InitError::Subreaper(error.into()))?;
    }
    let child = Command::new(OWN_EXECUTABLE).args(arguments).arg(CHILD_FLAG).spawn().map_err(InitError::Start)?;
    let agent = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| InitError::Start(io::Error::other("invalid process ID")))?;
    let mut stops = 0;
    for signal in signals.forever() {
        match signal {
            SIGCHLD => {
                if let Some(code) = reap(agent, &mut stops)? {
                    return Ok(code);
                }
            }
            SIGINT => forward(agent, Signal::INT),
            _ => forward(agent, Signal::TERM),
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Sends a signal to the agent only, because the agent decides when to interrupt the CLI. The function ignores errors,
/// because an error means that the agent has exited and a SIGCHLD will follow.
fn forward(agent: Pid, signal: Signal) {
    let _ = rustix::process::kill_process(agent, signal);
}

/// Reaps all exited processes and resumes a suspended agent. Returns the exit code of the agent if the agent has
/// exited.
fn reap(agent: Pid, stops: &mut u32) -> Result<Option<ExitCode>, InitError> {
    let mut code = None;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == agent && status.stopped() => {
                *stops += 1;
                forward(agent, if *stops <= MAX_STOPS { Signal::CONT } else { Signal::KILL });
            }
            Ok(Some((pid, status))) if pid == agent => code = Some(exit_code(status)),
            Ok(Some(_)) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(code),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(InitError::Wait(error.into())),
        }
    }
}

fn exit_code(status: WaitStatus) -> ExitCode {
    let number = status.exit_status().or_else(|| status.terminating_signal().map(|signal| SIGNAL_OFFSET + signal));
    number.and_then(|number| u8::try_from(number).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
