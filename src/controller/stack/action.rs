//! The steps that a Stack can need.

use std::time::Duration;

use jiff::SignedDuration;

use crate::api::auto::Workspace;
use crate::api::pulumi::{CurrentUpdate, StackStatus};
use crate::controller::stack::inputs::Baseline;
use crate::controller::stack::prerequisites::Stale;
use crate::source::Resolved;

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The Pulumi Kubernetes Operator has it: it becomes ours.
    TakeOver,
    AddFinalizer,
    /// The last run was of what the source has now, though its record says otherwise.
    AdoptBaseline(Box<StackStatus>),
    /// The Workspace becomes this one, though no run is due: it was the operator's, or its source was packed again.
    ReplaceWorkspace(Box<Workspace>),
    /// Others that need this Stack are destroyed first: why, and when to look again.
    WaitForDependents(String, SignedDuration),
    /// The status says that a run was asked for; its object is made now.
    CreateUpdate(CurrentUpdate),
    /// A run that was asked for, but never made, is for inputs that are gone.
    ForgetUpdate,
    /// A run that has not started is for inputs that are gone, or waits for what will not come.
    RevokeUpdate(String),
    AwaitUpdate(String),
    /// It is not known whether the open run is still running: why.
    Doubt(String),
    /// A person has answered to the doubt: the answer goes to the Update.
    Answer(String),
    /// The value of the annotation that cancels the open run.
    CancelUpdate(String),
    /// The value of an annotation that cancels nothing, and why.
    RejectCancel(String, String),
    /// The run has ended: its result goes into the status.
    RecordResult,
    /// The spec, or something that it names, is not valid.
    Invalid(String),
    /// It names something in another namespace, where that is not allowed.
    Denied(String),
    /// There is no artifact: why, and when to look again if that is known.
    WaitForSource(String, Option<Duration>),
    /// The source does not exist, or cannot be used as it is: a user has to change something.
    SourceStalled(String),
    /// The source is being looked at; the Stack is woken by the answer.
    AwaitSource(String),
    /// Another Stack manages the same Pulumi stack, and is before this one.
    Conflict(String),
    /// Other Stacks have to be done first: why, and which of them are to be run again for it.
    WaitForOthers(String, Vec<Stale>),
    /// The expression of a dependency is being evaluated; the Stack is woken by the answer.
    AwaitExpression,
    Fetch(Resolved),
    ApplyWorkspace(Box<Workspace>, String),
    WaitForWorkspace(String),
    /// The pod cannot start.
    WorkspaceFailed(String),
    /// The Pulumi CLI in the image is too old.
    VersionTooLow(String),
    Start(CurrentUpdate),
    /// The values behind the configuration are seen for the first time: a later change of them is a reason to run.
    RecordBaseline(Baseline),
    /// The last run has succeeded, and its workspace is not to be kept.
    ReclaimWorkspace,
    /// Nothing is due.
    Settled(Settled),
    /// Ours goes away, then the finalizer.
    RemoveFinalizer,
}

impl Action {
    /// What the log says of it. Not all that it carries: config and environment may hold secrets.
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
            Action::Doubt(_) => "Doubt",
            Action::Answer(_) => "Answer",
            Action::CancelUpdate(_) => "CancelUpdate",
            Action::RejectCancel(..) => "RejectCancel",
            Action::RecordResult => "RecordResult",
            Action::Invalid(_) => "Invalid",
            Action::Denied(_) => "Denied",
            Action::WaitForSource(..) => "WaitForSource",
            Action::SourceStalled(_) => "SourceStalled",
            Action::AwaitSource(_) => "AwaitSource",
            Action::Conflict(_) => "Conflict",
            Action::WaitForOthers(..) => "WaitForOthers",
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

/// How a Stack stands when nothing is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// When the next run is due, if it comes without a change.
    Done(Option<SignedDuration>),
    Suspended,
    /// Deleted while suspended, with something to destroy.
    DeletionSuspended,
    RetryAfter(SignedDuration),
    GivenUp,
    /// The last run ended for this reason: a person has to decide what happens next.
    Unanswered(&'static str),
    /// A person has given up the last run.
    Abandoned,
    /// A user has canceled the last run.
    Canceled,
}
