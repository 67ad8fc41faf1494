//! Reconciliation metrics with the same names as in Flux and controller-runtime.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets_range};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// Kinds without a separate time series for each object. A Stack has one Workspace and several Updates. In a cluster
/// with thousands of Stacks, separate series for these objects would use more memory than the caches.
const WITHOUT_OBJECT_SERIES: [&str; 2] = ["Update", "Workspace"];

/// Result of a reconciliation, as in controller-runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReconcileResult {
    /// Success without a requeue.
    Success,
    /// Failure.
    Error,
    /// Requeue after a success, an unmet precondition or a write conflict.
    RequeueAfter,
}

impl EncodeLabelValue for ReconcileResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            ReconcileResult::Success => "success",
            ReconcileResult::Error => "error",
            ReconcileResult::RequeueAfter => "requeue_after",
        };
        text.encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    kind: &'static str,
    name: String,
    namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: ReconcileResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

/// Labels for a controller's work queue. The queue has the same name as the controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
    controller: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Metrics of reconciliations. Cheap to clone; all clones share the values.
#[derive(Clone, Debug)]
pub struct Reconciles {
    object_duration: Histograms<ObjectLabels>,
    duration: Histograms<ControllerLabels>,
    results: Family<ReconcileLabels, Counter>,
    errors: Family<ControllerLabels, Counter>,
    terminal_errors: Family<ControllerLabels, Counter>,
    panics: Family<ControllerLabels, Counter>,
    active_workers: Family<ControllerLabels, Gauge>,
    max_workers: Family<ControllerLabels, Gauge>,
    queue_duration: Histograms<QueueLabels>,
    queue_depth: Family<QueueLabels, Gauge>,
    activity: Activity,
}

impl Default for Reconciles {
    fn default() -> Self {
        Reconciles {
            object_duration: histograms(),
            duration: histograms(),
            results: Family::default(),
            errors: Family::default(),
            terminal_errors: Family::default(),
            panics: Family::default(),
            active_workers: Family::default(),
            max_workers: Family::default(),
            queue_duration: histograms(),
            queue_depth: Family::default(),
            activity: Activity::default(),
        }
    }
}

/// Returns histograms with the same buckets as in Flux.
fn histograms<L: Clone + std::hash::Hash + Eq>() -> Histograms<L> {
    Family::new_with_constructor((|| Histogram::new(exponential_buckets_range(0.01, 1800.0, 10))) as fn() -> Histogram)
}

