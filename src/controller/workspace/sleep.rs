//! Decides when an idle Workspace goes to sleep and when it wakes up. All functions are pure.
//!
//! A sleeping Workspace has a StatefulSet without replicas, and no pod from a pool. Before the controller removes the
//! pod, it records in the status that the Workspace is sleeping. Before it creates a pod, it records that the
//! Workspace is awake. The decisions therefore survive a restart of the controller.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::input_versions::Inputs;
use super::observe::{Agent, Observed};
use super::parts::PartState;
use super::pod_state::PodState;
use super::pool::Pooled;
use crate::api::names::ANNOTATION_REQUESTED_AT;

/// Minimum requeue interval of a Workspace that is about to go to sleep.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// Decision about an awake Workspace whose pod is ready and contains the requested source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleepDecision {
    /// Keep the pod until a watch event or the next poll.
    Stay,
    /// Keep the pod, and decide again after the given time.
    After(SignedDuration),
    /// Go to sleep.
    Now,
}

/// Decides whether a ready Workspace goes to sleep.
pub(super) fn decision(observed: &Observed, now: Timestamp) -> SleepDecision {
    let is_in_use = observed.open_run().is_some() || observed.interactive_session().is_some();
    // While another client changes the StatefulSet after each apply, the controller cannot set the number of
    // replicas.
    let is_contested = observed.contested.as_ref().is_some_and(|contested| contested.stateful_set);
    if observed.workspace.is_asleep() || is_in_use || is_contested {
        return SleepDecision::Stay;
    }
    let Some(left) = observed.idle.time_left(now) else { return SleepDecision::Stay };
    if left.is_positive() {
        return SleepDecision::After(left);
    }
    match &observed.idle.inputs {
        // Without the versions, the controller could not detect a change while the Workspace is sleeping.
        Inputs::NotRead | Inputs::Unreadable(_) => SleepDecision::Stay,
        // The agent may not have reported a recent change yet. The controller would not detect this change while the
        // Workspace is sleeping.
        Inputs::Read(_) => observed.idle.inputs.until_mounted(now).map_or(SleepDecision::Now, SleepDecision::After),
    }
}

/// Returns the delay until the controller decides again whether a ready Workspace goes to sleep. Returns `None` if no
/// later decision is due.
pub(super) fn time_left(observed: &Observed, now: Timestamp) -> Option<Duration> {
    match decision(observed, now) {
        SleepDecision::After(left) => Some(left.unsigned_abs().max(MIN_WAIT)),
        SleepDecision::Stay | SleepDecision::Now => None,
    }
}

/// Returns the reason to wake up a sleeping Workspace. Returns `None` if the Workspace is awake or stays asleep.
pub(super) fn wake_reason(observed: &Observed) -> Option<String> {
    let workspace = &observed.workspace;
    let status = workspace.status.as_ref().filter(|_| workspace.is_asleep())?;
    let recorded = status.sleep.as_ref().map(|sleep| &sleep.input_versions)?;
    if status.observed_generation != workspace.metadata.generation {
        return Some("the spec has changed".to_owned());
    }
    if let Some(update) = &observed.idle.pending_update {
        return Some(format!("Update {update} has not ended"));
    }
    if let Some(run) = observed.open_run() {
        return Some(format!("run {run} is open"));
    }
    if observed.interactive_session().is_some() {
        return Some("an interactive session is open".to_owned());
    }
    let request = workspace.annotations().get(ANNOTATION_REQUESTED_AT);
    if request.is_some() && request != status.last_handled_reconcile_at.as_ref() {
        return Some(format!("the annotation {ANNOTATION_REQUESTED_AT} has changed"));
    }
    if let Some(object) = observed.idle.inputs.changed_since(recorded) {
        return Some(format!("{} has changed", object.replacen('/', " ", 1)));
    }
    match (&observed.idle.inputs, &observed.agent) {
        (Inputs::Unreadable(why), _) => Some(format!("changes cannot be detected: {why}")),
        // The pod of an unreachable agent may have an open run. If the StatefulSet has no replicas and the pod is not
        // from a pool, the drained agent is already terminating and has no open run.
        (_, Agent::Unreachable(why))
            if observed.stateful_set != PartState::Current || pod_from_pool(observed).is_some() =>
        {
            Some(format!("the agent is unreachable: {why}"))
        }
        _ => None,
    }
}

/// Returns the pod that a Workspace has taken from a pool. Returns `None` if the pod is being deleted.
pub(super) fn pod_from_pool(observed: &Observed) -> Option<&PodState> {
    let is_pooled = matches!(observed.pooled, Pooled::Taken | Pooled::Ended);
    observed.pod.as_ref().filter(|pod| is_pooled && !pod.terminating)
}

/// Returns whether the controller must drain the agent before it removes the pod of a Workspace that goes to sleep. A
/// drained agent starts no run.
pub(super) fn needs_drain(observed: &Observed) -> bool {
    let has_pod = observed.pod.as_ref().is_some_and(|pod| !pod.terminating);
    has_pod && observed.workspace.is_asleep() && matches!(&observed.agent, Agent::Responded(reply) if !reply.draining)
}
