//! Approval settings of a Stack.

use kube::ResourceExt;

use crate::api::auto::{Update, UpdateKind};
use crate::api::pulumi::{ApprovalMode, ApprovalPolicy, Stack};

/// Returns the approval settings of a Stack if a run of this kind requires a plan.
pub fn policy(stack: &Stack, kind: UpdateKind) -> Option<&ApprovalPolicy> {
    let policy = stack.spec.approval.as_ref().filter(|policy| policy.mode != ApprovalMode::Never)?;
    match kind {
        UpdateKind::Up => Some(policy),
        UpdateKind::Destroy => Some(policy).filter(|policy| policy.destroy.unwrap_or_default()),
        UpdateKind::Preview | UpdateKind::Refresh | UpdateKind::Unknown => None,
    }
}

/// Returns the reason why the approval settings of a Stack do not permit a run in its Workspace. Only the run that the
/// Stack has recorded is permitted, and only with the recorded plan, because any user who can edit Updates could start
/// another run.
pub fn unapproved_run(stack: &Stack, update: &Update) -> Option<String> {
    policy(stack, update.spec.kind)?;
    let current = stack.status.as_ref().and_then(|status| status.current_update.as_ref());
    let approved =
        current.filter(|current| current.name == update.name_any()).and_then(|current| current.plan.as_ref());
    let (plan, kind, name) = (update.spec.plan.as_ref(), update.spec.kind.as_str(), stack.name_any());
    let is_approved = approved.zip(plan).is_some_and(|(approved, plan)| {
        approved.update_name == plan.update_name && approved.file_digest == plan.file_digest
    });
    (!is_approved).then(|| {
        format!(
            "Stack {name} requires an approval for each {kind} (spec.approval), so an Update that a user creates or changes cannot \
             start one; request a run of the Stack with the annotation reconcile.fluxcd.io/requestedAt"
        )
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
            ("Always", update("mine", "destroy", None), true),
            ("Never", update("mine", "up", None), true),
        ] {
            let refusal = unapproved_run(&stack(mode), &update);
            assert_eq!(refusal.is_none(), permitted, "{mode} {update:?}: {refusal:?}");
        }
    }
}
