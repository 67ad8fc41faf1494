//! Classifies failed CLI calls according to the controller's reaction, and formats the messages for users.

mod cause;
mod cli_error;
pub mod exit;
pub mod installation;
pub mod lock;
pub mod plan;
mod program_error;
mod program_location;
pub mod rate_limit;

use std::time::Duration;

use super::run_summary::RunSummary;
use super::{advice, console};
use cli_error::error_text;
use exit::{EXIT_CANCELED, Exit};
use lock::{Lock, parse_locks};

/// Maximum length of a message, in bytes.
const MAX_MESSAGE: usize = 8 * 1024;
/// Exit code with which the CLI (since version 3.227) reports an authentication failure.
const EXIT_AUTHENTICATION: i32 = 3;
/// Exit code with which the CLI (since version 3.227) reports that the stack does not exist.
const EXIT_NO_STACK: i32 = 6;

/// Beginning of the message that reports a canceled run.
pub const CANCELED: &str = "the run was canceled";

/// Kind of a failure, which determines the controller's reaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Another update is running or has left a lock. Pulumi Cloud errors do not contain the lock holder.
    Conflict { holders: Vec<Lock> },
    /// The state backend rejected the access token, or the access token is missing.
    InvalidAccessToken,
    /// The state backend is unavailable or limits the request rate, and the engine has not started.
    BackendUnavailable,
    /// The state backend has a layout that the CLI no longer supports, and the engine has not started.
    LegacyLayout,
    /// The stack does not exist in the state backend.
    StackMissing,
    /// The run was canceled.
    Canceled,
    /// The run deviated from the plan.
    PlanViolated,
    /// The run violated a mandatory policy.
    PolicyViolated,
    /// A signal killed the CLI.
    Killed { signal: i32 },
    /// The program, a provider or the CLI failed.
    Failed,
}

/// A failed CLI call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// Message for users. Maximum length: 8 KiB.
    pub message: String,
    /// Time after which another attempt can succeed, if a server limits the number of requests.
    pub retry_after: Option<Duration>,
}

/// Classifies a failed CLI call. `stdout_tail` and `stderr_tail` are the last parts of what the CLI wrote to stdout and
/// stderr. `run` is the event log summary, which is empty if the call has no event log.
pub fn classify(exit: Exit, stdout_tail: &str, stderr_tail: &str, run: &RunSummary) -> Failure {
    let stderr = error_text(stderr_tail);
    let kind = kind(exit, &stderr, run);
    let cause = cause::cause_lines(exit, stdout_tail, stderr_tail, &stderr, run);
    let message = match &kind {
        FailureKind::Conflict { holders } if !holders.is_empty() => lock::lock_message(holders),
        FailureKind::Killed { signal } => with_cause(&format!("the Pulumi CLI was killed by signal {signal}"), &cause),
        FailureKind::Canceled => with_cause(CANCELED, &cause),
        FailureKind::BackendUnavailable => {
            with_cause("the state backend is unavailable, and the run did not start", &cause)
        }
        _ => advice::with(&cause.join("\n")),
    };
    let retry_after =
        rate_limit::retry_after([stdout_tail, stderr_tail].into_iter().chain(cause.iter().map(String::as_str)));
    Failure { kind, message: console::shorten(&console::for_display(&message), MAX_MESSAGE), retry_after }
}

/// Classifies a failed `up` with a plan. `unnamed` describes the resources whose URN the engine omits from its errors.
pub fn classify_with_plan(
    exit: Exit,
    stdout_tail: &str,
    stderr_tail: &str,
    run: &RunSummary,
    unnamed: Option<&str>,
) -> Failure {
    let failure = classify(exit, stdout_tail, stderr_tail, run);
    if failure.kind != FailureKind::Failed {
        return failure;
    }
    match plan::violation(stderr_tail, run, unnamed) {
        Some(message) => Failure {
            kind: FailureKind::PlanViolated,
            message: console::shorten(&console::for_display(&message), MAX_MESSAGE),
            retry_after: None,
        },
        None => failure,
    }
}

