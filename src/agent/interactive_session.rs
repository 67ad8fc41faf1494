//! Detects interactive sessions, in which a user runs the CLI in the pod. During an interactive session, the agent
//! neither replaces the source nor starts a run.

use std::io;
use std::path::Path;

use super::layout::Layout;
use super::processes::{self, Process};
use super::refusal::Refusal;
use crate::pulumi::cli;
use crate::rpc::proto;

const CLI: &str = "pulumi";
/// CLI options that set the working directory of the CLI.
const DIRECTORY_OPTIONS: [&str; 2] = ["-C", "--cwd"];
/// Process ID of the first process in a PID namespace.
const INIT_PID: u32 = 1;

/// Set of processes in which the agent searches for interactive sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// All processes, because the container has its own PID namespace.
    Own,
    /// Only the processes with a working directory on the share volume, because other containers share the PID
    /// namespace.
    Shared,
}

/// Returns the oldest interactive session. Processes that belong to a run or an installation are not sessions.
pub fn find(layout: &Layout) -> Result<Option<proto::InteractiveSession>, Refusal> {
    // The agent's parent is the `init` process: see `agent::init`. If the `init` process has the ID 1, the container
    // has its own PID namespace.
    let space = if std::os::unix::process::parent_id() == INIT_PID { Space::Own } else { Space::Shared };
    let share = std::fs::canonicalize(layout.root()).unwrap_or_else(|_| layout.root().to_owned());
    let failed = "failed to find interactive sessions in the pod";
    let mut sessions = Vec::new();
    for process in processes::living().map_err(Refusal::system(failed))? {
        if let Some(command) = interactive_command(&process, space, &share).map_err(Refusal::system(failed))? {
            sessions.push((process, command));
        }
    }
    sessions.sort_by_key(|(process, _)| (process.started, process.pid));
    let Some((process, command)) = sessions.into_iter().next() else { return Ok(None) };
    let since = started(&process).map_err(Refusal::system(failed))?;
    Ok(Some(proto::InteractiveSession { command, pid: process.pid, since }))
}

/// Describes a session for a message.
pub fn describe(session: &proto::InteractiveSession) -> String {
    let since = jiff::Timestamp::from_millisecond(session.since)
        .map_or_else(|_| String::new(), |since| format!(", since {}", since.strftime("%Y-%m-%dT%H:%M:%SZ")));
    format!("interactive session in the pod: `{}` (process {}{since})", session.command, session.pid)
}

/// Returns the CLI command without its arguments, or `None` if the process is not a CLI process that a user has
/// started.
fn interactive_command(process: &Process, space: Space, share: &Path) -> io::Result<Option<String>> {
    let arguments = arguments(process.pid);
    let program = std::fs::read_link(format!("/proc/{}/exe", process.pid)).unwrap_or_default();
    if !is_cli(&process.name, &program, arguments.first().map(String::as_str)) {
        return Ok(None);
    }
    // If the CLI is a script, the command line starts with the interpreter.
    let own_name = arguments.iter().position(|argument| is_called_cli(argument)).unwrap_or_default();
    let given = arguments.get(own_name + 1..).unwrap_or_default();
    let Some(command) = cli::command_in_words(given.iter().map(String::as_str)) else { return Ok(None) };
    let directory = processes::working_directory(process.pid);
    let is_here = space == Space::Own || directory.is_some_and(|from| works_in(share, &from, given));
    // Checks `belongs_to_operation` last, because this check is the most expensive one.
    Ok((is_here && !processes::belongs_to_operation(process.pid)?).then_some(command))
}

/// Returns whether a process is the CLI, or a script that has the CLI's name. Returns `false` for a CLI plugin.
fn is_cli(name: &str, program: &Path, called: Option<&str>) -> bool {
    // The kernel appends this suffix to the path of a replaced executable.
    let program = program.to_str().map(|path| path.trim_end_matches(" (deleted)"));
    name == CLI || [program, called].into_iter().flatten().any(is_called_cli)
}

