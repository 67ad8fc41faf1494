//! Reads the plan of a Stack and the Approvals for the plan.

use std::sync::Arc;

use kube::ResourceExt;

use crate::api::auto::{Update, UpdatePlan};
use crate::api::pulumi::{Approval, ApprovalDecision, ApprovalMode, Stack, StackPlan};
use crate::controller::stack::approval::observed_plan::ObservedPlan;
use crate::controller::stack::approval::policy::policy;
use crate::controller::stack::approval::risk::{self, PlannedChanges};
use crate::controller::stack::context::Context;
use crate::controller::stack::prerequisites::expression::ExpressionError;
use crate::controller::stack::run::operation_kind;
use crate::runtime::reads::ReadError;

/// Maximum number of Approvals that the controller reads from the API server for one plan.
const MAX_APPROVALS: usize = 20;

/// Reads the state of the plan. Returns `None` if the Stack has no plan, or if the run of `current` has started. A
/// started run no longer needs the plan, so the controller does not repeat the reads after each change to the run's
/// progress.
pub async fn observe(
    stack: &Stack,
    current: Option<&Update>,
    context: &Context,
) -> Result<Option<ObservedPlan>, ReadError> {
    let has_started = current.and_then(|update| update.status.as_ref()).is_some_and(|status| status.run.is_some());
    let plan = stack.status.as_ref().and_then(|status| status.plan.as_deref()).filter(|_| !has_started);
    let Some(plan) = plan else { return Ok(None) };
    let namespace = stack.namespace().unwrap_or_default();
    let update = context.reader.get_opt::<Update>(&namespace, &plan.update_name).await?;
    let changes = update.and_then(|update| update.status?.plan);
    let changes = changes.filter(|changes| changes.file_digest.as_ref() == Some(&plan.file_digest));
    let (approvals, misdirected) = approvals(stack, plan, context).await?;
    let expression = match &changes {
        Some(changes) => evaluate(stack, plan, changes, context).await,
        None => None,
    };
    Ok(Some(ObservedPlan { changes, approvals, misdirected, expression }))
}

/// Returns the Approvals for the plan, and the number of later approvals of other plans. The cache can contain deleted
/// Approvals, so the function also reads each Approval for the plan from the API server.
async fn approvals(stack: &Stack, plan: &StackPlan, context: &Context) -> Result<(Vec<Approval>, usize), ReadError> {
    let namespace = stack.namespace().unwrap_or_default();
    let digest = plan.digest.to_string();
    let mut known: Vec<Arc<Approval>> = context.approvals.in_group(&(namespace.clone(), stack.name_any()));
    let is_misdirected = |approval: &&Arc<Approval>| {
        let is_later =
            plan.created.as_ref().is_some_and(|plan| approval.creation_timestamp().is_some_and(|it| it > *plan));
        is_later && approval.spec.plan_digest != digest && approval.spec.decision == ApprovalDecision::Approve
    };
    let misdirected = known.iter().filter(is_misdirected).count();
    known.retain(|approval| approval.spec.plan_digest == digest);
    // Rejections come first, because the number of reads is limited, and a single rejection prevents the run.
    let order = |approval: &Arc<Approval>| {
        let is_approval = approval.spec.decision == ApprovalDecision::Approve;
        (is_approval, approval.creation_timestamp(), approval.name_any())
    };
    known.sort_by_key(order);
    let mut approvals = Vec::new();
    for approval in known.iter().take(MAX_APPROVALS) {
        let live = context.reader.get_opt::<Approval>(&namespace, &approval.name_any()).await?;
        approvals.extend(live.filter(|live| live.metadata.deletion_timestamp.is_none()));
    }
    Ok((approvals, misdirected))
}

/// Evaluates `autoApproveExpr`. Returns `None` unless the mode is `OnRisk`.
async fn evaluate(
    stack: &Stack,
    plan: &StackPlan,
    changes: &UpdatePlan,
    context: &Context,
) -> Option<Result<bool, ExpressionError>> {
    let policy = policy(stack, operation_kind(plan.operation)).filter(|policy| policy.mode == ApprovalMode::OnRisk)?;
    let expression = policy.auto_approve_expr.as_ref()?;
    let variables = risk::variables(PlannedChanges { counts: &plan.changes, resources: changes });
    context.evaluator.evaluate_variables(stack, expression, variables).await
}
