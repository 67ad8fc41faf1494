//! Decides whether a due run needs a plan, and whether the controller may execute the plan.

use std::collections::BTreeSet;

use crate::api::auto::{PreviewOf, SourceMetadata, UpdateKind, UpdatePlan};
use crate::api::pulumi::{
    Approval, ApprovalDecision, ApprovalMode, ApprovalPolicy, ApprovedPlan, CurrentUpdate, LastUpdate, Stack, StackPlan,
};
use crate::controller::stack::approval::message;
use crate::controller::stack::approval::observed_plan::ObservedPlan;
use crate::controller::stack::approval::policy::policy;
use crate::controller::stack::approval::risk::{self, PlannedChanges};
use crate::controller::stack::identity;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::prerequisites::expression::ExpressionError;
use crate::controller::stack::run::RunCandidate;
use crate::controller::stack::schedule::{self, Due};
use crate::pulumi::operations;

/// Cause of a run that executes a plan without changes.
const WITHOUT_CHANGES: &str = "Plan without changes";
/// Cause of a run that executes a plan without approval, because no rule in `spec.approval` requires an approval.
const WITHIN_LIMITS: &str = "Plan within the limits of spec.approval";

/// Decision about a run of a Stack.
#[derive(Clone, Debug, PartialEq)]
pub enum Gate {
    /// The approval settings do not affect the run.
    Open,
    /// A preview that saves its plan is due. Contains the reason.
    Plan(String),
    /// The controller may execute the plan. Contains the reason.
    Execute(ApprovedPlan, String),
    /// The evaluation of `autoApproveExpr` is not complete.
    Evaluating,
    /// The plan requires an approval. Contains the message for the conditions.
    Await(String),
    /// A user rejected the plan. Contains the message for the conditions.
    Rejected(String),
    /// `autoApproveExpr` is invalid. Contains the message.
    Invalid(String),
}

/// Decides whether a run of this kind may start. `due` is the schedule's decision about the run.
pub fn gate(observed: &Observed, candidate: &RunCandidate, kind: UpdateKind, due: &Due) -> Gate {
    let Some(policy) = policy(&observed.stack, kind) else { return Gate::Open };
    match (current_plan(observed, candidate, kind), due) {
        (None, Due::Now(reason)) => Gate::Plan(reason.clone()),
        (None, Due::Done(_)) if was_plan(last(&observed.stack)) => {
            Gate::Plan("The plan is no longer available".to_owned())
        }
        (Some((plan, state)), Due::Now(_) | Due::Done(_)) => decide(observed, policy, plan, state),
        (None | Some(_), _) => Gate::Open,
    }
}

/// Returns whether the run executes a plan that required no approval.
pub fn is_automatic(cause: &str) -> bool {
    [WITHOUT_CHANGES, WITHIN_LIMITS].contains(&cause)
}

/// Returns the reason why a recorded run must no longer execute its plan, for example because a user rejected the plan
/// or withdrew an approval. Returns `None` if the run may execute its plan, or if the run has no plan.
pub fn withdrawn(observed: &Observed, current: &CurrentUpdate) -> Option<&'static str> {
    let approved = current.plan.as_ref()?;
    let kind = if current.kind == UpdateKind::Destroy { UpdateKind::Destroy } else { UpdateKind::Up };
    let policy = policy(&observed.stack, kind)?;
    let plan = observed.stack.status.as_ref().and_then(|status| status.plan.as_deref());
    let (Some(plan), Some(state)) = (plan, observed.plan.as_ref()) else { return Some("its plan no longer exists") };
    if plan.digest != approved.digest {
        return Some("a newer plan exists");
    }
    // A plan that required no approval still requires none, because its changes and the expression result stay the
    // same.
    let is_automatic = approved.approved_by.is_empty();
    match votes(observed, policy, plan, state) {
        Votes { rejection: Some(_), .. } => Some("a user rejected its plan"),
        Votes { approvers, .. } if !is_automatic && approvers.len() < policy.required_approvers() => {
            Some("the approval of its plan was withdrawn")
        }
        Votes { .. } => None,
    }
}

fn last(stack: &Stack) -> Option<&LastUpdate> {
    stack.status.as_ref()?.last_update.as_ref()
}

fn was_plan(last: Option<&LastUpdate>) -> bool {
    last.and_then(|last| last.kind.as_deref()) == Some(UpdateKind::Preview.as_str())
}

/// Returns the Stack's plan if the plan matches the current inputs of the run, and if the Update that saved the plan
/// still exists.
fn current_plan<'a>(
    observed: &'a Observed,
    candidate: &RunCandidate,
    kind: UpdateKind,
) -> Option<(&'a StackPlan, &'a ObservedPlan)> {
    let plan = observed.stack.status.as_ref()?.plan.as_deref()?;
    let operation = if kind == UpdateKind::Destroy { PreviewOf::Destroy } else { PreviewOf::Up };
    let state = observed.plan.as_ref().filter(|state| state.changes.is_some())?;
    let is_current = plan.operation == operation && schedule::has_same_inputs(last(&observed.stack), candidate);
    is_current.then_some((plan, state))
}

