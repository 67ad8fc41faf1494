//! Destination that writes events to the Kubernetes API in the same format as Flux.

use std::collections::VecDeque;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event as KubernetesEvent, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::queue::{Destination, Event, EventHasher, Queued, Reporter};
use crate::runtime::writes::{WriteError, Writer};
use crate::telemetry::metrics::Metrics;

/// Maximum number of recent events in memory. The task compares new events with these events to count repetitions.
const MAX_RECENT: usize = 1024;
/// Period during which a repeated event increases the existing event's count instead of creating another event.
const AGGREGATION_WINDOW: Duration = Duration::from_secs(10 * 60);

/// Destination that writes events to the Kubernetes API.
pub(super) struct Kubernetes {
    writer: Writer,
    reporter: Reporter,
    recent: RecentEvents,
}

impl Destination for Kubernetes {
    const NAME: &'static str = "Kubernetes API";
    /// Maximum length that the API accepts.
    const MAX_MESSAGE: usize = 1024;
    const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
    type Error = WriteError;

    async fn deliver(&mut self, queued: Queued, _end: &CancellationToken) -> Result<(), WriteError> {
        self.write_at(&queued.event, Timestamp::now()).await
    }

    fn count_dropped(metrics: &Metrics) {
        metrics.event_dropped();
    }
}

impl Kubernetes {
    pub(super) fn new(writer: Writer, reporter: Reporter) -> Self {
        Kubernetes { writer, reporter, recent: RecentEvents::default() }
    }

    async fn write_at(&mut self, event: &Event, now: Timestamp) -> Result<(), WriteError> {
        let namespace = event.object.namespace.clone().unwrap_or_default();
        if let Some((name, count)) = self.recent.repeat(event) {
            let patch = json!({ "count": count, "lastTimestamp": Time(now) });
            match self.writer.merge::<KubernetesEvent>(&namespace, &name, &patch).await {
                // The event may no longer exist, because the API server deletes events after one hour, and users can
                // delete events.
                Err(error) if error.is_not_found() => {}
                other => return other.map(|_| ()),
            }
        }
        let created = self.kubernetes_event(event, now);
        let name = created.name_any();
        self.writer.create(&created).await?;
        self.recent.add(event, name);
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
            source: Some(EventSource { component: Some(self.reporter.component.clone()), host: None }),
            reporting_component: Some(self.reporter.component.clone()),
            reporting_instance: Some(self.reporter.instance.clone()),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..KubernetesEvent::default()
        }
    }
}

/// Recent events, with which the task compares new events to count repetitions.
#[derive(Default)]
struct RecentEvents {
    hasher: EventHasher,
    /// Events, oldest first.
    events: VecDeque<RecentEvent>,
}

struct RecentEvent {
    /// Hash of the event.
    hash: u64,
    name: String,
    count: i32,
    created: Instant,
}

impl RecentEvents {
    /// Increases the count of the recent event with the same content, and returns its name and its new count. Returns
    /// `None` if no recent event has the same content.
    fn repeat(&mut self, event: &Event) -> Option<(String, i32)> {
        self.events.retain(|recent| recent.created.elapsed() < AGGREGATION_WINDOW);
        let hash = self.hasher.hash(event);
        let recent = self.events.iter_mut().find(|recent| recent.hash == hash)?;
        recent.count = recent.count.saturating_add(1);
        Some((recent.name.clone(), recent.count))
    }

    fn add(&mut self, event: &Event, name: String) {
        let hash = self.hasher.hash(event);
        self.events.retain(|recent| recent.hash != hash);
        if self.events.len() >= MAX_RECENT {
            self.events.pop_front();
        }
        self.events.push_back(RecentEvent { hash, name, count: 1, created: Instant::now() });
    }
}
