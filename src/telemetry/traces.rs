//! Traces: spans with explicit times and identifiers, and their export to an OpenTelemetry collector over OTLP.
//!
//! A run spans many reconciliations and can span several processes of the controller. The controller therefore keeps no
//! open spans. It computes all spans of a run from recorded times when the run has ended (`controller/update/trace.rs`),
//! with identifiers that depend only on the Update. If a restarted controller exports the spans again, they have the
//! same identifiers. The controller therefore does not use the tracer of the OpenTelemetry SDK, but its type of a
//! completed span and the exporter for OTLP.

mod export;
mod span;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;

use crate::telemetry::metrics::Metrics;

pub use export::{ExportTask, ExporterError, Settings};
pub use span::{span, span_id, trace_id, traceparent};

/// Maximum number of queued spans. Further spans are dropped, and a metric counts them. A span has less than 2 KiB.
const CAPACITY: usize = 4096;

/// Queue of spans. Without a collector, there is no queue, and all calls have no effect. Cheap to clone. Never blocks.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    queue: Option<Queue>,
}

#[derive(Clone, Debug)]
struct Queue {
    spans: mpsc::Sender<SpanData>,
    metrics: Metrics,
}

impl Traces {
    /// Creates the queue, and the task that exports the queued spans. The caller must run the task. `instance` is the
    /// name of the pod of the controller, and `cluster` is the name of the cluster, which can be empty.
    ///
    /// # Errors
    ///
    /// Returns an error if a variable of the environment contains a setting that the exporter does not support.
    pub fn new(
        settings: &Settings,
        client: reqwest::Client,
        (instance, cluster): (&str, &str),
        metrics: Metrics,
    ) -> Result<(Traces, ExportTask), ExporterError> {
        let (sender, spans) = mpsc::channel(CAPACITY);
        let task = ExportTask::new(settings, client, &resource(instance, cluster), spans, metrics.clone())?;
        Ok((Traces { queue: Some(Queue { spans: sender, metrics }) }, task))
    }

    /// Returns a queue without an exporter, for tests.
    #[cfg(test)]
    pub(crate) fn unexported() -> (Traces, mpsc::Receiver<SpanData>) {
        let (spans, receiver) = mpsc::channel(CAPACITY);
        (Traces { queue: Some(Queue { spans, metrics: Metrics::default() }) }, receiver)
    }

    /// Returns whether the controller exports traces.
    pub fn is_enabled(&self) -> bool {
        self.queue.is_some()
    }

    /// Queues spans. If the queue is full, the remaining spans are dropped, and a metric counts them.
    pub fn export(&self, spans: Vec<SpanData>) {
        let Some(queue) = &self.queue else { return };
        let dropped = spans.into_iter().filter_map(|span| queue.spans.try_send(span).err()).count();
        queue.metrics.spans_dropped(dropped);
    }
}

/// Returns the description of this process. The variable `OTEL_RESOURCE_ATTRIBUTES` adds attributes.
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
