//! Classifies failed CLI calls by the required reaction, with messages for users. Also determines the owner of a lock: a lock
//! may be removed only if it is the only lock of the stack and provably belongs to a run whose process is dead.

use jiff::Timestamp;

use super::events::Diagnostic;
use super::run_summary::RunSummary;
use super::{advice, console};

/// Maximum length of a message in bytes.
const MAX_MESSAGE: usize = 8 * 1024;
/// Maximum number of output lines in a message if the CLI reported no error.
const LAST_LINES: usize = 20;
/// Maximum number of locks that a message lists.
const NAMED_LOCKS: usize = 5;
/// Exit code of the CLI for authentication failures (since CLI 3.227).
const EXIT_AUTHENTICATION: i32 = 3;
/// Exit code of the CLI for a stack that does not exist (since CLI 3.227).
const EXIT_NO_STACK: i32 = 6;
/// Exit code of the CLI after a forced cancellation by a second signal (since CLI 3.227).
pub const EXIT_CANCELED: i32 = 8;

/// Beginning of the message of a canceled run.
pub const CANCELED: &str = "the run was canceled";

/// Exit status of the CLI process: a code or a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Exit {
    /// Whether the CLI reported success.
    pub fn success(&self) -> bool {
        self.code == Some(0) && self.signal.is_none()
    }
}

/// Lock on a stack in a DIY backend (file system or object store), as reported by the CLI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// URL of the lock in the backend.
    pub url: String,
    pub user: String,
    pub host: String,
    pub pid: u32,
    /// Creation time in RFC 3339 format.
    pub time: String,
}

/// Kind of a failure, which determines the required reaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The stack is locked by another update, which is running or has not removed its lock. Pulumi Cloud does not report the
    /// holder of a lock.
    Conflict { holders: Vec<Lock> },
    /// The backend rejected the access token, or no access token is set.
    InvalidAccessToken,
    /// The stack does not exist in the backend.
    StackMissing,
    /// The run was canceled.
    Canceled,
    /// A signal killed the CLI.
    Killed { signal: i32 },
    /// The program, a provider or the CLI failed.
    Failed,
}

/// A failed CLI call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// Message for users; at most 8 KiB.
    pub message: String,
}

/// Classifies a failed CLI call. `stdout_tail` and `stderr_tail` are the last part of the CLI's output; `run` is the summary of
/// its event log (empty for calls without an event log).
pub fn classify(exit: Exit, stdout_tail: &str, stderr_tail: &str, run: &RunSummary) -> Failure {
    let stderr = error_text(stderr_tail);
    let kind = kind(exit, &stderr, run);
    let cause = cause(exit, stdout_tail, stderr_tail, &stderr, run);
    let message = match &kind {
        FailureKind::Conflict { holders } if !holders.is_empty() => locked(holders),
        FailureKind::Killed { signal } => with_cause(&format!("the Pulumi CLI was killed by signal {signal}"), &cause),
        FailureKind::Canceled => with_cause(CANCELED, &cause),
        _ => advice::with(&cause.join("\n")),
    };
    Failure { kind, message: console::shorten(&console::for_display(&message), MAX_MESSAGE) }
}

fn kind(exit: Exit, stderr: &str, run: &RunSummary) -> FailureKind {
    if let Some(signal) = exit.signal {
        return FailureKind::Killed { signal };
    }
    let code = exit.code.unwrap_or_default();
    let holders = parse_locks(stderr);
    if !holders.is_empty()
        || stderr.contains("the stack is currently locked by")
        || stderr.contains("Another update is currently in progress")
    {
        return FailureKind::Conflict { holders };
    }
    if run.cancel_requested() || run.result() == Some("canceled") || code == EXIT_CANCELED || reports_cancellation(run)
    {
        return FailureKind::Canceled;
    }
    if rejects_token(stderr) || (code == EXIT_AUTHENTICATION && !run.began()) {
        return FailureKind::InvalidAccessToken;
    }
    if reports_missing_stack(stderr) || (code == EXIT_NO_STACK && !run.began()) {
        return FailureKind::StackMissing;
    }
    FailureKind::Failed
}

/// Whether the CLI rejected a flag or a command as unknown, which means that the CLI is older than required.
pub fn is_unknown_flag(stderr: &str) -> bool {
    let unknown = ["unknown flag: --", "unknown command "];
    stderr.lines().any(|line| unknown.iter().any(|words| line.contains(words)))
}

