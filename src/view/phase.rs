//! Phase of a Stack, a word that summarizes the Stack's conditions.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::api::conditions::{
    self, DRIFTED, PROGRESSING_WITH_RETRY, READY, RECONCILING, STALLED, drift_reason, stack_reason,
};
use crate::api::pulumi::{EnforcementLevel, PolicyViolations, Stack, StackStatus};

/// Phase of a Stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Phase {
    /// The controller has not reconciled the Stack yet.
    Pending,
    /// A run is open or queued.
    Running,
    /// The controller prepares a run. For example, the controller waits for the workspace pod.
    Preparing,
    /// The last run failed, and the controller retries it.
    Retrying,
    /// The next run waits for another object, an approval or a window, or because runs are paused.
    Waiting,
    /// A user must act.
    Stalled,
    Suspended,
    /// The Stack is being deleted.
    Deleting,
    Ready,
}

/// All phases. Phases that require a user action come first.
pub const PHASES: [Phase; 9] = [
    Phase::Stalled,
    Phase::Retrying,
    Phase::Waiting,
    Phase::Running,
    Phase::Preparing,
    Phase::Pending,
    Phase::Deleting,
    Phase::Suspended,
    Phase::Ready,
];

impl Phase {
    /// Returns the phase of a Stack.
    pub fn of(stack: &Stack) -> Self {
        let Some(status) = stack.status.as_ref().filter(|status| !status.conditions.is_empty()) else {
            return if is_suspended(stack) { Phase::Suspended } else { Phase::Pending };
        };
        if conditions::is_true(&status.conditions, STALLED) {
            return Phase::Stalled;
        }
        if status.current_update.is_some() {
            return Phase::Running;
        }
        if is_suspended(stack) {
            return Phase::Suspended;
        }
        match reconciling(status).map(|condition| condition.reason.as_str()) {
            Some(stack_reason::RETRYING_AFTER_FAILURE | stack_reason::UPDATE_CONFLICT | PROGRESSING_WITH_RETRY) => {
                Phase::Retrying
            }
            Some(stack_reason::STACK_PROCESSING) if stack.metadata.deletion_timestamp.is_some() => Phase::Deleting,
            Some(stack_reason::STACK_PROCESSING) => Phase::Preparing,
            Some(stack_reason::SUSPENDED) => Phase::Suspended,
            Some(_) => Phase::Waiting,
            None if stack.metadata.deletion_timestamp.is_some() => Phase::Deleting,
            None if conditions::is_true(&status.conditions, READY) => Phase::Ready,
            None => Phase::Waiting,
        }
    }

    /// Returns the phase in upper camel case.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Preparing => "Preparing",
            Phase::Retrying => "Retrying",
            Phase::Waiting => "Waiting",
            Phase::Stalled => "Stalled",
            Phase::Suspended => "Suspended",
            Phase::Deleting => "Deleting",
            Phase::Ready => "Ready",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// Returns whether the spec suspends the Stack.
pub fn is_suspended(stack: &Stack) -> bool {
    stack.spec.suspend.unwrap_or_default()
}

/// Returns the condition `Reconciling` if its status is `True`.
pub fn reconciling(status: &StackStatus) -> Option<&Condition> {
    conditions::find(&status.conditions, RECONCILING).filter(|condition| condition.status == "True")
}

/// Returns the condition `Stalled` if its status is `True`.
pub fn stalled(status: &StackStatus) -> Option<&Condition> {
    conditions::find(&status.conditions, STALLED).filter(|condition| condition.status == "True")
}

/// Returns the message of the condition that best explains the phase. Returns `None` if the Stack is Ready.
pub fn cause(stack: &Stack) -> Option<&str> {
    let status = stack.status.as_ref()?;
    let ready = || conditions::find(&status.conditions, READY).filter(|condition| condition.status != "True");
    let condition = stalled(status).or_else(ready).or_else(|| reconciling(status))?;
    Some(condition.message.as_str()).filter(|message| !message.is_empty())
}

/// Returns the result of the last drift check, or `None` if there was no check.
pub fn drift(stack: &Stack) -> Option<String> {
    let status = stack.status.as_ref()?;
    let drifted = conditions::find(&status.conditions, DRIFTED)?;
    Some(match (drifted.status.as_str(), drifted.reason.as_str()) {
        ("True", _) => match status.drift.as_ref().map(|drift| drift.count) {
            Some(1) => "1 resource".to_owned(),
            Some(count) => format!("{count} resources"),
            None => "yes".to_owned(),
        },
        ("False", drift_reason::CORRECTED) => "corrected".to_owned(),
        ("False", _) => "none".to_owned(),
        (_, drift_reason::SPEC_INVALID) => "invalid".to_owned(),
        _ => "check failed".to_owned(),
    })
}

/// Returns whether the last drift check found drift.
pub fn has_drifted(stack: &Stack) -> bool {
    stack.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, DRIFTED))
}

