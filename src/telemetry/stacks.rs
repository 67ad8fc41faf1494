//! Metrics of Stacks and their runs: states of Stacks, numbers of open and queued runs, waiting times and durations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Maximum number of pairs of status and reason with separate series. One series counts all further pairs.
const MAX_REASONS: usize = 64;
/// Status and reason of the series that counts all further pairs.
const OTHER: &str = "Other";

/// State of a Stack, from its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackState {
    /// Status of the condition `Ready`.
    pub ready: String,
    /// Reason of the condition `Stalled` if this condition exists, otherwise the reason of the condition `Ready`.
    pub reason: String,
    pub is_failing: bool,
    pub is_reconciling: bool,
    /// Number of drifted resources. `None` if no drift check has ended.
    pub drifted: Option<i64>,
}

/// States of all Stacks by namespace and name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stacks(Arc<Mutex<BTreeMap<(String, String), StackState>>>);

impl Stacks {
    pub fn record(&self, namespace: &str, name: &str, state: StackState) {
        self.lock().insert((namespace.to_owned(), name.to_owned()), state);
    }

    /// Removes a deleted Stack.
    pub fn remove(&self, namespace: &str, name: &str) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Returns the number of Stacks by status and reason.
    fn counts(&self) -> BTreeMap<(String, String), i64> {
        let mut counts = BTreeMap::new();
        for state in self.lock().values() {
            let key = (state.ready.clone(), state.reason.clone());
            let is_known = counts.contains_key(&key) || counts.len() < MAX_REASONS;
            let key = if is_known { key } else { (OTHER.to_owned(), OTHER.to_owned()) };
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), StackState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes a series for each Stack. The metric has a name of the Pulumi Kubernetes Operator.
    fn encode_each(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        value: impl Fn(&StackState) -> Option<i64>,
    ) -> Result<(), std::fmt::Error> {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ((namespace, stack), state) in self.lock().iter() {
            let labels = [("namespace", namespace.as_str()), ("name", stack.as_str())];
            if let Some(value) = value(state) {
                ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for Stacks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let failing =
            ("stacks_failing", "1 if the Stack is stalled or not ready, or if its last run failed; otherwise 0");
        self.encode_each(&mut encoder, failing, |state| Some(i64::from(state.is_failing)))?;
        let reconciling = ("stacks_reconciling", "1 if the Stack is reconciling; otherwise 0");
        self.encode_each(&mut encoder, reconciling, |state| Some(i64::from(state.is_reconciling)))?;
        let drifted = ("stacks_drifted_resources", "Number of resources for which the last drift check found drift");
        self.encode_each(&mut encoder, drifted, |state| state.drifted)?;
        let help =
            "Number of Stacks by the status of the condition Ready and the reason of the condition Stalled or Ready";
        let mut metric = encoder.encode_descriptor("pulumi_controller_stacks", help, None, MetricType::Gauge)?;
        for ((ready, reason), count) in self.counts() {
            let labels = [("ready", ready.as_str()), ("reason", reason.as_str())];
            ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Upper bounds of the buckets in seconds, from the duration of the shortest runs to the default timeout.
const DURATION_BUCKETS: [f64; 14] =
    [1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 10800.0];
/// Upper bounds of the buckets in seconds, from an immediate start to a wait for the runs of many Stacks.
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

/// Metrics of runs. Cheap to clone; all clones share the values.
#[derive(Clone, Debug)]
pub struct Runs {
    open: Gauge,
    queued: Gauge,
    oldest: Oldest,
    wait: Family<WaitLabels, Histogram, fn() -> Histogram>,
    duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
}

impl Default for Runs {
    fn default() -> Self {
        Runs {
            open: Gauge::default(),
            queued: Gauge::default(),
            oldest: Oldest::default(),
            wait: Family::new_with_constructor((|| Histogram::new(WAIT_BUCKETS)) as fn() -> Histogram),
            duration: Family::new_with_constructor((|| Histogram::new(DURATION_BUCKETS)) as fn() -> Histogram),
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
        registry.register_collector(Box::new(self.oldest.clone()));
    }

    /// Sets the number of open runs, the number of queued runs, and the time at which the oldest queued run became
    /// pending.
    pub fn count(&self, open: usize, queued: usize, oldest: Option<Timestamp>) {
        self.open.set(i64::try_from(open).unwrap_or(i64::MAX));
        self.queued.set(i64::try_from(queued).unwrap_or(i64::MAX));
        *self.oldest.0.lock().unwrap_or_else(PoisonError::into_inner) = oldest;
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

/// Time at which the oldest queued run became pending. Each scrape computes the age of the run.
#[derive(Clone, Debug, Default)]
struct Oldest(Arc<Mutex<Option<Timestamp>>>);

impl Oldest {
    fn age(&self, now: Timestamp) -> f64 {
        let oldest = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        oldest.map_or(0.0, |since| now.duration_since(since).as_secs_f64().max(0.0))
    }
}

impl Collector for Oldest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Time in seconds for which the oldest run in the queue has been pending; 0 if the queue is empty";
        let name = "pulumi_controller_oldest_queued_run_age_seconds";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(self.age(Timestamp::now())).encode(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(reason: &str) -> StackState {
        StackState {
            ready: "False".to_owned(),
            reason: reason.to_owned(),
            is_failing: true,
            is_reconciling: false,
            drifted: None,
        }
    }

    #[test]
    fn a_reason_has_a_series_until_no_stack_has_this_reason() {
        let stacks = Stacks::default();
        let count = |reason: &str| stacks.counts().get(&("False".to_owned(), reason.to_owned())).copied();
        stacks.record("apps", "a", state("SpecInvalid"));
        stacks.record("apps", "b", state("SpecInvalid"));
        stacks.record("apps", "b", state("AccessDenied"));
        assert_eq!((count("SpecInvalid"), count("AccessDenied")), (Some(1), Some(1)));
        stacks.remove("apps", "b");
        assert_eq!((count("SpecInvalid"), count("AccessDenied")), (Some(1), None));
    }

    #[test]
    fn the_number_of_series_is_bounded_for_any_number_of_reasons() {
        let stacks = Stacks::default();
        (0..1000).for_each(|n| stacks.record("apps", &format!("{n:04}"), state(&format!("Reason{n}"))));
        let counts = stacks.counts();
        assert_eq!((counts.len(), counts.values().sum::<i64>()), (MAX_REASONS + 1, 1000));
    }

    #[test]
    fn the_age_of_the_oldest_queued_run_grows_until_the_queue_is_empty() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let runs = Runs::default();
        assert!(runs.oldest.age(at(100)) < f64::EPSILON);
        runs.count(1, 2, Some(at(40)));
        assert!((runs.oldest.age(at(100)) - 60.0).abs() < f64::EPSILON);
        assert!(runs.oldest.age(at(10)) < f64::EPSILON, "the age is not negative after the clock was set back");
        runs.count(1, 0, None);
        assert!(runs.oldest.age(at(100)) < f64::EPSILON);
    }
}
