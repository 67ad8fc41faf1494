//! Events about objects, a bounded queue for each destination, and the delivery of queued events.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::telemetry::metrics::Metrics;
use crate::telemetry::redact::url_credentials;

/// Maximum number of queued events. A full queue drops further events and counts them in a metric.
const CAPACITY: usize = 1024;
/// Prefix of the annotations that the controller, like Flux, copies from an object to its event metadata.
const METADATA_PREFIX: &str = "event.toolkit.fluxcd.io/";

/// Component that reports the events.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    /// Name of the controller.
    pub(super) component: String,
    /// Name of the controller's pod.
    pub(super) instance: String,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Event that the task writes to the API as a normal event, but does not post to notification-controller.
    Trace,
    Normal,
    Warning,
}

impl EventKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            EventKind::Trace | EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        }
    }
}

/// Event about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub object: ObjectReference,
    pub kind: EventKind,
    pub reason: String,
    pub message: String,
    /// Metadata of the event, such as `pulumi.com/revision`. The controller writes the metadata to the annotations of
    /// the Kubernetes event.
    pub metadata: BTreeMap<String, String>,
}

impl Event {
    pub fn new<K>(object: &K, kind: EventKind, reason: impl Into<String>, message: impl Into<String>) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        let annotations = object.annotations().iter().filter(|(key, _)| key.starts_with(METADATA_PREFIX));
        let metadata = annotations.map(|(key, value)| (key.clone(), value.clone())).collect();
        let resource_version = object.meta().resource_version.clone();
        let object = ObjectReference { resource_version, ..object.object_ref(&()) };
        Event { object, kind, reason: reason.into(), message: message.into(), metadata }
    }

    /// Adds an entry to the event metadata.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }
}

/// Returns whether two events are equal, apart from the resource version of the object.
pub(super) fn is_repetition(one: &Event, other: &Event) -> bool {
    one.object.uid == other.object.uid
        && one.object.name == other.object.name
        && one.object.namespace == other.object.namespace
        && one.kind == other.kind
        && one.reason == other.reason
        && one.message == other.message
        && one.metadata == other.metadata
}

/// Removes credentials in URLs from a message and truncates the message to `max_length` bytes.
pub(super) fn bounded(message: &str, max_length: usize) -> String {
    let message = url_credentials(message);
    if message.len() <= max_length {
        return message.into_owned();
    }
    let end = message.floor_char_boundary(max_length.saturating_sub(3));
    format!("{}...", message.get(..end).unwrap_or_default())
}

/// Destination of events.
pub(super) trait Destination: Send {
    /// Name of the destination, for logs.
    const NAME: &'static str;
    /// Maximum time for the delivery of queued events during the shutdown.
    const SHUTDOWN_TIMEOUT: Duration;
    type Error: Error + Send + 'static;

    /// Delivers an event. After `end` is canceled, the destination makes at most one further attempt.
    fn deliver(
        &mut self,
        queued: Queued,
        end: &CancellationToken,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Increases the metric that counts undelivered events.
    fn count_dropped(metrics: &Metrics);
}

/// Queued event, and the time at which the controller queued the event.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) event: Event,
    pub(super) at: Timestamp,
}

/// Write side of a queue. Cheap to clone. Never blocks.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<Queued>,
    count_dropped: fn(&Metrics),
    metrics: Metrics,
}

/// Read side of a queue. Delivers the events in order.
pub(super) struct Delivery<D> {
    events: mpsc::Receiver<Queued>,
    destination: D,
    metrics: Metrics,
}

/// Creates both sides of a queue. The caller must run the returned read side.
pub(super) fn queue<D: Destination>(destination: D, metrics: Metrics) -> (Queue, Delivery<D>) {
    let (sender, events) = mpsc::channel(CAPACITY);
    let queue = Queue { sender, count_dropped: D::count_dropped, metrics: metrics.clone() };
    (queue, Delivery { events, destination, metrics })
}

impl Queue {
    /// Queues an event. A full queue drops the event and increases a metric.
    pub(super) fn add(&self, event: Event) {
        if let Err(error) = self.sender.try_send(Queued { event, at: Timestamp::now() }) {
            (self.count_dropped)(&self.metrics);
            tracing::debug!(%error, "event dropped");
        }
    }
}

impl<D: Destination> Delivery<D> {
    /// Delivers events until `end` is canceled. After the cancellation, the function delivers the queued events until
    /// the shutdown timeout expires.
    pub(super) async fn run(mut self, end: &CancellationToken) {
        let overdue = async {
            end.cancelled().await;
            tokio::time::sleep(D::SHUTDOWN_TIMEOUT).await;
        };
        tokio::select! {
            () = self.deliver_all(end) => {}
            () = overdue => tracing::info!(destination = D::NAME, "events still queued after the shutdown timeout"),
        }
    }

    async fn deliver_all(&mut self, end: &CancellationToken) {
        loop {
            let queued = tokio::select! {
                biased;
                () = end.cancelled(), if !self.events.is_closed() => {
                    self.events.close();
                    continue;
                }
                queued = self.events.recv() => queued,
            };
            let Some(queued) = queued else { return };
            if let Err(error) = self.destination.deliver(queued, end).await {
                D::count_dropped(&self.metrics);
                tracing::info!(destination = D::NAME, error = &error as &dyn Error, "failed to deliver event");
            }
        }
    }
}
