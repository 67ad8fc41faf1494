//! Actions of a Stack reconciliation.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;

use crate::api::auto::Workspace;
use crate::api::pulumi::{CurrentUpdate, StackStatus};
use crate::controller::stack::policy_packs::ResolvedPack;
use crate::controller::stack::prerequisites::Stale;
use crate::controller::stack::restrictions::Held;
use crate::source::Resolved;

/// Next step of a reconciliation.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Takes over a Stack that the Pulumi Kubernetes Operator manages.
    TakeOver,
    AddFinalizer,
    /// Records the source's current artifact as the artifact of the last run. Both artifacts have the same revision or
    /// the same content.
    AdoptBaseline(Box<StackStatus>),
    /// Applies the Workspace although no run is due, either because the Pulumi Kubernetes Operator created the
    /// Workspace or because the source repacked its archive.
    ReplaceWorkspace(Box<Workspace>),
    /// Waits until all dependents of this Stack are destroyed. Contains the message and the time until the next check.
    WaitForDependents(String, SignedDuration),
    /// Creates the Update of the recorded run.
    CreateUpdate(CurrentUpdate),
    /// Removes the recorded run from the status, because the run's inputs changed before the controller created its
    /// Update.
    ForgetUpdate,
    /// Records that the result of the recorded run is lost, because its Update no longer exists. The run may have
    /// changed resources.
    RecordLostRun(CurrentUpdate),
    /// Removes the recorded run from the status, because a user has created the run's Update in advance or has changed
    /// the Update's spec. Contains the message.
    DiscardUpdate(String),
    /// Deletes an Update whose run has not started, because the run's inputs have changed or the run can no longer
    /// start. Contains the reason.
    RevokeUpdate(String),
    AwaitUpdate(String),
    /// Reports the state of the Stack after the given time, because the state may have changed by then.
    DelayReport(SignedDuration),
    /// Reports that the outcome of the open run is unknown. Contains the Update's message.
    ReportUnknownOutcome(String),
    /// Copies the user's decision about a run with an unknown outcome to the Update. Contains the value of
    /// `pulumi.com/resolve`.
    ForwardResolution(String),
    /// Cancels the open run. Contains the value of `pulumi.com/cancel`.
    CancelUpdate(String),
    /// Cancels a drift check, because another run is due.
    CancelDriftCheck,
    /// Rejects a request to cancel a run. Contains the value of `pulumi.com/cancel` and a message.
    RejectCancel(String, String),
    /// Records the result of the completed run in the status.
    RecordResult,
    /// Reports that the spec of the Stack, or an object to which the spec refers, is invalid.
    Invalid(String),
    /// Reports that the controller does not allow a reference to an object in another namespace.
    Denied(String),
    /// Waits for an artifact. Contains the message and, if known, the time until the next retry.
    WaitForSource(String, Option<Duration>),
    /// Reports that the source does not exist or is not usable. To resolve the problem, a user must change the source
    /// or the spec.
    SourceStalled(String),
    /// Waits for the source lookup. The controller requeues the Stack when the lookup is complete.
    AwaitSource(String),
    /// Reports that another Stack manages the same Pulumi stack and takes precedence.
    Conflict(String),
    /// Waits for dependencies. Contains the message, and the stale dependencies whose runs the controller requests. A
    /// dependency is stale if its last run is too old.
    WaitForDependencies(String, Vec<Stale>),
    /// Waits for the evaluation of a dependency expression. The evaluator requeues the Stack when the result is
    /// available.
    AwaitExpression,
    /// Waits until users approve the plan. Contains the message.
    AwaitApproval(String),
    /// Reports that a user rejected the plan. Contains the message.
    ReportRejection(String),
    /// Waits until a pause or a schedule permits the run.
    AwaitPermission(Held),
    /// Waits until a user confirms the destroy, because users have deleted too many Stacks. Contains the message.
    AwaitConfirmation(String),
    /// Announces the expiry of the Stack. Contains the message.
    AnnounceExpiry(String),
    /// Deletes the expired Stack. Contains the message.
    Expire(String),
    Fetch(Resolved),
    FetchPolicyPack(Box<ResolvedPack>),
    ApplyWorkspace(Box<Workspace>, String),
    WaitForWorkspace(String),
    /// Requests the pod of a sleeping Workspace. Contains the message.
    WakeWorkspace(String),
    /// Reports that the pod cannot start.
    WorkspaceFailed(String),
    /// Reports that the Pulumi CLI in the image is too old.
    VersionTooLow(String),
    Start(CurrentUpdate),
    /// Records the initial hashes of configuration values and mounted objects. A later change to a hash starts a run.
    RecordBaseline(Baseline),
    /// Deletes the Workspace after a successful run, according to the reclaim policy.
    ReclaimWorkspace,
    /// Reports that no run is due.
    Settled(Settled),
    /// Deletes the Updates and the Workspace of the Stack, and then removes the finalizer of the Stack.
    RemoveFinalizer,
}

impl Action {
    /// Returns the name of the action for logs. Logs omit the fields of the action, because configuration and
    /// environment variables can contain secrets.
    pub fn name(&self) -> &'static str {
        match self {
            Action::TakeOver => "TakeOver",
            Action::AddFinalizer => "AddFinalizer",
            Action::AdoptBaseline(_) => "AdoptBaseline",
            Action::ReplaceWorkspace(_) => "ReplaceWorkspace",
            Action::WaitForDependents(..) => "WaitForDependents",
            Action::CreateUpdate(_) => "CreateUpdate",
            Action::ForgetUpdate => "ForgetUpdate",
            Action::RecordLostRun(_) => "RecordLostRun",
            Action::DiscardUpdate(_) => "DiscardUpdate",
            Action::RevokeUpdate(_) => "RevokeUpdate",
            Action::AwaitUpdate(_) => "AwaitUpdate",
            Action::DelayReport(_) => "DelayReport",
            Action::ReportUnknownOutcome(_) => "ReportUnknownOutcome",
            Action::ForwardResolution(_) => "ForwardResolution",
            Action::CancelUpdate(_) => "CancelUpdate",
            Action::CancelDriftCheck => "CancelDriftCheck",
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
            Action::AwaitApproval(_) => "AwaitApproval",
            Action::ReportRejection(_) => "ReportRejection",
            Action::AwaitPermission(_) => "AwaitPermission",
            Action::AwaitConfirmation(_) => "AwaitConfirmation",
            Action::AnnounceExpiry(_) => "AnnounceExpiry",
            Action::Expire(_) => "Expire",
            Action::Fetch(_) => "Fetch",
            Action::FetchPolicyPack(_) => "FetchPolicyPack",
            Action::ApplyWorkspace(..) => "ApplyWorkspace",
            Action::WaitForWorkspace(_) => "WaitForWorkspace",
            Action::WakeWorkspace(_) => "WakeWorkspace",
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

/// Hashes that the controller did not know when the last run started. The controller compares later hashes with these
/// hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    pub config: Option<String>,
    pub mounted: BTreeMap<String, String>,
}

/// State of a Stack without a due run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The last run succeeded. Contains the time until the next run, if the Stack runs at an interval.
    Done(Option<SignedDuration>),
    Suspended,
    /// A user deleted the Stack while it was suspended. The Stack's resources still exist.
    DeletionSuspended,
    RetryAfter(SignedDuration),
    FailedPermanently,
    /// The result of the last run requires a user decision. Contains the reason.
    DecisionRequired(&'static str),
    /// A user abandoned the last run.
    Abandoned,
    /// A user canceled the last run.
    Canceled,
}
