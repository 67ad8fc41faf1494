//! What a Stack needs next. Pure and total: no client, no clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::auto::{ArtifactReference, PendingCreates, UpdateKind, Workspace};
use crate::api::conditions::{self, stack_reason};
use crate::api::names;
use crate::api::pulumi::{CurrentUpdate, Stack, StackStatus, WorkspaceReclaimPolicy};
use crate::api::resolve::Answer;
use crate::controller::stack::backoff::StackBackoff;
use crate::controller::stack::input_changes::{self, Baseline};
use crate::controller::stack::observe::{Observed, requests, requests_beside};
use crate::controller::stack::prerequisites::{self, Stale, Standing};
use crate::controller::stack::readiness::{Readiness, needs_bytes, readiness};
use crate::controller::stack::schedule::{self, Due, Inputs};
use crate::controller::stack::workspace_drift::has_drifted;
use crate::controller::stack::{
    active_update, build_update, build_workspace, cancel, deletion, duplicate, identity, ownership, pko_migration,
    resolve, status,
};
use crate::runtime::field_managers;
use crate::source::{Resolved, Unavailable};

/// A source may be missing for so long before its Stack is stalled.
const SOURCE_GRACE: SignedDuration = SignedDuration::from_secs(10);

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
    /// Nobody knows whether the open run still goes on: why.
    Doubt(String),
    /// A person has answered to it: the Update is told.
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
    /// What stands behind the configuration is seen for the first time: what changes from now on is a reason to run.
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

/// The next step for what was observed.
pub fn decide(observed: &Observed, now: Timestamp) -> Action {
    let stack = &observed.stack;
    let deleting = stack.metadata.deletion_timestamp.is_some();
    if field_managers::is_due(stack) {
        return Action::TakeOver;
    }
    if !deleting && !stack.finalizers().iter().any(|f| f == names::STACK_FINALIZER) {
        return Action::AddFinalizer;
    }
    if let Some(action) = cancel::decide(observed).or_else(|| active_update::decide(observed)) {
        return action;
    }
    if let Some(action) = duplicate::decide(observed) {
        return action;
    }
    if deleting { deletion::decide(observed, now) } else { desired(observed, now) }
}

/// How people call a run. What is written in a Workspace, and what its init containers bring, has no revision.
pub fn named(kind: UpdateKind, revision: &str) -> String {
    match revision {
        "" => kind.as_str().to_owned(),
        revision => format!("{} of revision {revision}", kind.as_str()),
    }
}

/// The artifact that a run is bound to.
pub fn artifact_of(current: &CurrentUpdate) -> ArtifactReference {
    ArtifactReference {
        digest: current.digest.clone().unwrap_or_default(),
        revision: current.commit.clone().unwrap_or_default(),
        dir: current.dir.clone().unwrap_or_default(),
    }
}

/// What a Stack runs as long as it lives.
pub fn forward(stack: &Stack) -> UpdateKind {
    if stack.spec.preview.unwrap_or_default() { UpdateKind::Preview } else { UpdateKind::Up }
}

fn desired(observed: &Observed, now: Timestamp) -> Action {
    if observed.stack.spec.suspend.unwrap_or_default() {
        return Action::Settled(Settled::Suspended);
    }
    if let Err(error) = build_workspace::check_address(&observed.stack) {
        return Action::Invalid(error.to_string());
    }
    let resolved = match &observed.source {
        Some(Ok(resolved)) => resolved,
        Some(Err(Unavailable::Invalid(message))) => return Action::Invalid(message.clone()),
        Some(Err(Unavailable::Denied(message))) => return Action::Denied(message.clone()),
        Some(Err(Unavailable::NotYet(message))) => return Action::WaitForSource(message.clone(), None),
        Some(Err(Unavailable::Stalled(message))) => return stalled_source(&observed.stack, message, now),
        Some(Err(Unavailable::Looking(message))) => return Action::AwaitSource(message.clone()),
        None => return Action::WaitForSource("the source was not read".to_owned(), None),
    };
    let action = run_if_due(observed, resolved, observed.in_store, forward(&observed.stack), now);
    match input_changes::baseline(observed) {
        Some(first) if matches!(action, Action::Settled(_)) => Action::RecordBaseline(first),
        _ => action,
    }
}

