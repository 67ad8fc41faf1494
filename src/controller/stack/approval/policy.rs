//! Approval settings of a Stack.

use kube::ResourceExt;

use crate::api::auto::{Update, UpdateKind};
use crate::api::pulumi::{ApprovalMode, ApprovalPolicy, Stack};
use crate::controller::stack::build_update;

/// Returns the Stack's approval settings if a run of this kind requires a plan.
pub fn policy(stack: &Stack, kind: UpdateKind) -> Option<&ApprovalPolicy> {
    let policy = stack.spec.approval.as_ref().filter(|policy| policy.mode != ApprovalMode::Never)?;
    match kind {
        UpdateKind::Up => Some(policy),
        UpdateKind::Destroy => Some(policy).filter(|policy| policy.destroy.unwrap_or_default()),
        UpdateKind::Preview | UpdateKind::Refresh | UpdateKind::Unknown => None,
    }
}

/// Returns the reason why the Stack's approval settings do not permit an `up` or a destroy in its Workspace. The
/// settings permit only the recorded run, and only with the spec that the controller has created. Without this
/// restriction, any user who can edit Updates could change resources without an approval.
pub fn unapproved_run(stack: &Stack, update: &Update) -> Option<String> {
    let kind = update.spec.kind;
    let requires_approvals = stack.spec.approval.as_ref().is_some_and(|policy| policy.mode != ApprovalMode::Never);
    if !requires_approvals || !matches!(kind, UpdateKind::Up | UpdateKind::Destroy) {
        return None;
    }
    let current = stack.status.as_ref().and_then(|status| status.current_update.as_deref());
    let is_permitted = current.filter(|current| current.name == update.name_any()).is_some_and(|current| {
        let has_plan = current.plan.is_some() || policy(stack, kind).is_none();
        // An earlier version of the controller can have created the Update. The spec that this version would create can
        // differ, so the recorded digest takes precedence.
        let is_unchanged = match current.spec_digest {
            Some(_) => build_update::is_recorded(update, current),
            None => build_update::update(stack, current).is_ok_and(|expected| expected.spec == update.spec),
        };
        has_plan && is_unchanged
    });
    (!is_permitted).then(|| {
        format!(
            "Stack {} requires approvals (spec.approval), so an Update that a user creates or changes cannot start an up or destroy; \
             request a run of the Stack with the annotation reconcile.fluxcd.io/requestedAt",
            stack.name_any()
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_recorded_run_with_its_spec_is_permitted() {
        let digest = crate::artifact::Digest::of(b"file");
        let stack = |mode: &str, kind: &str, with_plan: bool| -> Stack {
            let plan = json!({"digest": digest, "updateName": "web-1", "fileDigest": digest});
            let plan = with_plan.then_some(plan);
            serde_json::from_value(json!({
                "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "web", "uid": "uid-1"},
                "spec": {"stack": "dev", "approval": {"mode": mode}},
                "status": {"conditions": [], "currentUpdate": {"name": "web-2", "type": kind, "plan": plan}},
            }))
            .unwrap()
        };
        let recorded = |stack: &Stack| {
            let current = stack.status.as_ref().and_then(|status| status.current_update.as_deref());
            build_update::update(stack, current.unwrap()).unwrap()
        };
        let changed = |stack: &Stack, change: fn(&mut Update)| {
            let mut update = recorded(stack);
            change(&mut update);
            unapproved_run(stack, &update).is_none()
        };
        let planned = stack("Always", "up", true);
        let rows: [(&str, fn(&mut Update), bool); 7] = [
            ("unchanged", |_| {}, true),
            ("another name", |update| update.metadata.name = Some("mine".to_owned()), false),
            ("without the plan", |update| update.spec.plan = None, false),
            ("another operation", |update| update.spec.kind = UpdateKind::Destroy, false),
            ("another Pulumi stack", |update| update.spec.stack_name = "prod".to_owned(), false),
            ("other targets", |update| update.spec.target = vec!["urn".to_owned()], false),
            ("a preview", |update| update.spec.kind = UpdateKind::Preview, true),
        ];
        for (name, change, permitted) in rows {
            assert_eq!(changed(&planned, change), permitted, "{name}");
        }
        let mine: fn(&mut Update) = |update| update.metadata.name = Some("mine".to_owned());
        assert!(!changed(&stack("OnRisk", "up", false), |_| {}), "a run without a plan");
        assert!(changed(&stack("Never", "up", false), mine));
        let destroy = stack("Always", "destroy", false);
        assert!(changed(&destroy, |_| {}), "the settings require no approval for a destroy of the Stack");
        assert!(!changed(&destroy, mine), "a user starts no destroy");
        assert!(!changed(&destroy, |update| update.spec.remove = Some(true)));
    }

    #[test]
    fn a_recorded_run_is_permitted_after_an_upgrade_of_the_controller() {
        let digest = crate::artifact::Digest::of(b"file");
        let plan = json!({"digest": digest, "updateName": "web-1", "fileDigest": digest});
        let mut stack: Stack = serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "web", "uid": "uid-1"},
            "spec": {"stack": "dev", "approval": {"mode": "Always"}},
            "status": {"conditions": [], "currentUpdate": {"name": "web-2", "type": "up", "plan": plan}},
        }))
        .unwrap();
        let status = stack.status.clone().unwrap();
        let current = build_update::with_spec_digest(&stack, &status.current_update.unwrap()).unwrap();
        let mut earlier = build_update::update(&stack, &current).unwrap();
        earlier.spec.parallel = Some(2);
        let recorded = build_update::with_admitted_spec(&current, &earlier).unwrap();
        stack.status.as_mut().unwrap().current_update = Some(Box::new(recorded));
        assert_eq!(unapproved_run(&stack, &earlier), None);
        earlier.spec.target = vec!["urn".to_owned()];
        assert!(unapproved_run(&stack, &earlier).is_some(), "a user has changed the Update");
    }
}
