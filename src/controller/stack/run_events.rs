//! Events about the runs of a Stack.

use std::collections::BTreeSet;

use crate::api::auto::{PlannedResource, UpdateKind, UpdatePlan};
use crate::api::conditions::{self, drift_reason, stack_reason, update_reason};
use crate::api::pulumi::{
    CurrentUpdate, EnforcementLevel, LastUpdate, PolicyViolation, PolicyViolations, PulumiStack, Stack, StackStatus,
};
use crate::controller::stack::deletion::Kept;
use crate::controller::stack::markdown::inline;
use crate::controller::stack::run::RunCandidate;
use crate::controller::stack::{deletion, drift, identity, orphaned_stacks, policy_report, schedule, status};
use crate::pulumi::operations;
use crate::runtime::events::{Event, EventKind};

/// Metadata key of the revision in an event. As in Flux, metadata keys start with the API group of the object.
const REVISION: &str = "pulumi.com/revision";
const ORIGIN_REVISION: &str = "pulumi.com/originRevision";
/// Event reason: the Stack no longer uses a Pulumi stack that still contains resources.
const RESOURCES_ORPHANED: &str = "ResourcesOrphaned";
/// Event reason: a user canceled a run.
const CANCELED: &str = "StackUpdateCanceled";
/// Event reason: another update holds the lock of the Pulumi stack, or another Stack manages the Pulumi stack.
pub const CONFLICT: &str = "StackUpdateConflictDetected";
/// Maximum length of the resource list in a preview summary, in bytes. An event message has at most 1024 bytes.
const MAX_PLANNED_LIST: usize = 800;
/// Maximum length of the resource list and of the violation list, in bytes, if a summary contains both lists.
const MAX_SHORT_LIST: usize = 400;
/// Maximum length of the violation list in an event without a resource list, in bytes.
const MAX_VIOLATION_LIST: usize = 900;
/// Event metadata. With this key and value, notification-controller updates the commit status and sends no chat
/// message.
const COMMIT_STATUS: (&str, &str) = ("pulumi.com/commit_status", "update");

/// Returns the notification about the start of a run, or `None` for scheduled runs and retries. The notification is not
/// a Kubernetes event, because the conditions of the Stack already report the start.
pub fn begun(stack: &Stack, current: &CurrentUpdate) -> Option<Event> {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    let is_check = drift::is_check(current);
    let is_repetition = is_check || schedule::is_repetition(last, &RunCandidate::of_current(current));
    let event = Event::new(stack, EventKind::Notification, "StackUpdateDetected", current.message.as_str());
    let event = with_revisions(event, current.commit.as_deref(), current.origin_revision.as_deref());
    (!is_repetition).then_some(event)
}

/// Returns a warning event if the recorded `up` uses a different Pulumi stack than the applied one. The resources in the
/// applied Pulumi stack then remain. A preview, for example of a plan that nobody approves, does not manage a Pulumi stack.
pub fn orphan_event(stack: &Stack, current: &CurrentUpdate) -> Option<Event> {
    if current.kind != UpdateKind::Up {
        return None;
    }
    resources_remain(stack, current, current.pulumi_stack.as_ref()?, None)
}

/// Returns the events about the resources that remain after the deletion of the Stack: resources in earlier Pulumi
/// stacks, and resources that the controller does not destroy because of `spec.destroyOnFinalize` or `spec.preview`.
pub fn left_behind(stack: &Stack) -> Vec<Event> {
    let kept = deletion::kept(stack).map(|(by, applied)| match by {
        Kept::ByPreview => {
            let why = format!("without a destroy because spec.preview is set; its resources in {applied} remain");
            left(stack, &why, &applied, " without spec.preview")
        }
        Kept::ByUser => Event::new(stack, EventKind::Normal, RESOURCES_ORPHANED, kept_message(&applied)),
    });
    let listed = stack.status.as_ref().map(|status| status.orphaned_stacks.as_slice()).unwrap_or_default();
    let listed = orphaned_stacks::message_after_deletion(listed);
    let listed = listed.map(|message| Event::new(stack, EventKind::Warning, RESOURCES_ORPHANED, message));
    kept.into_iter().chain(listed).collect()
}

