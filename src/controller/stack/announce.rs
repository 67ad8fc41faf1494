//! What is told of a run, as events. Pure.

use crate::api::auto::UpdateKind;
use crate::api::conditions::stack_reason;
use crate::api::pulumi::{CurrentUpdate, LastUpdate, Stack};
use crate::controller::stack::{schedule, status};
use crate::runtime::events::{Event, EventKind};

/// The metadata of an event is named under the group of its object, as in Flux.
const REVISION: &str = "pulumi.com/revision";
const ORIGIN_REVISION: &str = "pulumi.com/originRevision";
/// With it an event is the new status of a commit, and Alerts do not bring it to a chat.
const COMMIT_STATUS: (&str, &str) = ("pulumi.com/commit_status", "update");

/// A run begins. Nobody is notified of one that comes by itself, in its interval or because the last one has failed.
pub fn begun(stack: &Stack, current: &CurrentUpdate) -> Event {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    let comes_by_itself = schedule::is_repetition(last, &status::inputs_of(current));
    let kind = if comes_by_itself { EventKind::Trace } else { EventKind::Normal };
    let event = Event::new(stack, kind, "StackUpdateDetected", current.message.as_str());
    with_revisions(event, current.commit.as_deref(), current.origin_revision.as_deref())
}

/// A run has ended so. `stack` still has the run that was open, and the one before.
pub fn ended(stack: &Stack, last: &LastUpdate) -> Vec<Event> {
    let before = stack.status.as_ref();
    let current = before.and_then(|status| status.current_update.as_ref());
    // The record of the last update may have the revision in the operator's form.
    let revision = current.and_then(|current| current.commit.as_deref());
    let origin = current.and_then(|current| current.origin_revision.as_deref());
    let tell = |kind, reason: &str, message: String| {
        with_revisions(Event::new(stack, kind, reason, message), revision, origin)
    };
    if last.state.as_deref() != Some("succeeded") {
        let cause = last.message.as_deref().unwrap_or("unknown");
        return vec![tell(EventKind::Warning, "StackUpdateFailure", format!("Failed to update stack: {cause}"))];
    }
    let (key, value) = COMMIT_STATUS;
    let done = tell(EventKind::Normal, "StackCreated", succeeded(last)).with(key, value);
    let failed_before = before
        .and_then(|status| status.last_update.as_ref())
        .is_some_and(|previous| previous.state.as_deref() == Some("failed"));
    let summary = summary(last, failed_before);
    let summary = summary.map(|summary| tell(EventKind::Normal, stack_reason::PROCESSING_COMPLETED, summary));
    std::iter::once(done).chain(summary).collect()
}

/// Adds the revisions that are known.
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

/// What people want to be told of a success: that something has changed, or would, or that it works again. Alerts bring this one to chats
/// and pull requests.
fn summary(last: &LastUpdate, failed_before: bool) -> Option<String> {
    let changed = if is_kind(last, UpdateKind::Preview) {
        Some(format!("The preview says: {}", status::changes(last)))
    } else {
        changed(last)
    };
    match (failed_before, changed) {
        (true, Some(changed)) => Some(format!("The stack has recovered from its last failure: {changed}")),
        (true, None) => Some("The stack has recovered from its last failure".to_owned()),
        (false, changed) => changed,
    }
}

/// What a run has changed, such as `2 created, 1 deleted`.
fn changed(last: &LastUpdate) -> Option<String> {
    let told = last.changes.iter().filter(|(operation, count)| *operation != "same" && **count > 0);
    let told: Vec<String> = told.map(|(operation, count)| format!("{count} {}", past(operation))).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// The engine's word for an operation, once it was done.
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
    fn e3_e4_e5_the_table_of_what_is_told_at_the_end_of_a_run() {
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
                    "Normal ProcessingCompleted: The preview says: 1 to create",
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
    fn nobody_is_notified_of_the_start_of_a_run_that_comes_by_itself() {
        let kind = |before: Option<LastUpdate>| begun(&stack(before), &current()).kind;
        assert_eq!(kind(None), EventKind::Normal);
        assert_eq!(kind(Some(last("up", "failed", &[]))), EventKind::Trace);
        assert_eq!(kind(Some(last("up", "succeeded", &[]))), EventKind::Trace);
        let older = LastUpdate { digest: Some("sha256:a".to_owned()), ..last("up", "succeeded", &[]) };
        assert_eq!(kind(Some(older)), EventKind::Normal);
    }
}
