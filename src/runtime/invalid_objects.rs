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
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::conditions::{self, ConditionUpdate, READY, STALLED, Status, stack_reason};
use crate::api::tolerant::ParseError;
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::writes::{Object, Writer};

/// Maximum number of queued objects per namespace. The controller reports further invalid objects only in the log.
const CAPACITY: usize = 64;
/// Maximum number of recorded reports. When the controller has recorded this number of reports, it deletes the records
/// and can therefore repeat reports.
const MAX_REPORTED: usize = 4096;
/// Maximum number of attempts to write an object's status.
const MAX_ATTEMPTS: u32 = 5;
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
pub async fn report<K: Object>(mut queue: Queue, writer: Writer, events: Events) {
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
        if let Some(status) = status(&K::kind(&()), &message, metadata.generation.unwrap_or_default())
            && let Err(error) = writer.status_of_invalid::<K>(&metadata, &status).await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to report an invalid object");
            reported.remove(&metadata.uid);
            if attempts + 1 < MAX_ATTEMPTS && !error.is_not_found() && !queue.notified.is_closed() {
                queue.lock().add(InvalidObject { attempts: attempts + 1, ..object });
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
        }
        let object = PartialObjectMeta::<K> { types: None, metadata, _phantom: PhantomData };
        events.publish(Event::new(&object, EventKind::Warning, stack_reason::SPEC_INVALID, message));
    }
}

/// Returns the status for an invalid object, or `None` for an Update, because an Update's conditions record its run.
fn status(kind: &str, message: &str, generation: i64) -> Option<Value> {
    let not_ready = match kind {
        "Update" => return None,
        "Stack" => stack_reason::NOT_READY_STALLED,
        _ => stack_reason::SPEC_INVALID,
    };
    let mut written: Vec<Condition> = Vec::new();
    for (condition, status, reason) in
        [(READY, Status::False, not_ready), (STALLED, Status::True, stack_reason::SPEC_INVALID)]
    {
        let condition = ConditionUpdate { kind: condition, status, reason, message };
        conditions::set(&mut written, &condition, generation, Timestamp::now());
    }
    // `kubectl get stacks` displays the summary.
    let summary = (kind == "Stack").then_some("SpecInvalid: see the message of the condition Stalled");
    Some(json!({ "conditions": written, "observedGeneration": generation, "summary": summary }))
}

#[cfg(test)]
mod tests {
    use kube::Client;

    use super::*;
    use crate::api::auto::Update;
    use crate::api::pulumi::Stack;
    use crate::runtime::fake_api::{FakeResponse, client};
    use crate::runtime::writes::Leadership;
    use crate::telemetry::metrics::Metrics;

    async fn reported<K: Object + 'static>(client: Client, generations: &[i64]) {
        let writer = Writer::new(client, Duration::from_secs(5), Leadership::sole(), Metrics::default());
        let (events, _task) = Events::new(writer.clone(), "controller", "pod", Metrics::default());
        let (invalid, queue) = InvalidObjects::new();
        let reports = tokio::spawn(report::<K>(queue, writer, events));
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
        assert_eq!(requests[0].body["status"]["summary"], "SpecInvalid: see the message of the condition Stalled");
        let conditions = requests[0].body["status"]["conditions"].as_array().expect("conditions");
        let states: Vec<(&Value, &Value, &Value)> = conditions
            .iter()
            .map(|condition| (&condition["type"], &condition["status"], &condition["reason"]))
            .collect();
        let ready = (&json!("Ready"), &json!("False"), &json!("NotReadyStalled"));
        let stalled = (&json!("Stalled"), &json!("True"), &json!("SpecInvalid"));
        assert_eq!(states, [ready, stalled]);
    }

    #[tokio::test(start_paused = true)]
    async fn reports_of_an_invalid_object_are_retried_up_to_the_maximum() {
        let (client, log) = client(|_| FakeResponse::refusal(500, "InternalError"));
        let writer = Writer::new(client, Duration::from_secs(5), Leadership::sole(), Metrics::default());
        let (events, _task) = Events::new(writer.clone(), "controller", "pod", Metrics::default());
        let (invalid, queue) = InvalidObjects::new();
        let reports = tokio::spawn(report::<Stack>(queue, writer, events));
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
    async fn the_conditions_of_an_invalid_update_are_not_changed() {
        let (client, log) = client(|_| stack());
        reported::<Update>(client, &[1]).await;
        assert!(log.all().is_empty(), "{:?}", log.verbs());
    }
}
