//! Determines the Pulumi stack of a Stack, and whether the Stack may have resources in this Pulumi stack.

use jiff::Timestamp;

use crate::api::auto::{TerminationEvidence, Update, UpdateKind, UpdateStatus, Workspace};
use crate::api::conditions;
use crate::api::pulumi::{CurrentUpdate, LastUpdate, PulumiStack, Stack, StackStatus};
use crate::controller::stack::{backend, orphaned_stacks};

pub use crate::controller::differ;
pub use crate::pulumi::stack_name::parts;
use crate::pulumi::{self, stack_name};

/// Returns the Pulumi stack of the next run. Contains `None` for an unknown project or backend. The applied Pulumi stack
/// provides the parts of the backend that the environment of the pod determines, because only the agent knows them.
pub fn desired(stack: &Stack, workspace: Option<&Workspace>) -> PulumiStack {
    let in_place = workspace.and_then(|workspace| workspace.status.as_ref()?.project_name.clone());
    let named = PulumiStack {
        name: stack.spec.stack.clone(),
        project: parts(&stack.spec.stack).project.map(str::to_owned).or(in_place),
        backend: None,
    };
    let applied = stack.status.as_ref().and_then(|status| status.applied_stack.as_ref());
    let applied = applied.filter(|applied| !differ(applied, &named)).and_then(|applied| applied.backend.as_deref());
    let in_applied = |name: &str| pulumi::backend::parameter(applied?, name);
    let url = backend::url(stack).map(|url| pulumi::backend::completed(&url, |name, _| in_applied(name)));
    PulumiStack { backend: url.or_else(|| applied.map(str::to_owned)), ..named }
}

/// Returns the Pulumi stack of a recorded run.
pub fn of_run(stack: &Stack, current: &CurrentUpdate) -> PulumiStack {
    current.pulumi_stack.clone().unwrap_or_else(|| desired(stack, None))
}

/// Returns the Pulumi stack of a completed run, according to `status.currentUpdate` and the agent's report. The backend
/// in the report takes precedence, because the run's environment can contain a different backend URL.
pub fn reported(stack: &Stack, current: &CurrentUpdate, result: &UpdateStatus) -> PulumiStack {
    let expected = of_run(stack, current);
    let organization = result.permalink.as_deref().and_then(|url| organization(&expected.name, url));
    PulumiStack {
        name: organization
            .map_or_else(|| expected.name.clone(), |organization| format!("{organization}/{}", expected.name)),
        project: expected.project.or_else(|| result.project_info.as_ref().map(|project| project.name.clone())),
        backend: result.backend.clone().or(expected.backend),
    }
}

/// Returns the organization in an update URL. Returns `None` if the Pulumi stack name already contains an organization.
fn organization<'a>(name: &str, permalink: &'a str) -> Option<&'a str> {
    let url = stack_name::in_permalink(permalink)?;
    url.organization.filter(|_| parts(name).organization.is_none() && url.stack == name)
}

/// Returns whether the Stack may have resources: an `up` has succeeded, or a failed `up` may have changed resources.
/// After that, only a successful destroy shows that the Stack has no resources.
pub fn has_applied(stack: &Stack) -> bool {
    let Some(status) = &stack.status else { return false };
    let last = status.last_update.as_ref();
    if last.is_some_and(|last| is(last, UpdateKind::Destroy) && last.state.as_deref() == Some("succeeded")) {
        return false;
    }
    status.applied_stack.is_some()
        // Earlier versions recorded no `appliedStack`.
        || status.last_applied_revision.is_some()
        || !status.outputs.is_empty()
        || last.is_some_and(may_have_left_resources)
}

/// Returns whether the record of a run that is not a successful destroy is evidence of resources. The controller starts
/// a destroy only if the Stack may have resources, and a failed destroy may have left some of them. The record of the
/// Pulumi Kubernetes Operator, which contains no digest, does not show whether a failed run or an earlier run has
/// changed resources.
fn may_have_left_resources(last: &LastUpdate) -> bool {
    is(last, UpdateKind::Destroy) || (last.inputs.digest.is_none() && !is(last, UpdateKind::Preview))
}

fn is(last: &LastUpdate, kind: UpdateKind) -> bool {
    last.kind.as_deref() == Some(kind.as_str())
}

/// Returns the Pulumi stack in which the Stack may have resources. If the status of a Stack with resources has no
/// `appliedStack`, returns the Pulumi stack in the spec, as the Pulumi Kubernetes Operator does. The function does not
/// compare the generation of the last run, because the deletion of a Stack also changes the generation.
pub fn recorded(stack: &Stack) -> Option<PulumiStack> {
    let status = stack.status.as_ref()?;
    let project = status.project_info.as_ref().map(|project| project.name.clone());
    let of_spec = PulumiStack { project, ..desired(stack, None) };
    status.applied_stack.clone().or_else(|| has_applied(stack).then_some(of_spec))
}

/// Returns the Pulumi stack to record after a run that may have changed resources. The report of an interrupted run can
/// lack the organization, the project and the backend. The recorded Pulumi stack provides the missing parts if its
/// other parts match the report.
pub fn applied_by(stack: &Stack, worked_on: PulumiStack) -> PulumiStack {
    match recorded(stack) {
        Some(before) if !differ(&before, &worked_on) => PulumiStack {
            name: if parts(&worked_on.name).organization.is_some() { worked_on.name } else { before.name },
            project: worked_on.project.or(before.project),
            backend: worked_on.backend.or(before.backend),
        },
        _ => worked_on,
    }
}

