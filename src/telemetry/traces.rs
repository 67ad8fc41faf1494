//! Traces: spans with explicit times and identifiers, and their export to an OpenTelemetry collector over OTLP.
//!
//! A run extends over many reconciliations, and possibly over several controller processes. The controller therefore
//! keeps no open spans. When a run has completed, the controller computes all of its spans from recorded times (see
//! `controller/update/trace.rs`). The span identifiers depend only on the Update. If a restarted controller exports the
//! spans again, they have the same identifiers. From the OpenTelemetry SDK, the controller therefore uses only the
//! completed span type and the OTLP exporter, but not the tracer.

mod export;
mod queue;
mod span;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;

use crate::telemetry::metrics::Metrics;
use queue::SpanQueue;

pub use export::{ExportTask, ExporterError, Settings};
pub use span::{span, span_id, trace_id, traceparent};

/// Queue of spans. Without a collector, there is no queue, and spans are discarded. Cheap to clone. Never
/// blocks.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    queue: Option<Queue>,
}

#[derive(Clone, Debug)]
struct Queue {
    spans: SpanQueue,
    metrics: Metrics,
}

impl Traces {
    /// Creates the queue, and the task that exports the queued spans. The caller must run the task. `instance` is the
    /// name of the controller's pod, and `cluster` is the name of the cluster, which can be empty.
    ///
    /// # Errors
    ///
    /// Returns an error if an environment variable contains a setting that the exporter does not support.
    pub fn new(
        settings: &Settings,
        client: reqwest::Client,
        (instance, cluster): (&str, &str),
        metrics: Metrics,
    ) -> Result<(Traces, ExportTask), ExporterError> {
        let spans = SpanQueue::default();
        let task = ExportTask::new(settings, client, &resource(instance, cluster), spans.clone(), metrics.clone())?;
        Ok((Traces { queue: Some(Queue { spans, metrics }) }, task))
    }

    /// Returns a queue without an exporter, for tests.
    #[cfg(test)]
    pub(crate) fn unexported() -> (Traces, SpanQueue) {
        let spans = SpanQueue::default();
        (Traces { queue: Some(Queue { spans: spans.clone(), metrics: Metrics::default() }) }, spans)
    }

    /// Returns whether the controller exports traces.
    pub fn is_enabled(&self) -> bool {
        self.queue.is_some()
    }

    /// Queues spans of a namespace. A full queue drops spans that belong to the namespace with the most queued spans,
    /// and counts the dropped spans in a metric.
    pub fn export(&self, namespace: &str, spans: Vec<SpanData>) {
        let Some(queue) = &self.queue else { return };
        queue.metrics.spans_dropped(queue.spans.push(namespace, spans));
    }
}

/// Returns the OpenTelemetry resource of this process. The environment variable `OTEL_RESOURCE_ATTRIBUTES` adds
/// attributes.
fn resource(instance: &str, cluster: &str) -> Resource {
    let attributes = [
        ("service.name", span::SERVICE),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", instance),
        ("k8s.cluster.name", cluster),
    ];
    let known = attributes.into_iter().filter(|(_, value)| !value.is_empty());
    Resource::builder().with_attributes(known.map(|(key, value)| KeyValue::new(key, value.to_owned()))).build()
}

#[cfg(test)]
mod tests;