/// Returns a warning event for a Stack that was deleted before its destroy has ended. `deleted` is the last version of the
/// Stack from the cache, in which only a Stack with a pending destroy has an applied Pulumi stack and an open run.
pub fn left_by_removed_finalizer(deleted: &Stack) -> Option<Event> {
    let status = deleted.status.as_ref()?;
    let applied = status.applied_stack.as_ref()?;
    let why = match &status.current_update {
        Some(run) if run.kind == UpdateKind::Destroy => format!(
            "because a client removed its finalizer during the destroy {}. A destroy that has started continues. If it does not \
             succeed, resources in {applied} remain",
            run.name
        ),
        Some(run) => format!(
            "without a destroy because a client removed its finalizer during the run {}; its resources in {applied} remain",
            run.name
        ),
        None => format!("without a destroy because a client removed its finalizer; its resources in {applied} remain"),
    };
    Some(left(deleted, &why, applied, ""))
}

/// Returns the message about resources that the user keeps. Another Stack can manage them already, for example after a
/// rename.
fn kept_message(applied: &PulumiStack) -> String {
    format!(
        "the Stack was deleted without a destroy because spec.destroyOnFinalize is not true; its resources in {applied} remain. If no other \
         Stack manages them, create a Stack for this Pulumi stack, or delete them with `pulumi destroy`"
    )
}

fn left(stack: &Stack, why: &str, applied: &PulumiStack, condition: &str) -> Event {
    let message = format!(
        "the Stack was deleted {why}. To delete them, run `pulumi destroy` for {applied}. To manage them again, create a Stack for it{condition}"
    );
    Event::new(stack, EventKind::Warning, RESOURCES_ORPHANED, message)
}

fn resources_remain(
    stack: &Stack,
    current: &CurrentUpdate,
    next: &PulumiStack,
    recorded: Option<&PulumiStack>,
) -> Option<Event> {
    let before = identity::orphaned_stack(stack.status.as_ref()?, next, recorded)?;
    let message = format!(
        "the Stack now manages {next}; its resources in {before} remain and are no longer managed. If you have moved the state, \
         remove the previous stack with `pulumi stack rm --force`. Otherwise, to delete the resources, restore the previous \
         values, set spec.destroyOnFinalize to true and delete the Stack, or run `pulumi destroy` for {before}"
    );
    let event = Event::new(stack, EventKind::Warning, RESOURCES_ORPHANED, message);
    Some(with_revisions(event, current.commit.as_deref(), current.origin_revision.as_deref()))
}

/// Returns the events about a completed drift check.
pub fn checked(stack: &Stack, status: &StackStatus) -> Vec<Event> {
    drift(stack, status).into_iter().chain(policy_violations(stack, status)).collect()
}

/// Returns the events about a completed run. `status` is the status with the result. If the event about the result
/// lists the policy violations, the function returns no separate event about the violations.
pub fn recorded(
    stack: &Stack,
    status: &StackStatus,
    planned: Option<&UpdatePlan>,
    violations: Option<&PolicyViolations>,
) -> Vec<Event> {
    let Some(last) = &status.last_update else { return Vec::new() };
    let before = stack.status.as_ref().map(|before| before.orphaned_stacks.as_slice()).unwrap_or_default();
    let lost = orphaned_stacks::lost_states(before, &status.orphaned_stacks);
    let lost = lost.map(|message| Event::new(stack, EventKind::Warning, RESOURCES_ORPHANED, message));
    let ended = ended(stack, last, planned, violations);
    let lists_violations = match last.state.as_deref() {
        Some("succeeded") => is_kind(last, UpdateKind::Preview),
        _ => last.reason.as_deref() == Some(update_reason::POLICY_VIOLATION),
    };
    // The last event must be the result of the run, because a comment on a pull request contains only the last event.
    let violated = policy_violations(stack, status).filter(|_| ended.is_empty() || !lists_violations);
    lost.chain(violated).chain(ended).collect()
}

