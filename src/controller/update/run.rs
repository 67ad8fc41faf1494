//! Accessors for the run of an Update.

use kube::ResourceExt;

use crate::api::auto::{RunBinding, Update};
use crate::api::names;

/// Returns the binding of the run, once the run is announced.
pub fn binding(update: &Update) -> Option<&RunBinding> {
    update.status.as_ref()?.run.as_ref()
}

/// Returns whether the annotation requests cancellation of the run.
pub fn is_cancel_requested(update: &Update) -> bool {
    update.annotations().contains_key(names::ANNOTATION_CANCEL)
}

/// Returns whether a Stack created the Update.
pub fn is_of_stack(update: &Update) -> bool {
    update.owner_references().iter().any(|owner| owner.kind == "Stack")
}
