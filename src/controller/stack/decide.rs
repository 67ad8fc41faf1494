//! What a Stack needs next. Pure and total: no client, no clock.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::api::auto::{ArtifactReference, PendingCreates, Update, UpdateKind, Workspace};
use crate::api::conditions::{self, update_reason, workspace_reason};
use crate::api::names;
use crate::api::pulumi::{CurrentUpdate, LastUpdate, Stack};
use crate::api::resolve::Answer;
use crate::controller::stack::observe::{Observed, in_place, last_in_place, requests};
use crate::controller::stack::schedule::{self, Due, Inputs};
use crate::controller::stack::{plan, resolve};
use crate::source::{Resolved, Unavailable};

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    AddFinalizer,
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
    /// The run has ended: its result goes into the status.
    Absorb,
    /// The spec, or something that it names, is not valid.
    Invalid(String),
    WaitForSource(String),
    Fetch(Resolved),
    ApplyWorkspace(Box<Workspace>, String),
    WaitForWorkspace(String),
    /// The pod cannot start.
    WorkspaceFailed(String),
    Start(CurrentUpdate),
    /// Nothing is due.
    Settled(Settled),
    /// Ours goes away, then the finalizer.
    LetGo,
}

impl Action {
    /// What the log says of it. Not all that it carries: config and environment may hold secrets.
    pub fn name(&self) -> &'static str {
        match self {
            Action::AddFinalizer => "AddFinalizer",
            Action::CreateUpdate(_) => "CreateUpdate",
            Action::ForgetUpdate => "ForgetUpdate",
            Action::RevokeUpdate(_) => "RevokeUpdate",
            Action::AwaitUpdate(_) => "AwaitUpdate",
            Action::Doubt(_) => "Doubt",
            Action::Answer(_) => "Answer",
            Action::Absorb => "Absorb",
            Action::Invalid(_) => "Invalid",
            Action::WaitForSource(_) => "WaitForSource",
            Action::Fetch(_) => "Fetch",
            Action::ApplyWorkspace(..) => "ApplyWorkspace",
            Action::WaitForWorkspace(_) => "WaitForWorkspace",
            Action::WorkspaceFailed(_) => "WorkspaceFailed",
            Action::Start(_) => "Start",
            Action::Settled(_) => "Settled",
            Action::LetGo => "LetGo",
        }
    }
}

/// How a Stack stands when nothing is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    Done,
    Suspended,
    /// Deleted while suspended, with something to destroy.
    DeletionSuspended,
    RetryAfter(SignedDuration),
    GivenUp,
    /// Nobody knows how the last run ended: a person has to say that it may run again.
    OutcomeUnknown,
    /// The state names creations in doubt: the same.
    PendingCreates,
    /// A person has given up the last run.
    Abandoned,
}

/// The next step for what was observed.
pub fn decide(observed: &Observed, now: Timestamp) -> Action {
    let stack = &observed.stack;
    let deleting = stack.metadata.deletion_timestamp.is_some();
    if !deleting && !stack.finalizers().iter().any(|f| f == names::STACK_FINALIZER) {
        return Action::AddFinalizer;
    }
    if let Some(action) = open_run(observed) {
        return action;
    }
    if deleting { deletion(observed, now) } else { desired(observed, now) }
}

/// What to do about the run that the status names.
fn open_run(observed: &Observed) -> Option<Action> {
    let current = observed.stack.status.as_ref()?.current_update.as_ref()?;
    let Some(update) = &observed.update else {
        return Some(match still_wanted(observed, current) {
            true => Action::CreateUpdate(current.clone()),
            false => Action::ForgetUpdate,
        });
    };
    if update.is_complete() {
        return Some(Action::Absorb);
    }
    let what = format!("{} of revision {}", current.kind.as_str(), current.commit.as_deref().unwrap_or("unknown"));
    let bound = update.status.as_ref().is_some_and(|s| s.run.is_some());
    if let Some(doubt) = doubt(update) {
        let answer = resolve::for_open(&observed.stack, &current.name);
        let is_news = |answer: &&str| update.annotations().get(names::ANNOTATION_RESOLVE).is_none_or(|a| a != answer);
        return Some(match answer.filter(is_news) {
            Some(answer) => Action::Answer(answer.to_owned()),
            None => Action::Doubt(doubt.to_owned()),
        });
    }
    if bound {
        return Some(Action::AwaitUpdate(match waiting(update) {
            Some(why) => format!("{what} ({}) waits: {why}", current.name),
            None => format!("running {what} ({})", current.name),
        }));
    }
    if let Some(why) = revocation(observed, current) {
        return Some(Action::RevokeUpdate(format!("{what} ({}) is taken back: {why}", current.name)));
    }
    Some(missing_bytes(observed, current).unwrap_or_else(|| {
        let why = waiting(update).unwrap_or("waits for its workspace or a free place");
        Action::AwaitUpdate(format!("{what} ({}) {why}", current.name))
    }))
}