/// Returns the number of policy violations at each level, such as `1 mandatory, 2 advisory`. Returns `None` if there
/// are no violations, or if exceptions exempt all violations.
pub fn violations(found: Option<&PolicyViolations>) -> Option<String> {
    let found = found?;
    let counts = [(found.mandatory, EnforcementLevel::Mandatory), (found.advisory, EnforcementLevel::Advisory)];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, level)| format!("{count} {}", level.as_str())).collect();
    Some(counts.join(", ")).filter(|text| !text.is_empty())
}

/// Returns the same numbers as [`violations`] together with the number of violations that exceptions exempt, such as
/// `1 mandatory, 2 exempted`. Returns `None` if there are no violations.
pub fn violations_and_exemptions(found: Option<&PolicyViolations>) -> Option<String> {
    let exempted = found?.exempted.filter(|count| *count > 0).map(|count| format!("{count} exempted"));
    let parts: Vec<String> = violations(found).into_iter().chain(exempted).collect();
    Some(parts.join(", ")).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::{condition, stack};

    #[test]
    fn the_phase_summarizes_the_conditions() {
        let with = |conditions: serde_json::Value| json!({ "conditions": conditions });
        let rows = [
            (json!({}), Phase::Pending),
            (with(json!([condition("Ready", "True", "ProcessingCompleted", "")])), Phase::Ready),
            (with(json!([condition("Reconciling", "True", "StackProcessing", "")])), Phase::Preparing),
            (with(json!([condition("Reconciling", "True", "AwaitingApproval", "")])), Phase::Waiting),
            (with(json!([condition("Reconciling", "True", "RetryingAfterFailure", "")])), Phase::Retrying),
            (with(json!([condition("Stalled", "True", "SpecInvalid", "")])), Phase::Stalled),
            (
                json!({
                    "conditions": [condition("Reconciling", "True", "StackProcessing", "")],
                    "currentUpdate": { "name": "web-1", "type": "up" },
                }),
                Phase::Running,
            ),
        ];
        for (status, expected) in rows {
            assert_eq!(Phase::of(&stack("web", &json!({}), &status)), expected, "{status}");
        }
        let suspended = stack("web", &json!({ "suspend": true }), &json!({}));
        assert_eq!(Phase::of(&suspended), Phase::Suspended);
    }

    #[test]
    fn the_drift_is_the_result_of_the_last_check() {
        let of = |status: &str, reason: &str, count: i64| {
            let status = json!({
                "conditions": [condition("Drifted", status, reason, "")],
                "drift": { "updateName": "web-3", "count": count },
            });
            drift(&stack("web", &json!({}), &status))
        };
        assert_eq!(of("True", "DriftDetected", 2).as_deref(), Some("2 resources"));
        assert_eq!(of("True", "DriftDetected", 1).as_deref(), Some("1 resource"));
        assert_eq!(of("False", "NoDrift", 0).as_deref(), Some("none"));
        assert_eq!(of("False", "Corrected", 2).as_deref(), Some("corrected"));
        assert_eq!(of("Unknown", "CheckFailed", 0).as_deref(), Some("check failed"));
        assert_eq!(of("Unknown", "SpecInvalid", 0).as_deref(), Some("invalid"));
        assert_eq!(drift(&stack("web", &json!({}), &json!({}))), None);
    }

    #[test]
    fn policy_violations_are_counted_by_their_level() {
        let of = |mandatory, advisory| {
            violations(Some(&PolicyViolations { mandatory, advisory, ..PolicyViolations::default() }))
        };
        assert_eq!(of(1, 2).as_deref(), Some("1 mandatory, 2 advisory"));
        assert_eq!(of(0, 2).as_deref(), Some("2 advisory"));
        assert_eq!(of(0, 0), None);
        assert_eq!(violations(None), None);
        let exempted = |mandatory| PolicyViolations { mandatory, exempted: Some(2), ..PolicyViolations::default() };
        assert_eq!(violations(Some(&exempted(0))), None, "an exempted violation requires no attention");
        assert_eq!(violations_and_exemptions(Some(&exempted(0))).as_deref(), Some("2 exempted"));
        assert_eq!(violations_and_exemptions(Some(&exempted(1))).as_deref(), Some("1 mandatory, 2 exempted"));
        assert_eq!(violations_and_exemptions(None), None);
    }
}
