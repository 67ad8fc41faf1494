//! Patches for Stacks, with which users request actions from the controller.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::names::{ANNOTATION_REFRESH, ANNOTATION_REQUESTED_AT};

/// Returns a value for the run request annotations. The value is the current time, so that each request has a different
/// value.
pub fn request_value() -> String {
    Timestamp::now().to_string()
}

/// Returns the patch that sets annotations.
pub fn annotations(values: &[(&str, &str)]) -> Value {
    let values: serde_json::Map<String, Value> =
        values.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    json!({ "metadata": { "annotations": values } })
}

/// Returns the patch that requests a run.
pub fn request(value: &str) -> Value {
    annotations(&[(ANNOTATION_REQUESTED_AT, value)])
}

/// Returns the patch that requests a run with a refresh. Both annotations must have the same value.
pub fn request_with_refresh(value: &str) -> Value {
    annotations(&[(ANNOTATION_REQUESTED_AT, value), (ANNOTATION_REFRESH, value)])
}

/// Returns the patch that suspends or resumes a Stack. To resume the Stack, the patch removes the field, as the `flux`
/// CLI does. If a manifest of the Stack lacks the field, a tool such as Argo CD then finds no difference.
pub fn suspension(is_suspended: bool) -> Value {
    json!({ "spec": { "suspend": is_suspended.then_some(true) } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "2026-11-02T12:00:00Z";

    #[test]
    fn a_request_with_a_refresh_sets_both_annotations_to_the_same_value() {
        let expected = json!({ "reconcile.fluxcd.io/requestedAt": AT, "pulumi.com/refresh": AT });
        assert_eq!(request_with_refresh(AT), json!({ "metadata": { "annotations": expected } }));
        assert_eq!(request(AT), annotations(&[("reconcile.fluxcd.io/requestedAt", AT)]));
    }

    #[test]
    fn resume_removes_the_field() {
        assert_eq!(suspension(true), json!({ "spec": { "suspend": true } }));
        assert_eq!(suspension(false), json!({ "spec": { "suspend": null } }));
    }
}