/// Why nobody knows whether an open run still goes on, in its Update's words.
fn doubt(update: &Update) -> Option<&str> {
    let progressing = conditions::find(&update.status.as_ref()?.conditions, conditions::PROGRESSING)?;
    (progressing.reason == update_reason::RUN_OUTCOME_UNKNOWN).then_some(progressing.message.as_str())
}

/// Why an Update has not begun, in its own words.
fn waiting(update: &Update) -> Option<&str> {
    let progressing = conditions::find(&update.status.as_ref()?.conditions, conditions::PROGRESSING)?;
    let reasons = [update_reason::QUEUED, update_reason::PERSON_IN_POD];
    let waits = progressing.status == "False" && reasons.contains(&progressing.reason.as_str());
    waits.then_some(progressing.message.as_str())
}

/// Why a run that has not started shall not start any more.
fn revocation(observed: &Observed, current: &CurrentUpdate) -> Option<&'static str> {
    let stack = &observed.stack;
    let deleting = stack.metadata.deletion_timestamp.is_some();
    let gone = observed.workspace.as_ref().is_none_or(|w| w.metadata.deletion_timestamp.is_some());
    let moved_on = matches!(&observed.source, Some(Ok(r)) if Some(r.digest.to_string()) != current.digest);
    match () {
        () if deleting && current.kind != UpdateKind::Destroy => Some("the Stack is being deleted"),
        () if stack.spec.suspend.unwrap_or_default() => Some("the Stack is suspended"),
        () if stack.metadata.generation.is_some_and(|g| g != current.generation) => Some("the Stack has changed"),
        () if gone => Some("its workspace is gone"),
        () if moved_on && current.kind == UpdateKind::Up => Some("the source has moved on"),
        () => None,
    }
}

/// A new pod may need bytes that the store has no more.
fn missing_bytes(observed: &Observed, current: &CurrentUpdate) -> Option<Action> {
    let placed = observed.workspace.as_ref().and_then(in_place).is_some();
    match &observed.source {
        Some(Ok(resolved)) if !placed && !observed.in_store => {
            (Some(resolved.digest.to_string()) == current.digest).then(|| Action::Fetch(resolved.clone()))
        }
        _ => None,
    }
}

/// Whether the Workspace still asks for the artifact of a run that was announced, but not made.
fn still_wanted(observed: &Observed, current: &CurrentUpdate) -> bool {
    let deleting = observed.stack.metadata.deletion_timestamp.is_some();
    let kind = if deleting { UpdateKind::Destroy } else { UpdateKind::Up };
    if observed.stack.spec.suspend.unwrap_or_default() {
        return false;
    }
    let asked = observed.workspace.as_ref().and_then(|w| w.spec.artifact.as_ref());
    current.kind == kind && asked == Some(&artifact_of(current))
}

/// The artifact that a run is bound to.
pub fn artifact_of(current: &CurrentUpdate) -> ArtifactReference {
    ArtifactReference {
        digest: current.digest.clone().unwrap_or_default(),
        revision: current.commit.clone().unwrap_or_default(),
        dir: current.dir.clone().unwrap_or_default(),
    }
}

fn desired(observed: &Observed, now: Timestamp) -> Action {
    if observed.stack.spec.suspend.unwrap_or_default() {
        return Action::Settled(Settled::Suspended);
    }
    let resolved = match &observed.source {
        Some(Ok(resolved)) => resolved,
        Some(Err(Unavailable::Invalid(message))) => return Action::Invalid(message.clone()),
        Some(Err(Unavailable::NotYet(message))) => return Action::WaitForSource(message.clone()),
        None => return Action::WaitForSource("the source was not read".to_owned()),
    };
    run_if_due(observed, resolved, UpdateKind::Up, now)
}