/// Returns the event about the drift that a drift check found. Returns `None` if the previous check found the same
/// drift.
fn drift(stack: &Stack, status: &StackStatus) -> Option<Event> {
    let found = status.drift.as_ref().filter(|drift| drift.count > 0 && drift.message.is_none())?;
    let before = stack.status.as_ref().and_then(|before| before.drift.as_ref());
    let is_same = before.is_some_and(|before| before.count == found.count && before.resources == found.resources);
    let drifted = conditions::find(&status.conditions, conditions::DRIFTED)?;
    let is_new = !is_same && before.map(|before| &before.update_name) != Some(&found.update_name);
    let event = Event::new(stack, EventKind::Warning, drift_reason::DRIFT_DETECTED, drifted.message.as_str());
    is_new.then(|| with_revisions(event, status.last_applied_revision.as_deref(), None))
}

/// Returns the event about the policy violations of a run. Returns `None` if the previous run violated the same
/// policies, or if exceptions exempt all violations. The comparison ignores the resources and the messages of the
/// violations, because they can differ between two runs with the same inputs.
fn policy_violations(stack: &Stack, status: &StackStatus) -> Option<Event> {
    let found = status.policy_violations.as_ref().filter(|found| found.has_unexempted())?;
    let before = stack.status.as_ref();
    if before
        .and_then(|before| before.policy_violations.as_ref())
        .is_some_and(|before| has_same_policies(before, found))
    {
        return None;
    }
    let message = policy_report::markdown(found, MAX_VIOLATION_LIST);
    let event = Event::new(stack, EventKind::Warning, update_reason::POLICY_VIOLATION, message);
    let current = before.and_then(|before| before.current_update.as_deref());
    let revision = current.and_then(|current| current.commit.as_deref());
    Some(with_revisions(event, revision, current.and_then(|current| current.origin_revision.as_deref())))
}

fn has_same_policies(a: &PolicyViolations, b: &PolicyViolations) -> bool {
    let policies = |violations: &PolicyViolations| -> BTreeSet<(EnforcementLevel, String, String)> {
        let policy = |found: &PolicyViolation| (found.enforcement_level, found.pack.clone(), found.policy.clone());
        violations.violations.iter().filter(|found| found.exemption.is_empty()).map(policy).collect()
    };
    policies(a) == policies(b)
}

/// Returns the events about the result of a run. `stack` does not contain the result yet. `planned` contains the
/// changes that a preview reported, and `violations` contains the policy violations.
fn ended(
    stack: &Stack,
    last: &LastUpdate,
    planned: Option<&UpdatePlan>,
    violations: Option<&PolicyViolations>,
) -> Vec<Event> {
    if last.reason.as_deref() == Some(update_reason::DUPLICATE_STACK) {
        // The next step reports the other Stack.
        return Vec::new();
    }
    let current = stack.status.as_ref().and_then(|status| status.current_update.as_deref());
    // If the backend URL is in a Secret, only the agent reads the URL. The controller therefore detects a change to the
    // URL only after the run.
    let orphaned = current
        .filter(|_| is_kind(last, UpdateKind::Up))
        .zip(last.pulumi_stack.as_ref())
        .and_then(|(current, next)| resources_remain(stack, current, next, current.pulumi_stack.as_ref()));
    outcome(stack, last, planned, violations).into_iter().chain(orphaned).collect()
}

