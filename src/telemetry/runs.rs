//! Run metrics: numbers of open and queued runs, waiting times, durations and latencies.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::telemetry::slots::Slots;

/// Upper bounds of the buckets for durations in seconds, from the shortest runs to the default timeout.
const DURATION_BUCKETS: [f64; 14] =
    [1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 10800.0];
/// Upper bounds of the buckets for waiting times in seconds, from an immediate start to a wait for the runs of many
/// Stacks.
const WAIT_BUCKETS: [f64; 14] =
    [0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    r#type: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LatencyLabels {
    r#type: &'static str,
    result: &'static str,
}

/// Metrics of runs. Cheap to clone; all clones share the values.
#[derive(Clone, Debug)]
pub struct Runs {
    open: Gauge,
    queued: Gauge,
    slots: Slots,
    wait: Family<WaitLabels, Histogram, fn() -> Histogram>,
    duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
    latency: Family<LatencyLabels, Histogram, fn() -> Histogram>,
}

impl Default for Runs {
    fn default() -> Self {
        Runs {
            open: Gauge::default(),
            queued: Gauge::default(),
            slots: Slots::default(),
            wait: Family::new_with_constructor((|| Histogram::new(WAIT_BUCKETS)) as fn() -> Histogram),
            duration: Family::new_with_constructor((|| Histogram::new(DURATION_BUCKETS)) as fn() -> Histogram),
            latency: Family::new_with_constructor((|| Histogram::new(DURATION_BUCKETS)) as fn() -> Histogram),
        }
    }
}

impl Runs {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("pulumi_controller_runs_open", "Number of open Pulumi runs", self.open.clone());
        registry.register(
            "pulumi_controller_runs_waiting",
            "Number of Pulumi runs in the queue for a run slot",
            self.queued.clone(),
        );
        registry.register(
            "pulumi_controller_run_wait_seconds",
            "Duration in seconds from the creation of an Update to the start of its run",
            self.wait.clone(),
        );
        registry.register(
            "pulumi_controller_run_duration_seconds",
            "Duration in seconds of Pulumi runs",
            self.duration.clone(),
        );
        registry.register(
            "pulumi_controller_artifact_to_result_seconds",
            "Duration in seconds from the due time of the first run of a new artifact to the recorded result of the run",
            self.latency.clone(),
        );
        registry.register_collector(Box::new(self.slots.clone()));
    }

    /// Sets the numbers of open and queued runs.
    pub fn count(&self, open: usize, queued: usize) {
        self.open.set(i64::try_from(open).unwrap_or(i64::MAX));
        self.queued.set(i64::try_from(queued).unwrap_or(i64::MAX));
    }

    /// Returns the run slot metrics.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Records the result of the first run with an artifact.
    pub fn recorded(&self, kind: &'static str, has_succeeded: bool, latency: Duration) {
        let result = if has_succeeded { "succeeded" } else { "failed" };
        self.latency.get_or_create(&LatencyLabels { r#type: kind, result }).observe(latency.as_secs_f64());
    }

    /// Records the start of a run.
    pub fn started(&self, kind: &'static str, waited: Duration) {
        self.wait.get_or_create(&WaitLabels { r#type: kind }).observe(waited.as_secs_f64());
    }

    /// Records the end of a run.
    pub fn ended(&self, kind: &'static str, outcome: &'static str, lasted: Duration) {
        self.duration.get_or_create(&DurationLabels { r#type: kind, outcome }).observe(lasted.as_secs_f64());
    }
}
