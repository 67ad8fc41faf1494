//! The annotations that ask for a run. Pure.

use kube::ResourceExt;

use crate::api::names;
use crate::api::pulumi::Stack;

/// The values of the two annotations that ask for a run.
pub fn requests(stack: &Stack) -> (Option<String>, Option<String>) {
    let value = |key: &str| stack.annotations().get(key).cloned();
    (value(names::ANNOTATION_RECONCILIATION_REQUEST), value(names::ANNOTATION_REQUESTED_AT))
}

/// The values of Flux's further annotations, which count only with the value of `requestedAt`: that asks for a run in any
/// case, and that asks to forget failures.
pub fn requests_beside(stack: &Stack) -> (Option<String>, Option<String>) {
    let (_, requested_at) = requests(stack);
    let value = |key: &str| stack.annotations().get(key).filter(|value| Some(*value) == requested_at.as_ref()).cloned();
    (value(names::ANNOTATION_FORCE_AT), value(names::ANNOTATION_RESET_AT))
}
