//! Events about the runs of a Stack.

use crate::api::auto::UpdateKind;
use crate::api::conditions::{stack_reason, update_reason};
use crate::api::pulumi::{CurrentUpdate, LastUpdate, PulumiStack, Stack};
use crate::controller::stack::inputs::inputs_of;
use crate::controller::stack::{identity, schedule, status};
use crate::runtime::events::{Event, EventKind};

/// The metadata keys of an event start with the API group of the object, as in Flux.
const REVISION: &str = "pulumi.com/revision";
const ORIGIN_REVISION: &str = "pulumi.com/originRevision";
/// Event reason: resources remain in a Pulumi stack that the Stack no longer uses.
const RESOURCES_ORPHANED: &str = "ResourcesOrphaned";
/// Event reason: a user canceled a run.
const CANCELED: &str = "StackUpdateCanceled";
/// Event reason: another update holds the lock of the Pulumi stack, or another Stack manages it.
pub const CONFLICT: &str = "StackUpdateConflictDetected";
/// Event metadata with which Flux's notification-controller updates the status of the commit and sends no chat message.
const COMMIT_STATUS: (&str, &str) = ("pulumi.com/commit_status", "update");

/// Returns the event for the start of a run. Scheduled runs and retries send no notification.
pub fn begun(stack: &Stack, current: &CurrentUpdate) -> Event {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    let is_repetition = schedule::is_repetition(last, &inputs_of(current));
    let kind = if is_repetition { EventKind::Trace } else { EventKind::Normal };
    let event = Event::new(stack, kind, "StackUpdateDetected", current.message.as_str());
    with_revisions(event, current.commit.as_deref(), current.origin_revision.as_deref())
}

/// Returns the warning event if the announced run uses another Pulumi stack than the last one, whose resources remain.
pub fn left_behind(stack: &Stack, current: &CurrentUpdate) -> Option<Event> {
    resources_remain(stack, current, current.pulumi_stack.as_ref()?, None)
}

/// The Stack is deleted without a destroy, because it only previews now.
pub fn left_by_preview(stack: &Stack, applied: &PulumiStack) -> Event {
    let message = format!(
        "the Stack was deleted without a destroy because spec.preview is set; its resources in {applied} remain. To delete them, run \
         `pulumi destroy` for that stack, or create a Stack for it without spec.preview"
    );
    Event::new(stack, EventKind::Warning, RESOURCES_ORPHANED, message)
}

fn resources_remain(
    stack: &Stack,
    current: &CurrentUpdate,
    next: &PulumiStack,
    announced: Option<&PulumiStack>,
) -> Option<Event> {
    let before = identity::left_behind(stack.status.as_ref()?, next, announced)?;
    let message = format!(
        "the Stack now manages {next}; its resources in {before} remain and are no longer managed. To delete them, restore the \
         previous values and delete the Stack with spec.destroyOnFinalize, or run `pulumi destroy` for that stack"
    );
    let event = Event::new(stack, EventKind::Warning, RESOURCES_ORPHANED, message);
    Some(with_revisions(event, current.commit.as_deref(), current.origin_revision.as_deref()))
}

/// Returns the events for the end of a run. `stack` is the Stack before the result is recorded.
pub fn ended(stack: &Stack, last: &LastUpdate) -> Vec<Event> {
    let current = stack.status.as_ref().and_then(|status| status.current_update.as_ref());
    // Only the agent knows a backend URL that is in a Secret, so the change may show only after the run.
    let orphaned = current
        .zip(last.pulumi_stack.as_ref())
        .and_then(|(current, next)| resources_remain(stack, current, next, current.pulumi_stack.as_ref()));
    outcome(stack, last).into_iter().chain(orphaned).collect()
}

fn outcome(stack: &Stack, last: &LastUpdate) -> Vec<Event> {
    let before = stack.status.as_ref();
    let current = before.and_then(|status| status.current_update.as_ref());
    // The record of the last update may have the revision in the format of the Pulumi Kubernetes Operator.
    let revision = current.and_then(|current| current.commit.as_deref());
    let origin = current.and_then(|current| current.origin_revision.as_deref());
    let event = |kind, reason: &str, message: String| {
        with_revisions(Event::new(stack, kind, reason, message), revision, origin)
    };
    if last.state.as_deref() != Some("succeeded") {
        let cause = last.message.as_deref().unwrap_or("unknown");
        let previous = before.and_then(|status| status.last_update.as_ref());
        if status::is_conflict(last) && previous.is_some_and(|previous| is_same_lock(previous, last)) {
            return Vec::new();
        }
        let (kind, reason, what) = match last.reason.as_deref() {
            Some(update_reason::STACK_NOT_FOUND) => {
                (EventKind::Warning, stack_reason::STACK_NOT_FOUND, "Failed to destroy stack")
            }
            _ if status::is_conflict(last) => (EventKind::Warning, CONFLICT, "Update conflict"),
            _ if last.canceled_by_user.unwrap_or_default() => (EventKind::Normal, CANCELED, "Canceled the update"),
            _ => (EventKind::Warning, "StackUpdateFailure", "Failed to update stack"),
        };
        return vec![event(kind, reason, format!("{what}: {cause}"))];
    }
    let (key, value) = COMMIT_STATUS;
    let done = event(EventKind::Normal, "StackCreated", succeeded(last)).with(key, value);
    let failed_before = before
        .and_then(|status| status.last_update.as_ref())
        .is_some_and(|previous| previous.state.as_deref() == Some("failed"));
    let summary = summary(last, failed_before);
    let summary = summary.map(|summary| event(EventKind::Normal, stack_reason::PROCESSING_COMPLETED, summary));
    std::iter::once(done).chain(summary).collect()
}

