//! Approval settings of a Stack.

use kube::ResourceExt;

use crate::api::auto::{Update, UpdateKind};
use crate::api::names;
use crate::api::pulumi::{ApprovalMode, ApprovalPolicy, Stack};
use crate::controller::stack::build_update;
use crate::source;

/// Message about a source that does not report the author of a commit.
const WITHOUT_AUTHOR: &str = "invalid spec.approval: excludeAuthor requires spec.projectRepo, because no other source \
                              reports the author of a commit; remove excludeAuthor, and set approvers to 2 or require \
                              reviews in the Git provider";

/// Returns the Stack's approval settings if a run of this kind requires a plan.
pub fn policy(stack: &Stack, kind: UpdateKind) -> Option<&ApprovalPolicy> {
    let policy = stack.spec.approval.as_ref()?;
    let requires_plan = match kind {
        UpdateKind::Up => policy.mode != ApprovalMode::Never,
        UpdateKind::Destroy => policy.destroy.unwrap_or_default(),
        UpdateKind::Preview | UpdateKind::Refresh | UpdateKind::Unknown => false,
    };
    requires_plan.then_some(policy)
}

/// Checks that all approval settings have an effect. Returns an error message otherwise.
pub fn check(stack: &Stack) -> Result<(), String> {
    let Some(policy) = &stack.spec.approval else { return Ok(()) };
    policy.check().map_err(|message| format!("invalid spec.approval: {message}"))?;
    let namespace = stack.namespace().unwrap_or_default();
    let is_polled = !matches!(source::repository(&stack.spec, &namespace), Ok(None));
    match policy.exclude_author.unwrap_or_default() && !is_polled {
        true => Err(WITHOUT_AUTHOR.to_owned()),
        false => Ok(()),
    }
}

/// Returns the reason why the Stack's approval settings do not permit an `up`, a refresh or a destroy in its Workspace. The
/// settings permit only the recorded run, and only with the spec that the controller has created. Without this
/// restriction, any user who can edit Updates could change resources without an approval.
pub fn unapproved_run(stack: &Stack, update: &Update) -> Option<String> {
    let kind = update.spec.kind;
    let requires_approvals = match kind {
        // A refresh can remove a resource from the state. The next plan would then create the resource a second time.
        UpdateKind::Up | UpdateKind::Refresh => policy(stack, UpdateKind::Up).is_some(),
        // A destroy by a user is also a change without an approval.
        UpdateKind::Destroy => policy(stack, kind).or_else(|| policy(stack, UpdateKind::Up)).is_some(),
        UpdateKind::Preview | UpdateKind::Unknown => false,
    };
    if !requires_approvals {
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
            "Stack {} requires approvals (spec.approval), so an Update that a user creates or changes cannot start an up, refresh or \
             destroy; request a run of the Stack with the annotation reconcile.fluxcd.io/requestedAt, or a run with a refresh with the \
             annotation {}",
            stack.name_any(),
            names::ANNOTATION_REFRESH
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
        let rows: [(&str, fn(&mut Update), bool); 8] = [
            ("unchanged", |_| {}, true),
            ("another name", |update| update.metadata.name = Some("mine".to_owned()), false),
            ("without the plan", |update| update.spec.plan = None, false),
            ("another operation", |update| update.spec.kind = UpdateKind::Destroy, false),
            ("another Pulumi stack", |update| update.spec.stack_name = "prod".to_owned(), false),
            ("other targets", |update| update.spec.target = vec!["urn".to_owned()], false),
            ("a preview", |update| update.spec.kind = UpdateKind::Preview, true),
            ("a refresh", |update| update.spec.kind = UpdateKind::Refresh, false),
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
        let mut only_destroys = stack("Never", "destroy", false);
        only_destroys.spec.approval.as_mut().unwrap().destroy = Some(true);
        assert!(!changed(&only_destroys, |_| {}), "a destroy without a plan");
        assert!(changed(&only_destroys, |update| update.spec.kind = UpdateKind::Up), "an up requires no approval");
        assert!(!changed(&destroy, |update| update.spec.remove = Some(true)));
    }

    #[test]
    fn settings_without_effect_are_invalid() {
        let git = json!({"projectRepo": "https://git.example.com/web", "branch": "main"});
        let flux = json!({"fluxSource": {"sourceRef": {"kind": "GitRepository", "name": "web"}}});
        let template =
            json!({"workspaceTemplate": {"spec": {"git": {"url": "https://git.example.com/web", "ref": "main"}}}});
        let exclude = json!({"excludeAuthor": true});
        let rows = [
            (&flux, json!(null), None),
            (&flux, json!({}), None),
            (&flux, json!({"approvers": 2, "destroy": true, "protect": ["*"]}), Some("protect require mode: OnRisk")),
            (&flux, json!({"mode": "Never", "approvers": 2}), Some("with mode: Never, approvers")),
            (&flux, exclude.clone(), Some("excludeAuthor requires spec.projectRepo")),
            (&json!({"programRef": {"name": "web"}}), exclude.clone(), Some("excludeAuthor requires spec.projectRepo")),
            (&json!({}), exclude.clone(), Some("excludeAuthor requires spec.projectRepo")),
            (&flux, json!({"excludeAuthor": false}), None),
            (&git, exclude.clone(), None),
            (&template, exclude, None),
        ];
        for (source, approval, expected) in rows {
            let mut spec = json!({"stack": "dev", "approval": approval});
            spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            let found = check(&Stack::new("web", serde_json::from_value(spec).unwrap())).err();
            match expected {
                None => assert_eq!(found, None, "{source} {approval}"),
                Some(words) => assert!(found.as_ref().is_some_and(|found| found.contains(words)), "{found:?}"),
            }
        }
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
        let recorded = build_update::with_created(&current, &earlier).unwrap();
        stack.status.as_mut().unwrap().current_update = Some(Box::new(recorded));
        assert_eq!(unapproved_run(&stack, &earlier), None);
        earlier.spec.target = vec!["urn".to_owned()];
        assert!(unapproved_run(&stack, &earlier).is_some(), "a user has changed the Update");
    }
}
