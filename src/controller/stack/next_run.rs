//! Steps towards the next run of a Stack: fetch the artifact, apply the Workspace, create the Update.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::api::auto::{ArtifactReference, UpdateKind, Workspace};
use crate::api::conditions::stack_reason;
use crate::api::pulumi::{CurrentUpdate, LastUpdate, Stack, WorkspaceReclaimPolicy};
use crate::controller::first_report;
use crate::controller::stack::action::{Action, Settled};
use crate::controller::stack::annotations;
use crate::controller::stack::approval::{self, Gate};
use crate::controller::stack::backoff::StackBackoff;
use crate::controller::stack::build_workspace::StackSpecError;
use crate::controller::stack::drift::{self, Check};
use crate::controller::stack::observed::Observed;
use crate::controller::stack::prerequisites::{self, DependencyState};
use crate::controller::stack::restrictions::{Restriction, restriction};
use crate::controller::stack::run::{DueRun, PlanUse, RunCandidate, current_update, describe_run, reference, run_kind};
use crate::controller::stack::schedule::{self, Due};
use crate::controller::stack::workspace_state::{Readiness, has_drifted, needs_bytes, readiness};
use crate::controller::stack::{
    build_update, build_workspace, concurrency_group, ignored_settings, input_loop, ownership, pko_migration,
    policy_packs, run_spec, run_windows, status,
};
use crate::source::Resolved;

/// Returns the next step towards a due run, or the action for a Stack without a due run.
pub fn run_if_due(
    observed: &Observed,
    resolved: &Resolved,
    in_store: bool,
    kind: UpdateKind,
    now: Timestamp,
) -> Action {
    match next_step(observed, resolved, in_store, kind, now) {
        waiting @ (Action::Settled(_)
        | Action::AwaitApproval(_)
        | Action::ReportRejection(_)
        | Action::AwaitPermission(_)) => missing_in_pod(observed, resolved, in_store, kind).unwrap_or(waiting),
        action => action,
    }
}

/// Returns the action that fetches a source or a policy pack that the pod of the Workspace lacks. A user can need the
/// pod while no run is due, for example to repair the state of the Pulumi stack.
pub fn missing_in_pod(observed: &Observed, resolved: &Resolved, in_store: bool, kind: UpdateKind) -> Option<Action> {
    let is_kept = |workspace: &&Workspace| workspace.metadata.deletion_timestamp.is_none();
    let workspace = observed.workspace.as_ref().filter(is_kept).filter(|_| kind != UpdateKind::Destroy)?;
    let requests_source = workspace.spec.artifact.as_ref() == Some(&reference(resolved));
    if !in_store && requests_source && matches!(readiness(workspace), Readiness::LacksSource(_)) {
        return Some(Action::Fetch(resolved.clone()));
    }
    let lacking = policy_packs::lacking(observed.policy_packs_of(kind), observed.workspace.as_ref());
    lacking.map(|pack| Action::FetchPolicyPack(Box::new(pack.clone())))
}

