//! Metrics of Stack states: a series for each Stack, and the number of Stacks in each state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// Maximum number of pairs of status and reason with a series; further pairs are counted together.
const MAX_REASONS: usize = 64;
/// Status and reason of the pairs that are counted together.
const OTHER: &str = "Other";

/// State of a Stack, according to its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Status of `Ready`.
    pub ready: String,
    /// Reason of `Stalled` if it is present, else of `Ready`.
    pub reason: String,
    pub is_failing: bool,
    pub is_reconciling: bool,
}

/// States of all Stacks by namespace and name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stacks(Arc<Mutex<BTreeMap<(String, String), Standing>>>);

impl Stacks {
    pub fn note(&self, namespace: &str, name: &str, standing: Standing) {
        self.lock().insert((namespace.to_owned(), name.to_owned()), standing);
    }

    /// Removes a deleted Stack.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Returns the number of Stacks by status and reason.
    fn counts(&self) -> BTreeMap<(String, String), i64> {
        let mut counts = BTreeMap::new();
        for standing in self.lock().values() {
            let key = (standing.ready.clone(), standing.reason.clone());
            let is_known = counts.contains_key(&key) || counts.len() < MAX_REASONS;
            let key = if is_known { key } else { (OTHER.to_owned(), OTHER.to_owned()) };
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), Standing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes a series for each Stack, with a name from the Pulumi Kubernetes Operator.
    fn encode_each(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        value: impl Fn(&Standing) -> bool,
    ) -> Result<(), std::fmt::Error> {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ((namespace, stack), standing) in self.lock().iter() {
            let labels = [("namespace", namespace.as_str()), ("name", stack.as_str())];
            ConstGauge::new(i64::from(value(standing))).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for Stacks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let failing = ("stacks_failing", "1 if the Stack is stalled, not ready or its last run failed; otherwise 0");
        self.encode_each(&mut encoder, failing, |standing| standing.is_failing)?;
        let reconciling = ("stacks_reconciling", "1 if the Stack is reconciling; otherwise 0");
        self.encode_each(&mut encoder, reconciling, |standing| standing.is_reconciling)?;
        let help = "Number of Stacks by the status and reason of the condition Ready, or the reason of Stalled";
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

    fn standing(reason: &str) -> Standing {
        Standing { ready: "False".to_owned(), reason: reason.to_owned(), is_failing: true, is_reconciling: false }
    }

    #[test]
    fn a_reason_is_counted_until_no_stack_has_it() {
        let stacks = Stacks::default();
        let count = |reason: &str| stacks.counts().get(&("False".to_owned(), reason.to_owned())).copied();
        stacks.note("apps", "a", standing("SpecInvalid"));
        stacks.note("apps", "b", standing("SpecInvalid"));
        stacks.note("apps", "b", standing("AccessDenied"));
        assert_eq!((count("SpecInvalid"), count("AccessDenied")), (Some(1), Some(1)));
        stacks.forget("apps", "b");
        assert_eq!((count("SpecInvalid"), count("AccessDenied")), (Some(1), None));
    }

    #[test]
    fn the_number_of_series_is_bounded_for_any_reasons() {
        let stacks = Stacks::default();
        (0..1000).for_each(|n| stacks.note("apps", &format!("{n:04}"), standing(&format!("Reason{n}"))));
        let counts = stacks.counts();
        assert_eq!((counts.len(), counts.values().sum::<i64>()), (MAX_REASONS + 1, 1000));
    }
}
