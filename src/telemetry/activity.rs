//! Running reconciles, as reported by the work queue of controller-runtime. A reconcile that hangs is visible before it ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::Instant;

/// Namespace and name of an object.
type ObjectKey = (String, String);

/// Running reconciles of all controllers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// Start times. Locked for short sections only, never across an await. A controller without running reconciles stays and
    /// reports zero.
    started: Arc<Mutex<BTreeMap<&'static str, HashMap<ObjectKey, Instant>>>>,
}

impl Activity {
    pub fn begin(&self, controller: &'static str, object: &ObjectKey) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.entry(controller).or_default().insert(object.clone(), Instant::now());
    }

    pub fn end(&self, controller: &'static str, object: &ObjectKey) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.entry(controller).or_default().remove(object);
    }

    /// Returns the duration of the longest running reconcile and the sum of all durations, for each controller.
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
        let help = "Duration in seconds of the longest reconcile in progress";
        gauges(&mut encoder, "workqueue_longest_running_processor_seconds", help, longest)?;
        let unfinished = durations.iter().map(|(controller, _, all)| (*controller, *all));
        let help = "Sum of the durations in seconds of all reconciles in progress";
        gauges(&mut encoder, "workqueue_unfinished_work_seconds", help, unfinished)
    }
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (&'static str, Duration)>,
) -> Result<(), std::fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, prometheus_client::metrics::MetricType::Gauge)?;
    for (controller, value) in values {
        let labels = [("name", controller), ("controller", controller)];
        ConstGauge::new(value.as_secs_f64()).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn durations_include_hanging_reconciles_but_not_ended_ones() {
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