fn rejects_token(stderr: &str) -> bool {
    let stderr = stderr.to_lowercase();
    let rejections = [
        "invalid access token",
        "pulumi_access_token must be set",
        "this command requires logging in",
        "unauthorized: no credentials provided or are invalid",
        "[401]",
    ];
    rejections.iter().any(|rejection| stderr.contains(rejection))
}

fn reports_missing_stack(stderr: &str) -> bool {
    stderr.lines().any(|line| line.split_once("no stack named ").is_some_and(|(_, rest)| rest.contains(" found")))
}

/// Whether the engine reports a cancellation in an error message, which is the only indication if a run is canceled before its
/// first step.
fn reports_cancellation(run: &RunSummary) -> bool {
    let is_cancellation = |word: &str| {
        ["update", "destroy", "refresh"]
            .iter()
            .any(|action| word == format!("{action} canceled") || word == format!("{action} cancelled"))
    };
    run.errors().iter().any(|error| is_cancellation(&error.message))
}

/// Returns the causes of a failure from the first of these sources that is not empty: errors of the engine, errors of the CLI,
/// the program's standard error, generic errors of the engine, and the last lines of the output. An error that only reports the exit
/// of the program is generic if the program has written to its standard error.
fn cause(exit: Exit, stdout: &str, stderr: &str, stderr_errors: &str, run: &RunSummary) -> Vec<String> {
    let output: Vec<_> = run.program_stderr().into_iter().map(str::to_owned).collect();
    let is_cause = |error: &Diagnostic| !is_verdict(error) && (output.is_empty() || !reports_exit(error));
    let (errors, verdicts): (Vec<_>, Vec<_>) = run.errors().into_iter().partition(is_cause);
    if !errors.is_empty() {
        let mut lines = unique(errors.iter().map(describe));
        if run.omitted_errors() > 0 {
            lines.insert(lines.len() / 2, format!("({} more errors)", run.omitted_errors()));
        }
        let of_program: Vec<_> =
            errors.iter().filter(|error| resource(error).is_none()).map(|error| error.message.as_str()).collect();
        return placed(&of_program.join("\n"), lines);
    }
    if !stderr_errors.is_empty() {
        return vec![stderr_errors.to_owned()];
    }
    if !output.is_empty() {
        return placed(&output.join("\n"), output);
    }
    if !verdicts.is_empty() {
        return unique(verdicts.iter().map(describe));
    }
    let mut lines = last_lines(stderr);
    if lines.is_empty() {
        lines = last_lines(stdout);
    }
    match exit.code {
        Some(code) => lines.insert(0, format!("the Pulumi CLI exited with code {code}")),
        None if lines.is_empty() => {}
        None => lines.insert(0, "last output of the Pulumi CLI:".to_owned()),
    }
    lines
}

/// Whether an error only states that the run failed or was canceled, without a cause.
fn is_verdict(error: &Diagnostic) -> bool {
    ["update failed", "destroy failed", "refresh failed", "preview failed"].contains(&error.message.trim())
        || error.message.ends_with(" canceled") && error.urn.is_empty()
}

/// Whether an error of the engine only reports that the program or its compilation exited with an error.
fn reports_exit(error: &Diagnostic) -> bool {
    let message = error.message.trim().to_lowercase();
    let message = message.strip_prefix("an unhandled error occurred: ").unwrap_or(&message);
    [
        "program exited with non-zero exit code: ",
        "program exited unexpectedly: ",
        "error in compiling go: unable to run",
    ]
    .iter()
    .any(|exit| message.starts_with(exit))
}

/// Formats an error with the type and name of its resource.
fn describe(error: &Diagnostic) -> String {
    match resource(error) {
        Some((resource_type, name)) => format!("{resource_type} {name}: {}", error.message),
        None => error.message.clone(),
    }
}

/// Returns the type and name of the resource of an error, where the type is the last one in the URN. Returns `None` if the
/// error does not belong to a single resource.
fn resource(error: &Diagnostic) -> Option<(&str, &str)> {
    let mut parts = error.urn.splitn(4, "::").skip(2);
    let (types, name) = (parts.next()?, parts.next()?);
    let resource_type = types.rsplit('$').next().unwrap_or(types);
    (resource_type != "pulumi:pulumi:Stack").then_some((resource_type, name))
}

/// Inserts the location of an error in the program as the first line, because in the output, the location may be hard to find
/// between the stack frames of libraries.
fn placed(of_program: &str, mut lines: Vec<String>) -> Vec<String> {
    if let Some(place) = console::program_location(of_program) {
        lines.insert(0, format!("the program failed in {place}:"));
    }
    lines
}

