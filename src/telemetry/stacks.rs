//! Stack metrics: the states of Stacks, and the reasons why Stacks wait.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// Maximum number of status and reason pairs with separate time series. All further pairs share one series.
const MAX_REASONS: usize = 64;
/// Status and reason of the shared series.
const OTHER: &str = "Other";

/// State of a Stack, which the Stack's conditions report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackState {
    /// Status of the condition `Ready`.
    pub ready: String,
    /// Reason of the condition `Stalled` if the Stack has this condition, otherwise the reason of the condition
    /// `Ready`.
    pub reason: String,
    pub is_failing: bool,
    pub is_reconciling: bool,
    /// Wait of the Stack. `None` if the Stack does not wait or is suspended.
    pub wait: Option<Wait>,
    /// Number of drifted resources. `None` if no drift check has ended.
    pub drifted: Option<i64>,
    /// Whether the last drift check failed. `None` if no drift check has ended.
    pub drift_check_failed: Option<bool>,
    /// Whether the controller has written the outputs. `None` if the Stack writes no outputs to objects.
    pub outputs_written: Option<bool>,
    /// Numbers of mandatory and advisory policy violations. `None` if there are none.
    pub violations: Option<Violations>,
}

/// Wait of a Stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Reason of the condition that shows the wait. The number of reasons is limited, because the controller defines
    /// all reasons.
    pub reason: &'static str,
    /// Time at which the wait started.
    pub since: Timestamp,
}

/// Numbers of policy violations that the last run with policies reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violations {
    pub mandatory: i64,
    pub advisory: i64,
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

    /// Encodes a series for each Stack. The metric has the same name as in the Pulumi Kubernetes Operator.
    fn encode_each(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        value: impl Fn(&StackState) -> Option<i64>,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ((namespace, stack), state) in self.lock().iter() {
            let labels = [("namespace", namespace.as_str()), ("name", stack.as_str())];
            if let Some(value) = value(state) {
                ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Encodes the time series that exist only for some Stacks.
    fn encode_details(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let drifted = ("stacks_drifted_resources", "Number of resources for which the last drift check found drift");
        self.encode_each(encoder, drifted, |state| state.drifted)?;
        let unchecked = ("stacks_drift_check_failed", "1 if the last drift check failed; otherwise 0");
        self.encode_each(encoder, unchecked, |state| state.drift_check_failed.map(i64::from))?;
        let written = ("stacks_outputs_written", "1 if the outputs of the Stack were written; otherwise 0");
        self.encode_each(encoder, written, |state| state.outputs_written.map(i64::from))?;
        self.encode_violations(encoder)?;
        self.encode_waits(encoder, Timestamp::now())
    }

    fn encode_violations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Number of policy violations of the last run that evaluated policies";
        let mut metric = encoder.encode_descriptor("stacks_policy_violations", help, None, MetricType::Gauge)?;
        for ((namespace, stack), state) in self.lock().iter() {
            let Some(found) = state.violations else { continue };
            for (level, count) in [("mandatory", found.mandatory), ("advisory", found.advisory)] {
                let labels = [("namespace", namespace.as_str()), ("name", stack.as_str()), ("level", level)];
                ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Encodes one time series for each waiting Stack, and two series for each reason. A Stack's series contains a time
    /// instead of an age, because Prometheus stores unchanged values in less space.
    fn encode_waits(&self, encoder: &mut DescriptorEncoder<'_>, now: Timestamp) -> fmt::Result {
        let name = "stacks_waiting_since_timestamp_seconds";
        let help = "Time at which the wait of a Stack began, in seconds since the Unix epoch";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ((namespace, stack), state) in self.lock().iter() {
            let Some(wait) = state.wait else { continue };
            let labels = [("namespace", namespace.as_str()), ("name", stack.as_str()), ("reason", wait.reason)];
            ConstGauge::new(wait.since.as_second()).encode(metric.encode_family(&labels)?)?;
        }
        let waits = self.waits();
        let help = "Number of Stacks that wait, by the reason of the wait";
        let mut metric =
            encoder.encode_descriptor("pulumi_controller_stacks_waiting", help, None, MetricType::Gauge)?;
        for (reason, (count, _)) in &waits {
            ConstGauge::new(*count).encode(metric.encode_family(&[("reason", *reason)])?)?;
        }
        let help = "Age in seconds of the oldest wait of a Stack, by the reason of the wait";
        let name = "pulumi_controller_oldest_wait_age_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (reason, (_, since)) in &waits {
            ConstGauge::new(age(*since, now)).encode(metric.encode_family(&[("reason", *reason)])?)?;
        }
        Ok(())
    }

    /// Returns, for each reason, the number of waiting Stacks and the start of the oldest wait.
    fn waits(&self) -> BTreeMap<&'static str, (i64, Timestamp)> {
        let mut waits: BTreeMap<&'static str, (i64, Timestamp)> = BTreeMap::new();
        for wait in self.lock().values().filter_map(|state| state.wait) {
            let (count, oldest) = waits.entry(wait.reason).or_insert((0, wait.since));
            *count += 1;
            *oldest = wait.since.min(*oldest);
        }
        waits
    }
}

/// Returns the age of `since` in seconds. The age is never negative, even if the clock has been set back.
pub(super) fn age(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

impl Collector for Stacks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let failing =
            ("stacks_failing", "1 if the Stack is stalled or not ready, or if its last run failed; otherwise 0");
        self.encode_each(&mut encoder, failing, |state| Some(i64::from(state.is_failing)))?;
        let reconciling = ("stacks_reconciling", "1 if the Stack is reconciling; otherwise 0");
        self.encode_each(&mut encoder, reconciling, |state| Some(i64::from(state.is_reconciling)))?;
        self.encode_details(&mut encoder)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn state(reason: &str) -> StackState {
        StackState { ready: "False".to_owned(), reason: reason.to_owned(), is_failing: true, ..StackState::default() }
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

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn waiting(reason: &'static str, since: i64) -> StackState {
        StackState { wait: Some(Wait { reason, since: at(since) }), ..StackState::default() }
    }

    #[test]
    fn a_wait_is_counted_until_it_ends_and_has_the_age_of_the_oldest_stack() {
        let stacks = Stacks::default();
        assert!(stacks.waits().is_empty());
        stacks.record("apps", "a", waiting("Paused", 40));
        stacks.record("apps", "b", waiting("Paused", 20));
        stacks.record("apps", "c", waiting("AwaitingApproval", 30));
        stacks.record("apps", "d", state("UpdateFailed"));
        let expected = BTreeMap::from([("AwaitingApproval", (1, at(30))), ("Paused", (2, at(20)))]);
        assert_eq!(stacks.waits(), expected);
        stacks.record("apps", "b", StackState::default());
        stacks.remove("apps", "c");
        assert_eq!(stacks.waits(), BTreeMap::from([("Paused", (1, at(40)))]));
    }

    #[test]
    fn an_age_grows_and_is_not_negative_after_the_clock_was_set_back() {
        assert!((age(at(40), at(100)) - 60.0).abs() < f64::EPSILON);
        assert!(age(at(40), at(10)) < f64::EPSILON);
    }
}
