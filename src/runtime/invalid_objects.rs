//! Reports objects that the controller cannot parse, in the objects' conditions and in events. An invalid object does
//! not trigger a reconciliation, so no reconciler can report the error.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::core::PartialObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::auto::UpdatePhase;
use crate::api::conditions::{
    self, COMPLETE, ConditionUpdate, FAILED, PROGRESSING, READY, STALLED, Status, stack_reason, update_reason,
};
use crate::api::tolerant::ParseError;
use crate::runtime::error_report::ErrorReporter;
use crate::runtime::events::{Event, EventKind};
use crate::runtime::reads::ReadError;
use crate::runtime::writes::{Object, WriteError};

/// Maximum number of queued objects per namespace. The controller reports further invalid objects only in the log.
const CAPACITY: usize = 64;
/// Maximum number of recorded reports. When the controller has recorded this number of reports, it deletes the records
/// and can therefore repeat reports.
const MAX_REPORTED: usize = 4096;
/// Maximum number of attempts to write an object's status.
const MAX_ATTEMPTS: u32 = 5;
/// Maximum size of an Update, in bytes. By default, the API server stores no object that is larger than 1.5 MiB.
const MAX_UPDATE_BYTES: u64 = 4 * 1024 * 1024;
/// Delay before the next attempt after a failed attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Object that cannot be parsed.
#[derive(Clone, Debug)]
struct InvalidObject {
    metadata: ObjectMeta,
    message: String,
    /// Number of failed attempts to write the status.
    attempts: u32,
}

/// Write side of the invalid object queue. Never blocks.
#[derive(Clone, Debug)]
pub struct InvalidObjects {
    waiting: Arc<Mutex<Waiting>>,
    notify: mpsc::Sender<()>,
}

/// Read side of the invalid object queue, for [`report`].
#[derive(Debug)]
pub struct Queue {
    waiting: Arc<Mutex<Waiting>>,
    notified: mpsc::Receiver<()>,
}

/// Queued objects by namespace. The namespaces take turns, so that continuous changes in one namespace do not delay the
/// reports for other namespaces.
#[derive(Debug, Default)]
struct Waiting {
    by_namespace: BTreeMap<String, VecDeque<InvalidObject>>,
    /// Namespace of the last object that left the queue.
    last: String,
}

impl Waiting {
    /// Adds an object, or replaces the queued version of the object.
    fn add(&mut self, object: InvalidObject) {
        let queue = self.by_namespace.entry(object.metadata.namespace.clone().unwrap_or_default()).or_default();
        if let Some(queued) = queue.iter_mut().find(|queued| queued.metadata.name == object.metadata.name) {
            *queued = object;
        } else if queue.len() < CAPACITY {
            queue.push_back(object);
        }
    }

    /// Removes and returns the first object of the next namespace.
    fn next(&mut self) -> Option<InvalidObject> {
        let later = (Bound::Excluded(self.last.clone()), Bound::Unbounded);
        let next = self.by_namespace.range(later).next().or_else(|| self.by_namespace.first_key_value());
        self.last = next?.0.clone();
        let queue = self.by_namespace.get_mut(&self.last)?;
        let object = queue.pop_front();
        if queue.is_empty() {
            self.by_namespace.remove(&self.last);
        }
        object
    }
}

impl InvalidObjects {
    /// Creates the write side and the read side of a queue.
    pub fn new() -> (Self, Queue) {
        let (sender, receiver) = mpsc::channel(1);
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        (InvalidObjects { waiting: waiting.clone(), notify: sender }, Queue { waiting, notified: receiver })
    }

