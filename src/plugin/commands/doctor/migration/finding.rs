//! Finding about a Stack of the Pulumi Kubernetes Operator.

use pulumi_controller::api::pulumi::StackSpec;
use serde::Serialize;
use serde_json::Value;

/// Difference between the operator and the controller that affects a Stack.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub field: String,
    /// Whether the Stack would fail, or a run would change other resources than with the operator.
    pub requires_action: bool,
    pub change: String,
    pub action: String,
}

impl Finding {
    pub fn required(field: impl Into<String>, change: impl Into<String>, action: impl Into<String>) -> Self {
        Finding { field: field.into(), requires_action: true, change: change.into(), action: action.into() }
    }

    /// Returns a finding about a difference that does not prevent runs.
    pub fn optional(field: impl Into<String>, change: impl Into<String>, action: impl Into<String>) -> Self {
        Finding { requires_action: false, ..Finding::required(field, change, action) }
    }
}

/// Returns a value in the workspace template. Returns `None` if the value is absent or null.
pub fn in_template<'a>(spec: &'a StackSpec, pointer: &str) -> Option<&'a Value> {
    spec.workspace_template.as_ref()?.pointer(pointer).filter(|value| !value.is_null())
}
