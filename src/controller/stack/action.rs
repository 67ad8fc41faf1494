//! The actions of a Stack's reconcile.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;

use crate::api::auto::Workspace;
use crate::api::pulumi::{CurrentUpdate, StackStatus};
use crate::controller::stack::prerequisites::Stale;
use crate::source::Resolved;

/// The next step of a reconcile.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Takes over a Stack that the Pulumi Kubernetes Operator manages.
    TakeOver,
    AddFinalizer,
    /// Records the current artifact of the source as the artifact of the last run, because both have the same revision or the same content.
    AdoptBaseline(Box<StackStatus>),
    /// Applies the Workspace although no run is due: the Pulumi Kubernetes Operator created it, or the source repacked its archive.
    ReplaceWorkspace(Box<Workspace>),
    /// Waits until the dependents of this Stack are destroyed. Contains the message and the time until the next check.
    WaitForDependents(String, SignedDuration),
    /// Creates the Update that the status announces.
    CreateUpdate(CurrentUpdate),
    /// Drops an announced run from the status because its inputs have changed and its Update was never created.
    ForgetUpdate,
    /// Deletes an Update that has not started, because its inputs have changed or it can no longer start.
    RevokeUpdate(String),
    AwaitUpdate(String),
    /// Reports that the controller cannot determine whether the open run is still running. Contains the message of the Update.
    ReportUnknownOutcome(String),
    /// Copies the user's decision about a run with an unknown outcome to the Update. Contains the value of the annotation.
    ForwardResolution(String),
    /// Cancels the open run. Contains the value of the annotation.
    CancelUpdate(String),
    /// Rejects a cancel request. Contains the value of the annotation and the message.
    RejectCancel(String, String),
    /// Records the result of the completed run in the status.
    RecordResult,
    /// Reports that the spec or an object that the spec names is invalid.
    Invalid(String),
    /// Reports a reference to another namespace that the controller does not allow.
    Denied(String),
    /// Waits for an artifact. Contains the message and the time until the next retry, if known.
    WaitForSource(String, Option<Duration>),
    /// Reports a source that does not exist or is not usable, and requires a change by a user.
    SourceStalled(String),
    /// Waits for the lookup of the source. The Stack is woken when the lookup completes.
    AwaitSource(String),
    /// Reports another Stack that manages the same Pulumi stack and takes precedence.
    Conflict(String),
    /// Waits for dependencies. Contains the message and the stale dependencies, which have to run again.
    WaitForDependencies(String, Vec<Stale>),
    /// Waits for the evaluation of the expression of a dependency. The Stack is woken when the evaluation completes.
    AwaitExpression,
    Fetch(Resolved),
    ApplyWorkspace(Box<Workspace>, String),
    WaitForWorkspace(String),
    /// Reports that the pod cannot start.
    WorkspaceFailed(String),
    /// Reports that the Pulumi CLI in the image is too old.
    VersionTooLow(String),
    Start(CurrentUpdate),
    /// Records the first observed hashes of configuration values and mounted objects. A later change of these values triggers a run.
    RecordBaseline(Baseline),
    /// Deletes the Workspace after a successful run, according to the reclaim policy.
    ReclaimWorkspace,
    /// Reports that no run is due.
    Settled(Settled),
    /// Deletes the Updates and the Workspace of the Stack, then removes the finalizer.
    RemoveFinalizer,
}

impl Action {
    /// Returns the name of the action for the log. The payload is not logged because config and environment variables may contain secrets.
    pub fn name(&self) -> &'static str {
        match self {
            Action::TakeOver => "TakeOver",
            Action::AddFinalizer => "AddFinalizer",
            Action::AdoptBaseline(_) => "AdoptBaseline",
            Action::ReplaceWorkspace(_) => "ReplaceWorkspace",
            Action::WaitForDependents(..) => "WaitForDependents",
            Action::CreateUpdate(_) => "CreateUpdate",
            Action::ForgetUpdate => "ForgetUpdate",
            Action::RevokeUpdate(_) => "RevokeUpdate",
            Action::AwaitUpdate(_) => "AwaitUpdate",
            Action::ReportUnknownOutcome(_) => "ReportUnknownOutcome",
            Action::ForwardResolution(_) => "ForwardResolution",
            Action::CancelUpdate(_) => "CancelUpdate",
            Action::RejectCancel(..) => "RejectCancel",
            Action::RecordResult => "RecordResult",
            Action::Invalid(_) => "Invalid",
            Action::Denied(_) => "Denied",
            Action::WaitForSource(..) => "WaitForSource",
            Action::SourceStalled(_) => "SourceStalled",
            Action::AwaitSource(_) => "AwaitSource",
            Action::Conflict(_) => "Conflict",
            Action::WaitForDependencies(..) => "WaitForDependencies",
            Action::AwaitExpression => "AwaitExpression",
            Action::Fetch(_) => "Fetch",
            Action::ApplyWorkspace(..) => "ApplyWorkspace",
            Action::WaitForWorkspace(_) => "WaitForWorkspace",
            Action::WorkspaceFailed(_) => "WorkspaceFailed",
            Action::VersionTooLow(_) => "VersionTooLow",
            Action::Start(_) => "Start",
            Action::RecordBaseline(_) => "RecordBaseline",
            Action::ReclaimWorkspace => "ReclaimWorkspace",
            Action::Settled(_) => "Settled",
            Action::RemoveFinalizer => "RemoveFinalizer",
        }
    }
}

/// Hashes that were unknown when the last run started. Later hashes are compared with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    pub config: Option<String>,
    pub mounted: BTreeMap<String, String>,
}

/// State of a Stack for which no run is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The last run succeeded. Contains the time until the next run, if the Stack runs at an interval.
    Done(Option<SignedDuration>),
    Suspended,
    /// The Stack was deleted while suspended, and its resources are not destroyed yet.
    DeletionSuspended,
    RetryAfter(SignedDuration),
    FailedPermanently,
    /// The outcome of the last run requires a decision by a user. Contains the reason.
    DecisionRequired(&'static str),
    /// A user abandoned the last run.
    Abandoned,
    /// A user canceled the last run.
    Canceled,
}
