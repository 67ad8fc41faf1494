//! The annotations that request a run.

use kube::ResourceExt;

use crate::api::names;
use crate::api::pulumi::Stack;

/// Returns the values of the annotations `pulumi.com/reconciliation-request` and `reconcile.fluxcd.io/requestedAt`.
pub fn requests(stack: &Stack) -> (Option<String>, Option<String>) {
    let value = |key: &str| stack.annotations().get(key).cloned();
    (value(names::ANNOTATION_RECONCILIATION_REQUEST), value(names::ANNOTATION_REQUESTED_AT))
}

/// Returns the values of Flux's `forceAt` and `resetAt` annotations, which are valid only if they equal `requestedAt`. `forceAt` forces a
/// run; `resetAt` resets the failure count.
pub fn requests_beside(stack: &Stack) -> (Option<String>, Option<String>) {
    let (_, requested_at) = requests(stack);
    let value = |key: &str| stack.annotations().get(key).filter(|value| Some(*value) == requested_at.as_ref()).cloned();
    (value(names::ANNOTATION_FORCE_AT), value(names::ANNOTATION_RESET_AT))
}