fn next_step(observed: &Observed, resolved: &Resolved, in_store: bool, kind: UpdateKind, now: Timestamp) -> Action {
    let stack = &observed.stack;
    if let Some(action) = adopt_baseline(stack, resolved) {
        return action;
    }
    let last = stack.status.as_ref().and_then(|s| s.last_update.as_ref());
    let backoff = StackBackoff::of_stack(stack).with_jitter(observed.interval_jitter, &stack.spec, last);
    let candidate = RunCandidate::new(observed, resolved);
    let due = schedule::due(last, annotations::resolution(stack), &candidate, kind, &backoff, now);
    let due = drift::with_correction(stack, kind, unless_released(observed, due, &backoff, now));
    if !matches!(due, Due::Now(_)) {
        let without_run = adopt_pko_workspace(observed, resolved, in_store, &due);
        let without_run = without_run.or_else(|| adopt_repacked_archive(observed, resolved, in_store, kind));
        let without_run = without_run.or_else(|| restore_workspace(observed, resolved, kind));
        if let Some(action) = without_run {
            return action;
        }
    }
    if let Due::Now(cause) = &due
        && let Some(held) = input_loop::held(stack, cause, now)
    {
        return Action::AwaitPermission(held);
    }
    let due_run = |message, plan| {
        let refresh = refreshes(stack, kind);
        permitted_run(observed, resolved, in_store, &DueRun { operation: kind, message, refresh, plan }, now)
    };
    match approval::gate(observed, &candidate, kind, &due) {
        Gate::Open => {}
        Gate::Plan(reason) => return due_run(reason, PlanUse::Save),
        Gate::Execute(plan, reason) => return due_run(reason, PlanUse::Execute(plan)),
        Gate::Evaluating => return Action::AwaitExpression,
        Gate::Await(message) => return Action::AwaitApproval(message),
        Gate::Rejected(message) => return Action::ReportRejection(message),
        Gate::Invalid(message) => return Action::Invalid(message),
    }
    match due {
        Due::Now(reason) => due_run(reason, PlanUse::None),
        Due::Done(again) => match drift::check(stack, kind, now) {
            // A pause delays the drift check but does not change the conditions.
            Check::Now(_) if restriction(observed, UpdateKind::Preview, now).is_some() => {
                settled_on(observed, kind, again)
            }
            Check::Now(message) => run(observed, resolved, in_store, &drift::due_run(stack, message), now),
            Check::After(wait) => {
                let again = again.map_or(wait, |again| again.min(wait));
                settled_on(observed, kind, Some(again))
            }
            Check::Never => settled_on(observed, kind, again),
        },
        Due::FailedPermanently => Action::Settled(Settled::FailedPermanently),
        Due::Invalid(message) => Action::Invalid(message),
        Due::DecisionRequired(reason) => {
            owned_by_another(observed, last, reason).unwrap_or(Action::Settled(Settled::DecisionRequired(reason)))
        }
        Due::Abandoned => Action::Settled(Settled::Abandoned),
        Due::Canceled => Action::Settled(Settled::Canceled),
        Due::After(wait) => Action::Settled(Settled::RetryAfter(wait)),
    }
}

/// Returns the decision after a run that did not start because another Stack manages its Pulumi stack. When no other Stack
/// manages this Pulumi stack anymore, the run is retried. An agent that repeatedly reports another Stack does not cause
/// runs without a delay.
fn unless_released(observed: &Observed, due: Due, backoff: &StackBackoff, now: Timestamp) -> Due {
    let last = observed.stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    match (due, last) {
        (Due::DecisionRequired(stack_reason::UPDATE_CONFLICT), Some(last)) if observed.owner.is_none() => {
            schedule::retry(last, backoff, now)
        }
        (due, _) => due,
    }
}

/// Returns the action while another Stack manages the Pulumi stack of the last run.
fn owned_by_another(observed: &Observed, last: Option<&LastUpdate>, reason: &str) -> Option<Action> {
    let owner = observed.owner.as_ref().filter(|_| reason == stack_reason::UPDATE_CONFLICT)?;
    let cause = last.and_then(|last| last.message.as_deref()).unwrap_or_default();
    Some(Action::Conflict(format!("{cause}. {}", owner.handover(&observed.stack))))
}

/// Returns the action that updates the record of the last run without starting another run. After a run of the Pulumi
/// Kubernetes Operator, the action adds a digest. If only fields that do not affect a run have changed, the action sets
/// the current generation.
fn adopt_baseline(stack: &Stack, resolved: &Resolved) -> Option<Action> {
    if let Some(status) = pko_migration::baseline(stack, resolved) {
        return Some(Action::AdoptBaseline(Box::new(status)));
    }
    let status = run_spec::with_current_generation(stack)?;
    // No run starts, so this function must check the fields. Otherwise, an invalid value would remain unnoticed until
    // the next run.
    Some(match check_fields(stack) {
        Ok(()) => Action::AdoptBaseline(Box::new(status)),
        Err(message) => Action::Invalid(message),
    })
}

/// Returns whether the run refreshes the Pulumi state without `spec.refresh`, either to correct drift or because a user
/// requested a refresh.
fn refreshes(stack: &Stack, kind: UpdateKind) -> bool {
    let corrects_drift = kind == UpdateKind::Up && drift::is_correction_due(stack);
    // With `spec.refresh`, a requested refresh has no effect: each run already refreshes the Pulumi state, and
    // `spec.expectNoRefreshChanges` must still apply.
    let is_requested = annotations::is_refresh_due(stack) && !stack.spec.refresh.unwrap_or_default();
    corrects_drift || (is_requested && kind != UpdateKind::Destroy)
}

