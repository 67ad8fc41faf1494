//! Events about objects, a bounded queue for each destination, and the delivery of queued events.

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::api::conditions::shorten;
use crate::telemetry::fair_buffer::FairBuffer;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::redact::url_credentials;

/// Maximum number of queued events. A full queue drops events of the namespace with the most queued events, and counts
/// them in a metric.
const CAPACITY: usize = 1024;
/// Prefix of the annotations that the controller, like Flux, copies from an object to its event metadata.
const METADATA_PREFIX: &str = "event.toolkit.fluxcd.io/";
/// Maximum total length of the metadata that the controller copies from an object, in bytes. The annotations of an
/// object can have 256 KiB.
const MAX_COPIED_METADATA: usize = 16 * 1024;
/// Maximum length of any other metadata value, in bytes.
const MAX_METADATA_VALUE: usize = 4096;

/// Component that reports the events.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    /// Name of the controller.
    pub(super) component: String,
    /// Name of the controller's pod.
    pub(super) instance: String,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Event that the task writes to the API as a normal event, but does not post to notification-controller.
    Trace,
    /// Normal event that the task posts to notification-controller, but does not write to the API.
    Notification,
    Normal,
    Warning,
}

impl EventKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            EventKind::Trace | EventKind::Notification | EventKind::Normal => "Normal",
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
        let metadata = copied_metadata(object.annotations());
        let resource_version = object.meta().resource_version.clone();
        let object = ObjectReference { resource_version, ..object.object_ref(&()) };
        Event { object, kind, reason: reason.into(), message: message.into(), metadata }
    }

    /// Adds an entry to the event metadata.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let value: String = value.into();
        self.metadata.insert(key.into(), shorten(&value, MAX_METADATA_VALUE));
        self
    }
}

