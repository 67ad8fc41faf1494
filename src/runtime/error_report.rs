//! Reports in the status and in an event that the reconciliations of an object fail repeatedly. A reconciler reports
//! only the errors that it expects. Any other error, for example of the storage of the API server, would appear only in
//! the log.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::conditions::{
    self, COMPLETE, ConditionUpdate, FAILED, PROGRESSING, PROGRESSING_WITH_RETRY, READY, RECONCILING, STALLED, Status,
    update_reason,
};
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::reads::Reader;
use crate::runtime::writes::{Object, Writer};

/// Maximum length of an error in the status, in bytes.
const MAX_ERROR: usize = 2048;

/// Writes reports about objects whose reconciler cannot write its own report. Cheap to clone.
#[derive(Clone)]
pub(super) struct ErrorReporter {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) events: Events,
}

impl ErrorReporter {
    /// Writes a repeated error to the conditions of an object, unless they already contain this error. The next
    /// successful reconciliation replaces these conditions. `object` can lack its status. If the API server is
    /// unavailable, only the log contains the error.
    pub(super) async fn report<K: Object>(&self, object: &K, error: &str) {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let live = match self.reader.get_opt::<K>(&namespace, &name).await {
            Ok(Some(live)) if live.uid() == object.uid() => live,
            Ok(_) => return,
            Err(error) => return warn(&error),
        };
        let before = json!(live).get("status").cloned().unwrap_or_default();
        let message = format!("{}; retrying with backoff", conditions::shorten(error, MAX_ERROR));
        let generation = live.meta().generation.unwrap_or_default();
        let Some(report) = Report::new(&K::kind(&()), before, &message, generation, Timestamp::now()) else { return };
        match self.writer.status(&live, &report.status).await {
            Ok(Some(_)) if report.is_first => {
                self.events.publish(Event::new(&live, EventKind::Warning, report.reason, message));
            }
            Ok(_) => {}
            Err(error) => warn(&error),
        }
    }
}

fn warn(error: &dyn std::error::Error) {
    tracing::warn!(error = crate::telemetry::chain(error), "failed to report the error of a reconciliation");
}

/// Status with a repeated error.
struct Report {
    status: Value,
    reason: &'static str,
    /// Whether the status did not contain a repeated error before.
    is_first: bool,
}

impl Report {
    /// Returns the report for an object of this kind. `before` is its status. The report contains the observed
    /// generation only in the conditions, because no reconciliation has handled the generation. Returns `None` for a
    /// completed Update, because its conditions contain the result of the run.
    fn new(kind: &str, mut before: Value, message: &str, generation: i64, now: Timestamp) -> Option<Self> {
        let conditions = before.get_mut("conditions").map(Value::take).unwrap_or_default();
        let mut conditions: Vec<Condition> = serde_json::from_value(conditions).unwrap_or_default();
        let retry =
            ConditionUpdate { kind: RECONCILING, status: Status::True, reason: PROGRESSING_WITH_RETRY, message };
        let reported = if kind == "Update" { PROGRESSING } else { RECONCILING };
        let earlier = conditions::find(&conditions, reported).cloned();
        if kind == "Update" {
            let is_bound = before.get("run").is_some_and(|run| !run.is_null());
            set_of_update(&mut conditions, &retry, is_bound, generation, now)?;
        } else {
            set(&mut conditions, &retry, generation, now);
        }
        let reason = if kind == "Update" { update_reason::TRANSIENT_FAILURE } else { PROGRESSING_WITH_RETRY };
        let is_now = conditions::find(&conditions, reported).is_some_and(|condition| condition.reason == reason);
        let is_first = is_now && earlier.is_none_or(|condition| condition.reason != reason);
        let summary = conditions::summary(&conditions);
        let status = match before {
            Value::Object(mut status) => {
                status.insert("conditions".to_owned(), json!(conditions));
                if let Some(summary) = summary {
                    status.insert("summary".to_owned(), summary.into());
                }
                Value::Object(status)
            }
            _ => json!({ "conditions": conditions, "summary": summary }),
        };
        Some(Report { status, reason, is_first })
    }
}

/// Sets the conditions `Ready`, `Reconciling` and `Stalled`.
fn set(conditions: &mut Vec<Condition>, retry: &ConditionUpdate<'_>, generation: i64, now: Timestamp) {
    for (kind, status) in [(READY, Status::False), (RECONCILING, Status::True)] {
        conditions::set(conditions, &ConditionUpdate { kind, status, ..retry.clone() }, generation, now);
    }
    conditions::remove(conditions, STALLED);
}