fn decide(observed: &Observed, policy: &ApprovalPolicy, plan: &StackPlan, state: &ObservedPlan) -> Gate {
    let execute = |approved_by: Vec<String>, reason: String| {
        let (digest, update_name) = (plan.digest.clone(), plan.update_name.clone());
        Gate::Execute(ApprovedPlan { digest, update_name, file_digest: plan.file_digest.clone(), approved_by }, reason)
    };
    let Some(resources) = &state.changes else { return Gate::Evaluating };
    let left = left_behind(&observed.stack);
    if plan.resource_count == 0 && left.is_none() {
        return execute(Vec::new(), WITHOUT_CHANGES.to_owned());
    }
    let votes = votes(observed, policy, plan, state);
    if let Some(rejection) = votes.rejection {
        return Gate::Rejected(message::rejected(plan, rejection));
    }
    let exceptions: Vec<String> = left.into_iter().chain(removed_missing(&observed.stack)).collect();
    let required = match exceptions.is_empty() {
        true => required(policy, plan, resources, state.expression.as_ref()),
        false => Required::Yes(exceptions),
    };
    let reasons = match required {
        Required::No => return execute(Vec::new(), WITHIN_LIMITS.to_owned()),
        Required::Unknown => return Gate::Evaluating,
        Required::Invalid(why) => return Gate::Invalid(format!("spec.approval.autoApproveExpr: {why}")),
        Required::Yes(reasons) => reasons,
    };
    if votes.approvers.len() >= policy.required_approvers() {
        let by: Vec<String> = votes.approvers.iter().map(|by| (*by).to_owned()).collect();
        let reason = format!("Plan approved by {}", by.join(", "));
        return execute(by, reason);
    }
    let awaited = message::Awaited {
        reasons: &reasons,
        approvals: votes.approvers.len(),
        required: policy.required_approvers(),
        ignored: votes.ignored,
        misdirected: state.misdirected,
    };
    Gate::Await(message::awaiting(plan, &awaited))
}

/// Whether a plan requires an approval.
enum Required {
    No,
    Yes(Vec<String>),
    /// The evaluation of the expression is not complete.
    Unknown,
    /// The expression is invalid. Contains the error message.
    Invalid(String),
}

fn required(
    policy: &ApprovalPolicy,
    plan: &StackPlan,
    resources: &UpdatePlan,
    expression: Option<&Result<bool, ExpressionError>>,
) -> Required {
    if policy.mode != ApprovalMode::OnRisk || plan.operation == PreviewOf::Destroy {
        return Required::Yes(Vec::new());
    }
    match expression {
        None if policy.auto_approve_expr.is_some() => return Required::Unknown,
        Some(Err(ExpressionError::Invalid(why))) => return Required::Invalid(why.clone()),
        _ => {}
    }
    let reasons = risk::reasons(policy, PlannedChanges { counts: &plan.changes, resources }, expression);
    if reasons.is_empty() { Required::No } else { Required::Yes(reasons) }
}

/// Returns the reason why a plan for another Pulumi stack than the applied one always requires an approval. The preview
/// that has saved the plan recorded its Pulumi stack.
fn left_behind(stack: &Stack) -> Option<String> {
    let applied = stack.status.as_ref()?.applied_stack.as_ref()?;
    let planned = last(stack)?.pulumi_stack.as_ref()?;
    identity::differ(applied, planned).then(|| {
        format!("it is for another Pulumi stack ({planned}), and the resources in {applied} stay behind, unmanaged")
    })
}

/// Returns the reason if the refresh of the last update has removed resources from the state, and the update has then
/// failed, for example because its plan did not contain these resources. The next plan would only create them.
fn removed_missing(stack: &Stack) -> Option<String> {
    let mut runs = stack.status.as_ref()?.runs.iter();
    let last = runs.find(|run| run.kind == UpdateKind::Up.as_str())?;
    let missing = last.changes.get(operations::MISSING).filter(|count| **count > 0 && last.reason.is_some())?;
    Some(format!("the failed run {} removed {missing} missing resource(s) from the state", last.name))
}

/// Decisions of users about a plan.
#[derive(Debug, Default)]
struct Votes<'a> {
    /// Distinct users who approved the plan.
    approvers: BTreeSet<&'a str>,
    rejection: Option<&'a Approval>,
    /// Reason why the controller ignores one or more approvals.
    ignored: Option<&'static str>,
}

fn votes<'a>(observed: &'a Observed, policy: &ApprovalPolicy, plan: &StackPlan, state: &'a ObservedPlan) -> Votes<'a> {
    let digest = plan.digest.to_string();
    let source = last(&observed.stack).and_then(|last| last.source.as_deref());
    let mut votes = Votes::default();
    for approval in state.approvals.iter().filter(|approval| approval.spec.plan_digest == digest) {
        let by = approval.spec.by.as_str();
        match approval.spec.decision {
            ApprovalDecision::Reject => votes.rejection = votes.rejection.or(Some(approval)),
            ApprovalDecision::Approve => match policy.exclude_author.unwrap_or_default().then(|| author(source, by)) {
                None | Some(Author::Other) => {
                    votes.approvers.insert(by);
                }
                Some(Author::Unknown) => votes.ignored = Some("the author of the commit is unknown"),
                Some(Author::Same) => votes.ignored = Some("the author of the commit cannot approve the plan"),
            },
        }
    }
    votes
}

/// Relation of a user to the commit author.
enum Author {
    Same,
    Other,
    Unknown,
}

fn author(source: Option<&SourceMetadata>, by: &str) -> Author {
    let known = source.into_iter().flat_map(|source| [&source.author, &source.author_email]).flatten();
    let known: Vec<&String> = known.filter(|known| !known.is_empty()).collect();
    match known.iter().any(|known| known.to_lowercase() == by.to_lowercase()) {
        true => Author::Same,
        false if known.is_empty() => Author::Unknown,
        false => Author::Other,
    }
}

#[cfg(test)]
mod tests;
