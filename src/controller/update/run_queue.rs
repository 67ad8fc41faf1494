//! Reads the queue of the run slots for the Stack controller, which reports the wait of a Stack's run in the status of
//! the Stack.
//!
//! The report requires no API write of its own in most cases. The Stack controller asks for a forecast before it
//! records a run, so the record already contains the reason of the wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::Update;
use crate::controller::namespaces::RunShare;
use crate::controller::update::queue::{group_of, run_on};
use crate::runtime::run_limiter::{Limits, Run, RunLimiter, SlotWait};
use crate::telemetry::metrics::Metrics;

/// Queue of the run slots. Cheap to clone.
#[derive(Clone)]
pub struct RunQueue {
    pub run_limiter: RunLimiter<ObjectRef<Update>>,
    /// Limits for the concurrency groups that namespaces can share, by name.
    pub concurrency_groups: Arc<BTreeMap<String, u32>>,
}

impl std::fmt::Debug for RunQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunQueue").finish_non_exhaustive()
    }
}

impl RunQueue {
    pub fn new(limits: Limits, concurrency_groups: BTreeMap<String, u32>, metrics: Metrics) -> Self {
        let run_limiter = RunLimiter::new(limits, metrics);
        RunQueue { run_limiter, concurrency_groups: Arc::new(concurrency_groups) }
    }

    /// Returns the reason why the run of an Update waits for a slot. Returns `None` if the run is not queued.
    pub fn wait_of(&self, update: &Update) -> Option<SlotWait> {
        self.run_limiter.wait_of(&update.uid()?)
    }

    /// Returns the reason why the run of an Update that does not exist yet would wait for a slot. `siblings` contains
    /// the previous Updates of the Workspace. The pod of the run is assumed to be on the node of the previous run.
    ///
    /// Returns `None` if the run could start immediately. Also returns `None` if an annotation of the namespace has no
    /// effect: the Update controller then reports the annotation together with the wait.
    pub fn forecast(&self, update: &Update, siblings: &[Arc<Update>], run_share: &RunShare) -> Option<SlotWait> {
        let namespace = update.namespace().unwrap_or_default();
        if !run_share.ignored.is_empty() || run_share.missing_groups(&namespace, &self.concurrency_groups).is_some() {
            return None;
        }
        let group = group_of(update, &run_share.shared_groups, &self.concurrency_groups);
        let run = run_on(last_node(siblings), update, siblings);
        self.run_limiter.forecast(&Run { uid: update.name_any(), group, share: run_share.share, ..run })
    }

    /// Records that the status of the Stack contains the forecast for this Update. The queue then keeps the estimated
    /// start, so the Stack controller does not write the status again.
    pub fn record_displayed(&self, update: &Update, forecast: &SlotWait) {
        if let Some((uid, estimate)) = update.uid().zip(forecast.estimate) {
            self.run_limiter.record_displayed(&uid, estimate);
        }
    }
}

/// Returns the node of the last run in the Workspace, or an empty string if no run has started.
fn last_node(siblings: &[Arc<Update>]) -> &str {
    let started = siblings.iter().filter_map(|update| {
        let status = update.status.as_ref()?;
        Some((status.start_time.as_ref()?.0, status.run.as_ref()?.node_name.as_str()))
    });
    started.max().map(|(_, node)| node).unwrap_or_default()
}

#[cfg(test)]
mod tests;
