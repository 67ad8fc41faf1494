//! Observed state of the plan of a Stack.

use crate::api::auto::UpdatePlan;
use crate::api::pulumi::Approval;
use crate::controller::stack::prerequisites::expression::ExpressionError;

/// State of the plan of a Stack.
#[derive(Clone, Debug, Default)]
pub struct ObservedPlan {
    /// Changes in the status of the Update that saved the plan. `None` if the Update no longer contains this plan or no
    /// longer exists.
    pub changes: Option<UpdatePlan>,
    /// Approvals of the plan.
    pub approvals: Vec<Approval>,
    /// Result of `autoApproveExpr`. `None` if the expression is not set or its evaluation has not ended.
    pub expression: Option<Result<bool, ExpressionError>>,
}
