//! Exports the trace of a run. When the controller records the result of the run, it computes all spans from the
//! recorded times and queues them for export.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use opentelemetry::trace::TraceId;

use crate::api::auto::{Update, UpdateStatus};
use crate::controller::update::resource_steps::ResourceSteps;
use crate::controller::update::trace_context::TraceContext;
use crate::controller::update::trace_spans::{self, RUN, Recorded};
use crate::rpc::proto;
use crate::telemetry::traces::{Traces, traceparent};

/// Maximum number of Updates that the controller remembers. If more runs complete before the controller removes the
/// finalizer from an Update, the controller exports the spans of this Update twice.
const MAX_EXPORTED: usize = 1024;

/// Exports the traces of runs. Without a collector, the methods have no effect. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub struct RunTraces {
    traces: Traces,
    /// Endpoint to which the CLI exports its spans, or an empty string if the CLI exports no spans.
    cli_endpoint: Arc<str>,
    /// Updates whose spans this process has exported. Hold the lock only for short critical sections.
    exported: Arc<Mutex<Exported>>,
}

/// UIDs of the Updates whose spans were most recently exported. A UID remains even after the controller has removed
/// the finalizer from the Update: the removal can fail, and the cache can still contain the finalizer.
#[derive(Debug, Default)]
struct Exported {
    uids: HashSet<String>,
    /// The UIDs in `uids`, oldest first.
    order: VecDeque<String>,
}

impl Exported {
    /// Adds the UID of an Update. Returns whether the UID is new.
    fn insert(&mut self, uid: String) -> bool {
        if !self.uids.insert(uid.clone()) {
            return false;
        }
        self.order.push_back(uid);
        if self.order.len() > MAX_EXPORTED
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
        true
    }
}

impl RunTraces {
    pub fn new(traces: Traces, cli_endpoint: Option<&str>) -> Self {
        RunTraces { traces, cli_endpoint: cli_endpoint.unwrap_or_default().into(), exported: Arc::default() }
    }

    /// Returns whether the controller exports traces.
    pub fn is_enabled(&self) -> bool {
        self.traces.is_enabled()
    }

    /// Returns the trace ID for the run of an Update, or `None` if the controller exports no traces.
    pub fn trace_id(&self, update: &Update) -> Option<TraceId> {
        self.is_enabled().then(|| TraceContext::of(update).trace())
    }

    /// Adds the trace context of the run to the request for the agent.
    pub fn add_to(&self, update: &Update, request: proto::RunRequest) -> proto::RunRequest {
        if !self.is_enabled() {
            return request;
        }
        let context = TraceContext::of(update);
        let traceparent = traceparent(context.trace(), context.span(RUN));
        proto::RunRequest { traceparent, otlp_endpoint: self.cli_endpoint.to_string(), ..request }
    }

    /// Exports the spans of a run after the controller has recorded the result in `status`.
    pub fn record(&self, update: &Update, status: &UpdateStatus, steps: Option<&ResourceSteps>) {
        if !self.is_enabled() {
            return;
        }
        self.is_first_export(update);
        self.export(&Recorded { update, status, recorded: jiff::Timestamp::now(), steps });
    }

    /// Exports the spans of a run if an earlier process recorded the result, because that process may have terminated
    /// before the export. The spans of the resource operations are lost.
    pub fn release(&self, update: &Update) {
        if !self.is_enabled() {
            return;
        }
        let Some(status) = &update.status else { return };
        if self.is_first_export(update) {
            let ended = status.end_time.as_ref().map_or_else(jiff::Timestamp::now, |ended| ended.0);
            self.export(&Recorded { update, status, recorded: ended, steps: None });
        }
    }

    /// Records that the spans of an Update are exported. Returns whether this process exports them for the first
    /// time.
    fn is_first_export(&self, update: &Update) -> bool {
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        exported.insert(update.uid().unwrap_or_default())
    }

    fn export(&self, recorded: &Recorded<'_>) {
        let namespace = recorded.update.namespace().unwrap_or_default();
        self.traces.export(&namespace, trace_spans::spans(recorded));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn update() -> Update {
        serde_json::from_value(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
            "metadata": {"name": "app-1", "uid": "uid", "creationTimestamp": "2026-01-01T12:00:00Z"},
            "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
            "status": {"endTime": "2026-01-01T12:00:09Z"},
        }))
        .unwrap()
    }

    #[test]
    fn each_process_exports_the_spans_of_a_run_at_most_once() {
        let (traces, spans) = Traces::unexported();
        let received = || spans.drain().into_iter().map(|span| span.name.into_owned()).collect::<Vec<_>>();
        let traces = RunTraces::new(traces, None);
        traces.record(&update(), &UpdateStatus::default(), None);
        assert_eq!(received(), ["pulumi up", "queue"]);
        for _ in 0..2 {
            traces.release(&update());
            assert!(received().is_empty(), "this process has exported the spans");
        }
        let traces = RunTraces { exported: Arc::default(), ..traces };
        traces.release(&update());
        assert_eq!(received(), ["pulumi up", "queue"], "an earlier process has recorded the result");
        traces.release(&update());
        assert!(received().is_empty(), "the removal of the finalizer has failed");
    }

    #[test]
    fn the_number_of_recorded_updates_is_limited() {
        let mut exported = Exported::default();
        for number in 0..=MAX_EXPORTED {
            assert!(exported.insert(number.to_string()));
            assert!(!exported.insert(number.to_string()));
        }
        assert_eq!((exported.uids.len(), exported.order.len()), (MAX_EXPORTED, MAX_EXPORTED));
        assert!(exported.insert("0".to_owned()), "the oldest Update is no longer recorded");
    }

    #[test]
    fn the_agent_receives_the_span_of_the_run() {
        let (traces, _spans) = Traces::unexported();
        let request = RunTraces::new(traces, Some("grpc://otel:4317")).add_to(&update(), proto::RunRequest::default());
        let context = TraceContext::of(&update());
        let expected = traceparent(context.trace(), context.span(RUN));
        assert_eq!((request.traceparent, request.otlp_endpoint.as_str()), (expected, "grpc://otel:4317"));
        let without = RunTraces::default().add_to(&update(), proto::RunRequest::default());
        assert_eq!(without, proto::RunRequest::default());
        assert_eq!(RunTraces::default().trace_id(&update()), None);
    }
}