    /// Queues an object.
    pub fn add(&self, metadata: &ObjectMeta, error: &ParseError) {
        let object = InvalidObject { metadata: metadata.clone(), message: error.to_string(), attempts: 0 };
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).add(object);
        // If the channel is full, the reader has not received the previous signal yet, and no further signal is
        // necessary.
        let _is_full = self.notify.try_send(());
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next object, or `None` after the write side is closed and the queue is empty.
    async fn next(&mut self) -> Option<InvalidObject> {
        loop {
            if let Some(object) = self.lock().next() {
                return Some(object);
            }
            self.notified.recv().await?;
        }
    }
}

/// Reports each generation of each queued object once, until the queue is closed.
pub(super) async fn report<K: Object>(mut queue: Queue, reporter: ErrorReporter) {
    let mut reported: HashMap<Option<String>, Option<i64>> = HashMap::new();
    while let Some(object) = queue.next().await {
        let InvalidObject { metadata, message, attempts } = object.clone();
        if reported.len() >= MAX_REPORTED {
            reported.clear();
        }
        // The report changes the status, and this change triggers another watch event for the same generation.
        if reported.insert(metadata.uid.clone(), metadata.generation) == Some(metadata.generation) {
            continue;
        }
        if let Err(error) = write::<K>(&metadata, &message, &reporter).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to report an invalid object");
            reported.remove(&metadata.uid);
            if attempts + 1 < MAX_ATTEMPTS && !error.is_not_found() && !queue.notified.is_closed() {
                queue.lock().add(InvalidObject { attempts: attempts + 1, ..object });
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
        }
        let object = PartialObjectMeta::<K> { types: None, metadata, _phantom: PhantomData };
        reporter.events.publish(Event::new(&object, EventKind::Warning, stack_reason::SPEC_INVALID, message));
    }
}

/// Error of a report about an invalid object.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ReportError {
    fn is_not_found(&self) -> bool {
        matches!(self, ReportError::Write(error) if error.is_not_found())
    }
}

/// Writes the status of an invalid object. Does not change an Update whose run may have started, because its conditions
/// record this run.
async fn write<K: Object>(metadata: &ObjectMeta, message: &str, reporter: &ErrorReporter) -> Result<(), ReportError> {
    let generation = metadata.generation.unwrap_or_default();
    let kind = K::kind(&());
    if kind != "Update" {
        let metadata = ObjectMeta { resource_version: None, ..metadata.clone() };
        return Ok(reporter.writer.status_of_invalid::<K>(&metadata, &status(&kind, message, generation)).await?);
    }
    let (namespace, name) = (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref());
    let fields = format!("metadata.name={}", name.unwrap_or_default());
    let found = reporter.reader.list_as::<K, InvalidUpdate>(namespace, &fields, 1, MAX_UPDATE_BYTES).await?;
    let Some(found) = found.into_iter().find(|found| found.metadata.uid == metadata.uid) else { return Ok(()) };
    if found.status.is_none_or(|status| status.run.is_none()) {
        // The resource version prevents that the report replaces the record of a run that starts at the same time.
        let metadata = ObjectMeta { resource_version: found.metadata.resource_version, ..metadata.clone() };
        reporter.writer.status_of_invalid::<K>(&metadata, &failed_update(message, generation)).await?;
    }
    Ok(())
}

/// Fields of an invalid Update that show whether its run has started.
#[derive(Deserialize)]
struct InvalidUpdate {
    metadata: Version,
    status: Option<InvalidUpdateStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Deserialize)]
struct InvalidUpdateStatus {
    run: Option<IgnoredAny>,
}

/// Returns the status of an invalid object of a kind with the condition `Ready`.
fn status(kind: &str, message: &str, generation: i64) -> Value {
    let reason = stack_reason::SPEC_INVALID;
    let conditions =
        all(&[(READY, Status::False, reason, message), (STALLED, Status::True, reason, message)], generation);
    // `kubectl get stacks` displays the summary.
    let summary = (kind == "Stack").then(|| conditions::summary(&conditions)).flatten();
    json!({ "conditions": conditions, "observedGeneration": generation, "summary": summary })
}

