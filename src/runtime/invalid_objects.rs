//! Reports objects that cannot be parsed, in their conditions and as events. Such an object triggers no reconcile.

use std::collections::HashMap;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::conditions::{self, Claim, READY, STALLED, Status, stack_reason};
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::tolerant_watcher::ParseError;
use crate::runtime::writes::{Object, Writer};

/// Capacity of the queue of reports. Further reports are dropped; the log contains them.
const CAPACITY: usize = 256;
/// Maximum number of remembered reports.
const MAX_REPORTED: usize = 4096;

/// An object that cannot be parsed.
#[derive(Debug)]
pub struct InvalidObject {
    metadata: ObjectMeta,
    message: String,
}

/// Queue of invalid objects. Never blocks.
#[derive(Clone, Debug)]
pub struct InvalidObjects(mpsc::Sender<InvalidObject>);

impl InvalidObjects {
    /// Creates a queue and its receiver, for [`report`].
    pub fn new() -> (Self, mpsc::Receiver<InvalidObject>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (InvalidObjects(sender), receiver)
    }

    /// Queues an object.
    pub fn add(&self, metadata: &ObjectMeta, error: &ParseError) {
        let object = InvalidObject { metadata: metadata.clone(), message: error.to_string() };
        // A dropped report is in the log.
        drop(self.0.try_send(object));
    }
}

/// Reports each generation of each queued object once, until the queue is closed.
pub async fn report<K: Object>(mut queue: mpsc::Receiver<InvalidObject>, writer: Writer, events: Events) {
    let mut reported: HashMap<Option<String>, Option<i64>> = HashMap::new();
    while let Some(InvalidObject { metadata, message }) = queue.recv().await {
        if reported.len() >= MAX_REPORTED {
            reported.clear();
        }
        // The report itself changes the status, which triggers another event of the same generation.
        if reported.insert(metadata.uid.clone(), metadata.generation) == Some(metadata.generation) {
            continue;
        }
        if let Some(status) = status(&K::kind(&()), &message, metadata.generation.unwrap_or_default())
            && let Err(error) = writer.status_of_invalid::<K>(&metadata, &status).await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to report an invalid object");
            reported.remove(&metadata.uid);
        }
        let object = PartialObjectMeta::<K> { types: None, metadata, _phantom: PhantomData };
        events.publish(Event::new(&object, EventKind::Warning, stack_reason::SPEC_INVALID, message));
    }
}

/// Returns the status of an invalid object, or `None` for an Update, whose conditions record its run.
fn status(kind: &str, message: &str, generation: i64) -> Option<Value> {
    let not_ready = match kind {
        "Update" => return None,
        "Stack" => stack_reason::NOT_READY_STALLED,
        _ => stack_reason::SPEC_INVALID,
    };
    let mut written: Vec<Condition> = Vec::new();
    for (kind, status, reason) in
        [(READY, Status::False, not_ready), (STALLED, Status::True, stack_reason::SPEC_INVALID)]
    {
        let claim = Claim { kind, status, reason, message };
        conditions::set(&mut written, &claim, generation, Timestamp::now());
    }
    Some(json!({ "conditions": written, "observedGeneration": generation }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::Client;

    use super::*;
    use crate::api::auto::Update;
    use crate::api::pulumi::Stack;
    use crate::runtime::fake_api::{FakeResponse, client};
    use crate::runtime::writes::Leadership;
    use crate::telemetry::metrics::Metrics;

    async fn reported<K: Object>(client: Client, generations: &[i64]) {
        let writer = Writer::new(client, Duration::from_secs(5), Leadership::sole(), Metrics::default());
        let (events, _task) = Events::new(writer.clone(), "controller", "pod", Metrics::default());
        let (invalid, queue) = InvalidObjects::new();
        for generation in generations {
            let metadata = ObjectMeta {
                name: Some("web".to_owned()),
                namespace: Some("apps".to_owned()),
                uid: Some("u".to_owned()),
                generation: Some(*generation),
                ..ObjectMeta::default()
            };
            invalid.add(&metadata, &ParseError::TooManyValues(7));
        }
        drop(invalid);
        report::<K>(queue, writer, events).await;
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
        assert_eq!(requests[0].body["metadata"]["uid"], "u", "another object of this name is not changed");
        let conditions = requests[0].body["status"]["conditions"].as_array().expect("conditions");
        let states: Vec<(&Value, &Value, &Value)> = conditions
            .iter()
            .map(|condition| (&condition["type"], &condition["status"], &condition["reason"]))
            .collect();
        let ready = (&json!("Ready"), &json!("False"), &json!("NotReadyStalled"));
        let stalled = (&json!("Stalled"), &json!("True"), &json!("SpecInvalid"));
        assert_eq!(states, [ready, stalled]);
    }

    #[tokio::test]
    async fn a_failed_report_is_repeated_with_the_next_event() {
        let (client, log) = client(|_| FakeResponse::refusal(500, "InternalError"));
        reported::<Stack>(client, &[1, 1]).await;
        assert_eq!(log.all().len(), 2);
    }

    #[tokio::test]
    async fn an_invalid_update_keeps_its_conditions() {
        let (client, log) = client(|_| stack());
        reported::<Update>(client, &[1]).await;
        assert!(log.all().is_empty(), "{:?}", log.verbs());
    }
}
