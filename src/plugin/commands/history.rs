//! `history`: lists the last runs of a Stack.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::columns;
use pulumi_controller::api::pulumi::{Snapshot, Stack};
use pulumi_controller::view::runs;
use pulumi_controller::view::time::age;
use serde::Serialize;

use crate::plugin::args::Format;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::progress::Progress;
use crate::plugin::screen::{self, Screen, table};
use crate::plugin::select::full_name;
use crate::plugin::updates;

/// Maximum length of the column `CHANGES`, in characters.
const MAX_CHANGES: usize = 60;
/// Maximum length of the columns `CAUSE` and `APPROVED BY`, in characters each.
const MAX_CAUSE: usize = 40;

/// Lists the last runs of a Stack.
///
/// # Errors
///
/// Returns an error if the Stack does not exist, or if a request fails.
pub async fn run(cluster: &Cluster, name: &str, format: Format) -> Result<(), PluginError> {
    let stack: Stack = cluster.get(cluster.namespace(), name).await?;
    let updates = updates::list(cluster, cluster.namespace(), name).await?;
    let history = History::of(&stack, &updates, Timestamp::now());
    if history.runs.is_empty() && history.results.is_empty() {
        let namespace = cluster.namespace();
        let next = format!("for the cause, run: kubectl pulumi explain -n {namespace} {name}");
        Progress::new().note(&format!("Stack {} has no runs; {next}", full_name(&stack)));
    }
    screen::print(&history, format)
}

/// The last runs of a Stack, newest first.
#[derive(Serialize)]
struct History {
    /// Runs whose Updates still exist, and runs that the status of the Stack records.
    runs: Vec<Run>,
    /// Recent combinations of an artifact and a result. Includes results of runs whose Updates no longer exist.
    results: Vec<RunResult>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    phase: String,
    #[serde(skip)]
    age: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    /// Reason for the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Users who approved the run's plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    approved_by: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<String>,
    /// Reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permalink: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunResult {
    result: String,
    revision: String,
    runs: i64,
    last: Time,
    #[serde(skip)]
    age: String,
    duration: String,
}

impl History {
    fn of(stack: &Stack, updates: &[Update], now: Timestamp) -> Self {
        let snapshots = stack.status.iter().flat_map(|status| &status.history);
        History {
            runs: runs::all(stack, updates).iter().map(|run| Run::of(run, now)).collect(),
            results: snapshots.map(|snapshot| RunResult::of(snapshot, now)).collect(),
        }
    }
}

impl Run {
    fn of(run: &runs::Run<'_>, now: Timestamp) -> Self {
        Run {
            name: run.name.to_owned(),
            kind: run.kind().to_owned(),
            phase: run.phase().to_owned(),
            age: age(run.since(), now),
            start_time: run.started().cloned(),
            duration: run.duration(),
            revision: run.revision().map(str::to_owned),
            cause: run.cause().map(str::to_owned),
            approved_by: run.approved_by().to_vec(),
            changes: run.changes(),
            reason: run.reason().map(str::to_owned),
            message: run.message().map(str::to_owned),
            permalink: run.permalink().map(str::to_owned),
        }
    }
}

impl RunResult {
    fn of(snapshot: &Snapshot, now: Timestamp) -> Self {
        let revision = snapshot.metadata.get("revision").cloned();
        RunResult {
            result: snapshot.last_reconciled_status.clone(),
            revision: revision.unwrap_or_else(|| snapshot.digest.to_string()),
            runs: snapshot.total_reconciliations,
            last: snapshot.last_reconciled.clone(),
            age: age(Some(&snapshot.last_reconciled), now),
            duration: snapshot.last_reconciled_duration.clone(),
        }
    }
}