fn kind(exit: Exit, stderr: &str, run: &RunSummary) -> FailureKind {
    if let Some(signal) = exit.signal {
        return FailureKind::Killed { signal };
    }
    let code = exit.code.unwrap_or_default();
    let holders = parse_locks(stderr);
    if !holders.is_empty() || stderr.contains("the stack is currently locked by") || conflicts_with_update(stderr) {
        return FailureKind::Conflict { holders };
    }
    if run.cancel_requested() || run.result() == Some("canceled") || code == EXIT_CANCELED || reports_cancellation(run)
    {
        return FailureKind::Canceled;
    }
    if rejects_token(stderr) || (code == EXIT_AUTHENTICATION && !run.began()) {
        return FailureKind::InvalidAccessToken;
    }
    if !run.began() && reports_unavailable_backend(stderr) {
        return FailureKind::BackendUnavailable;
    }
    if !run.began() && reports_legacy_layout(stderr) {
        return FailureKind::LegacyLayout;
    }
    if reports_missing_stack(stderr) || (code == EXIT_NO_STACK && !run.began()) {
        return FailureKind::StackMissing;
    }
    if run.violations().mandatory() > 0 {
        return FailureKind::PolicyViolated;
    }
    FailureKind::Failed
}

/// Returns whether the CLI rejected a flag or a command as unknown, because the CLI is too old.
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

/// Returns whether Pulumi Cloud rejected the call because another update of the stack is in progress.
/// [`super::active_update`] identifies the other update.
pub fn conflicts_with_update(stderr: &str) -> bool {
    stderr.contains("Another update is currently in progress")
}

/// Returns whether the state backend still responded with the HTTP status 429 or 5xx after the CLI's last retry.
fn reports_unavailable_backend(stderr: &str) -> bool {
    ["request rate-limit exceeded", "[429]", "[500]", "[502]", "[503]", "[504]"]
        .iter()
        .any(|status| stderr.contains(status))
}

/// Returns whether the CLI rejected a self-managed backend whose layout has no projects. Contract: `New` in
/// `pkg/backend/diy/backend.go` of the CLI, since version 3.257.
fn reports_legacy_layout(stderr: &str) -> bool {
    stderr.lines().any(|line| line.starts_with("Legacy DIY state is "))
}

/// Returns whether the CLI ignored the settings file, because Pulumi Cloud refers to an ESC environment for the
/// configuration of the stack. Contract: `LoadProjectStack` in `pkg/cmd/pulumi/stack/io.go` of the CLI.
pub fn ignores_settings_file(stderr: &str) -> bool {
    let is_warning = |line: &str| {
        line.starts_with("warning: config file ")
            && line.trim_end().ends_with(" exists but will be ignored because this stack uses remote config")
    };
    stderr.lines().any(is_warning)
}

fn reports_missing_stack(stderr: &str) -> bool {
    stderr.lines().any(|line| line.split_once("no stack named ").is_some_and(|(_, rest)| rest.contains(" found")))
}

/// Returns whether the engine reports a cancellation in an error message. If a run is canceled before its first step,
/// this error message is the only indication of the cancellation.
fn reports_cancellation(run: &RunSummary) -> bool {
    let is_cancellation = |word: &str| {
        ["update", "destroy", "refresh"]
            .iter()
            .any(|action| word == format!("{action} canceled") || word == format!("{action} cancelled"))
    };
    run.errors().iter().any(|error| is_cancellation(&error.message))
}

fn with_cause(message: &str, cause: &[String]) -> String {
    if cause.is_empty() { message.to_owned() } else { format!("{message}: {}", cause.join("\n")) }
}

/// Returns whether `stack init` failed because the stack exists.
pub fn stack_exists(stderr_tail: &str) -> bool {
    let errors = error_text(stderr_tail);
    errors.lines().any(|line| line.split_once("stack").is_some_and(|(_, rest)| rest.contains("already exists")))
}

#[cfg(test)]
mod corpus_tests;
#[cfg(test)]
mod tests;
