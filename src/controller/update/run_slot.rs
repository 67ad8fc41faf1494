//! The slot of a run: the request to the run limiter, and messages about annotations of the namespace without effect.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::Update;
use crate::api::pulumi::BoundConcurrencyGroup;
use crate::controller::update::context::Context;
use crate::controller::update::observe::Observed;
use crate::controller::update::queue::{binding_of, group_of, run_in};
use crate::runtime::events::{Event, EventKind};
use crate::runtime::run_limiter::{Permit, Run};

/// Slot of a run that may start.
#[derive(Debug)]
pub struct Slot {
    pub permit: Permit<ObjectRef<Update>>,
    /// Concurrency group of the run, for its binding.
    pub group: Option<BoundConcurrencyGroup>,
    /// Message that the group is not shared between namespaces, although the annotation of the namespace contains it.
    pub warnings: Vec<String>,
}

/// Run that waits for a slot or for its concurrency group.
#[derive(Debug)]
pub struct Waiting {
    /// Message for the status.
    pub message: String,
    /// Messages about annotations of the namespace without effect.
    pub warnings: Vec<String>,
}

/// Acquires the slot of a run in this pod.
///
/// # Errors
///
/// Returns why the run waits. If an annotation of the namespace has no effect, the message contains the reason, because
/// the number of slots may be different from what the administrator expects.
pub fn acquire(observed: &Observed, pod: &Pod, context: &Context) -> Result<Slot, Waiting> {
    let (update, run_share) = (&observed.update, &observed.run_share);
    let missing = run_share.missing_groups(&update.namespace().unwrap_or_default(), &context.concurrency_groups);
    let group = group_of(update, &run_share.shared_groups, &context.concurrency_groups);
    let run = Run { group, share: run_share.share, ..run_in(pod, update, &context.siblings(update)) };
    if context.run_limiter.has_moved(&run) {
        // An earlier binding has failed. In the meantime, the pod or the group has changed.
        context.attachments.detach(&run.uid);
    }
    match context.run_limiter.acquire(&run, ObjectRef::from_obj(update)) {
        Ok(permit) => {
            let group = run.group.as_ref().map(binding_of);
            // A run does not necessarily wait for a group that is not shared, so its start is also reported.
            let is_unshared = |group: &BoundConcurrencyGroup| {
                !group.shared.unwrap_or_default() && run_share.shared_groups.contains(&group.name)
            };
            let warnings = missing.filter(|_| group.as_ref().is_some_and(is_unshared)).into_iter().collect();
            Ok(Slot { permit, group, warnings })
        }
        Err(queued) => {
            let warnings: Vec<String> = run_share.ignored.iter().cloned().chain(missing).collect();
            let parts: Vec<String> = std::iter::once(queued.to_string()).chain(warnings.iter().cloned()).collect();
            Err(Waiting { message: parts.join("; "), warnings })
        }
    }
}

/// Reports annotations of the namespace without effect.
pub fn report(update: &Update, warnings: &[String], context: &Context) {
    if warnings.is_empty() {
        return;
    }
    let warnings = warnings.join("; ");
    tracing::warn!(warnings, "annotations of the namespace have no effect");
    context.events.publish(Event::new(update, EventKind::Warning, "RunShareInvalid", warnings));
}
