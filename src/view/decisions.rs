//! Objects and annotations that record the decisions of users about plans and runs.

use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use crate::api::conditions::stack_reason;
use crate::api::pulumi::{Approval, ApprovalDecision, ApprovalSpec, ApprovedStack, Stack, StackPlan};
use crate::api::resolve::Decision;
use crate::view::phase;

/// Returns an Approval that records a decision about a Stack's plan, as `docs/guides/approvals.md` describes.
pub fn approval(
    stack: &Stack,
    plan: &StackPlan,
    decision: ApprovalDecision,
    user: &str,
    reason: Option<&str>,
) -> Approval {
    let spec = ApprovalSpec {
        stack_ref: ApprovedStack { name: stack.name_any() },
        plan_digest: plan.digest.to_string(),
        decision,
        by: user.to_owned(),
        reason: reason.map(str::to_owned),
    };
    let metadata = ObjectMeta {
        generate_name: Some(format!("{}-", stack.name_any())),
        namespace: stack.namespace(),
        ..ObjectMeta::default()
    };
    Approval { metadata, spec }
}

/// Returns the condition reason that requires a decision about a run, and the name of the run. Returns `None` if no
/// decision is required, or if the decision does not apply to the Stack's state.
pub fn run_to_resolve(stack: &Stack, decision: Decision) -> Option<(&str, String)> {
    let status = stack.status.as_ref()?;
    let reason = phase::stalled(status)?.reason.as_str();
    let last = || status.last_update.as_ref()?.name.clone();
    let run = match reason {
        stack_reason::RUN_OUTCOME_UNKNOWN => {
            status.current_update.as_ref().map(|open| open.name.clone()).or_else(last)?
        }
        stack_reason::PENDING_CREATES => last()?,
        // The decision `Clear` does not apply, because a missing Pulumi stack has no pending creates.
        stack_reason::STACK_NOT_FOUND if decision != Decision::Clear => last()?,
        _ => return None,
    };
    Some((reason, run))
}

/// Returns the word that represents a decision in the annotation `pulumi.com/resolve`.
pub fn word(decision: Decision) -> &'static str {
    match decision {
        Decision::Retry => "retry",
        Decision::Clear => "clear",
        Decision::Abandon => "abandon",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::resolve;
    use crate::view::fixtures::{condition, stack};

    #[test]
    fn the_controller_accepts_the_word_of_every_decision() {
        let status = json!({
            "conditions": [condition("Stalled", "True", "PendingCreates", "")],
            "lastUpdate": { "name": "web-000012b1a9f" },
        });
        let stalled = stack("web", &json!({}), &status);
        for decision in [Decision::Retry, Decision::Clear, Decision::Abandon] {
            let (reason, run) = run_to_resolve(&stalled, decision).unwrap();
            assert_eq!(reason, "PendingCreates");
            let value = format!("{run}={}", word(decision));
            assert_eq!(resolve::parse(&value).unwrap(), resolve::Resolution { update: &run, decision });
        }
        assert_eq!(run_to_resolve(&stack("web", &json!({}), &json!({})), Decision::Retry), None);
    }
}