/// Returns the action that takes over a Workspace of the Pulumi Kubernetes Operator without starting a run. Returns
/// `None` if the reclaim policy deletes the Workspace.
pub fn adopt_pko_workspace(observed: &Observed, resolved: &Resolved, in_store: bool, due: &Due) -> Option<Action> {
    pko_migration::workspace(observed.workspace.as_ref())?;
    let is_kept = observed.stack.spec.workspace_reclaim_policy == WorkspaceReclaimPolicy::Retain;
    if matches!(due, Due::Done(_)) && !is_kept {
        return None;
    }
    Some(replace_workspace(observed, resolved, in_store))
}

fn replace_workspace(observed: &Observed, resolved: &Resolved, in_store: bool) -> Action {
    match desired_workspace(observed, resolved, run_kind(&observed.stack)) {
        Err(error) => Action::Invalid(error.to_string()),
        Ok(_) if !in_store => Action::Fetch(resolved.clone()),
        Ok(desired) => Action::ReplaceWorkspace(Box::new(desired)),
    }
}

/// Returns the Workspace for a run of this operation.
fn desired_workspace(
    observed: &Observed,
    resolved: &Resolved,
    operation: UpdateKind,
) -> Result<Workspace, StackSpecError> {
    let packs = policy_packs::artifacts(observed.policy_packs_of(operation));
    build_workspace::with_policy_packs(&observed.stack, &reference(resolved), packs)
}

/// Returns the action that restores the Workspace while no run is due. Returns `None` if the Workspace is the one of the
/// last run.
///
/// The Workspace has another hash if the controller has applied it for a run that then became unnecessary, for example
/// because a user reverted a change. If only the controller would render another Workspace now, for example after an
/// upgrade, the Workspace stays the same until the next run. Otherwise, an upgrade could replace the pods of all Stacks.
fn restore_workspace(observed: &Observed, resolved: &Resolved, kind: UpdateKind) -> Option<Action> {
    let stack = &observed.stack;
    let inputs = &stack.status.as_ref()?.last_update.as_ref()?.inputs;
    let used = inputs.workspace_hash.as_deref()?;
    let workspace = kept_workspace(observed).filter(|_| kind != UpdateKind::Destroy)?;
    // With `spec.paths`, the artifact of the last run stays in the pod, although the source has another artifact.
    let is_of_run = |artifact: &&ArtifactReference| {
        Some(&artifact.digest) == inputs.digest.as_ref() && artifact.dir == resolved.directory.as_str()
    };
    let artifact = workspace.spec.artifact.as_ref().filter(is_of_run).cloned().unwrap_or_else(|| reference(resolved));
    let packs = policy_packs::artifacts(observed.policy_packs_of(kind));
    let desired = build_workspace::with_policy_packs(stack, &artifact, packs).ok()?;
    let (applied, rendered) = (ownership::desired_hash(workspace)?, ownership::desired_hash(&desired)?);
    if applied == rendered && !observed.is_workspace_mutated && has_drifted(&desired, workspace) {
        return Some(Action::ReplaceWorkspace(Box::new(desired)));
    }
    match () {
        () if applied == used => None,
        () if applied == rendered => {
            Some(Action::AdoptBaseline(Box::new(status::with_workspace_hash(stack, rendered))))
        }
        () => Some(Action::ReplaceWorkspace(Box::new(desired))),
    }
}

/// Returns the Workspace of the Stack. Returns `None` if the Workspace is being deleted, or if the reclaim policy
/// deletes it.
fn kept_workspace(observed: &Observed) -> Option<&Workspace> {
    let stack = &observed.stack;
    let is_kept = stack.spec.workspace_reclaim_policy == WorkspaceReclaimPolicy::Retain;
    let is_ours = |w: &&Workspace| w.metadata.deletion_timestamp.is_none() && ownership::owns(stack, w);
    observed.workspace.as_ref().filter(|_| is_kept).filter(is_ours)
}