fn outcome(
    stack: &Stack,
    last: &LastUpdate,
    planned: Option<&UpdatePlan>,
    violations: Option<&PolicyViolations>,
) -> Vec<Event> {
    let before = stack.status.as_ref();
    let current = before.and_then(|status| status.current_update.as_deref());
    // The revision in `last` can have the format of the Pulumi Kubernetes Operator. Events therefore use the revision
    // in `status.currentUpdate`.
    let revision = current.and_then(|current| current.commit.as_deref());
    let origin = current.and_then(|current| current.origin_revision.as_deref());
    let event = |kind, reason: &str, message: String| {
        with_revisions(Event::new(stack, kind, reason, message), revision, origin)
    };
    if last.state.as_deref() != Some("succeeded") {
        let cause = last.message.as_deref().unwrap_or("unknown");
        let previous = before.and_then(|status| status.last_update.as_ref());
        if previous.is_some_and(|previous| is_same_lock(previous, last) || is_same_rejection(previous, last)) {
            return Vec::new();
        }
        let (kind, reason, what) = match last.reason.as_deref() {
            Some(update_reason::STACK_NOT_FOUND) => (EventKind::Warning, stack_reason::STACK_NOT_FOUND, failed(last)),
            _ if status::is_conflict(last) => (EventKind::Warning, CONFLICT, "Update conflict"),
            _ if last.canceled_by_user.unwrap_or_default() => (EventKind::Normal, CANCELED, "Canceled the update"),
            _ => (EventKind::Warning, "StackUpdateFailure", failed(last)),
        };
        let violations = violations.filter(|_| last.reason.as_deref() == Some(update_reason::POLICY_VIOLATION));
        let violations = violations.map(|violations| policy_report::markdown(violations, MAX_VIOLATION_LIST));
        let cause = violations.as_deref().unwrap_or(cause);
        return vec![event(kind, reason, format!("{what}: {cause}"))];
    }
    let (key, value) = COMMIT_STATUS;
    // A preview that saves a plan sets no commit status, because the run that executes the plan sets the commit status.
    let is_plan = current.is_some_and(|current| current.save_plan == Some(true));
    let reason = if is_kind(last, UpdateKind::Destroy) { "StackDestroyed" } else { "StackCreated" };
    let done = (!is_plan).then(|| event(EventKind::Normal, reason, succeeded(last)).with(key, value));
    let failed_before = before
        .and_then(|status| status.last_update.as_ref())
        .is_some_and(|previous| previous.state.as_deref() == Some("failed"));
    let summary = summary(last, planned, violations, failed_before);
    let summary = summary.map(|summary| event(EventKind::Normal, stack_reason::PROCESSING_COMPLETED, summary));
    done.into_iter().chain(summary).collect()
}

/// Returns whether both runs found the same lock. An event reports only the first of these runs. The run's message
/// identifies the lock.
fn is_same_lock(previous: &LastUpdate, last: &LastUpdate) -> bool {
    status::is_conflict(last) && status::is_conflict(previous) && previous.message == last.message
}

/// Returns whether the backend rejected the access token of both runs. An event reports only the first of these runs.
fn is_same_rejection(previous: &LastUpdate, last: &LastUpdate) -> bool {
    let is_rejected = |run: &LastUpdate| run.reason.as_deref() == Some(update_reason::INVALID_ACCESS_TOKEN);
    is_rejected(previous) && is_rejected(last) && previous.message == last.message
}

/// Adds the revisions to the metadata of the event.
pub fn with_revisions(event: Event, revision: Option<&str>, origin: Option<&str>) -> Event {
    [(REVISION, revision), (ORIGIN_REVISION, origin)].into_iter().fold(event, |event, (key, value)| match value {
        Some(value) => event.with(key, value),
        None => event,
    })
}

/// Adds the last attempted revision to the event. Without such a revision, returns the event unchanged.
pub fn with_last_revision(stack: &Stack, event: Event) -> Event {
    let status = stack.status.as_ref();
    with_revisions(event, status.and_then(|status| status.last_attempted_revision.as_deref()), None)
}