/// Sets the conditions of an Update. The condition `Progressing` of a bound run keeps its status and its reason,
/// because other controllers read the state of the run from them. Returns `None` if the Update is complete.
fn set_of_update(
    conditions: &mut Vec<Condition>,
    retry: &ConditionUpdate<'_>,
    is_bound: bool,
    generation: i64,
    now: Timestamp,
) -> Option<()> {
    if conditions::is_true(conditions, COMPLETE) {
        return None;
    }
    if is_bound {
        let progressing = conditions.iter_mut().find(|condition| condition.type_ == PROGRESSING)?;
        retry.message.clone_into(&mut progressing.message);
        return Some(());
    }
    let (waiting, open) = (update_reason::TRANSIENT_FAILURE, update_reason::PROGRESSING);
    for (kind, reason, message) in [(PROGRESSING, waiting, retry.message), (FAILED, open, ""), (COMPLETE, open, "")] {
        let condition = ConditionUpdate { kind, status: Status::False, reason, message };
        conditions::set(conditions, &condition, generation, now);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::api::auto::{Update, Workspace};
    use crate::runtime::fake_api::{FakeResponse, apply_json_merge_patch, client};
    use crate::runtime::writes::Leadership;
    use crate::telemetry::metrics::Metrics;

    fn condition(kind: &str, status: &str, reason: &str, generation: i64) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": "before",
            "observedGeneration": generation, "lastTransitionTime": "2026-01-01T12:00:00Z"})
    }

    /// Reports errors about an object with this status, and returns the conditions and the numbers of status writes
    /// and of events.
    async fn reported<K: Object + 'static>(status: Value, errors: &[&str]) -> (Vec<String>, [usize; 2]) {
        let object = json!({"metadata": {"name": "web", "namespace": "apps", "uid": "1", "generation": 2, "resourceVersion": "5"},
            "spec": {"workspaceName": "web", "stackName": "dev"}, "status": status});
        let object = Arc::new(Mutex::new(object));
        let live = object.clone();
        let (client, log) = client(move |request| {
            let mut live = live.lock().unwrap();
            if request.path.ends_with("/status") {
                let status = json!({"status": request.body["status"]});
                apply_json_merge_patch(&mut live, &status);
            }
            FakeResponse::Json(200, live.clone())
        });
        let writer = Writer::new(client.clone(), Duration::from_secs(5), Leadership::sole(), Metrics::default());
        let (events, task) = Events::new(writer.clone(), "controller", "pod", Metrics::default());
        let reporter = ErrorReporter { reader: Reader::new(client, Duration::from_secs(5)), writer, events };
        let cached: K = serde_json::from_value(object.lock().unwrap().clone()).unwrap();
        for error in errors {
            reporter.report(&cached, error).await;
        }
        let end = tokio_util::sync::CancellationToken::new();
        end.cancel();
        task.run(end).await;
        let paths: Vec<String> = log.all().into_iter().map(|request| request.path).collect();
        let count = |part: &str| paths.iter().filter(|path| path.contains(part)).count();
        let object = object.lock().unwrap();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let describe = |condition: &Value| {
            let [kind, status, reason, message] =
                ["type", "status", "reason", "message"].map(|field| text(&condition[field]));
            format!("{kind}={status} {reason}: {message}")
        };
        (conditions.iter().map(describe).collect(), [count("/status"), count("/events")])
    }

    #[tokio::test]
    async fn a_repeated_error_is_written_once_and_an_event_is_emitted_once() {
        let (conditions, writes) = Box::pin(reported::<Workspace>(json!(null), &["lost", "lost", "lost"])).await;
        let expected = [
            "Ready=False ProgressingWithRetry: lost; retrying with backoff",
            "Reconciling=True ProgressingWithRetry: lost; retrying with backoff",
        ];
        assert_eq!((conditions.as_slice(), writes), (expected.map(str::to_owned).as_slice(), [1, 1]));
        let (conditions, writes) = Box::pin(reported::<Workspace>(json!(null), &["lost", "refused"])).await;
        assert!(conditions[0].contains("refused"), "{conditions:?}");
        assert_eq!(writes, [2, 1], "another error changes the status");
    }

    #[tokio::test]
    async fn the_report_replaces_the_previous_state() {
        let before = [condition(READY, "True", "Succeeded", 2), condition(STALLED, "True", "SpecInvalid", 1)];
        let (conditions, _) = Box::pin(reported::<Workspace>(json!({"conditions": before}), &["lost"])).await;
        let expected = ["Ready=False", "Reconciling=True"]
            .map(|state| format!("{state} ProgressingWithRetry: lost; retrying with backoff"));
        assert_eq!(conditions, expected);
    }

    #[tokio::test]
    async fn the_report_about_an_update_keeps_the_state_of_its_run() {
        let waiting = "Progressing=False TransientFailure: lost; retrying with backoff";
        let open = ["Failed=False Progressing: ", "Complete=False Progressing: "];
        let (conditions, writes) = Box::pin(reported::<Update>(json!({}), &["lost", "lost"])).await;
        assert_eq!((conditions, writes), ([waiting, open[0], open[1]].map(str::to_owned).to_vec(), [1, 1]));
        let unknown = condition(PROGRESSING, "Unknown", "RunOutcomeUnknown", 1);
        let (conditions, _) = Box::pin(reported::<Update>(bound(json!([unknown])), &["lost"])).await;
        assert_eq!(conditions, ["Progressing=Unknown RunOutcomeUnknown: lost; retrying with backoff"]);
        let complete = condition(COMPLETE, "True", "Updated", 1);
        let (conditions, writes) = Box::pin(reported::<Update>(bound(json!([complete])), &["lost"])).await;
        assert_eq!((conditions, writes), (vec!["Complete=True Updated: before".to_owned()], [0, 0]));
    }

    fn bound(conditions: Value) -> Value {
        let run = json!({"podUID": "p", "agentStartID": "a", "settingsDigest": "d"});
        json!({"conditions": conditions, "run": run})
    }
}