/// A source that is created together with its Stack may come a moment after it, so one that is missing does not stall the Stack at once.
fn stalled_source(stack: &Stack, message: &str, now: Timestamp) -> Action {
    let ready = stack.status.as_ref().and_then(|status| conditions::find(&status.conditions, conditions::READY));
    let is_known = |ready: &&Condition| {
        let reasons = [stack_reason::SOURCE_UNAVAILABLE, stack_reason::NOT_READY_STALLED];
        ready.observed_generation == stack.metadata.generation && reasons.contains(&ready.reason.as_str())
    };
    let known_for = ready.filter(is_known).map(|ready| now.duration_since(ready.last_transition_time.0));
    let grace = SOURCE_GRACE - known_for.unwrap_or_default();
    match Duration::try_from(grace) {
        Ok(left) if !left.is_zero() => Action::WaitForSource(message.to_owned(), Some(left)),
        _ => Action::SourceStalled(message.to_owned()),
    }
}

/// The steps to a run: bytes, Workspace, Update.
pub fn run_if_due(
    observed: &Observed,
    resolved: &Resolved,
    in_store: bool,
    kind: UpdateKind,
    now: Timestamp,
) -> Action {
    let stack = &observed.stack;
    if let Some(status) = pko_migration::baseline(stack, resolved) {
        return Action::AdoptBaseline(Box::new(status));
    }
    let last = stack.status.as_ref().and_then(|s| s.last_update.as_ref());
    let backoff = StackBackoff::of_stack(stack).spread(observed.interval_jitter, &stack.spec, last);
    let due = schedule::due(last, resolve::in_force(stack), &inputs(observed, resolved), kind, &backoff, now);
    if !matches!(due, Due::Now(_)) {
        let without_run = operators_workspace(observed, resolved, in_store, &due);
        let without_run = without_run.or_else(|| packed_again(observed, resolved, in_store, kind));
        if let Some(action) = without_run {
            return action;
        }
    }
    match due {
        Due::Now(reason) => run(observed, resolved, in_store, kind, reason, now),
        Due::Done(again) => settled_on(observed, resolved, in_store, kind, again),
        Due::GivenUp => Action::Settled(Settled::GivenUp),
        Due::Invalid(message) => Action::Invalid(message),
        Due::Unanswered(reason) => Action::Settled(Settled::Unanswered(reason)),
        Due::Abandoned => Action::Settled(Settled::Abandoned),
        Due::Canceled => Action::Settled(Settled::Canceled),
        Due::After(wait) => Action::Settled(Settled::RetryAfter(wait)),
    }
}

/// The operator's Workspace becomes ours though no run is due, unless it is not to be kept.
pub fn operators_workspace(observed: &Observed, resolved: &Resolved, in_store: bool, due: &Due) -> Option<Action> {
    pko_migration::workspace(observed.workspace.as_ref())?;
    let is_kept = observed.stack.spec.workspace_reclaim_policy == WorkspaceReclaimPolicy::Retain;
    if matches!(due, Due::Done(_)) && !is_kept {
        return None;
    }
    Some(replace_workspace(observed, resolved, in_store))
}

fn replace_workspace(observed: &Observed, resolved: &Resolved, in_store: bool) -> Action {
    match build_workspace::workspace(&observed.stack, &reference(resolved)) {
        Err(error) => Action::Invalid(error.to_string()),
        Ok(_) if !in_store => Action::Fetch(resolved.clone()),
        Ok(wanted) => Action::ReplaceWorkspace(Box::new(wanted)),
    }
}

/// The source has another archive of what the last run was of: it is placed, then recorded, and nothing runs.
fn packed_again(observed: &Observed, resolved: &Resolved, in_store: bool, kind: UpdateKind) -> Option<Action> {
    let (stack, inputs) = (&observed.stack, inputs(observed, resolved));
    let last = stack.status.as_ref()?.last_update.as_ref()?;
    if kind == UpdateKind::Destroy || !schedule::is_packed_again(last, &inputs) {
        return None;
    }
    let is_kept = stack.spec.workspace_reclaim_policy == WorkspaceReclaimPolicy::Retain;
    let is_ours = |w: &&Workspace| w.metadata.deletion_timestamp.is_none() && ownership::is_of(stack, w);
    let workspace = observed.workspace.as_ref().filter(|_| is_kept).filter(is_ours);
    Some(match workspace.filter(|w| w.spec.artifact.as_ref() != Some(&reference(resolved))) {
        Some(_) => replace_workspace(observed, resolved, in_store),
        None => Action::AdoptBaseline(Box::new(status::packed_again(stack, &inputs))),
    })
}