impl Reconciles {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "gotk_reconcile_duration_seconds",
            "Duration in seconds of the reconciliations of an object",
            self.object_duration.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Duration in seconds of reconciliations",
            self.duration.clone(),
        );
        registry.register("controller_runtime_reconcile", "Number of completed reconciliations", self.results.clone());
        registry.register(
            "controller_runtime_reconcile_errors",
            "Number of failed reconciliations",
            self.errors.clone(),
        );
        registry.register(
            "controller_runtime_terminal_reconcile_errors",
            "Number of failed reconciliations that the controller does not retry until the object changes",
            self.terminal_errors.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_panics",
            "Number of reconciliations that panicked",
            self.panics.clone(),
        );
        registry.register(
            "controller_runtime_active_workers",
            "Number of reconciliations in progress",
            self.active_workers.clone(),
        );
        registry.register(
            "controller_runtime_max_concurrent_reconciles",
            "Maximum number of concurrent reconciliations",
            self.max_workers.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Duration in seconds of reconciliations",
            self.queue_duration.clone(),
        );
        registry.register("workqueue_depth", "Number of objects in the work queue", self.queue_depth.clone());
        registry.register_collector(Box::new(self.activity.clone()));
    }

    /// Sets a controller's maximum number of concurrent reconciliations.
    pub fn set_max_concurrent(&self, controller: &'static str, max: u16) {
        self.max_workers.get_or_create(&ControllerLabels { controller }).set(i64::from(max));
    }

    /// Sets the number of objects in a controller's work queue that wait for a slot.
    pub fn set_queue_depth(&self, controller: &'static str, depth: usize) {
        let labels = QueueLabels { name: controller, controller };
        self.queue_depth.get_or_create(&labels).set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// Records the start of a reconciliation. `object` contains the namespace and the name of the object.
    pub fn started(&self, controller: &'static str, object: &(String, String)) {
        self.activity.begin(controller, object);
        self.active_workers.get_or_create(&ControllerLabels { controller }).inc();
    }

    /// Records the end of a reconciliation.
    pub fn ended(
        &self,
        controller: &'static str,
        (kind, namespace, name): (&'static str, &str, &str),
        result: ReconcileResult,
        duration: Duration,
    ) {
        self.activity.end(controller, &(namespace.to_owned(), name.to_owned()));
        let seconds = duration.as_secs_f64();
        if !WITHOUT_OBJECT_SERIES.contains(&kind) {
            let labels = ObjectLabels { kind, name: name.to_owned(), namespace: namespace.to_owned() };
            self.object_duration.get_or_create(&labels).observe(seconds);
        }
        self.duration.get_or_create(&ControllerLabels { controller }).observe(seconds);
        self.queue_duration.get_or_create(&QueueLabels { name: controller, controller }).observe(seconds);
        self.results.get_or_create(&ReconcileLabels { controller, result }).inc();
        if result == ReconcileResult::Error {
            self.errors.get_or_create(&ControllerLabels { controller }).inc();
        }
        self.active_workers.get_or_create(&ControllerLabels { controller }).dec();
    }

    /// Counts a failed reconciliation that the controller does not retry until the object changes.
    pub fn stalled(&self, controller: &'static str) {
        self.terminal_errors.get_or_create(&ControllerLabels { controller }).inc();
    }

    /// Counts a reconciliation that panicked.
    pub fn panicked(&self, controller: &'static str) {
        self.panics.get_or_create(&ControllerLabels { controller }).inc();
    }

    /// Removes the time series of a deleted object.
    pub fn forget(&self, kind: &'static str, namespace: &str, name: &str) {
        self.object_duration.remove(&ObjectLabels { kind, name: name.to_owned(), namespace: namespace.to_owned() });
    }
}

/// Namespace and name of an object.
type ObjectKey = (String, String);

/// All controllers' reconciliations in progress, for the work queue metrics that controller-runtime defines. The
/// metrics reveal a reconciliation that hangs. Cheap to clone.
#[derive(Clone, Debug, Default)]
struct Activity {
    /// Start times of the reconciliations. Hold the lock only for short critical sections, and never across an
    /// `.await`. A controller without reconciliations in progress remains in the map, and its metrics are zero.
    started: Arc<Mutex<BTreeMap<&'static str, HashMap<ObjectKey, Instant>>>>,
}

impl Activity {
    fn begin(&self, controller: &'static str, object: &ObjectKey) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.entry(controller).or_default().insert(object.clone(), Instant::now());
    }

    fn end(&self, controller: &'static str, object: &ObjectKey) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.entry(controller).or_default().remove(object);
    }

    /// Returns, for each controller, the duration of its longest reconciliation in progress, and the total duration of
    /// its reconciliations in progress.
    fn durations(&self) -> Vec<(&'static str, Duration, Duration)> {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let durations = started.iter().map(|(controller, objects)| {
            let lasted = || objects.values().map(Instant::elapsed);
            (*controller, lasted().max().unwrap_or_default(), lasted().sum())
        });
        durations.collect()
    }
}

impl Collector for Activity {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let durations = self.durations();
        let longest = durations.iter().map(|(controller, longest, _)| (*controller, *longest));
        let help = "Duration in seconds of the longest reconciliation in progress";
        gauges(&mut encoder, "workqueue_longest_running_processor_seconds", help, longest)?;
        let unfinished = durations.iter().map(|(controller, _, all)| (*controller, *all));
        let help = "Sum of the durations in seconds of all reconciliations in progress";
        gauges(&mut encoder, "workqueue_unfinished_work_seconds", help, unfinished)
    }
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (&'static str, Duration)>,
) -> Result<(), std::fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (controller, value) in values {
        let labels = [("name", controller), ("controller", controller)];
        ConstGauge::new(value.as_secs_f64()).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn workspaces_and_updates_have_no_series_of_their_own() {
        let (reconciles, mut registry) = (Reconciles::default(), Registry::default());
        reconciles.register(&mut registry);
        for kind in ["Stack", "Workspace", "Update"] {
            reconciles.ended("controller", (kind, "apps", "web"), ReconcileResult::Success, Duration::from_millis(20));
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let count = "gotk_reconcile_duration_seconds_count";
        let counts: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(count)).collect();
        assert_eq!(counts, [r#"{kind="Stack",name="web",namespace="apps"} 1"#]);
        assert!(
            text.contains(r#"controller_runtime_reconcile_time_seconds_count{controller="controller"} 3"#),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn durations_include_running_but_not_ended_reconciliations() {
        let activity = Activity::default();
        let key = |name: &str| ("apps".to_owned(), name.to_owned());
        activity.begin("stack", &key("slow"));
        tokio::time::advance(Duration::from_secs(40)).await;
        activity.begin("stack", &key("quick"));
        tokio::time::advance(Duration::from_secs(2)).await;
        let seconds = Duration::from_secs;
        assert_eq!(activity.durations(), [("stack", seconds(42), seconds(44))]);
        activity.end("stack", &key("slow"));
        activity.end("stack", &key("quick"));
        assert_eq!(activity.durations(), [("stack", seconds(0), seconds(0))]);
    }
}