/// Returns the action that delivers and records an archive with the same content as the archive of the last run. Such
/// an archive requires no run.
fn adopt_repacked_archive(
    observed: &Observed,
    resolved: &Resolved,
    in_store: bool,
    kind: UpdateKind,
) -> Option<Action> {
    let (stack, candidate) = (&observed.stack, RunCandidate::new(observed, resolved));
    let last = stack.status.as_ref()?.last_update.as_ref()?;
    if kind == UpdateKind::Destroy || !schedule::is_repacked(last, &candidate) {
        return None;
    }
    Some(match kept_workspace(observed).filter(|w| w.spec.artifact.as_ref() != Some(&reference(resolved))) {
        Some(_) => replace_workspace(observed, resolved, in_store),
        None => Action::AdoptBaseline(Box::new(status::with_repacked_archive(stack, &candidate.inputs))),
    })
}

/// Returns the next step towards a due run. If a pause or a schedule prevents the run, returns the action that waits.
fn permitted_run(observed: &Observed, resolved: &Resolved, in_store: bool, due_run: &DueRun, now: Timestamp) -> Action {
    match restriction(observed, due_run.kind(), now) {
        Some(Restriction::Waiting(held)) => Action::AwaitPermission(held),
        Some(Restriction::Invalid(message)) => Action::Invalid(message),
        None => run(observed, resolved, in_store, due_run, now),
    }
}

/// Returns the `status.currentUpdate` value for a due run.
fn recorded_run(observed: &Observed, resolved: &Resolved, due_run: &DueRun) -> CurrentUpdate {
    let last = observed.stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    let candidate = RunCandidate::new(observed, resolved);
    let background = schedule::is_background(last, due_run, &candidate).then_some(true);
    CurrentUpdate { background, ..current_update(observed, resolved, due_run) }
}

/// Checks the fields that the controller uses outside the Workspace and the Update, and without which a run could be
/// wrong. Returns the error message. Fields that only affect the time after a run, such as `drift` and `writeOutputsTo`,
/// have their own conditions, so that an invalid value does not prevent a deployment.
pub(super) fn check_fields(stack: &Stack) -> Result<(), String> {
    build_workspace::check_times(stack).map_err(|error| error.to_string())?;
    if let Some(schedule) = &stack.spec.schedule {
        run_windows::check("spec.schedule", schedule)?;
    }
    approval::check(stack)?;
    ignored_settings::check(stack)?;
    prerequisites::check_names(&stack.spec)?;
    concurrency_group::check(stack)
}

/// Returns the next step towards a due run.
fn run(observed: &Observed, resolved: &Resolved, in_store: bool, due_run: &DueRun, now: Timestamp) -> Action {
    let (stack, kind) = (&observed.stack, due_run.operation);
    let artifact = reference(resolved);
    // Validates the Update and the fields before any change to the Workspace.
    let current = recorded_run(observed, resolved, due_run);
    let run = || build_update::update(stack, &current).map(drop);
    if let Err(message) = check_fields(stack).and_then(|()| run().map_err(|error| error.to_string())) {
        return Action::Invalid(message);
    }
    let stale = match dependency_state(observed, &resolved.revision, kind, now) {
        DependencyState::Satisfied => None,
        DependencyState::Stale { message, dependencies } => Some((message, dependencies)),
        DependencyState::Unmet(message) => return Action::WaitForDependencies(message, Vec::new()),
        DependencyState::Denied(message) => return Action::Denied(message),
        DependencyState::Invalid(message) => return Action::Invalid(message),
        DependencyState::Evaluating => return Action::AwaitExpression,
    };
    let desired = match desired_workspace(observed, resolved, kind) {
        Ok(desired) => desired,
        Err(error) => return Action::Invalid(error.to_string()),
    };
    if !in_store && observed.workspace.as_ref().is_none_or(|workspace| needs_bytes(workspace, &artifact)) {
        return Action::Fetch(resolved.clone());
    }
    if let Some(pack) = policy_packs::to_fetch(observed.policy_packs_of(kind), observed.workspace.as_ref()) {
        return Action::FetchPolicyPack(Box::new(pack.clone()));
    }
    let step = describe_run(due_run.kind(), &resolved.revision);
    let advice = if kind == UpdateKind::Destroy { format!(". {}", status::WITHOUT_DESTROY) } else { String::new() };
    // An applied Workspace is not ready at first. The same message after the apply saves a write of the status.
    let awaiting_workspace = |cause: &str| format!("{cause}waiting for workspace: {step}{advice}");
    if let Some(message) = foreign_workspace(observed) {
        return Action::Invalid(message);
    }
    let Some(workspace) = observed.workspace.as_ref() else {
        return Action::ApplyWorkspace(Box::new(desired), awaiting_workspace(""));
    };
    if workspace.metadata.deletion_timestamp.is_some() {
        return Action::WaitForWorkspace("waiting for the deletion of the previous Workspace".to_owned());
    }
    let has_drifted = || !observed.is_workspace_mutated && has_drifted(&desired, workspace);
    if ownership::desired_hash(workspace) != ownership::desired_hash(&desired) || has_drifted() {
        return Action::ApplyWorkspace(Box::new(desired), awaiting_workspace(""));
    }
    let readiness = readiness(workspace);
    let await_workspace = |message: String| {
        let delay = first_report::delay_of_workspace_wait(stack, workspace, now);
        delay.map_or(Action::WaitForWorkspace(message), Action::DelayReport)
    };
    // If the controller requested the runs of stale dependencies earlier, these dependencies would run repeatedly while
    // another problem, such as a pod that cannot start, prevents the run of this Stack.
    if matches!(readiness, Readiness::Ready | Readiness::Sleeping)
        && let Some((message, dependencies)) = stale
    {
        return Action::WaitForDependencies(message, dependencies);
    }
    match readiness {
        Readiness::Ready => Action::Start(current),
        // The controller records the run only after the Workspace wakes up, because only a ready pod reports its
        // mounted inputs.
        Readiness::Sleeping => Action::WakeWorkspace(format!("waking up workspace: {step}")),
        Readiness::Unobserved => await_workspace(awaiting_workspace(&unobserved(workspace, now))),
        Readiness::Waiting(message) | Readiness::LacksSource(message) => await_workspace(awaiting_workspace(&message)),
        Readiness::Failed(message) | Readiness::NotInstalled(message) => Action::WorkspaceFailed(message),
        Readiness::VersionTooLow(message) => Action::VersionTooLow(message),
        Readiness::SourceRefused(message) => Action::SourceStalled(message),
    }
}

