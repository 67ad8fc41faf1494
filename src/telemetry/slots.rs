//! Run slot metrics: the number of slots, and how many each namespace and each concurrency group uses.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::telemetry::stacks::age;

/// Maximum number of namespaces with separate time series. All further namespaces share one series, because tenants can
/// create any number of namespaces.
const MAX_NAMESPACES: usize = 64;
/// Value of the label `namespace` for all further namespaces. The value is not a valid namespace name.
const OTHER: &str = "Other";

/// Numbers of open and queued runs in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotUse {
    pub open: usize,
    pub queued: usize,
}

/// Used run slots by namespace, or by concurrency group.
pub type SlotUses = BTreeMap<String, SlotUse>;

/// Use of run slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotReport {
    pub namespaces: SlotUses,
    /// Use by concurrency group. The number of entries is limited, because only groups that the controller's flags
    /// define have separate entries.
    pub groups: SlotUses,
    /// Time since which the longest-waiting queued run has waited for a slot.
    pub oldest: Option<Timestamp>,
}

impl SlotReport {
    fn oldest_age(&self, now: Timestamp) -> f64 {
        self.oldest.map_or(0.0, |since| age(since, now))
    }
}

/// Value of the label `group` for all groups whose names tenants choose. The value is not a valid group name.
pub const LOCAL_GROUPS: &str = "Local";

type Source = Arc<dyn Fn() -> SlotReport + Send + Sync>;

/// Metrics about the use of run slots. Each scrape counts the runs, so changes to the queue need not update the
/// metrics. Cheap to clone.
#[derive(Clone, Default)]
pub struct Slots(Arc<Mutex<Option<(usize, Source)>>>);

impl fmt::Debug for Slots {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Slots").finish_non_exhaustive()
    }
}

impl Slots {
    /// Sets the number of slots, and the function that counts the runs.
    pub fn observe(&self, count: usize, source: impl Fn() -> SlotReport + Send + Sync + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((count, Arc::new(source)));
    }

    /// Returns the number of slots, and how the slots are used. The lock is not held while the runs are counted,
    /// because the function that counts the runs acquires another lock.
    fn read(&self) -> (usize, SlotReport) {
        let observed = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        observed.map(|(count, source)| (count, source())).unwrap_or_default()
    }
}

/// Keeps the entries of the namespaces with the most runs, and combines the entries of all further namespaces.
fn bounded(uses: SlotUses) -> SlotUses {
    if uses.len() <= MAX_NAMESPACES {
        return uses;
    }
    let mut ordered: Vec<(String, SlotUse)> = uses.into_iter().collect();
    ordered.sort_by_key(|(_, uses)| Reverse(uses.open + uses.queued));
    let further = ordered.split_off(MAX_NAMESPACES);
    let mut kept: SlotUses = ordered.into_iter().collect();
    let other = kept.entry(OTHER.to_owned()).or_default();
    for (_, uses) in further {
        other.open += uses.open;
        other.queued += uses.queued;
    }
    kept
}

impl Collector for Slots {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (count, report) = self.read();
        let help = "Maximum number of concurrent runs";
        let metric = encoder.encode_descriptor("pulumi_controller_run_slots", help, None, MetricType::Gauge)?;
        ConstGauge::new(number(count)).encode(metric)?;
        let help = "Duration in seconds of the longest current wait of a run for a slot; 0 if no run waits for a slot";
        let name = "pulumi_controller_oldest_queued_run_age_seconds";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(report.oldest_age(Timestamp::now())).encode(metric)?;
        let (uses, groups) = (bounded(report.namespaces), report.groups);
        let name = "pulumi_controller_run_slots_used";
        gauges(&mut encoder, (name, "Number of run slots that the runs of a namespace use"), "namespace", open(&uses))?;
        let name = "pulumi_controller_runs_queued";
        let help = "Number of runs of a namespace in the queue for a run slot";
        gauges(&mut encoder, (name, help), "namespace", queued(&uses))?;
        let name = "pulumi_controller_concurrency_group_runs_open";
        gauges(&mut encoder, (name, "Number of open runs of a concurrency group"), "group", open(&groups))?;
        let name = "pulumi_controller_concurrency_group_runs_queued";
        gauges(&mut encoder, (name, "Number of queued runs of a concurrency group"), "group", queued(&groups))
    }
}

fn open(uses: &SlotUses) -> impl Iterator<Item = (&String, usize)> {
    uses.iter().map(|(name, uses)| (name, uses.open))
}

fn queued(uses: &SlotUses) -> impl Iterator<Item = (&String, usize)> {
    uses.iter().map(|(name, uses)| (name, uses.queued))
}

fn gauges<'u>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    label: &str,
    values: impl Iterator<Item = (&'u String, usize)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (key, value) in values {
        ConstGauge::new(number(value)).encode(metric.encode_family(&[(label, key.as_str())])?)?;
    }
    Ok(())
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scrape_counts_the_runs_of_each_namespace() {
        let slots = Slots::default();
        assert_eq!(slots.read(), (0, SlotReport::default()));
        let namespaces = SlotUses::from([("apps".to_owned(), SlotUse { open: 2, queued: 1 })]);
        let uses = SlotReport { namespaces, ..SlotReport::default() };
        let expected = uses.clone();
        slots.observe(10, move || uses.clone());
        assert_eq!(slots.read(), (10, expected));
    }

    #[test]
    fn the_age_of_the_oldest_queued_run_grows_until_no_run_waits() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let age = |oldest, now| SlotReport { oldest, ..SlotReport::default() }.oldest_age(at(now));
        assert!(age(None, 100) < f64::EPSILON);
        assert!((age(Some(at(40)), 100) - 60.0).abs() < f64::EPSILON);
        assert!(age(Some(at(40)), 10) < f64::EPSILON, "the age is not negative after the clock was set back");
    }

    #[test]
    fn the_number_of_series_is_bounded_for_any_number_of_namespaces() {
        let few = SlotUses::from([("apps".to_owned(), SlotUse { open: 1, queued: 0 })]);
        assert_eq!(bounded(few.clone()), few);
        let mut many: SlotUses = (0..1000).map(|n| (format!("{n:04}"), SlotUse { open: 0, queued: 1 })).collect();
        many.insert("zz-busy".to_owned(), SlotUse { open: 3, queued: 40 });
        let kept = bounded(many);
        assert_eq!(kept.len(), MAX_NAMESPACES + 1);
        assert_eq!(kept.get("zz-busy"), Some(&SlotUse { open: 3, queued: 40 }), "the busiest namespace has a series");
        assert_eq!(kept.values().map(|uses| uses.queued).sum::<usize>(), 1040);
    }
}