impl Screen for History {
    fn text(&self) -> String {
        let short = |revision: &str| columns::revision(revision).unwrap_or_default();
        let run = |run: &Run| {
            let result = [&run.changes, &run.message, &run.reason].into_iter().find_map(Option::as_deref);
            vec![
                run.name.clone(),
                run.kind.clone(),
                run.phase.clone(),
                run.age.clone(),
                run.duration.clone().unwrap_or_default(),
                run.revision.as_deref().map(short).unwrap_or_default(),
                columns::text(run.cause.as_deref().unwrap_or_default(), MAX_CAUSE),
                columns::text(&run.approved_by.join(", "), MAX_CAUSE),
                columns::text(result.unwrap_or_default(), MAX_CHANGES),
            ]
        };
        let runs: Vec<_> = self.runs.iter().map(run).collect();
        const TITLES: [&str; 9] =
            ["RUN", "TYPE", "PHASE", "AGE", "DURATION", "REVISION", "CAUSE", "APPROVED BY", "CHANGES"];
        let mut text = table(&TITLES, &runs);
        if !self.results.is_empty() {
            let result = |result: &RunResult| {
                let revision = short(&result.revision);
                let runs = result.runs.to_string();
                vec![result.result.clone(), revision, runs, result.age.clone(), result.duration.clone()]
            };
            let results: Vec<_> = self.results.iter().map(result).collect();
            text.push('\n');
            text.push_str(&table(&["RESULT", "REVISION", "RUNS", "LAST", "DURATION"], &results));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::{DIGEST, REVISION, now, stack, update};
    use crate::plugin::reference_tests::assert_example;

    #[test]
    fn the_history_lists_updates_deleted_runs_and_earlier_results() {
        let record = json!({ "name": "web-000023c4d5e", "type": "up", "state": "succeeded",
            "cause": "Requested at: \"2026-11-02\"", "approvedBy": ["alice", "bob"] });
        let deleted = json!({ "name": "web-000012b1a9f", "type": "up", "state": "failed", "reason": "UpdateFailed",
            "cause": "Initial stack update", "revision": REVISION, "startTime": "2026-11-01T10:00:00Z",
            "endTime": "2026-11-01T10:00:12Z" });
        let current = json!({ "name": "web-000034d5e6f", "type": "up", "message": "New commit detected: \"main\"" });
        let status = json!({ "runs": [record, deleted], "currentUpdate": current, "history": [{
            "digest": DIGEST,
            "firstReconciled": "2026-11-01T10:00:00Z",
            "lastReconciled": "2026-11-02T10:00:00Z",
            "lastReconciledDuration": "1m4s",
            "lastReconciledStatus": "ProcessingCompleted",
            "totalReconciliations": 3,
            "metadata": { "revision": REVISION },
        }] });
        let running = json!({ "phase": "Running", "startTime": "2026-11-02T11:59:00Z",
            "progress": { "summary": "3 done, creating aws:s3:Bucket logs" } });
        let succeeded = json!({ "phase": "Succeeded", "startTime": "2026-11-02T11:00:00Z", "duration": "1m4s",
            "progress": { "summary": "4 create, 12 same" } });
        let mut updates = [update("web-000034d5e6f", "up", &running), update("web-000023c4d5e", "up", &succeeded)];
        for update in &mut updates {
            let artifact = json!({ "digest": DIGEST, "revision": REVISION });
            update.spec.artifact = Some(serde_json::from_value(artifact).unwrap());
        }
        let history = History::of(&stack("web", &json!({}), &status), &updates, now());
        assert_example("kubectl pulumi history web", &history.text());
    }

    #[test]
    fn the_history_contains_only_urls_that_a_browser_can_open() {
        let permalink = |url: &str| {
            let updates = [update("web-1", "up", &json!({ "permalink": url }))];
            let mut history = History::of(&stack("web", &json!({}), &json!({})), &updates, now());
            history.runs.remove(0).permalink
        };
        let url = "https://app.pulumi.com/acme/web/dev/updates/1";
        assert_eq!(permalink(url).as_deref(), Some(url));
        assert_eq!(permalink("file:///state/.pulumi/stacks/web/dev.json"), None);
    }
}
