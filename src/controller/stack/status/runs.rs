//! Recent runs in the status of a Stack.

use crate::api::auto::UpdateStatus;
use crate::api::pulumi::{CurrentUpdate, LastUpdate, RunRecord};
use crate::api::{bounds, conditions};

/// Maximum number of run records in the status.
const MAX_RUNS: usize = bounds::RUNS as usize;
const MAX_APPROVERS: usize = bounds::RUN_APPROVERS as usize;
/// Maximum length of a string in a run record, in bytes. The strings must be short, because the status contains many
/// other fields.
const MAX_TEXT: usize = 256;
/// Maximum number of operations in a run record. The record contains the number of resources for each operation.
const MAX_OPERATIONS: usize = 12;

/// Adds a completed run as the newest run, and removes the oldest runs. A second record of the same run replaces the
/// first record.
pub(super) fn add(runs: &mut Vec<RunRecord>, current: &CurrentUpdate, last: &LastUpdate, result: &UpdateStatus) {
    let text = |text: &String| conditions::shorten(text, MAX_TEXT);
    let approvers = current.plan.iter().flat_map(|plan| &plan.approved_by);
    let record = RunRecord {
        name: last.name.clone().unwrap_or_else(|| current.name.clone()),
        kind: current.kind.as_str().to_owned(),
        state: last.state.clone().unwrap_or_default(),
        reason: last.reason.clone(),
        cause: Some(text(&current.message)).filter(|cause| !cause.is_empty()),
        revision: current.commit.as_ref().map(text),
        start_time: result.start_time.clone(),
        end_time: result.end_time.clone(),
        changes: last.changes.iter().take(MAX_OPERATIONS).map(|(word, count)| (text(word), *count)).collect(),
        approved_by: approvers.take(MAX_APPROVERS).map(text).collect(),
        history_url: result.history.as_ref().and_then(|history| history.url.clone()),
    };
    runs.retain(|known| known.name != record.name);
    runs.insert(0, record);
    runs.truncate(MAX_RUNS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::RunHistory;

    fn run(number: usize) -> (CurrentUpdate, LastUpdate, UpdateStatus) {
        let name = format!("web-{number}");
        let current =
            CurrentUpdate { name: name.clone(), message: "new revision".to_owned(), ..CurrentUpdate::default() };
        let last = LastUpdate { name: Some(name), state: Some("succeeded".to_owned()), ..LastUpdate::default() };
        let url = Some(format!("s3://runs/{number}"));
        let result =
            UpdateStatus { history: Some(RunHistory { url, ..RunHistory::default() }), ..UpdateStatus::default() };
        (current, last, result)
    }

    #[test]
    fn the_newest_ten_runs_are_kept() {
        let mut runs = Vec::new();
        for number in 0..15 {
            let (current, last, result) = run(number);
            add(&mut runs, &current, &last, &result);
            add(&mut runs, &current, &last, &result);
        }
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!((names.len(), names[0], names[9]), (10, "web-14", "web-5"));
        assert_eq!(runs[0].history_url.as_deref(), Some("s3://runs/14"));
        assert_eq!((runs[0].cause.as_deref(), runs[0].kind.as_str()), (Some("new revision"), "up"));
    }

    #[test]
    fn the_record_of_a_run_is_small() {
        let (current, last, result) = run(1);
        let current = CurrentUpdate { message: "x".repeat(9000), commit: Some("y".repeat(2000)), ..current };
        let changes = (0..60).map(|number| (format!("create-{number}"), 1)).collect();
        let mut runs = Vec::new();
        add(&mut runs, &current, &LastUpdate { changes, ..last }, &result);
        let size = serde_json::to_string(&runs).unwrap().len();
        assert!(size < 1500, "{size} bytes");
    }
}
