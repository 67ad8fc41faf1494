//! Observed state of a Stack's plan.

use crate::api::auto::UpdatePlan;
use crate::api::pulumi::Approval;
use crate::controller::stack::prerequisites::expression::ExpressionError;

/// State of a Stack's plan.
#[derive(Clone, Debug, Default)]
pub struct ObservedPlan {
    /// Changes in the status of the Update that saved the plan. `None` if the Update no longer contains this plan or no
    /// longer exists.
    pub changes: Option<UpdatePlan>,
    /// Approvals of the plan.
    pub approvals: Vec<Approval>,
    /// Number of approvals of other plans that users created after this plan, for example with an outdated digest.
    pub misdirected: usize,
    /// Result of `autoApproveExpr`. `None` if the expression is not set or its evaluation is not complete.
    pub expression: Option<Result<bool, ExpressionError>>,
}