/// The steps to a run that is due.
fn run(
    observed: &Observed,
    resolved: &Resolved,
    in_store: bool,
    kind: UpdateKind,
    reason: String,
    now: Timestamp,
) -> Action {
    let stack = &observed.stack;
    let artifact = reference(resolved);
    // Nothing is begun that cannot be carried through.
    let current = current_update(observed, resolved, kind, reason);
    let run = || build_update::update(stack, &current).map(drop);
    if let Err(error) = build_workspace::check_times(stack).and_then(|()| run()) {
        return Action::Invalid(error.to_string());
    }
    if let Some(action) = others_first(observed, &resolved.revision, kind, now) {
        return action;
    }
    let wanted = match build_workspace::workspace(stack, &artifact) {
        Ok(wanted) => wanted,
        Err(error) => return Action::Invalid(error.to_string()),
    };
    if !in_store && observed.workspace.as_ref().is_none_or(|workspace| needs_bytes(workspace, &artifact)) {
        return Action::Fetch(resolved.clone());
    }
    let step = named(kind, &resolved.revision);
    if let Some(other) = observed.workspace.as_ref().filter(|workspace| !ownership::is_of(stack, workspace)) {
        let name = other.name_any();
        return Action::Invalid(format!(
            "the Workspace {name} is there and is not this Stack's: delete it, or give the Stack another name"
        ));
    }
    let Some(workspace) = observed.workspace.as_ref() else {
        return Action::ApplyWorkspace(Box::new(wanted), format!("preparing the workspace for {step}"));
    };
    if workspace.metadata.deletion_timestamp.is_some() {
        return Action::WaitForWorkspace("waiting for the old workspace to go away".to_owned());
    }
    let has_drifted = || !observed.is_workspace_mutated && has_drifted(&wanted, workspace);
    if build_workspace::wanted_hash(workspace) != build_workspace::wanted_hash(&wanted) || has_drifted() {
        return Action::ApplyWorkspace(Box::new(wanted), format!("preparing the workspace for {step}"));
    }
    match readiness(workspace) {
        Readiness::Ready => Action::Start(current),
        Readiness::Waiting(message) | Readiness::LacksSource(message) => {
            let advice =
                if kind == UpdateKind::Destroy { format!(". {}", status::WITHOUT_DESTROY) } else { String::new() };
            Action::WaitForWorkspace(format!("{message}waiting for workspace readiness before {step}{advice}"))
        }
        Readiness::Failed(message) | Readiness::NotInstalled(message) => Action::WorkspaceFailed(message),
        Readiness::VersionTooLow(message) => Action::VersionTooLow(message),
        Readiness::SourceRefused(message) => Action::SourceStalled(message),
    }
}

/// What keeps a run from being started before other Stacks are done. A destroy waits for nobody.
fn others_first(observed: &Observed, revision: &str, kind: UpdateKind, now: Timestamp) -> Option<Action> {
    if kind == UpdateKind::Destroy {
        return None;
    }
    if let Some(elsewhere) = &observed.elsewhere {
        return Some(Action::Denied(elsewhere.clone()));
    }
    if let Some(cycle) = &observed.cycle {
        let way = cycle.join(" needs ");
        return Some(Action::Invalid(format!("{way}: none of them could ever run. Take one of these out")));
    }
    match prerequisites::judge(&observed.stack, revision, &observed.needed, now) {
        Standing::Satisfied => None,
        Standing::Evaluating => Some(Action::AwaitExpression),
        Standing::Invalid(message) => Some(Action::Invalid(message)),
        Standing::Waits { message, stale } => Some(Action::WaitForOthers(message, stale)),
    }
}

