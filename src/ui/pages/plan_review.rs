//! State of the decision about a Stack's plan.

use url::form_urlencoded;

use crate::api::conditions::{self, stack_reason};
use crate::api::pulumi::{ApprovalPolicy, Stack};
use crate::view::phase;

/// Decision about a plan that the user has just recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    /// Digest of the plan.
    plan: String,
    is_approved: bool,
}

impl Decided {
    /// Returns the decision in the URL query. After the decision, the form's response redirects to this URL.
    pub(super) fn parse(query: &str) -> Option<Self> {
        let value = |wanted: &str| {
            let mut pairs = form_urlencoded::parse(query.as_bytes());
            pairs.find(|(name, _)| name == wanted).map(|(_, value)| value)
        };
        let is_approved = match value("done")?.as_ref() {
            "approve" => true,
            "reject" => false,
            _ => return None,
        };
        Some(Decided { plan: value("plan")?.into_owned(), is_approved })
    }
}

/// State of the decision about a Stack's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Review {
    /// The Stack has no plan, or its plan requires no decision.
    NotRequired,
    /// The plan waits for a user's decision.
    Awaited,
    /// The user has approved the plan. The controller has not handled the approval yet.
    Approved,
    /// The user has approved the plan, but the plan requires approvals from several users.
    PartlyApproved,
    /// The user has approved the plan, but at least one approval is invalid.
    Ignored,
    /// The user has rejected the plan. The controller has not handled the rejection yet.
    Rejected,
    /// The open run executes the plan.
    Running { is_approved: bool },
}

impl Review {
    /// Returns the state of the decision about a Stack's plan. `decided` is the decision that the user has just
    /// recorded.
    pub(super) fn of(stack: &Stack, decided: Option<&Decided>) -> Self {
        let Some(status) = &stack.status else { return Review::NotRequired };
        let Some(plan) = &status.plan else { return Review::NotRequired };
        if let Some(open) = &status.current_update {
            let executed = open.plan.as_ref().filter(|executed| executed.digest == plan.digest);
            let running = |is_approved| Review::Running { is_approved };
            return executed.map_or(Review::NotRequired, |executed| running(!executed.approved_by.is_empty()));
        }
        let reason = phase::reconciling(status).map(|condition| condition.reason.as_str());
        if reason != Some(stack_reason::AWAITING_APPROVAL) {
            return Review::NotRequired;
        }
        let digest = plan.digest.to_string();
        // A newer plan requires a decision again.
        let Some(decided) = decided.filter(|decided| decided.plan == digest) else { return Review::Awaited };
        let is_ignored = phase::cause(stack).is_some_and(|cause| cause.contains(conditions::APPROVAL_DOES_NOT_COUNT));
        match stack.spec.approval.as_ref().map_or(1, ApprovalPolicy::required_approvers) {
            _ if !decided.is_approved => Review::Rejected,
            _ if is_ignored => Review::Ignored,
            1 => Review::Approved,
            _ => Review::PartlyApproved,
        }
    }

    /// Returns the message about the user's decision.
    pub(super) fn notice(self) -> Option<&'static str> {
        match self {
            Review::NotRequired | Review::Awaited | Review::Running { .. } => None,
            Review::Approved => Some("Your approval is recorded. The run starts in a moment."),
            Review::PartlyApproved => {
                Some("Your approval is recorded. The run starts when enough users have approved the plan.")
            }
            Review::Ignored => {
                Some("Your approval is recorded. The message below explains why an approval does not count.")
            }
            Review::Rejected => Some("Your rejection is recorded. The controller does not execute the plan."),
        }
    }

    /// Returns whether the Stack status does not contain the user's decision yet. In this case, the status message
    /// about a missing approval would contradict the notice.
    pub(super) fn is_ahead_of_status(self) -> bool {
        matches!(self, Review::Approved | Review::Rejected)
    }

    /// Returns whether the plan requires a decision that the Stack status does not contain.
    pub(super) fn is_undecided(self) -> bool {
        !matches!(self, Review::NotRequired | Review::Running { .. })
    }

    /// Returns the title of the plan section.
    pub(super) fn title(self) -> &'static str {
        match self {
            Review::NotRequired | Review::Awaited | Review::PartlyApproved | Review::Ignored => "Plan",
            Review::Approved => "Plan (approved)",
            Review::Rejected => "Plan (rejected)",
            Review::Running { is_approved: true } => "Plan (approved, running)",
            Review::Running { is_approved: false } => "Plan (running)",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::view::fixtures::{DIGEST, PLAN, condition, stack};

    fn waiting(message: &str) -> Value {
        json!({
            "conditions": [condition("Reconciling", "True", "AwaitingApproval", message)],
            "plan": { "digest": PLAN, "updateName": "web-1", "fileDigest": DIGEST },
        })
    }

    #[test]
    fn a_decision_of_the_user_replaces_the_forms_until_there_is_a_newer_plan() {
        let approved = format!("done=approve&plan={PLAN}");
        let rejected = format!("done=reject&plan={PLAN}");
        let (one, two) = (json!({}), json!({ "approval": { "mode": "Always", "approvers": 2 } }));
        let ignored = "1 of 1; an approval does not count: unknown author";
        let rows = [
            (&one, "", "", Review::Awaited),
            (&one, "", "done=suspend", Review::Awaited),
            (&one, "", "done=approve", Review::Awaited),
            (&one, "", &format!("done=approve&plan={DIGEST}"), Review::Awaited),
            (&one, "", &approved, Review::Approved),
            (&one, "", &rejected, Review::Rejected),
            (&one, ignored, &approved, Review::Ignored),
            (&two, "", &approved, Review::PartlyApproved),
        ];
        for (spec, message, query, expected) in rows {
            let stack = stack("web", spec, &waiting(message));
            let review = Review::of(&stack, Decided::parse(query).as_ref());
            assert_eq!(review, expected, "{spec} {message} {query}");
            assert_eq!(review.notice().is_some(), expected != Review::Awaited, "{query}");
        }
    }

    #[test]
    fn a_plan_requires_no_decision_in_other_states() {
        let of = |status: &Value| Review::of(&stack("web", &json!({}), status), None);
        let open = |digest: &str, by: Value| {
            let mut status = waiting("");
            let plan = json!({ "digest": digest, "updateName": "web-1", "fileDigest": DIGEST, "approvedBy": by });
            status["currentUpdate"] = json!({ "name": "web-2", "type": "up", "plan": plan });
            of(&status)
        };
        assert_eq!(open(PLAN, json!(["alice"])), Review::Running { is_approved: true });
        assert_eq!(open(PLAN, json!([])), Review::Running { is_approved: false });
        assert_eq!(open(DIGEST, json!([])), Review::NotRequired);
        let mut approved = waiting("");
        approved["conditions"] = json!([condition("Reconciling", "True", "StackProcessing", "waiting")]);
        assert_eq!(of(&approved), Review::NotRequired);
        assert_eq!(of(&json!({})), Review::NotRequired);
    }
}
