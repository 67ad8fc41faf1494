//! The role `launch`: the step between the agent and a run's process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::processes::{self, MARKER};

/// What a shell answers when the program cannot be started.
const NOT_STARTED: u8 = 127;

/// Begins a session, takes on the mark of the operation, and becomes the program: its process id is then the session's id, and
/// all that it starts belongs to it.
/// Comes back only when the program cannot be started.
pub fn launch(command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        eprintln!("error: launch needs a program: launch -- PROGRAM ARGUMENTS");
        return ExitCode::from(NOT_STARTED);
    };
    // Fails only for a leader of a process group, who has its session already.
    if let Err(error) = rustix::process::setsid() {
        eprintln!("error: cannot begin a session for {}: {error}", program.to_string_lossy());
        return ExitCode::from(NOT_STARTED);
    }
    if let Some(operation) = std::env::var_os(MARKER)
        && let Err(error) = processes::mark(&operation.to_string_lossy())
    {
        // It is known by its session and its environment as well.
        eprintln!("warning: cannot mark {} as the operation's: {error}", program.to_string_lossy());
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("error: cannot start {}: {error}", program.to_string_lossy());
    ExitCode::from(NOT_STARTED)
}
