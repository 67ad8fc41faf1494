//! Runs of a Stack. An Update describes a run until the controller deletes the Update, and the status of the Stack
//! contains a record of each of the last completed runs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use crate::api::auto::{Update, UpdatePhase};
use crate::api::duration;
use crate::api::pulumi::{CurrentUpdate, RunRecord, Stack, StackStatus};
use crate::view::links;

/// Run of a Stack: its Update, its record in the status of the Stack, or both. The record takes precedence, because it
/// is the result for the Stack. For example, the destroy of a Stack without resources succeeds even if its Update has
/// failed. The Update takes precedence only for values that it contains in more detail.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub name: &'a str,
    /// Update of the run. `None` if the Update no longer exists, or if the user may not read it.
    pub update: Option<&'a Update>,
    /// Record of a completed run. `None` for an open run, an old run and a drift check.
    pub record: Option<&'a RunRecord>,
    /// Inputs of an open run.
    open: Option<&'a CurrentUpdate>,
}

impl<'a> Run<'a> {
    /// Returns the run with this name.
    pub fn of(status: Option<&'a StackStatus>, update: Option<&'a Update>, name: &'a str) -> Self {
        let open = status.and_then(|status| status.current_update.as_deref());
        Run {
            name,
            update,
            record: status.and_then(|status| status.runs.iter().find(|run| run.name == name)),
            open: open.filter(|open| open.name == name),
        }
    }

    /// Returns the Pulumi command.
    pub fn kind(&self) -> &'a str {
        match (self.record, self.update) {
            (Some(record), _) => &record.kind,
            (None, Some(update)) => update.spec.kind.as_str(),
            (None, None) => "",
        }
    }

    /// Returns the phase of the run.
    pub fn phase(&self) -> &'a str {
        match (self.record, self.update) {
            (Some(record), _) => phase_of_state(&record.state),
            (None, Some(update)) => phase(update),
            (None, None) => "",
        }
    }

    /// Returns the start of the run, or `None` if the run has not started.
    pub fn started(&self) -> Option<&'a Time> {
        let of_update = || self.update?.status.as_ref()?.start_time.as_ref();
        self.record.and_then(|record| record.start_time.as_ref()).or_else(of_update)
    }

    /// Returns the time since which the age of the run is counted: its start or, if the run has not started, the time
    /// of its request or its end.
    pub fn since(&self) -> Option<&'a Time> {
        self.started().or_else(|| self.order().0)
    }

    /// Returns the duration of a completed run.
    pub fn duration(&self) -> Option<String> {
        let recorded = || {
            let (start, end) = (self.record?.start_time.as_ref()?, self.record?.end_time.as_ref()?);
            Some(duration::display(end.0.duration_since(start.0)))
        };
        let of_update = self.update.and_then(|update| update.status.as_ref()?.duration.clone());
        of_update.or_else(recorded)
    }

    /// Returns the revision of the source. The record contains only the beginning of a long revision.
    pub fn revision(&self) -> Option<&'a str> {
        let recorded = || self.record?.revision.as_deref();
        self.update.and_then(Update::artifact).map(|artifact| artifact.revision.as_str()).or_else(recorded)
    }

    /// Returns the reason for the run.
    pub fn cause(&self) -> Option<&'a str> {
        let of_open = || self.open.map(|open| open.message.as_str()).filter(|message| !message.is_empty());
        self.record.and_then(|record| record.cause.as_deref()).or_else(of_open)
    }

    /// Returns the reason of a failure.
    pub fn reason(&self) -> Option<&'a str> {
        self.record?.reason.as_deref()
    }

    /// Returns the users who have approved the plan of the run.
    pub fn approved_by(&self) -> &'a [String] {
        let of_open = || Some(self.open?.plan.as_ref()?.approved_by.as_slice());
        self.record.map(|record| record.approved_by.as_slice()).or_else(of_open).unwrap_or_default()
    }

    /// Returns the number of resources for each operation, such as `2 create, 5 same`, or the progress of an open run.
    pub fn changes(&self) -> Option<String> {
        let progress = self.update.and_then(|update| update.status.as_ref()?.progress.as_ref());
        let summary = progress.map(|progress| progress.summary.clone()).filter(|summary| !summary.is_empty());
        summary.or_else(|| self.record.map(|record| changes(&record.changes)).filter(|changes| !changes.is_empty()))
    }

    /// Returns the message about the result.
    pub fn message(&self) -> Option<&'a str> {
        self.update?.status.as_ref()?.message.as_deref()
    }

    /// Returns the URL of the update in Pulumi Cloud.
    pub fn permalink(&self) -> Option<&'a str> {
        links::permalink(self.update?.status.as_ref()?.permalink.as_deref()?)
    }

    /// Returns the key that sorts the runs of a Stack by their creation. The creation time of a deleted Update is
    /// unknown. The start of its run is sufficient, because the Stack requests its next run after the end of this run.
    /// If times are equal, the names determine the order, because the names of later Updates are greater.
    fn order(&self) -> (Option<&'a Time>, &'a str) {
        let recorded = || self.record.and_then(|record| record.start_time.as_ref().or(record.end_time.as_ref()));
        let created = self.update.and_then(|update| update.metadata.creation_timestamp.as_ref());
        (created.or_else(recorded), self.name)
    }
}

