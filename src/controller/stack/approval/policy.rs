//! Approval settings of a Stack.

use kube::ResourceExt;

use crate::api::auto::{PlanReference, Update, UpdateKind};
use crate::api::pulumi::{ApprovalMode, ApprovalPolicy, ApprovedPlan, Stack};

/// Returns the approval settings of a Stack if a run of this kind requires a plan.
pub fn policy(stack: &Stack, kind: UpdateKind) -> Option<&ApprovalPolicy> {
    let policy = stack.spec.approval.as_ref().filter(|policy| policy.mode != ApprovalMode::Never)?;
    match kind {
        UpdateKind::Up => Some(policy),
        UpdateKind::Destroy => Some(policy).filter(|policy| policy.destroy.unwrap_or_default()),
        UpdateKind::Preview | UpdateKind::Refresh | UpdateKind::Unknown => None,
    }
}

/// Returns the reason why the approval settings of a Stack do not permit an `up` or destroy in its Workspace. Only the run
/// that the Stack has recorded is permitted, and if it requires a plan, only with the recorded plan. Otherwise, any user who
/// can edit Updates could change resources without an approval.
pub fn unapproved_run(stack: &Stack, update: &Update) -> Option<String> {
    let kind = update.spec.kind;
    let requires_approvals = stack.spec.approval.as_ref().is_some_and(|policy| policy.mode != ApprovalMode::Never);
    if !requires_approvals || !matches!(kind, UpdateKind::Up | UpdateKind::Destroy) {
        return None;
    }
    let current = stack.status.as_ref().and_then(|status| status.current_update.as_ref());
    let recorded = current.filter(|current| current.name == update.name_any() && current.kind == kind);
    let is_permitted = recorded.is_some_and(|current| {
        policy(stack, kind).is_none() || is_plan_of(current.plan.as_ref(), update.spec.plan.as_ref())
    });
    (!is_permitted).then(|| {
        format!(
            "Stack {} requires approvals (spec.approval), so an Update that a user creates or changes cannot start an up or destroy; \
             request a run of the Stack with the annotation reconcile.fluxcd.io/requestedAt",
            stack.name_any()
        )
    })
}

fn is_plan_of(approved: Option<&ApprovedPlan>, plan: Option<&PlanReference>) -> bool {
    approved.zip(plan).is_some_and(|(approved, plan)| {
        approved.update_name == plan.update_name && approved.file_digest == plan.file_digest
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_recorded_run_with_its_plan_is_permitted() {
        let digest = crate::artifact::Digest::of(b"file");
        let plan = json!({"digest": digest, "updateName": "web-1", "fileDigest": digest});
        let stack = |mode: &str| -> Stack {
            serde_json::from_value(json!({
                "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "web"},
                "spec": {"stack": "dev", "approval": {"mode": mode}},
                "status": {"conditions": [], "currentUpdate": {"name": "web-2", "type": "up", "plan": plan}},
            }))
            .unwrap()
        };
        let update = |name: &str, kind: &str, plan: Option<&str>| -> Update {
            let plan = plan.map(|update_name| json!({"updateName": update_name, "fileDigest": digest}));
            let spec = json!({"workspaceName": "web", "stackName": "dev", "type": kind, "plan": plan});
            let object = json!({
                "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "metadata": {"name": name}, "spec": spec,
            });
            serde_json::from_value(object).unwrap()
        };
        for (mode, update, permitted) in [
            ("Always", update("web-2", "up", Some("web-1")), true),
            ("Always", update("web-2", "up", Some("other")), false),
            ("Always", update("web-2", "up", None), false),
            ("Always", update("mine", "up", Some("web-1")), false),
            ("OnRisk", update("mine", "up", None), false),
            ("Always", update("mine", "preview", None), true),
            ("Always", update("mine", "refresh", None), true),
            ("Always", update("mine", "destroy", None), false),
            ("Always", update("web-2", "destroy", Some("web-1")), false),
            ("Never", update("mine", "destroy", None), true),
            ("Never", update("mine", "up", None), true),
        ] {
            let refusal = unapproved_run(&stack(mode), &update);
            assert_eq!(refusal.is_none(), permitted, "{mode} {update:?}: {refusal:?}");
        }
    }
}