fn deletion(observed: &Observed, now: Timestamp) -> Action {
    let stack = &observed.stack;
    // A Stack that never asked for a run has nothing to destroy.
    let ran = stack.status.as_ref().is_some_and(|s| s.attempts.is_some());
    if !stack.finalizers().iter().any(|f| f == names::STACK_FINALIZER)
        || !stack.spec.destroy_on_finalize.unwrap_or_default()
        || !ran
    {
        return Action::LetGo;
    }
    if is_destroyed(stack) {
        return Action::LetGo;
    }
    let placed = observed.workspace.as_ref().and_then(last_in_place);
    let resolved = match (placed.as_ref(), &observed.source) {
        (Some(placed), _) => placed,
        (None, Some(Ok(resolved))) => resolved,
        (None, Some(Err(error))) => return Action::WaitForSource(format!("cannot destroy yet: {error}")),
        (None, None) => return Action::WaitForSource("cannot destroy yet: the source was not read".to_owned()),
    };
    match run_if_due(observed, resolved, UpdateKind::Destroy, now) {
        Action::Settled(Settled::Done) => Action::LetGo,
        _ if stack.spec.suspend.unwrap_or_default() => Action::Settled(Settled::DeletionSuspended),
        action => action,
    }
}

/// Whether a destroy has succeeded since the Stack was deleted and last asked for.
pub fn is_destroyed(stack: &Stack) -> bool {
    let (reconcile_request, requested_at) = requests(stack);
    let destroyed = |last: &LastUpdate| {
        last.kind.as_deref() == Some(UpdateKind::Destroy.as_str())
            && last.state.as_deref() == Some("succeeded")
            && Some(last.generation) == stack.metadata.generation
            && last.reconcile_request == reconcile_request
            && last.requested_at == requested_at
    };
    stack.status.as_ref().and_then(|s| s.last_update.as_ref()).is_some_and(destroyed)
}

/// The steps to a run: bytes, Workspace, Update.
fn run_if_due(observed: &Observed, resolved: &Resolved, kind: UpdateKind, now: Timestamp) -> Action {
    let stack = &observed.stack;
    let last = stack.status.as_ref().and_then(|s| s.last_update.as_ref());
    let reason = match schedule::due(last, resolve::in_force(stack), &inputs(stack, resolved), kind, now) {
        Due::Done => return settled_on(observed, resolved, kind),
        Due::GivenUp => return Action::Settled(Settled::GivenUp),
        Due::OutcomeUnknown => return Action::Settled(Settled::OutcomeUnknown),
        Due::PendingCreates => return Action::Settled(Settled::PendingCreates),
        Due::Abandoned => return Action::Settled(Settled::Abandoned),
        Due::After(wait) => return Action::Settled(Settled::RetryAfter(wait)),
        Due::Now(reason) => reason,
    };
    let artifact = reference(resolved);
    if let Err(error) = plan::check_limits(stack) {
        return Action::Invalid(error.to_string());
    }
    let wanted = match plan::workspace(stack, &artifact) {
        Ok(wanted) => wanted,
        Err(error) => return Action::Invalid(error.to_string()),
    };
    let placed = observed.workspace.as_ref().and_then(|w| w.status.as_ref()?.artifact.as_ref());
    if !observed.in_store && placed.is_none_or(|p| p.digest != artifact.digest) {
        return Action::Fetch(resolved.clone());
    }
    let step = format!("{} of revision {}", kind.as_str(), resolved.revision);
    let Some(workspace) = observed.workspace.as_ref() else {
        return Action::ApplyWorkspace(Box::new(wanted), format!("preparing the workspace for {step}"));
    };
    if workspace.metadata.deletion_timestamp.is_some() {
        return Action::WaitForWorkspace("waiting for the old workspace to go away".to_owned());
    }
    if plan::wanted_hash(workspace) != plan::wanted_hash(&wanted) {
        return Action::ApplyWorkspace(Box::new(wanted), format!("preparing the workspace for {step}"));
    }
    match readiness(workspace) {
        Readiness::Ready => Action::Start(current_update(stack, resolved, kind, reason)),
        Readiness::Waiting(message) => {
            Action::WaitForWorkspace(format!("waiting for workspace readiness before {step}{message}"))
        }
        Readiness::Failed(message) => Action::WorkspaceFailed(message),
        Readiness::SourceRefused(message) => Action::WaitForSource(message),
    }
}