/// Returns the runs that have an Update or a record in the status of the Stack, newest first.
pub fn all<'a>(stack: &'a Stack, updates: &'a [Update]) -> Vec<Run<'a>> {
    let status = stack.status.as_ref();
    let mut found: BTreeMap<&'a str, Option<&'a Update>> = BTreeMap::new();
    for record in status.into_iter().flat_map(|status| &status.runs) {
        found.insert(&record.name, None);
    }
    for update in updates {
        found.insert(update.metadata.name.as_deref().unwrap_or_default(), Some(update));
    }
    let mut runs: Vec<_> = found.into_iter().map(|(name, update)| Run::of(status, update, name)).collect();
    runs.sort_by_key(|run| Reverse(run.order()));
    runs
}

/// Sorts the Updates of a Stack, newest first. If creation times are equal, the names determine the order, because the
/// names of later Updates are greater.
pub fn sort(updates: &mut [Update]) {
    updates.sort_by_key(|update| Reverse((update.creation_timestamp(), update.name_any())));
}

/// Returns the name of a Stack's open run or, if no run is open, of its last run.
pub fn current_or_last(stack: &Stack) -> Option<&str> {
    let status = stack.status.as_ref()?;
    let open = status.current_update.as_ref().map(|open| open.name.as_str());
    open.or_else(|| status.last_update.as_ref()?.name.as_deref())
}

/// Returns the phase of an Update. Without a status, the run waits.
pub fn phase(update: &Update) -> &'static str {
    match update.status.as_ref().and_then(|status| status.phase) {
        None | Some(UpdatePhase::Waiting) => "Waiting",
        Some(UpdatePhase::Starting) => "Starting",
        Some(UpdatePhase::Running) => "Running",
        Some(UpdatePhase::Canceling) => "Canceling",
        Some(UpdatePhase::OutcomeUnknown) => "OutcomeUnknown",
        Some(UpdatePhase::Succeeded) => "Succeeded",
        Some(UpdatePhase::Failed) => "Failed",
    }
}

/// Returns the phase of a completed run from the state in its record.
fn phase_of_state(state: &str) -> &str {
    match state {
        "succeeded" => "Succeeded",
        "failed" => "Failed",
        other => other,
    }
}