/// Returns the annotations that are event metadata. Omits annotations that exceed the maximum total length.
fn copied_metadata(annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut left = MAX_COPIED_METADATA;
    let fits = |(key, value): &(&String, &String)| match left.checked_sub(key.len() + value.len()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    let copied = annotations.iter().filter(|(key, _)| key.starts_with(METADATA_PREFIX)).filter(fits);
    copied.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Computes hashes of events. A destination keeps the hashes of earlier events instead of the events, because an event
/// can be large. The hashes have a random key, so that no user can create an event with the hash of another event.
#[derive(Debug, Default)]
pub(super) struct EventHasher(RandomState);

impl EventHasher {
    /// Returns the hash of an event. The hashes of two events are equal if the events are equal apart from the resource
    /// version of the object.
    pub(super) fn hash(&self, event: &Event) -> u64 {
        let Event { object, kind, reason, message, metadata } = event;
        self.0.hash_one((&object.uid, &object.name, &object.namespace, kind, reason, message, metadata))
    }
}

/// Removes credentials in URLs from a message and truncates the message to `max_length` bytes.
fn bounded(message: &str, max_length: usize) -> String {
    shorten(&url_credentials(message), max_length)
}

/// Destination of events.
pub(super) trait Destination: Send {
    /// Name of the destination, for logs.
    const NAME: &'static str;
    /// Maximum length of a message, in bytes.
    const MAX_MESSAGE: usize;
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
    waiting: Arc<Waiting>,
    max_message: usize,
    count_dropped: fn(&Metrics),
    metrics: Metrics,
}

/// Read side of a queue. Delivers the events of a namespace in order. The namespaces take turns.
pub(super) struct Delivery<D> {
    waiting: Arc<Waiting>,
    destination: D,
    metrics: Metrics,
}

/// Events that both sides of a queue share.
#[derive(Debug)]
struct Waiting {
    /// Hold the lock only for short critical sections, and never across an `.await`.
    events: Mutex<Buffered>,
    /// Signals that the queue contains events.
    changed: Notify,
}

#[derive(Debug)]
struct Buffered {
    buffer: FairBuffer<Queued>,
    /// Whether the queue accepts no further events, because the controller shuts down.
    is_closed: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Buffered> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. Returns the event that the queue drops, if any.
    fn push(&self, namespace: &str, queued: Queued) -> Option<Queued> {
        let mut events = self.lock();
        let dropped = if events.is_closed { Some(queued) } else { events.buffer.push(namespace, queued) };
        drop(events);
        self.changed.notify_one();
        dropped
    }

    /// Waits for the next event. After the cancellation of `end`, closes the queue, and returns the remaining events
    /// and then `None`.
    async fn next(&self, end: &CancellationToken) -> Option<Queued> {
        loop {
            let is_ending = end.is_cancelled();
            let next = self.pop(is_ending);
            if next.is_some() || is_ending {
                return next;
            }
            tokio::select! {
                () = end.cancelled() => {}
                () = self.changed.notified() => {}
            }
        }
    }

    fn pop(&self, close: bool) -> Option<Queued> {
        let mut events = self.lock();
        events.is_closed |= close;
        events.buffer.pop()
    }
}

/// Creates both sides of a queue. The caller must run the returned read side.
pub(super) fn queue<D: Destination>(destination: D, metrics: Metrics) -> (Queue, Delivery<D>) {
    let events = Mutex::new(Buffered { buffer: FairBuffer::new(CAPACITY), is_closed: false });
    let waiting = Arc::new(Waiting { events, changed: Notify::new() });
    let (max_message, count_dropped) = (D::MAX_MESSAGE, D::count_dropped);
    let queue = Queue { waiting: Arc::clone(&waiting), max_message, count_dropped, metrics: metrics.clone() };
    (queue, Delivery { waiting, destination, metrics })
}

impl Queue {
    /// Queues an event with a truncated message. A full queue drops an event and increases a metric.
    pub(super) fn add(&self, event: Event) {
        let event = Event { message: bounded(&event.message, self.max_message), ..event };
        let namespace = event.object.namespace.clone().unwrap_or_default();
        if let Some(dropped) = self.waiting.push(&namespace, Queued { event, at: Timestamp::now() }) {
            (self.count_dropped)(&self.metrics);
            tracing::debug!(namespace = dropped.event.object.namespace, "event dropped");
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
        while let Some(queued) = self.waiting.next(end).await {
            if let Err(error) = self.destination.deliver(queued, end).await {
                D::count_dropped(&self.metrics);
                tracing::info!(destination = D::NAME, error = &error as &dyn Error, "failed to deliver event");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pulumi::{Stack, StackSpec};

    fn stack(annotations: &[(&str, &str)]) -> Stack {
        let mut stack = Stack::new("web", StackSpec::default());
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        stack.metadata.annotations = Some(annotations.collect());
        stack
    }

    fn event(message: &str) -> Event {
        Event::new(&stack(&[]), EventKind::Normal, "Succeeded", message)
    }

    struct Short;

    impl Destination for Short {
        const NAME: &'static str = "short messages";
        const MAX_MESSAGE: usize = 20;
        const SHUTDOWN_TIMEOUT: Duration = Duration::ZERO;
        type Error = std::convert::Infallible;

        async fn deliver(&mut self, _queued: Queued, _end: &CancellationToken) -> Result<(), Self::Error> {
            Ok(())
        }

        fn count_dropped(_metrics: &Metrics) {}
    }

    #[test]
    fn a_queue_contains_only_short_messages_without_credentials() {
        let rows = [
            ("short", "short"),
            ("exactly twenty bytes", "exactly twenty bytes"),
            ("more than twenty bytes", "more than twenty ..."),
            ("https://user:a-long-password@host/", "https://***@host/"),
        ];
        for (message, expected) in rows {
            let (queue, delivery) = queue(Short, Metrics::default());
            queue.add(event(message));
            assert_eq!(delivery.waiting.pop(false).unwrap().event.message, expected);
        }
    }

    #[test]
    fn a_namespace_does_not_displace_the_events_of_other_namespaces() {
        let (queue, delivery) = queue(Short, Metrics::default());
        let add = |namespace: &str, message: &str| {
            let mut event = event(message);
            event.object.namespace = Some(namespace.to_owned());
            queue.add(event);
        };
        (0..2 * CAPACITY).for_each(|number| add("busy", &number.to_string()));
        add("quiet", "a");
        add("quiet", "b");
        let left: Vec<String> =
            std::iter::from_fn(|| delivery.waiting.pop(false)).map(|queued| queued.event.message).collect();
        assert_eq!(left.len(), CAPACITY);
        assert_eq!(left[..5], ["0", "a", "1", "b", "2"]);
    }

    #[tokio::test]
    async fn a_queue_delivers_the_remaining_events_before_it_ends() {
        let (queue, delivery) = queue(Short, Metrics::default());
        let end = CancellationToken::new();
        queue.add(event("first"));
        queue.add(event("second"));
        end.cancel();
        let mut left = Vec::new();
        while let Some(queued) = delivery.waiting.next(&end).await {
            left.push(queued.event.message);
            queue.add(event("too late"));
        }
        assert_eq!(left, ["first", "second"]);
    }

    #[test]
    fn the_metadata_of_an_event_is_limited() {
        let long = "x".repeat(MAX_COPIED_METADATA);
        let annotations = [
            ("event.toolkit.fluxcd.io/a", "1"),
            ("event.toolkit.fluxcd.io/b", long.as_str()),
            ("event.toolkit.fluxcd.io/c", "2"),
            ("other", "3"),
        ];
        let event = Event::new(&stack(&annotations), EventKind::Normal, "Succeeded", "message").with("own", &long);
        let keys: Vec<&str> = event.metadata.keys().map(String::as_str).collect();
        assert_eq!(keys, ["event.toolkit.fluxcd.io/a", "event.toolkit.fluxcd.io/c", "own"]);
        assert_eq!(event.metadata["own"].len(), MAX_METADATA_VALUE);
    }

    #[test]
    fn only_the_resource_version_does_not_change_the_hash_of_an_event() {
        let hasher = EventHasher::default();
        let change_object = |change: fn(&mut ObjectReference)| {
            let mut event = event("message");
            change(&mut event.object);
            event
        };
        let rows = [
            (event("message"), true),
            (change_object(|object| object.resource_version = Some("8".to_owned())), true),
            (change_object(|object| object.uid = Some("u2".to_owned())), false),
            (change_object(|object| object.name = Some("api".to_owned())), false),
            (change_object(|object| object.namespace = Some("other".to_owned())), false),
            (event("other message"), false),
            (event("message").with("key", "value"), false),
            (Event { kind: EventKind::Warning, ..event("message") }, false),
            (Event { reason: "Failed".to_owned(), ..event("message") }, false),
        ];
        for (other, expected) in rows {
            assert_eq!(hasher.hash(&other) == hasher.hash(&event("message")), expected, "{other:?}");
        }
    }
}