/// Nothing is due. A workspace that still asks for a source that was refused is pointed back to the one that it has.
fn settled_on(observed: &Observed, resolved: &Resolved, kind: UpdateKind) -> Action {
    let asks_for_another = |w: &&Workspace| w.spec.artifact.as_ref() != Some(&reference(resolved));
    let refused = |w: &&Workspace| matches!(readiness(w), Readiness::SourceRefused(_));
    let stuck = observed.workspace.as_ref().filter(asks_for_another).filter(refused);
    match stuck.and_then(|_| plan::workspace(&observed.stack, &reference(resolved)).ok()) {
        Some(wanted) => {
            let step = format!("{} of revision {}", kind.as_str(), resolved.revision);
            Action::ApplyWorkspace(Box::new(wanted), format!("going back to the source of the last {step}"))
        }
        None => Action::Settled(Settled::Done),
    }
}

enum Readiness {
    Ready,
    Waiting(String),
    Failed(String),
    /// The pod is well and keeps the source that it has: the new one is not fit to be put in place.
    SourceRefused(String),
}

fn readiness(workspace: &Workspace) -> Readiness {
    let status = workspace.status.clone().unwrap_or_default();
    let observed = status.observed_generation == workspace.metadata.generation;
    let Some(ready) = conditions::find(&status.conditions, conditions::READY).filter(|_| observed) else {
        return Readiness::Waiting(String::new());
    };
    let message = format!("{}: {}", ready.reason, ready.message);
    match ready.reason.as_str() {
        _ if ready.status == "True" && status.artifact == workspace.spec.artifact => Readiness::Ready,
        workspace_reason::ARTIFACT_REFUSED => Readiness::SourceRefused(ready.message.clone()),
        workspace_reason::POD_FAILED | workspace_reason::INSTALLATION_FAILED | workspace_reason::SPEC_INVALID => {
            Readiness::Failed(message)
        }
        _ => Readiness::Waiting(format!(" ({message})")),
    }
}

/// The inputs that a run of this Stack on this artifact answers.
pub fn inputs(stack: &Stack, resolved: &Resolved) -> Inputs {
    let (reconcile_request, requested_at) = requests(stack);
    Inputs {
        generation: stack.metadata.generation.unwrap_or_default(),
        reconcile_request,
        requested_at,
        revision: resolved.revision.clone(),
        digest: resolved.digest.to_string(),
    }
}

fn reference(resolved: &Resolved) -> ArtifactReference {
    ArtifactReference {
        digest: resolved.digest.to_string(),
        revision: resolved.revision.clone(),
        dir: resolved.directory.as_str().to_owned(),
    }
}

fn current_update(stack: &Stack, resolved: &Resolved, kind: UpdateKind, message: String) -> CurrentUpdate {
    let inputs = inputs(stack, resolved);
    let attempt = stack.status.as_ref().and_then(|s| s.attempts).unwrap_or_default() + 1;
    CurrentUpdate {
        name: names::update(&stack.name_any(), &stack.uid().unwrap_or_default(), attempt),
        generation: inputs.generation,
        reconcile_request: inputs.reconcile_request,
        requested_at: inputs.requested_at,
        commit: Some(inputs.revision),
        digest: Some(inputs.digest),
        dir: Some(resolved.directory.as_str().to_owned()),
        kind,
        message,
        pending_creates: pending_creates(stack),
    }
}

/// What the next run does about creations that were cut off: what a person has said, else what follows from the last run.
fn pending_creates(stack: &Stack) -> Option<PendingCreates> {
    match resolve::in_force(stack) {
        Some(Answer::Retry) => Some(PendingCreates::Keep),
        Some(Answer::Clear) => Some(PendingCreates::Clear),
        Some(Answer::Abandon) | None => stack.status.as_ref()?.last_update.as_ref()?.pending_creates,
    }
}

#[cfg(test)]
mod tests;
