//! Runs of a Stack, which its Updates record.

use std::cmp::Reverse;

use kube::ResourceExt as _;

use crate::api::auto::{Update, UpdatePhase};
use crate::api::pulumi::Stack;

/// Sorts the Updates of a Stack, newest first. If creation times are equal, the names determine the order, because the
/// names of later Updates are greater.
pub fn sort(updates: &mut [Update]) {
    updates.sort_by_key(|update| Reverse((update.creation_timestamp(), update.name_any())));
}

/// Returns the name of a Stack's open run or, if no run is open, of its last run.
pub fn current_or_last(stack: &Stack) -> Option<&str> {
    let status = stack.status.as_ref()?;
    let open = status.current_update.as_ref().map(|open| open.name.as_str());
    open.or_else(|| status.last_update.as_ref()?.name.as_deref())
}

/// Returns the phase of an Update. Without a status, the run waits.
pub fn phase(update: &Update) -> &'static str {
    match update.status.as_ref().and_then(|status| status.phase) {
        None | Some(UpdatePhase::Waiting) => "Waiting",
        Some(UpdatePhase::Starting) => "Starting",
        Some(UpdatePhase::Running) => "Running",
        Some(UpdatePhase::Canceling) => "Canceling",
        Some(UpdatePhase::OutcomeUnknown) => "OutcomeUnknown",
        Some(UpdatePhase::Succeeded) => "Succeeded",
        Some(UpdatePhase::Failed) => "Failed",
    }
}
