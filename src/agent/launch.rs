//! The `launch` role: prepares a process of a run and executes its program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::processes::{self, MARKER};

/// Exit code that shells use for a program that cannot be started.
const NOT_STARTED: u8 = 127;

/// Starts a session, sets the mark of the operation and executes the program. The process ID is then the session ID,
/// and descendants inherit session and mark. Returns only if the program cannot be started.
pub fn launch(command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        eprintln!("error: missing program; usage: launch -- PROGRAM ARGUMENTS");
        return ExitCode::from(NOT_STARTED);
    };
    // Fails only for the leader of a process group.
    if let Err(error) = rustix::process::setsid() {
        eprintln!("error: failed to create a session for {}: {error}", program.to_string_lossy());
        return ExitCode::from(NOT_STARTED);
    }
    if let Some(operation) = std::env::var_os(MARKER)
        && let Err(error) = processes::mark(&operation.to_string_lossy())
    {
        // The session and the environment identify the process as well.
        eprintln!("warning: failed to mark {} as a process of the operation: {error}", program.to_string_lossy());
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("error: failed to start {}: {error}", program.to_string_lossy());
    ExitCode::from(NOT_STARTED)
}
