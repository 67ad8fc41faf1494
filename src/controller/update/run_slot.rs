//! Acquires a run slot from the run limiter, withdraws the runs of deleted Updates, and reports namespace annotations
//! that have no effect.

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;

use crate::api::auto::Update;
use crate::api::pulumi::BoundConcurrencyGroup;
use crate::controller::update::context::Context;
use crate::controller::update::observe::Observed;
use crate::controller::update::queue::{Updates, binding_of, group_of, run_in};
use crate::runtime::events::{Event, EventKind};
use crate::runtime::run_limiter::{Permit, Run, RunLimiter};

/// Slot of a run that can start.
#[derive(Debug)]
pub struct Slot {
    pub permit: Permit<ObjectRef<Update>>,
    /// Concurrency group that the run binding records.
    pub group: Option<BoundConcurrencyGroup>,
    /// Messages about the groups in the namespace annotation that the controller does not share between namespaces.
    pub warnings: Vec<String>,
}

/// Run that waits for a slot or for its concurrency group.
#[derive(Debug)]
pub struct Waiting {
    /// Message for the status.
    pub message: String,
    /// Interval after which the message can change. The run limiter requeues the Update earlier when the run can start.
    pub requeue_interval: Duration,
    /// Messages about namespace annotations that have no effect.
    pub warnings: Vec<String>,
}

/// Acquires the slot for a run in the given pod.
///
/// # Errors
///
/// Returns the reason why the run waits. If a namespace annotation has no effect, the message explains the cause,
/// because an administrator may expect a different number of slots.
pub fn acquire(observed: &Observed, pod: &Pod, context: &Context) -> Result<Slot, Waiting> {
    let (update, run_share) = (&observed.update, &observed.run_share);
    let missing = run_share.missing_groups(&update.namespace().unwrap_or_default(), &context.concurrency_groups);
    let group = group_of(update, &run_share.shared_groups, &context.concurrency_groups);
    let run = Run { group, share: run_share.share, ..run_in(pod, update, &context.siblings(update)) };
    match context.run_limiter.acquire(&run, ObjectRef::from_obj(update)) {
        Ok(permit) => {
            let group = run.group.as_ref().map(binding_of);
            // The warning is necessary even if the run does not wait, because a group that is not shared can have
            // free slots.
            let is_unshared = |group: &BoundConcurrencyGroup| {
                !group.shared.unwrap_or_default() && run_share.shared_groups.contains(&group.name)
            };
            let warnings = missing.filter(|_| group.as_ref().is_some_and(is_unshared)).into_iter().collect();
            Ok(Slot { permit, group, warnings })
        }
        Err(queued) => {
            // If the cache has lost the Update during this reconciliation, no further event withdraws the run.
            if !is_cached(update, &context.updates) {
                context.run_limiter.withdraw(&run.uid);
            }
            let warnings: Vec<String> = run_share.ignored.iter().cloned().chain(missing).collect();
            let parts: Vec<String> = std::iter::once(queued.wait.to_string()).chain(warnings.iter().cloned()).collect();
            Err(Waiting { message: parts.join("; "), requeue_interval: queued.requeue_interval, warnings })
        }
    }
}

fn is_cached(update: &Update, updates: &Updates) -> bool {
    updates.store().get(&ObjectRef::from_obj(update)).is_some_and(|cached| cached.metadata.uid == update.metadata.uid)
}

/// Returns a function that withdraws the queued runs of Updates that have left the cache, because they were deleted or
/// their labels assign them to another shard. The controller does not reconcile such an Update again, so its
/// reconciliation cannot withdraw the run. Without this function, a user who repeatedly creates and deletes Updates
/// could let the queue grow without limit. The function receives the events about Updates after the cache contains the
/// change.
pub fn withdraw_deleted(
    updates: Updates,
    run_limiter: RunLimiter<ObjectRef<Update>>,
) -> impl FnMut(&watcher::Event<Update>) {
    move |event| match event {
        watcher::Event::Delete(update) => run_limiter.withdraw(&update.uid().unwrap_or_default()),
        // If an Update is deleted while the watch is interrupted, no event reports the deletion, but the new list lacks
        // the Update.
        watcher::Event::InitDone => {
            let cached = updates.store().state();
            let uids: HashSet<&str> = cached.iter().filter_map(|update| update.metadata.uid.as_deref()).collect();
            run_limiter.retain(|uid| uids.contains(uid));
        }
        watcher::Event::Apply(_) | watcher::Event::Init | watcher::Event::InitApply(_) => {}
    }
}

/// Reports namespace annotations that have no effect.
pub fn report(update: &Update, warnings: &[String], context: &Context) {
    if warnings.is_empty() {
        return;
    }
    let warnings = warnings.join("; ");
    tracing::warn!(warnings, "annotations of the namespace have no effect");
    context.events.publish(Event::new(update, EventKind::Warning, "RunShareInvalid", warnings));
}

#[cfg(test)]
mod tests;