/// Whether both runs found the same lock, which is reported only once. The message identifies the lock.
fn is_same_lock(previous: &LastUpdate, last: &LastUpdate) -> bool {
    status::is_conflict(previous) && previous.message == last.message
}

/// Adds the known revisions to the metadata of the event.
pub fn with_revisions(event: Event, revision: Option<&str>, origin: Option<&str>) -> Event {
    [(REVISION, revision), (ORIGIN_REVISION, origin)].into_iter().fold(event, |event, (key, value)| match value {
        Some(value) => event.with(key, value),
        None => event,
    })
}

fn is_kind(last: &LastUpdate, kind: UpdateKind) -> bool {
    last.kind.as_deref() == Some(kind.as_str())
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

/// Returns the notification about a successful run, if it changed resources, would change some, or succeeded after a failure. Alerts send
/// it to chats and pull requests.
fn summary(last: &LastUpdate, failed_before: bool) -> Option<String> {
    let changed = if is_kind(last, UpdateKind::Preview) {
        Some(format!("Preview: {}", status::changes(last)))
    } else {
        changed(last)
    };
    match (failed_before, changed) {
        (true, Some(changed)) => Some(format!("The stack has recovered from its last failure: {changed}")),
        (true, None) => Some("The stack has recovered from its last failure".to_owned()),
        (false, changed) => changed,
    }
}

/// Returns the changes of a run, such as `2 created, 1 deleted`.
fn changed(last: &LastUpdate) -> Option<String> {
    let changes = last.changes.iter().filter(|(operation, count)| *operation != "same" && **count > 0);
    let changes: Vec<String> = changes.map(|(operation, count)| format!("{count} {}", past(operation))).collect();
    (!changes.is_empty()).then(|| changes.join(", "))
}

/// Returns the past participle of an engine operation.
fn past(operation: &str) -> &str {
    match operation {
        "create" => "created",
        "update" => "updated",
        "delete" => "deleted",
        "replace" => "replaced",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pulumi::{StackSpec, StackStatus};

    fn stack(before: Option<LastUpdate>) -> Stack {
        let mut stack = Stack::new("app", StackSpec::default());
        stack.metadata.namespace = Some("apps".to_owned());
        stack.status =
            Some(StackStatus { current_update: Some(current()), last_update: before, ..StackStatus::default() });
        stack
    }

    fn current() -> CurrentUpdate {
        CurrentUpdate {
            generation: 1,
            message: "New commit detected".to_owned(),
            commit: Some("latest@sha256:b".to_owned()),
            origin_revision: Some("main@sha1:b".to_owned()),
            digest: Some("sha256:b".to_owned()),
            ..CurrentUpdate::default()
        }
    }

    fn last(kind: &str, state: &str, changes: &[(&str, i64)]) -> LastUpdate {
        LastUpdate {
            kind: Some(kind.to_owned()),
            state: Some(state.to_owned()),
            generation: 1,
            message: (state == "failed").then(|| "boom".to_owned()),
            last_attempted_commit: Some("latest@sha256:b".to_owned()),
            digest: Some("sha256:b".to_owned()),
            changes: changes.iter().map(|(operation, count)| ((*operation).to_owned(), *count)).collect(),
            ..LastUpdate::default()
        }
    }

    fn brief(events: &[Event]) -> Vec<String> {
        let line = |event: &Event| {
            let status = if event.metadata.contains_key(COMMIT_STATUS.0) { " (commit status)" } else { "" };
            format!("{:?} {}: {}{status}", event.kind, event.reason, event.message)
        };
        events.iter().map(line).collect()
    }

    #[test]
    fn events_at_the_end_of_a_run_follow_its_result() {
        let done = "Normal StackCreated: Successfully updated stack (commit status)";
        let up = |state: &str, changes: &[(&str, i64)]| last("up", state, changes);
        let rows: [(&str, Option<LastUpdate>, LastUpdate, &[&str]); 7] = [
            ("nothing has changed", None, up("succeeded", &[("same", 3)]), &[done]),
            (
                "something has",
                Some(up("succeeded", &[])),
                up("succeeded", &[("create", 2), ("delete", 1), ("same", 3)]),
                &[done, "Normal ProcessingCompleted: 2 created, 1 deleted"],
            ),
            (
                "it works again",
                Some(up("failed", &[])),
                up("succeeded", &[("same", 3)]),
                &[done, "Normal ProcessingCompleted: The stack has recovered from its last failure"],
            ),
            (
                "it works again and has changed something",
                Some(up("failed", &[])),
                up("succeeded", &[("update", 1)]),
                &[done, "Normal ProcessingCompleted: The stack has recovered from its last failure: 1 updated"],
            ),
            (
                "it has failed",
                None,
                up("failed", &[("create", 1)]),
                &["Warning StackUpdateFailure: Failed to update stack: boom"],
            ),
            (
                "a preview",
                None,
                last("preview", "succeeded", &[("create", 1)]),
                &[
                    "Normal StackCreated: Successfully previewed stack: 1 to create (commit status)",
                    "Normal ProcessingCompleted: Preview: 1 to create",
                ],
            ),
            (
                "a destroy",
                None,
                last("destroy", "succeeded", &[("delete", 1)]),
                &[
                    "Normal StackCreated: Successfully destroyed stack (commit status)",
                    "Normal ProcessingCompleted: 1 deleted",
                ],
            ),
        ];
        for (name, before, last, wanted) in rows {
            let events = ended(&stack(before), &last);
            assert_eq!(brief(&events), wanted, "{name}");
            for event in &events {
                let revisions = [REVISION, ORIGIN_REVISION].map(|key| event.metadata.get(key).map(String::as_str));
                assert_eq!(revisions, [Some("latest@sha256:b"), Some("main@sha1:b")], "{name}");
            }
        }
    }

    #[test]
    fn starting_an_automatic_run_sends_no_notification() {
        let kind = |before: Option<LastUpdate>| begun(&stack(before), &current()).kind;
        assert_eq!(kind(None), EventKind::Normal);
        assert_eq!(kind(Some(last("up", "failed", &[]))), EventKind::Trace);
        assert_eq!(kind(Some(last("up", "succeeded", &[]))), EventKind::Trace);
        let older = LastUpdate { digest: Some("sha256:a".to_owned()), ..last("up", "succeeded", &[]) };
        assert_eq!(kind(Some(older)), EventKind::Normal);
    }

    #[test]
    fn a_lock_conflict_is_reported_once() {
        let locked = |holder: &str| LastUpdate {
            reason: Some(update_reason::UPDATE_CONFLICT.to_owned()),
            message: Some(format!("the stack is locked by {holder}")),
            ..last("up", "failed", &[])
        };
        let told = |before: Option<LastUpdate>, holder: &str| brief(&ended(&stack(before), &locked(holder)));
        let alice = ["Warning StackUpdateConflictDetected: Update conflict: the stack is locked by alice"];
        assert_eq!(told(None, "alice"), alice);
        assert_eq!(told(Some(last("up", "failed", &[])), "alice"), alice);
        assert_eq!(told(Some(locked("alice")), "alice"), [""; 0]);
        assert_eq!(told(Some(locked("bob")), "alice"), alice, "another lock");
    }

    #[test]
    fn resources_left_elsewhere_are_reported_when_the_change_is_first_seen() {
        let of = |backend: Option<&str>| PulumiStack {
            name: "dev".to_owned(),
            project: Some("web".to_owned()),
            backend: backend.map(str::to_owned),
        };
        let with = |announced: Option<&str>| {
            let mut stack =
                stack(Some(LastUpdate { pulumi_stack: Some(of(Some("s3://a"))), ..last("up", "succeeded", &[]) }));
            let status = stack.status.as_mut().expect("there");
            status.applied_stack = Some(of(Some("s3://a")));
            status.current_update = Some(CurrentUpdate { pulumi_stack: Some(of(announced)), ..current() });
            stack
        };
        let begun = |announced: Option<&str>| {
            let stack = with(announced);
            let current = stack.status.as_ref().and_then(|status| status.current_update.clone()).expect("there");
            left_behind(&stack, &current).map(|event| brief(&[event]))
        };
        let ended_in = |announced: Option<&str>, backend: &str| {
            let last = LastUpdate { pulumi_stack: Some(of(Some(backend))), ..last("up", "failed", &[]) };
            brief(&ended(&with(announced), &last)).into_iter().filter(|line| line.contains(RESOURCES_ORPHANED)).count()
        };
        let told = begun(Some("s3://b")).expect("it is reported");
        assert!(
            told[0].starts_with(
                "Warning ResourcesOrphaned: the Stack now manages stack dev of project web in backend s3://b; its resources in \
                 stack dev of project web in backend s3://a remain"
            ),
            "{told:?}"
        );
        assert_eq!((begun(Some("s3://a")), begun(None)), (None, None));
        assert_eq!(ended_in(Some("s3://b"), "s3://b"), 0, "it was reported when the run began");
        assert_eq!(ended_in(None, "s3://b"), 1, "only the agent knew it");
        assert_eq!(ended_in(None, "s3://a"), 0);
    }
}