/// Returns whether the result of a run shows that the state of its Pulumi stack contains resources. After an interrupted
/// first run, the Pulumi stack may not exist, because the run creates it.
pub fn confirms_state(update: &Update) -> bool {
    let result = update.status.clone().unwrap_or_default();
    let has_resources = result.changes.values().any(|count| *count > 0)
        || result.progress.is_some_and(|progress| progress.resources_done > 0);
    update.spec.kind == UpdateKind::Up
        && (has_resources || !conditions::is_true(&result.conditions, conditions::FAILED))
}

/// Records the Pulumi stack in which the Stack may have resources after the run `current`. `is_confirmed` states whether
/// the run has found or created resources. If the run was permitted to create the Pulumi stack again, the reports of
/// earlier runs no longer apply.
pub fn record_applied(
    status: &mut StackStatus,
    before: Option<PulumiStack>,
    applied: Option<PulumiStack>,
    is_confirmed: bool,
    current: &CurrentUpdate,
    now: Timestamp,
) {
    let is_same = before.as_ref().zip(applied.as_ref()).is_some_and(|(before, applied)| !differ(before, applied));
    let was_confirmed = status.state_confirmed == Some(true) && is_same && current.create_stack != Some(true);
    status.state_confirmed = (applied.is_some() && (is_confirmed || was_confirmed)).then_some(true);
    orphaned_stacks::record(&mut status.orphaned_stacks, before, applied.as_ref(), now);
    status.applied_stack = applied;
}

/// Returns whether the Stack may have resources in the Pulumi stack of the next run.
pub fn has_applied_here(stack: &Stack, workspace: Option<&Workspace>) -> bool {
    recorded(stack).is_some_and(|applied| !differ(&applied, &desired(stack, workspace)))
}

/// Returns whether a run may have changed resources. Also returns `true` for an `up` if the agent did not report its
/// completion.
pub fn may_have_changed(update: &Update) -> bool {
    let result = update.status.clone().unwrap_or_default();
    update.spec.kind == UpdateKind::Up
        && (!conditions::is_true(&result.conditions, conditions::FAILED)
            || result.interrupted.unwrap_or_default()
            || result.termination_evidence.is_some_and(|evidence| evidence != TerminationEvidence::Agent)
            || result.changes.iter().any(|(operation, count)| operation != "same" && *count > 0))
}

/// Returns whether a destroy with an unknown result may have removed the Pulumi stack from the backend. The result is
/// unknown if the destroy was interrupted or the agent did not report its completion.
pub fn may_have_removed(update: &Update) -> bool {
    let result = update.status.clone().unwrap_or_default();
    update.spec.kind == UpdateKind::Destroy
        && result.run.is_some()
        && (result.interrupted.unwrap_or_default()
            || result.termination_evidence.is_some_and(|evidence| evidence != TerminationEvidence::Agent))
}

/// Returns whether an earlier destroy removed the Pulumi stack that this destroy did not find.
///
/// The result is `true` only if an earlier destroy failed but may have removed the Pulumi stack. The name, the project
/// and the backend must be equal in both runs and in the recorded Pulumi stack. Returns `false` for services such as
/// Pulumi Cloud, which also report a Pulumi stack as missing if the access token cannot read it. For such services, a
/// user must decide.
pub fn was_removed_before(
    stack: &Stack,
    kind: UpdateKind,
    previous: Option<&LastUpdate>,
    looked_up: &PulumiStack,
) -> bool {
    let removed = previous.filter(|last| is(last, UpdateKind::Destroy) && last.stack_may_be_removed == Some(true));
    let is_same = |last: &LastUpdate| last.pulumi_stack.as_ref().is_some_and(|removed| !differ(removed, looked_up));
    // If the volume of a file backend is lost, the Pulumi state is also lost.
    let is_bucket_or_database =
        looked_up.backend.as_ref().is_some_and(|url| !url.starts_with("http") && !url.starts_with("file"));
    kind == UpdateKind::Destroy
        && is_bucket_or_database
        && removed.is_some_and(is_same)
        && recorded(stack).as_ref() == Some(looked_up)
}

/// Returns the applied Pulumi stack if a run uses another Pulumi stack, `next`. The resources in the applied Pulumi
/// stack then remain. `recorded` is the Pulumi stack in `status.currentUpdate`. Returns `None` if `next` equals
/// `recorded`, or if the last run was not a preview and already used `next`. The controller therefore reports the change
/// only once.
pub fn orphaned_stack<'a>(
    status: &'a StackStatus,
    next: &PulumiStack,
    recorded: Option<&PulumiStack>,
) -> Option<&'a PulumiStack> {
    let applied = status.applied_stack.as_ref()?;
    let last = status.last_update.as_ref().filter(|last| !is(last, UpdateKind::Preview));
    let last = last.and_then(|last| last.pulumi_stack.as_ref());
    let is_known = |known: &PulumiStack| differ(applied, known) && !differ(known, next);
    (differ(applied, next) && ![last, recorded].into_iter().flatten().any(is_known)).then_some(applied)
}

#[cfg(test)]
mod tests;