fn is_kind(last: &LastUpdate, kind: UpdateKind) -> bool {
    last.kind.as_deref() == Some(kind.as_str())
}

fn failed(last: &LastUpdate) -> &'static str {
    match last.kind.as_deref() {
        Some(kind) if kind == UpdateKind::Destroy.as_str() => "Failed to destroy stack",
        Some(kind) if kind == UpdateKind::Preview.as_str() => "Failed to preview stack",
        _ => "Failed to update stack",
    }
}

fn succeeded(last: &LastUpdate) -> String {
    match last {
        preview if is_kind(preview, UpdateKind::Preview) => {
            format!("Successfully previewed stack: {}", status::changes(preview))
        }
        destroyed if is_kind(destroyed, UpdateKind::Destroy) => "Successfully destroyed stack".to_owned(),
        _ => "Successfully updated stack".to_owned(),
    }
}

/// Returns the notification message about a successful run. Flux Alerts send this message to chats and pull requests.
/// Returns `None` unless the run is a preview, has changed resources, or follows a failure.
fn summary(
    last: &LastUpdate,
    planned: Option<&UpdatePlan>,
    violations: Option<&PolicyViolations>,
    failed_before: bool,
) -> Option<String> {
    let changed = if is_kind(last, UpdateKind::Preview) {
        let most = if violations.is_some() { MAX_SHORT_LIST } else { MAX_PLANNED_LIST };
        let resources = planned.map(|planned| planned_resources(planned, most)).unwrap_or_default();
        let violations = violations.map(|violations| policy_report::markdown(violations, MAX_SHORT_LIST));
        let violations = violations.map(|text| format!("\n\n{text}")).unwrap_or_default();
        Some(format!("Preview: {}{resources}{violations}", status::changes(last)))
    } else {
        changed(last)
    };
    match (failed_before, changed) {
        (true, Some(changed)) => Some(format!("The stack has recovered from its last failure: {changed}")),
        (true, None) => Some("The stack has recovered from its last failure".to_owned()),
        (false, changed) => changed,
    }
}

/// Returns the changed resources of a preview as a list in Markdown, because Flux posts the message as a comment on a
/// pull request. The list has at most `most` bytes, and contains no property values, because values can be secret.
fn planned_resources(plan: &UpdatePlan, most: usize) -> String {
    let line = |resource: &PlannedResource| {
        let properties = match resource.properties.as_slice() {
            [] => String::new(),
            properties => format!(" ({})", inline(&properties.join(", "))),
        };
        format!("\n- {} {} {}{properties}", resource.operation, inline(resource.kind()), inline(resource.name()))
    };
    let mut text = String::new();
    let mut listed = 0;
    for line in plan.resources.iter().map(line) {
        if text.len() + line.len() > most {
            break;
        }
        text.push_str(&line);
        listed += 1;
    }
    let more = plan.resource_count.saturating_sub(listed);
    if more > 0 { format!("{text}\n- and {more} more") } else { text }
}

/// Returns the changes that a run has made, such as `2 created, 1 deleted`.
fn changed(last: &LastUpdate) -> Option<String> {
    let changes = last.changes.iter().filter(|(operation, count)| *operation != "same" && **count > 0);
    let changes: Vec<String> =
        changes.map(|(operation, count)| format!("{count} {}", past_participle(operation))).collect();
    (!changes.is_empty()).then(|| changes.join(", "))
}

/// Returns the past participle of a Pulumi engine operation.
fn past_participle(operation: &str) -> &str {
    match operation {
        "create" => "created",
        "update" => "updated",
        "delete" => "deleted",
        "replace" => "replaced",
        operations::RENAME => "renamed",
        operations::REASSIGN => "reassigned",
        operations::RELINQUISH => "relinquished",
        other => other,
    }
}

#[cfg(test)]
mod tests;
