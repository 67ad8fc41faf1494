//! `history`: lists the last runs of a Stack.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::columns;
use pulumi_controller::api::pulumi::{Snapshot, Stack};
use pulumi_controller::view::runs;
use pulumi_controller::view::time::age;
use serde::Serialize;

use crate::plugin::args::Format;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
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
        eprintln!("ℹ Stack {} has no runs; for the cause, run: kubectl pulumi explain {name}", full_name(&stack));
    }
    screen::print(&history, format)
}

/// The last runs of a Stack, newest first.
#[derive(Serialize)]
struct History {
    /// Runs whose Updates still exist.
    runs: Vec<Run>,
    /// Recent combinations of an artifact and a result. Includes results of runs whose Updates no longer exist.
    results: Vec<RunResult>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    phase: &'static str,
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
            runs: updates.iter().map(|update| Run::of(stack, update, now)).collect(),
            results: snapshots.map(|snapshot| RunResult::of(snapshot, now)).collect(),
        }
    }
}

impl Run {
    fn of(stack: &Stack, update: &Update, now: Timestamp) -> Self {
        let name = update.name_any();
        let status = update.status.clone().unwrap_or_default();
        let of_stack = stack.status.as_ref();
        let record = of_stack.into_iter().flat_map(|status| &status.runs).find(|run| run.name == name);
        let open = of_stack.and_then(|status| status.current_update.as_ref()).filter(|open| open.name == name);
        let cause = open.map(|open| open.message.clone()).filter(|message| !message.is_empty());
        let approved = open.and_then(|open| open.plan.as_ref()).map(|plan| plan.approved_by.clone());
        let started = status.start_time.as_ref().or(update.metadata.creation_timestamp.as_ref());
        Run {
            name,
            cause: record.and_then(|run| run.cause.clone()).or(cause),
            approved_by: record.map(|run| run.approved_by.clone()).or(approved).unwrap_or_default(),
            kind: update.spec.kind.as_str(),
            phase: runs::phase(update),
            age: age(started, now),
            duration: status.duration,
            revision: update.artifact().map(|artifact| artifact.revision.clone()),
            changes: status.progress.map(|progress| progress.summary).filter(|summary| !summary.is_empty()),
            message: status.message,
            permalink: status.permalink,
            start_time: status.start_time,
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
            let changes = run.changes.as_deref().or(run.message.as_deref()).unwrap_or_default();
            vec![
                run.name.clone(),
                run.kind.to_owned(),
                run.phase.to_owned(),
                run.age.clone(),
                run.duration.clone().unwrap_or_default(),
                run.revision.as_deref().map(short).unwrap_or_default(),
                columns::text(run.cause.as_deref().unwrap_or_default(), MAX_CAUSE),
                columns::text(&run.approved_by.join(", "), MAX_CAUSE),
                columns::text(changes, MAX_CHANGES),
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
    fn the_history_lists_updates_and_earlier_results() {
        let record = json!({ "name": "web-000012b1a9f", "type": "up", "state": "succeeded",
            "cause": "Requested at: \"2026-11-02\"", "approvedBy": ["alice", "bob"] });
        let current = json!({ "name": "web-000023c4d5e", "type": "up", "message": "New commit detected: \"main\"" });
        let status = json!({ "runs": [record], "currentUpdate": current, "history": [{
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
        let mut updates = [update("web-000023c4d5e", "up", &running), update("web-000012b1a9f", "up", &succeeded)];
        for update in &mut updates {
            let artifact = json!({ "digest": DIGEST, "revision": REVISION });
            update.spec.artifact = Some(serde_json::from_value(artifact).unwrap());
        }
        let history = History::of(&stack("web", &json!({}), &status), &updates, now());
        assert_example("kubectl pulumi history web", &history.text());
    }
}