fn unique(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = Vec::new();
    for line in lines {
        if !known.contains(&line) {
            known.push(line);
        }
    }
    known
}

/// Returns the errors of the CLI itself on standard error, without the prefix `error: ` and without other output such as
/// warnings.
fn error_text(stderr: &str) -> String {
    let mut lines = Vec::new();
    let mut in_error = false;
    for line in stderr.lines() {
        if let Some(error) = line.strip_prefix("error: ") {
            in_error = true;
            lines.push(error.trim_end());
        } else if line.starts_with("warning: ") {
            in_error = false;
        } else if in_error && !line.trim().is_empty() {
            lines.push(line.trim_end());
        }
    }
    lines.join("\n")
}

fn last_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<_> =
        text.lines().rev().filter(|line| !line.trim().is_empty()).take(LAST_LINES).map(str::to_owned).collect();
    lines.reverse();
    lines
}

fn with_cause(message: &str, cause: &[String]) -> String {
    if cause.is_empty() { message.to_owned() } else { format!("{message}: {}", cause.join("\n")) }
}

fn locked(holders: &[Lock]) -> String {
    let mut named: Vec<_> = holders
        .iter()
        .take(NAMED_LOCKS)
        .map(|lock| format!("{}@{} (pid {}) since {}", lock.user, lock.host, lock.pid, lock.time))
        .collect();
    if holders.len() > NAMED_LOCKS {
        named.push(format!("{} more", holders.len() - NAMED_LOCKS));
    }
    format!(
        "the stack is locked by {}; if no process holds the lock anymore, remove it with `pulumi cancel`",
        named.join(", ")
    )
}

/// Whether `stack init` failed because the stack exists.
pub fn stack_exists(stderr_tail: &str) -> bool {
    let errors = error_text(stderr_tail);
    errors.lines().any(|line| line.split_once("stack").is_some_and(|(_, rest)| rest.contains("already exists")))
}

/// A CLI process that has provably ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadProcess {
    /// Host name, as recorded in locks.
    pub host: String,
    pub pid: u32,
    /// Start of the run, in milliseconds since 1970.
    pub started: i64,
    /// Time from which the process is known to have ended, in milliseconds since 1970.
    pub ended: i64,
}

/// Parses the locks in an error of the CLI, one per line: `<url>: created by USER@HOST (pid P) at TIME`.
pub fn parse_locks(text: &str) -> Vec<Lock> {
    text.lines().filter_map(parse_lock).collect()
}

fn parse_lock(line: &str) -> Option<Lock> {
    let (rest, time) = line.trim().rsplit_once(" at ")?;
    let (rest, pid) = rest.strip_suffix(')')?.rsplit_once(" (pid ")?;
    let (url, holder) = rest.split_once(": created by ")?;
    let (user, host) = holder.rsplit_once('@')?;
    Some(Lock {
        url: url.to_owned(),
        user: user.to_owned(),
        host: host.to_owned(),
        pid: pid.parse().ok()?,
        time: time.to_owned(),
    })
}

/// Returns the lock that blocked a CLI call if the CLI reports exactly one lock with its details. Returns `None` if there are
/// several locks or no details. Pulumi Cloud does not report locks in detail.
pub fn only_lock(stderr: &str) -> Option<Lock> {
    let mut locks = parse_locks(stderr);
    let lock = locks.pop()?;
    (locks.is_empty() && announced(stderr) == Some(1)).then_some(lock)
}

/// Returns the number of locks that the CLI reports.
fn announced(stderr: &str) -> Option<u32> {
    let (_, rest) = stderr.split_once("the stack is currently locked by ")?;
    rest.split_once(" lock(s)")?.0.parse().ok()
}

/// Returns the dead process that provably created the lock: its host and process ID are equal to those in the lock, and the
/// lock was created during the lifetime of the process.
pub fn dead_holder<'a>(lock: &Lock, dead: &'a [DeadProcess]) -> Option<&'a DeadProcess> {
    let time = lock.time.parse::<Timestamp>().ok()?.as_millisecond();
    dead.iter().find(|process| {
        // The time of the lock is rounded down to whole seconds.
        let earliest = process.started - process.started.rem_euclid(1000);
        lock.host == process.host && lock.pid == process.pid && (earliest..=process.ended).contains(&time)
    })
}

#[cfg(test)]
mod tests;