fn is_called_cli(path: &str) -> bool {
    Path::new(path).file_name().is_some_and(|name| name == CLI)
}

/// Returns whether a CLI that starts in the directory `from` with these arguments works in a directory below `share`.
fn works_in(share: &Path, from: &Path, arguments: &[String]) -> bool {
    let mut named = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if DIRECTORY_OPTIONS.contains(&argument.as_str()) {
            named = rest.next().map(String::as_str);
        } else if let Some(value) = argument.strip_prefix("--cwd=").or_else(|| argument.strip_prefix("-C")) {
            named = Some(value);
        }
    }
    std::fs::canonicalize(from.join(named.unwrap_or_default())).is_ok_and(|directory| directory.starts_with(share))
}

/// Returns the command line of a process, or an empty list if the process has exited.
fn arguments(pid: u32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Returns the start time of a process in milliseconds since the Unix epoch.
fn started(process: &Process) -> io::Result<i64> {
    let boot = procfs::boot_time_secs().map_err(io::Error::other)?;
    let ticks = procfs::ticks_per_second().max(1);
    let milliseconds = boot.saturating_mul(1000).saturating_add(process.started.saturating_mul(1000) / ticks);
    Ok(i64::try_from(milliseconds).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cli_is_recognized_by_name_but_its_plugins_are_not() {
        for (name, program, called, expected) in [
            ("pulumi", "/pulumi/bin/pulumi", Some("pulumi"), true),
            ("pulumi", "/bin/dash", Some("/bin/sh"), true),
            ("busybox", "/pulumi/bin/pulumi", None, true),
            ("x", "/pulumi/bin/pulumi (deleted)", Some("x"), true),
            ("x", "/bin/busybox", Some("./pulumi"), true),
            ("pulumi-language", "/pulumi/bin/pulumi-language-yaml", Some("pulumi-language-yaml"), false),
            ("pulumi-resource", "/pulumi/bin/pulumi-resource-aws", Some("/pulumi/bin/pulumi-resource-aws"), false),
            ("pulumi-controll", "/share/bin/pulumi-controller", Some("/proc/self/exe"), false),
            ("sh", "/bin/sh", Some("sh"), false),
            ("sh", "", None, false),
        ] {
            assert_eq!(is_cli(name, Path::new(program), called), expected, "{name} {program} {called:?}");
        }
    }

    #[test]
    fn the_working_directory_comes_from_the_process_or_the_cwd_flag() {
        let directory = tempfile::tempdir().unwrap();
        let share = std::fs::canonicalize(directory.path()).unwrap();
        std::fs::create_dir(share.join("source")).unwrap();
        std::os::unix::fs::symlink("source", share.join("workspace")).unwrap();
        let inside = share.join("workspace");
        let inside = inside.to_str().unwrap();
        for (from, arguments, expected) in [
            (inside, vec!["up"], true),
            ("/", vec!["up"], false),
            ("/", vec!["-C", inside, "up"], true),
            ("/", vec!["--cwd", inside, "up"], true),
            ("/", vec![&format!("--cwd={inside}"), "up"], true),
            ("/", vec![&format!("-C{inside}"), "up"], true),
            (inside, vec!["-C", "/", "up"], false),
            (inside, vec!["-C", "../source", "up"], true),
            (inside, vec!["-C", "missing", "up"], false),
            (inside, vec!["-C"], true),
        ] {
            let given: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(works_in(&share, Path::new(from), &given), expected, "{from} {arguments:?}");
        }
    }

    #[test]
    fn an_interactive_session_is_described_by_command_pid_and_start_time() {
        let session = proto::InteractiveSession { command: "pulumi import".into(), pid: 42, since: 0 };
        let description = "interactive session in the pod: `pulumi import` (process 42, since 1970-01-01T00:00:00Z)";
        assert_eq!(describe(&session), description);
    }
}
