//! What an Update says of its own run.

use kube::ResourceExt;

use crate::api::auto::{RunBinding, Update};
use crate::api::names;

/// The binding of an Update's run, once the run is announced.
pub fn binding(update: &Update) -> Option<&RunBinding> {
    update.status.as_ref()?.run.as_ref()
}

/// Whether the annotation asks to cancel the run.
pub fn is_cancel_requested(update: &Update) -> bool {
    update.annotations().contains_key(names::ANNOTATION_CANCEL)
}

/// Whether a Stack has made the Update.
pub fn is_of_stack(update: &Update) -> bool {
    update.owner_references().iter().any(|owner| owner.kind == "Stack")
}