/// Returns the status of an invalid Update whose run has not started.
fn failed_update(message: &str, generation: i64) -> Value {
    let conditions = [
        (PROGRESSING, Status::False, "Failed", ""),
        (FAILED, Status::True, update_reason::SPEC_INVALID, message),
        (COMPLETE, Status::True, update_reason::UPDATED, ""),
    ];
    json!({
        "conditions": all(&conditions, generation), "observedGeneration": generation, "phase": UpdatePhase::Failed,
        "message": message,
    })
}

/// Returns conditions, each with a type, a status, a reason and a message.
fn all(desired: &[(&str, Status, &str, &str)], generation: i64) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for &(kind, status, reason, message) in desired {
        let condition = ConditionUpdate { kind, status, reason, message };
        conditions::set(&mut conditions, &condition, generation, Timestamp::now());
    }
    conditions
}

#[cfg(test)]
mod tests {
    use kube::Client;

    use super::*;
    use crate::api::auto::Update;
    use crate::api::pulumi::Stack;
    use crate::runtime::events::Events;
    use crate::runtime::fake_api::{FakeResponse, client};
    use crate::runtime::reads::Reader;
    use crate::runtime::writes::{Leadership, Writer};
    use crate::telemetry::metrics::Metrics;

    fn reporter(client: Client) -> ErrorReporter {
        let limit = Duration::from_secs(5);
        let writer = Writer::new(client.clone(), limit, Leadership::sole(), Metrics::default());
        let (events, _task) = Events::new(writer.clone(), "controller", "pod", Metrics::default());
        ErrorReporter { reader: Reader::new(client, limit), writer, events }
    }

