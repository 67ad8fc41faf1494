//! The states of a Stack, of which its conditions are made.

/// How a Stack stands: one row of the table of conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The message names the step and the revision.
    Working(String),
    WorkspaceFailed(String),
    /// The Pulumi CLI in the image is too old.
    VersionTooLow(String),
    SourceUnavailable(String),
    /// The source does not exist, or cannot be used as it is: a user has to change something.
    SourceStalled(String),
    /// Nothing can be created in the namespace, and its objects are being deleted.
    NamespaceTerminating(String),
    /// Another Stack manages the same Pulumi stack.
    Conflict(String),
    /// Other Stacks have to be done first.
    PrerequisiteNotSatisfied(String),
    /// The last run failed and will be tried again.
    Failed,
    /// The Pulumi Kubernetes Operator gave up the last run.
    GivenUp,
    /// It is not known whether the open run is still running: the reason, and the Update's words.
    InDoubt(&'static str, String),
    /// The last run is in doubt for this reason, and waits for a person's answer.
    Unanswered(&'static str),
    /// A person has given up the last run.
    Abandoned,
    /// A user has canceled the last run.
    Canceled,
    Invalid(String),
    Denied(String),
    Done,
    Suspended,
    DeletionSuspended,
}
