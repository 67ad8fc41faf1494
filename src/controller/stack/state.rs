//! The states of a Stack from which its conditions are derived.

/// State of a Stack: one row of the table of conditions in `docs/spec/v1/stack.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The message names the step and the revision.
    Working(String),
    WorkspaceFailed(String),
    /// The Pulumi CLI in the image is too old.
    VersionTooLow(String),
    SourceUnavailable(String),
    /// The source does not exist or is not usable, and requires a change by a user.
    SourceStalled(String),
    /// The namespace is terminating: no object can be created in it, and its objects are being deleted.
    NamespaceTerminating(String),
    /// Another Stack manages the same Pulumi stack.
    Conflict(String),
    /// A dependency is not ready or has not run yet.
    PrerequisiteNotSatisfied(String),
    /// The last run failed and is retried.
    Failed,
    /// The Pulumi Kubernetes Operator stopped retrying the last run.
    GivenUp,
    /// The controller cannot tell whether the open run is still running. Contains the reason and the message of the Update.
    InDoubt(&'static str, String),
    /// The outcome of the last run requires a decision by a user. Contains the reason.
    Unanswered(&'static str),
    /// The last run was abandoned by a user.
    Abandoned,
    /// The last run was canceled by a user.
    Canceled,
    Invalid(String),
    Denied(String),
    Done,
    Suspended,
    DeletionSuspended,
}