    async fn reported<K: Object + 'static>(client: Client, generations: &[i64]) {
        let (invalid, queue) = InvalidObjects::new();
        let reports = tokio::spawn(report::<K>(queue, reporter(client)));
        for generation in generations {
            invalid.add(&metadata("apps", "web", *generation), &ParseError::TooManyValues(7));
            while invalid.waiting.lock().unwrap().by_namespace.contains_key("apps") {
                tokio::task::yield_now().await;
            }
        }
        drop(invalid);
        reports.await.expect("no panic");
    }

    fn metadata(namespace: &str, name: &str, generation: i64) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            uid: Some(format!("uid-of-{name}")),
            generation: Some(generation),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn namespaces_take_turns_and_each_invalid_object_is_queued_once() {
        let mut waiting = Waiting::default();
        let mut add = |namespace: &str, name: &str, generation: i64| {
            waiting.add(InvalidObject {
                metadata: metadata(namespace, name, generation),
                message: String::new(),
                attempts: 0,
            });
        };
        for (namespace, name) in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("c", "c2")] {
            add(namespace, name, 1);
        }
        add("a", "a1", 2);
        let order: Vec<String> = std::iter::from_fn(|| waiting.next())
            .map(|object| {
                format!(
                    "{}:{}",
                    object.metadata.name.unwrap_or_default(),
                    object.metadata.generation.unwrap_or_default()
                )
            })
            .collect();
        assert_eq!(order, ["a1:2", "b1:1", "c1:1", "a2:1", "c2:1", "a3:1"]);
        for number in 0..2 * CAPACITY {
            let metadata = metadata("a", &number.to_string(), 1);
            waiting.add(InvalidObject { metadata, message: String::new(), attempts: 0 });
        }
        assert_eq!(std::iter::from_fn(|| waiting.next()).count(), CAPACITY);
    }

    fn stack() -> FakeResponse {
        FakeResponse::Json(200, json!({"metadata": {"name": "web", "namespace": "apps"}, "spec": {"stack": 1}}))
    }

    #[tokio::test]
    async fn each_generation_of_an_invalid_object_is_reported_once() {
        let (client, log) = client(|_| stack());
        reported::<Stack>(client, &[1, 1, 2, 2]).await;
        let requests = log.all();
        let generations: Vec<&Value> =
            requests.iter().map(|request| &request.body["status"]["observedGeneration"]).collect();
        assert_eq!(generations, [1, 2]);
        assert!(requests[0].path.ends_with("/namespaces/apps/stacks/web/status"), "{}", requests[0].path);
        assert_eq!(requests[0].body["metadata"]["uid"], "uid-of-web", "another object of this name is not changed");
        let summary = "the object has 7 JSON values, more than the maximum o...";
        assert_eq!(requests[0].body["status"]["summary"], summary);
        let conditions = requests[0].body["status"]["conditions"].as_array().expect("conditions");
        let states: Vec<(&Value, &Value, &Value)> = conditions
            .iter()
            .map(|condition| (&condition["type"], &condition["status"], &condition["reason"]))
            .collect();
        let ready = (&json!("Ready"), &json!("False"), &json!("SpecInvalid"));
        let stalled = (&json!("Stalled"), &json!("True"), &json!("SpecInvalid"));
        assert_eq!(states, [ready, stalled]);
    }

    #[tokio::test(start_paused = true)]
    async fn reports_of_an_invalid_object_are_retried_up_to_the_maximum() {
        let (client, log) = client(|_| FakeResponse::refusal(500, "InternalError"));
        let (invalid, queue) = InvalidObjects::new();
        let reports = tokio::spawn(report::<Stack>(queue, reporter(client)));
        invalid.add(&metadata("apps", "web", 1), &ParseError::TooManyValues(7));
        tokio::time::sleep(RETRY_INTERVAL * (MAX_ATTEMPTS + 5)).await;
        drop(invalid);
        reports.await.expect("no panic");
        assert_eq!(log.all().len(), 5);
    }

    #[tokio::test]
    async fn a_failed_report_of_a_deleted_object_is_not_retried() {
        let (client, log) = client(|_| FakeResponse::refusal(404, "NotFound"));
        reported::<Stack>(client, &[1]).await;
        assert_eq!(log.all().len(), 1);
    }

    #[tokio::test]
    async fn an_invalid_update_fails_unless_its_run_has_started() {
        for (status, is_changed) in
            [(json!(null), true), (json!({"conditions": []}), true), (json!({"run": {"podUID": "p"}}), false)]
        {
            let metadata = json!({"name": "web", "namespace": "apps", "uid": "uid-of-web", "resourceVersion": "7"});
            let update = json!({"metadata": metadata, "spec": {"parallel": "many"}, "status": status});
            let list = json!({"kind": "UpdateList", "apiVersion": "auto.pulumi.com/v1alpha1", "metadata": {}, "items": [update]});
            let (client, log) = client(move |request| match request.method.as_str() {
                "GET" => FakeResponse::Json(200, list.clone()),
                _ => FakeResponse::Json(200, update.clone()),
            });
            reported::<Update>(client, &[3]).await;
            let requests = log.all();
            let written: Vec<&Value> = requests.iter().skip(1).map(|request| &request.body).collect();
            assert_eq!(written.len(), usize::from(is_changed), "{status}");
            for body in written {
                assert_eq!(body["metadata"]["resourceVersion"], "7", "a run that starts at the same time is kept");
                assert_eq!(
                    (&body["status"]["observedGeneration"], &body["status"]["phase"]),
                    (&json!(3), &json!("Failed"))
                );
                let conditions = body["status"]["conditions"].as_array().unwrap();
                let states: Vec<String> =
                    conditions.iter().map(|c| format!("{}={} {}", c["type"], c["status"], c["reason"])).collect();
                let expected = ["Progressing=False Failed", "Failed=True SpecInvalid", "Complete=True Updated"];
                assert_eq!(states.iter().map(|state| state.replace('"', "")).collect::<Vec<_>>(), expected);
                assert!(conditions[1]["message"].as_str().unwrap().contains("JSON values"), "{body}");
            }
        }
    }
}
