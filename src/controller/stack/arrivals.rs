//! Records when the controller detected and fetched an artifact. The trace of the first run with this artifact contains
//! these times. The controller writes the times to the Workspace together with the artifact, and later to the Update.
//! Until then, the times are only in memory, because a restarted controller fetches the artifact again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::auto::{Update, Workspace};
use crate::api::conditions::{self, READY};
use crate::api::phase_times::PhaseTimes;
use crate::api::pulumi::{CurrentUpdate, Stack};
use crate::artifact::Digest;
use crate::controller::stack::approval::is_of_destroy;
use crate::controller::stack::drift;

/// Maximum number of artifacts whose times are in memory. If the map is full, the controller removes all times.
const MAX_ARRIVALS: usize = 1024;
/// Minimum delay in milliseconds between the installation of the artifact and the run request. Shorter delays are not
/// measurable, because the installation time has a resolution of one second.
const MIN_WAIT: i64 = 2_000;

/// Maps the UID of a Stack to the times of its artifact, if the artifact is not in a Workspace yet. Empty unless the
/// controller exports traces. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    // Hold the lock only for short critical sections, and never across an `.await`.
    times: Option<Arc<Mutex<HashMap<String, PhaseTimes>>>>,
}

impl Arrivals {
    /// Creates an empty map. If the controller exports no traces, the map never contains times.
    pub fn new(is_enabled: bool) -> Self {
        Arrivals { times: is_enabled.then(Arc::default) }
    }

    /// Returns whether the controller exports traces.
    pub fn is_enabled(&self) -> bool {
        self.times.is_some()
    }

    /// Records that the controller has detected an artifact. Repeated calls have no effect.
    pub fn detected(&self, stack: &Stack, digest: &Digest, now: Timestamp) {
        self.change(stack, digest, now, |_| {});
    }

    /// Records that an artifact is in the store.
    pub fn fetched(&self, stack: &Stack, digest: &Digest, now: Timestamp) {
        self.change(stack, digest, now, |times| times.fetched = Some(now.as_millisecond()));
    }

    fn change(&self, stack: &Stack, digest: &Digest, now: Timestamp, change: impl FnOnce(&mut PhaseTimes)) {
        let Some(times) = &self.times else { return };
        let digest = digest.to_string();
        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
        if times.len() >= MAX_ARRIVALS {
            times.clear();
        }
        let entry = times.entry(stack.uid().unwrap_or_default()).or_default();
        if entry.digest != digest {
            let detected = Some(now.as_millisecond());
            *entry = PhaseTimes { digest, detected, ..PhaseTimes::default() };
        }
        change(entry);
    }

    /// Returns the desired Workspace with its artifact's times. Keeps the times of the existing Workspace if that
    /// Workspace has the same artifact. Returns `None` if the times are unknown.
    pub fn workspace_with_times(
        &self,
        stack: &Stack,
        live: Option<&Workspace>,
        desired: &Workspace,
        now: Timestamp,
    ) -> Option<Workspace> {
        let (times, artifact) = (self.times.as_ref()?, desired.spec.artifact.as_ref()?);
        let digest = artifact.digest.to_string();
        let uid = stack.uid().unwrap_or_default();
        let arrived = times.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
        let is_same = |times: &PhaseTimes| times.digest == digest;
        let kept = live.and_then(|live| PhaseTimes::of(live.annotations())).filter(is_same);
        let has_artifact = live.and_then(|live| live.spec.artifact.as_ref()).is_some_and(|found| *found == *artifact);
        let first = || {
            let detected = Some(now.as_millisecond());
            (!has_artifact).then(|| PhaseTimes { digest: digest.clone(), detected, ..PhaseTimes::default() })
        };
        let times = kept.or_else(|| arrived.filter(is_same)).or_else(first)?;
        let mut desired = desired.clone();
        times.write_to(desired.annotations_mut());
        Some(desired)
    }

    /// Adds the times of the phases before the run to the Update. If the run belongs to the push of its artifact, also
    /// adds the push time. Only the first run of an artifact contains the artifact's times.
    pub fn add_to_update(
        &self,
        stack: &Stack,
        workspace: Option<&Workspace>,
        current: &CurrentUpdate,
        mut update: Update,
        now: Timestamp,
    ) -> Update {
        if self.times.is_none() {
            return update;
        }
        let digest = current.inputs.digest.as_ref().map(ToString::to_string).unwrap_or_default();
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        let has_new_artifact = last.is_none_or(|last| last.inputs.digest != current.inputs.digest);
        let is_first = has_new_artifact && !drift::is_check(current);
        let arrived = workspace.and_then(|workspace| {
            let times = PhaseTimes::of(workspace.annotations()).filter(|times| times.digest == digest)?;
            Some(PhaseTimes { placed: placed(workspace, &times, now), ..times })
        });
        let continues = is_first || continues_push(stack, current);
        let pushed = arrived.as_ref().filter(|_| continues).and_then(|times| times.detected);
        let arrived = arrived.filter(|_| is_first).unwrap_or_default();
        let requested = Some(now.as_millisecond());
        let times = PhaseTimes { digest, stack: stack.uid(), pushed, requested, ..arrived };
        times.write_to(update.annotations_mut());
        update
    }
}

/// Returns whether a later run of an artifact still belongs to the push of the artifact. Retries, previews that save a
/// plan, and runs that execute a plan belong to the push until the revision is applied.
fn continues_push(stack: &Stack, current: &CurrentUpdate) -> bool {
    let Some(status) = &stack.status else { return false };
    let is_applied = current.commit.is_some() && status.last_applied_revision == current.commit;
    let has_failed = status.last_update.as_ref().is_some_and(|last| last.reason.is_some());
    let has_plan = current.plan.is_some() || current.save_plan.unwrap_or_default();
    !is_applied && (has_failed || has_plan) && !drift::is_check(current) && !is_of_destroy(current)
}

/// Returns the time at which the Workspace became ready with its artifact. Returns `None` if the run started
/// immediately afterwards. A run can wait before it starts, for example until a schedule window opens.
fn placed(workspace: &Workspace, times: &PhaseTimes, now: Timestamp) -> Option<i64> {
    let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice())?;
    let ready = conditions::find(conditions, READY).filter(|ready| ready.status == "True")?;
    let placed = ready.last_transition_time.0.as_millisecond();
    let earliest = times.fetched.or(times.detected)?;
    (placed >= earliest && now.as_millisecond().saturating_sub(placed) >= MIN_WAIT).then_some(placed)
}

#[cfg(test)]
mod tests;