/// Returns the number of resources for each operation, such as `2 create, 5 same`.
fn changes(changes: &BTreeMap<String, i64>) -> String {
    let changes: Vec<String> = changes.iter().map(|(operation, count)| format!("{count} {operation}")).collect();
    changes.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::view::fixtures::{DIGEST, REVISION, stack, update};

    fn created(name: &str, time: &str, status: &Value) -> Update {
        let mut update = update(name, "up", status);
        update.metadata.creation_timestamp = serde_json::from_value(json!(time)).unwrap();
        update
    }

    #[test]
    fn deleted_runs_are_merged_with_the_updates() {
        let record = |name: &str, times: &[(&str, &str)]| {
            let mut record = json!({ "name": name, "type": "up", "state": "succeeded" });
            for (field, time) in times {
                record[*field] = json!(time);
            }
            record
        };
        let status = json!({ "runs": [
            record("web-5", &[("startTime", "2026-11-02T09:00:01Z"), ("endTime", "2026-11-02T09:00:09Z")]),
            record("web-4", &[("startTime", "2026-11-02T08:00:00Z")]),
            record("web-2", &[("endTime", "2026-11-02T07:00:00Z")]),
            record("web-1", &[("startTime", "2026-11-02T06:00:00Z")]),
            record("web-0", &[]),
        ] });
        let stack = stack("web", &json!({}), &status);
        // `web-3` is a drift check, and `web-6` is open, so the status contains no records of these runs.
        let updates = [
            created("web-3", "2026-11-02T08:00:00Z", &json!({ "phase": "Succeeded" })),
            created("web-6", "2026-11-02T09:00:09Z", &json!({ "phase": "Running" })),
            created("web-5", "2026-11-02T09:00:00Z", &json!({ "phase": "Succeeded" })),
        ];
        let runs = all(&stack, &updates);
        let found: Vec<_> = runs.iter().map(|run| (run.name, run.update.is_some(), run.record.is_some())).collect();
        let expected = [
            ("web-6", true, false),
            ("web-5", true, true),
            ("web-4", false, true),
            ("web-3", true, false),
            ("web-2", false, true),
            ("web-1", false, true),
            ("web-0", false, true),
        ];
        assert_eq!(found, expected);
        assert!(all(&stack, &[]).iter().map(|run| run.name).eq(["web-5", "web-4", "web-2", "web-1", "web-0"]));
    }

    #[test]
    fn the_record_describes_a_deleted_run() {
        let failed = json!({ "name": "web-2", "type": "destroy", "state": "failed", "reason": "UpdateFailed",
            "cause": "New commit", "revision": REVISION, "startTime": "2026-11-02T10:00:00Z",
            "endTime": "2026-11-02T10:01:04Z", "changes": { "create": 2, "same": 5 }, "approvedBy": ["alice"] });
        let canceled = json!({ "name": "web-1", "type": "up", "state": "failed", "endTime": "2026-11-02T09:00:00Z" });
        let stack = stack("web", &json!({}), &json!({ "runs": [failed, canceled] }));
        let run = Run::of(stack.status.as_ref(), None, "web-2");
        assert_eq!((run.kind(), run.phase(), run.reason()), ("destroy", "Failed", Some("UpdateFailed")));
        assert_eq!(run.since().map(|time| time.0.to_string()).as_deref(), Some("2026-11-02T10:00:00Z"));
        assert_eq!((run.duration().as_deref(), run.revision()), (Some("1m4s"), Some(REVISION)));
        assert_eq!((run.cause(), run.approved_by()), (Some("New commit"), &["alice".to_owned()][..]));
        assert_eq!((run.changes().as_deref(), run.message(), run.permalink()), (Some("2 create, 5 same"), None, None));
        let run = Run::of(stack.status.as_ref(), None, "web-1");
        assert_eq!((run.started(), run.duration(), run.changes()), (None, None, None));
        assert!(run.since().is_some(), "a run that did not start has an end");
    }

    #[test]
    fn the_update_describes_a_run_without_a_record() {
        let status = json!({ "currentUpdate": { "name": "web-1", "type": "up", "message": "New commit",
            "plan": { "digest": DIGEST, "updateName": "web-0", "fileDigest": DIGEST, "approvedBy": ["bob"] } } });
        let stack = stack("web", &json!({}), &status);
        let result = json!({ "phase": "Running", "startTime": "2026-11-02T11:00:30Z", "message": "waiting",
            "permalink": "https://app.pulumi.com/acme/web/dev/updates/1", "progress": { "summary": "3 done" } });
        let mut update = update("web-1", "up", &result);
        update.spec.artifact = serde_json::from_value(json!({ "digest": DIGEST, "revision": REVISION })).unwrap();
        let run = Run::of(stack.status.as_ref(), Some(&update), "web-1");
        assert_eq!((run.kind(), run.phase(), run.reason()), ("up", "Running", None));
        assert_eq!(run.started().map(|time| time.0.to_string()).as_deref(), Some("2026-11-02T11:00:30Z"));
        assert_eq!((run.cause(), run.approved_by()), (Some("New commit"), &["bob".to_owned()][..]));
        assert_eq!((run.revision(), run.duration()), (Some(REVISION), None));
        assert_eq!((run.changes().as_deref(), run.message()), (Some("3 done"), Some("waiting")));
        assert_eq!(run.permalink(), Some("https://app.pulumi.com/acme/web/dev/updates/1"));
        let other = Run::of(stack.status.as_ref(), None, "web-9");
        assert_eq!((other.kind(), other.phase(), other.cause(), other.since()), ("", "", None, None));
    }
}
