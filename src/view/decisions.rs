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
        stack_reason::RUN_OUTCOME_UNKNOWN if decision != Decision::Create => {
            status.current_update.as_ref().map(|open| open.name.clone()).or_else(last)?
        }
        stack_reason::PENDING_CREATES if decision != Decision::Create => last()?,
        // The decision `Clear` does not apply, because a missing Pulumi stack has no pending creates. A destroy creates
        // no Pulumi stack.
        stack_reason::STACK_NOT_FOUND if is_decision_about_stack(decision, stack) => last()?,
        _ => return None,
    };
    Some((reason, run))
}

/// Returns whether a decision applies to a missing Pulumi stack.
fn is_decision_about_stack(decision: Decision, stack: &Stack) -> bool {
    match decision {
        Decision::Retry | Decision::Abandon => true,
        Decision::Clear => false,
        Decision::Create => stack.metadata.deletion_timestamp.is_none(),
    }
}

/// Returns the word that represents a decision in the annotation `pulumi.com/resolve`.
pub fn word(decision: Decision) -> &'static str {
    match decision {
        Decision::Retry => "retry",
        Decision::Create => "create",
        Decision::Clear => "clear",
        Decision::Abandon => "abandon",
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
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
        let missing = stack(
            "web",
            &json!({}),
            &json!({
                "conditions": [condition("Stalled", "True", "StackNotFound", "")],
                "lastUpdate": { "name": "web-000012b1a9f" },
            }),
        );
        let mut deleted = missing.clone();
        deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let rows = [
            (Decision::Retry, true, true, true),
            (Decision::Create, false, true, false),
            (Decision::Clear, true, false, false),
            (Decision::Abandon, true, true, true),
        ];
        for (decision, for_creates, for_stack, for_destroy) in rows {
            let found = [&stalled, &missing, &deleted].map(|stack| run_to_resolve(stack, decision));
            let applies = found.each_ref().map(Option::is_some);
            assert_eq!(applies, [for_creates, for_stack, for_destroy], "{decision:?}");
            for (_, run) in found.into_iter().flatten() {
                let value = format!("{run}={}", word(decision));
                assert_eq!(resolve::parse(&value).unwrap(), resolve::Resolution { update: &run, decision });
            }
        }
        assert_eq!(run_to_resolve(&stack("web", &json!({}), &json!({})), Decision::Retry), None);
    }
}