/// Returns the start of the message about a Workspace whose conditions describe an earlier spec. The text is empty
/// shortly after an apply, because the Workspace controller normally needs only a moment.
fn unobserved(workspace: &Workspace, now: Timestamp) -> String {
    if first_report::is_just_applied(workspace, now) {
        return String::new();
    }
    let (name, generation) = (workspace.name_any(), workspace.metadata.generation.unwrap_or_default());
    format!("generation {generation} of Workspace {name} has not been processed yet; ")
}

/// Returns the message if another owner controls the Workspace that has the name of the Stack.
fn foreign_workspace(observed: &Observed) -> Option<String> {
    let workspace = observed.workspace.as_ref()?;
    let name = workspace.name_any();
    (!ownership::owns(&observed.stack, workspace)).then(|| {
        format!(
            "Workspace {name} already exists and is not owned by this Stack; delete the Workspace or rename the Stack"
        )
    })
}

/// Returns the state of the dependencies. A destroy and a drift check do not wait for dependencies.
fn dependency_state(observed: &Observed, revision: &str, kind: UpdateKind, now: Timestamp) -> DependencyState {
    if matches!(kind, UpdateKind::Destroy | UpdateKind::Refresh) {
        return DependencyState::Satisfied;
    }
    if let Some(denied) = &observed.denied_dependency {
        return DependencyState::Denied(denied.clone());
    }
    if let Some(cycle) = &observed.cycle {
        let path = cycle.join(" -> ");
        return DependencyState::Invalid(format!("dependency cycle: {path}; remove one of these dependencies"));
    }
    prerequisites::check(&observed.stack, revision, &observed.dependencies, now)
}

/// Returns the action for a Stack whose last run succeeded, while no other run is due. The action deletes the Workspace
/// if the reclaim policy is `Delete`.
fn settled_on(observed: &Observed, kind: UpdateKind, again: Option<SignedDuration>) -> Action {
    let is_kept = observed.stack.spec.workspace_reclaim_policy == WorkspaceReclaimPolicy::Retain;
    let is_there = observed.workspace.as_ref().is_some_and(|w| w.metadata.deletion_timestamp.is_none());
    // After a destroy, the controller deletes the Workspace when it removes the finalizer.
    let stays = is_there && kind != UpdateKind::Destroy;
    if !is_kept && stays {
        return Action::ReclaimWorkspace;
    }
    Action::Settled(Settled::Done(again))
}