/// Nothing is due. A workspace that still asks for a source that was refused is pointed back to the one that it has; one that
/// is not to be kept goes; one whose pod has lost its source gets it again, though the store has lost it, too.
fn settled_on(
    observed: &Observed,
    resolved: &Resolved,
    in_store: bool,
    kind: UpdateKind,
    again: Option<SignedDuration>,
) -> Action {
    let is_kept = observed.stack.spec.workspace_reclaim_policy == WorkspaceReclaimPolicy::Retain;
    let is_there = observed.workspace.as_ref().is_some_and(|w| w.metadata.deletion_timestamp.is_none());
    // What is destroyed goes, and its Workspace with it.
    let stays = is_there && kind != UpdateKind::Destroy;
    if !is_kept && stays {
        return Action::ReclaimWorkspace;
    }
    let asks_for_another = |w: &&Workspace| w.spec.artifact.as_ref() != Some(&reference(resolved));
    let lacks_its_source = |w: &Workspace| !asks_for_another(&w) && matches!(readiness(w), Readiness::LacksSource(_));
    if stays && !in_store && observed.workspace.as_ref().is_some_and(lacks_its_source) {
        return Action::Fetch(resolved.clone());
    }
    let refused = |w: &&Workspace| matches!(readiness(w), Readiness::SourceRefused(_));
    let stuck = observed.workspace.as_ref().filter(asks_for_another).filter(refused);
    match stuck.and_then(|_| build_workspace::workspace(&observed.stack, &reference(resolved)).ok()) {
        Some(wanted) => {
            let step = named(kind, &resolved.revision);
            Action::ApplyWorkspace(Box::new(wanted), format!("going back to the source of the last {step}"))
        }
        None => Action::Settled(Settled::Done(again)),
    }
}

/// The inputs that a run of this Stack on this artifact answers.
pub fn inputs(observed: &Observed, resolved: &Resolved) -> Inputs {
    let stack = &observed.stack;
    let (reconcile_request, requested_at) = requests(stack);
    let (force_at, reset_at) = requests_beside(stack);
    Inputs {
        generation: stack.metadata.generation.unwrap_or_default(),
        reconcile_request,
        requested_at,
        force_at,
        reset_at,
        revision: resolved.revision.clone(),
        digest: resolved.digest.to_string(),
        content_id: resolved.content_id.clone(),
        selection: resolved.selection().map(str::to_owned),
        config_inputs: input_changes::config(observed),
        mounted_inputs: input_changes::mounted(observed),
    }
}

pub fn reference(resolved: &Resolved) -> ArtifactReference {
    ArtifactReference {
        digest: resolved.digest.to_string(),
        revision: resolved.revision.clone(),
        dir: resolved.directory.as_str().to_owned(),
    }
}

fn current_update(observed: &Observed, resolved: &Resolved, kind: UpdateKind, message: String) -> CurrentUpdate {
    let stack = &observed.stack;
    let inputs = inputs(observed, resolved);
    let attempt = stack.status.as_ref().and_then(|s| s.attempts).unwrap_or_default() + 1;
    CurrentUpdate {
        name: names::update(&stack.name_any(), &stack.uid().unwrap_or_default(), attempt),
        generation: inputs.generation,
        reconcile_request: inputs.reconcile_request,
        requested_at: inputs.requested_at,
        force_at: inputs.force_at,
        reset_at: inputs.reset_at,
        commit: Some(inputs.revision),
        origin_revision: resolved.origin_revision.clone(),
        digest: Some(inputs.digest),
        content_id: inputs.content_id,
        dir: Some(resolved.directory.as_str().to_owned()),
        paths_digest: inputs.selection,
        config_inputs: inputs.config_inputs,
        mounted_inputs: inputs.mounted_inputs,
        kind,
        message,
        pending_creates: pending_creates(stack),
        pulumi_stack: Some(identity::wanted(stack, observed.workspace.as_ref())),
    }
}

/// What the next run does about creations that were cut off: what a person has said, else what follows from the last run.
fn pending_creates(stack: &Stack) -> Option<PendingCreates> {
    match resolve::in_force(stack) {
        Some(Answer::Retry) if !resolve::is_not_found(stack) => Some(PendingCreates::Keep),
        Some(Answer::Clear) => Some(PendingCreates::Clear),
        Some(Answer::Retry | Answer::Abandon) | None => stack.status.as_ref()?.last_update.as_ref()?.pending_creates,
    }
}

#[cfg(test)]
mod tests;
