//! Kubernetes events in the format of Flux. Reconciles queue events without waiting; one task writes them to the API.

mod event;

use std::collections::VecDeque;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event as KubernetesEvent, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::runtime::notifications::Notifications;
use crate::runtime::writes::{WriteError, Writer};
use crate::telemetry::metrics::Metrics;

pub use event::{Event, EventKind};
pub(super) use event::{bounded, is_repetition};

/// Maximum number of queued events; further events are dropped and counted.
const QUEUE: usize = 1024;
/// Maximum number of events that are remembered to count repetitions.
const MAX_REMEMBERED: usize = 1024;
/// Period in which a repetition increases the count of an event instead of creating a new one.
const AGGREGATION_WINDOW: Duration = Duration::from_secs(10 * 60);
/// Maximum length of a message that the API accepts.
const MAX_MESSAGE: usize = 1024;
/// Maximum time to write queued events after shutdown has begun.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Queue of events. Cheap to clone; never blocks.
#[derive(Clone, Debug)]
pub struct Events {
    queue: mpsc::Sender<Event>,
    notifications: Option<Notifications>,
    metrics: Metrics,
}

impl Events {
    /// Creates a queue and its task, which the caller must run. `component` is the name of the controller, `instance` the name
    /// of its pod.
    pub fn new(writer: Writer, component: &str, instance: &str, metrics: Metrics) -> (Events, EventTask) {
        let (queue, events) = mpsc::channel(QUEUE);
        let task = EventTask {
            events,
            writer,
            component: component.to_owned(),
            instance: instance.to_owned(),
            metrics: metrics.clone(),
            remembered: Remembered::default(),
        };
        (Events { queue, notifications: None, metrics }, task)
    }

    /// Publishes each event to `notifications` as well.
    #[must_use]
    pub fn also_to(self, notifications: Notifications) -> Events {
        Events { notifications: Some(notifications), ..self }
    }

    /// Queues an event. If the queue is full, the event is dropped and counted.
    pub fn publish(&self, event: Event) {
        if let Some(notifications) = &self.notifications {
            notifications.publish(&event);
        }
        if let Err(error) = self.queue.try_send(event) {
            self.metrics.event_dropped();
            tracing::debug!(%error, "event dropped");
        }
    }
}

/// Task that writes queued events.
pub struct EventTask {
    events: mpsc::Receiver<Event>,
    writer: Writer,
    component: String,
    instance: String,
    metrics: Metrics,
    remembered: Remembered,
}

impl EventTask {
    /// Runs until `end` is canceled. Queued and in-flight events then have a few more seconds.
    pub async fn run(mut self, end: CancellationToken) {
        let overdue = async {
            end.cancelled().await;
            tokio::time::sleep(LAST_WRITES).await;
        };
        tokio::select! {
            () = self.write_all(&end) => {}
            () = overdue => tracing::info!("events still queued after the shutdown timeout"),
        }
    }

    /// Writes events until `end` is canceled and the queue is empty.
    async fn write_all(&mut self, end: &CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = end.cancelled(), if !self.events.is_closed() => self.events.close(),
                event = self.events.recv() => match event {
                    Some(event) => self.write(event).await,
                    None => return,
                },
            }
        }
    }

    async fn write(&mut self, event: Event) {
        let now = Timestamp::now();
        let event = Event { message: bounded(&event.message, MAX_MESSAGE), ..event };
        if let Err(error) = self.write_at(&event, now).await {
            self.metrics.event_dropped();
            tracing::info!(error = &error as &dyn std::error::Error, "failed to write event");
        }
    }

    async fn write_at(&mut self, event: &Event, now: Timestamp) -> Result<(), WriteError> {
        let namespace = event.object.namespace.clone().unwrap_or_default();
        if let Some((name, count)) = self.remembered.repeat(event) {
            let patch = json!({ "count": count, "lastTimestamp": Time(now) });
            match self.writer.merge::<KubernetesEvent>(&namespace, &name, &patch).await {
                // The event may be gone: the API server deletes events after an hour, and users may delete them.
                Err(error) if error.is_not_found() => {}
                other => return other.map(|_| ()),
            }
        }
        let made = self.kubernetes_event(event, now);
        let name = made.name_any();
        self.writer.create(&made).await?;
        self.remembered.add(event, name);
        Ok(())
    }

    fn kubernetes_event(&self, event: &Event, now: Timestamp) -> KubernetesEvent {
        let object = event.object.name.clone().unwrap_or_default();
        KubernetesEvent {
            metadata: ObjectMeta {
                name: Some(format!("{object}.{:x}", now.as_nanosecond())),
                namespace: event.object.namespace.clone(),
                annotations: (!event.metadata.is_empty()).then(|| event.metadata.clone()),
                ..ObjectMeta::default()
            },
            involved_object: event.object.clone(),
            type_: Some(event.kind.as_str().to_owned()),
            reason: Some(event.reason.clone()),
            message: Some(event.message.clone()),
            source: Some(EventSource { component: Some(self.component.clone()), host: None }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.instance.clone()),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..KubernetesEvent::default()
        }
    }
}

/// Recent events, remembered to count repetitions.
#[derive(Default)]
struct Remembered {
    /// Oldest first.
    events: VecDeque<Repeated>,
}

struct Repeated {
    event: Event,
    name: String,
    count: i32,
    begun: Instant,
}

impl Remembered {
    /// Returns the name of a recent event with the same content, and its count including this repetition.
    fn repeat(&mut self, event: &Event) -> Option<(String, i32)> {
        self.events.retain(|known| known.begun.elapsed() < AGGREGATION_WINDOW);
        let known = self.events.iter_mut().find(|known| is_repetition(&known.event, event))?;
        known.count = known.count.saturating_add(1);
        Some((known.name.clone(), known.count))
    }

    fn add(&mut self, event: &Event, name: String) {
        self.events.retain(|known| !is_repetition(&known.event, event));
        if self.events.len() >= MAX_REMEMBERED {
            self.events.pop_front();
        }
        self.events.push_back(Repeated { event: event.clone(), name, count: 1, begun: Instant::now() });
    }
}

#[cfg(test)]
mod tests;
