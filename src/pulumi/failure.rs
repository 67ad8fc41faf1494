//! Why a call of the CLI failed, in kinds that the caller acts on, and in words for people.

use super::events::RunSummary;

/// How the process of the CLI ended. A process ends by a code or by a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Exit {
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

/// A lock on a stack in a file-type backend, as the CLI names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// URL of the lock in the backend.
    pub url: String,
    pub user: String,
    pub host: String,
    pub pid: u32,
    /// RFC 3339.
    pub time: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Another update of the stack is running, or left its lock. Pulumi Cloud names no holder.
    Conflict { holders: Vec<Lock> },
    InvalidAccessToken,
    /// The backend has no such stack.
    StackMissing,
    /// It was cancelled, by a signal or through the backend.
    Canceled,
    /// The CLI was killed by a signal.
    Killed { signal: i32 },
    /// The program, a provider or the CLI failed.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// For people; at most 8 KiB.
    pub message: String,
}

/// Says why a call failed. The tails are the last part of what the CLI printed; `run` is what its event log said.
pub fn classify(exit: Exit, stdout_tail: &str, stderr_tail: &str, run: &RunSummary) -> Failure {
    todo!()
}

/// The locks that the CLI names in its error.
pub fn parse_locks(text: &str) -> Vec<Lock> {
    todo!()
}

/// Whether `stack init` failed because the stack exists.
pub fn stack_exists(stderr_tail: &str) -> bool {
    todo!()
}
