//! Tests Stacks whose changes require an approval.

use pulumi_controller::api::auto::{PlannedResource, Update, UpdateKind};
use pulumi_controller::api::conditions::{READY, RECONCILING, STALLED, stack_reason, update_reason};
use pulumi_controller::api::names::ANNOTATION_REQUESTED_AT;
use pulumi_controller::api::pulumi::{LiteralRef, ResourceRef, Stack, StackPlan};
use serde_json::{Value, json};

use crate::harness::{
    Commit, Program, Scene, Source, StackHandle, WaitLimit, condition, has_condition, kubectl, once, run, run_program,
    try_kubectl,
};
use crate::runs_parts::{failure, until_update};

fn with_text(text: &str) -> Program {
    Program::new("approvals").step("step", json!({"value": text})).output("result", json!(text))
}

/// Starts a Stack with these approval settings.
async fn start<'a>(scene: &'a Scene, source: &Source<'_>, approval: Value) -> StackHandle<'a> {
    let mut stack = scene.stack("main", source);
    stack.spec.approval = serde_json::from_value(approval).expect("approval settings");
    scene.start(stack).await
}

/// Waits until a plan for this commit requires an approval, and returns the plan.
pub async fn until_awaiting(stack: &StackHandle<'_>, commit: &Commit) -> StackPlan {
    until_awaiting_after(stack, commit, None).await
}

/// Waits until a plan that differs from `previous` requires an approval, and returns the plan.
async fn until_awaiting_after(stack: &StackHandle<'_>, commit: &Commit, previous: Option<&StackPlan>) -> StackPlan {
    let revision = commit.revision();
    let awaiting = stack
        .until("to wait for an approval", WaitLimit::Run, |stack| {
            let plan = stack.status.as_ref().and_then(|status| status.plan.as_ref());
            has_condition(stack, RECONCILING, "True", stack_reason::AWAITING_APPROVAL)
                && has_condition(stack, READY, "False", stack_reason::AWAITING_APPROVAL)
                && plan.and_then(|plan| plan.revision.as_ref()) == Some(&revision)
                && plan.map(|plan| &plan.update_name) != previous.map(|previous| &previous.update_name)
        })
        .await;
    *awaiting.status.and_then(|status| status.plan).expect("a plan")
}

/// Returns an Approval that names the user `by`. The admission policy accepts the Approval only if this user creates
/// it.
fn approval(plan: &StackPlan, decision: &str, by: &str) -> Value {
    json!({
        "apiVersion": "pulumi.com/v1alpha1",
        "kind": "Approval",
        "metadata": {"generateName": "main-"},
        "spec": {
            "stackRef": {"name": "main"}, "planDigest": plan.digest, "decision": decision, "by": by, "reason": "tested",
        },
    })
}

/// Creates an Approval as a cluster administrator who impersonates this user.
async fn decide_as(scene: &Scene, plan: &StackPlan, decision: &str, user: &str) -> Result<String, String> {
    let object = approval(plan, decision, user).to_string();
    let arguments = ["--namespace", &scene.namespace, "--as", user, "create", "--filename", "-", "--output", "name"];
    try_kubectl(&arguments, &object).await
}

/// Grants a user permission to approve plans in the scene's namespace.
pub async fn permit(scene: &Scene, user: &str) {
    let role = "--clusterrole=pulumi-controller-approver";
    let user_option = format!("--user={user}");
    kubectl(&["--namespace", &scene.namespace, "create", "rolebinding", user, role, &user_option], "").await;
}

pub async fn approve(scene: &Scene, plan: &StackPlan, user: &str) -> String {
    decide_as(scene, plan, "Approve", user).await.expect("the user may approve plans").trim().to_owned()
}

fn approvers(stack: &Stack) -> Vec<String> {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    last.and_then(|last| last.plan.clone()).map(|plan| plan.approved_by).unwrap_or_default()
}

#[test]
fn only_the_approved_plan_is_executed() {
    run("approval", async |scene| {
        permit(scene, "alice").await;
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let main = start(scene, &source, json!({"mode": "Always"})).await;
        let plan = until_awaiting(&main, &first).await;
        assert_eq!(plan.changes.get("create"), Some(&2), "{plan:?}");
        assert!(plan.resources.iter().any(|resource| resource.operation == "create"), "{plan:?}");
        assert!(main.log.operations().await.is_empty(), "a plan changes nothing");
        let is_released = |update: &Update| update.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
        until_update(scene, &plan.update_name, "to have no finalizer", WaitLimit::Reaction, is_released).await;

        // The event contains a command that approves the plan. The test runs this command without changes.
        let events = main.until_event("ApprovalRequired").await;
        let event = events.iter().find(|event| event.reason.as_deref() == Some("ApprovalRequired"));
        let message = event.and_then(|event| event.message.clone()).expect("a message");
        let command = message.split_once("To approve, run:\n").map(|(_, command)| command).expect("a command");
        run_program("sh", &["-c", command], "").await;
        let applied = main.until_applied(&first).await;
        assert_eq!(approvers(&applied).len(), 1, "the run records who approved it");
        let status = applied.status.expect("a status");
        assert_eq!(status.outputs.get("result"), Some(&json!("one")));
        assert_eq!(status.plan, None, "the plan is executed");
        assert_eq!(main.log.operations().await, once(&["create step"]));

        let second = source.push(&with_text("two").files()).await;
        let outdated = until_awaiting(&main, &second).await;
        assert_ne!(outdated.digest, plan.digest);
        let third = source.push(&with_text("three").files()).await;
        let current = until_awaiting(&main, &third).await;
        approve(scene, &outdated, "alice").await;
        main.annotate(ANNOTATION_REQUESTED_AT, "approved-another-plan").await;
        main.until("to have handled the request", WaitLimit::Run, |stack| {
            let status = stack.status.as_ref();
            status.and_then(|s| s.last_handled_reconcile_at.as_deref()) == Some("approved-another-plan")
        })
        .await;
        // The reconcile request creates a new plan with the same content but different inputs.
        let current_again = until_awaiting_after(&main, &third, Some(&current)).await;
        assert_ne!(current_again.update_name, outdated.update_name);
        assert_ne!(current.digest, outdated.digest);
        assert_eq!(main.log.operations().await, once(&["create step"]), "an outdated approval has no effect");
        approve(scene, &current_again, "alice").await;
        let applied = main.until_applied(&third).await;
        assert_eq!(approvers(&applied), ["alice"]);
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]), "the second commit never ran");
        let secrets = kubectl(&["--namespace", &scene.namespace, "get", "secrets", "--output", "name"], "").await;
        assert!(secrets.contains(&format!("secret/{}-plan", current_again.update_name)), "{secrets}");
    });
}

#[test]
fn a_plan_needs_enough_different_users_and_one_rejection_stops_it() {
    run("approvers", async |scene| {
        for user in ["alice", "bob"] {
            permit(scene, user).await;
        }
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let main = start(scene, &source, json!({"mode": "Always", "approvers": 2})).await;
        let plan = until_awaiting(&main, &first).await;
        let waits_with = |approvals: &'static str| {
            move |stack: &Stack| condition(stack, READY).is_some_and(|ready| ready.message.contains(approvals))
        };
        let withdrawn = approve(scene, &plan, "alice").await;
        approve(scene, &plan, "alice").await;
        main.until(
            "to have one approval",
            WaitLimit::Reaction,
            waits_with("approval needed (1/2): 2 to create, plan "),
        )
        .await;
        // Deletes both of alice's Approvals, the first as alice and the second as the administrator.
        kubectl(&["--namespace", &scene.namespace, "--as", "alice", "delete", &withdrawn], "").await;
        kubectl(&["--namespace", &scene.namespace, "delete", "approvals", "--all"], "").await;
        main.until("to have no approval", WaitLimit::Reaction, waits_with("approval needed (0/2): 2 to create, plan "))
            .await;
        approve(scene, &plan, "bob").await;
        main.until(
            "to have one approval",
            WaitLimit::Reaction,
            waits_with("approval needed (1/2): 2 to create, plan "),
        )
        .await;
        decide_as(scene, &plan, "Reject", "alice").await.expect("alice may reject plans");
        let rejected = main
            .until("to be rejected", WaitLimit::Reaction, |stack| {
                has_condition(stack, STALLED, "True", stack_reason::PLAN_REJECTED)
            })
            .await;
        let ready = condition(&rejected, READY).expect("Ready condition").message.clone();
        assert!(ready.starts_with("user alice rejected plan sha256:") && ready.contains(": tested."), "{ready}");
        assert!(main.log.operations().await.is_empty());

        let second = source.push(&with_text("two").files()).await;
        let plan = until_awaiting(&main, &second).await;
        approve(scene, &plan, "alice").await;
        approve(scene, &plan, "bob").await;
        let applied = main.until_applied(&second).await;
        assert_eq!(approvers(&applied), ["alice", "bob"]);
    });
}

#[test]
fn only_permitted_users_approve_plans_and_change_the_settings() {
    run("approval-rbac", async |scene| {
        permit(scene, "alice").await;
        let editor = "--clusterrole=edit";
        kubectl(&["--namespace", &scene.namespace, "create", "rolebinding", "edit", editor, "--user=mallory"], "")
            .await;
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let main = start(scene, &source, json!({"mode": "Always"})).await;
        let plan = until_awaiting(&main, &first).await;

        let refusal = decide_as(scene, &plan, "Approve", "mallory").await.expect_err("mallory is no approver");
        assert!(refusal.contains("cannot create resource \"approvals\""), "{refusal}");
        let forged = approval(&plan, "Approve", "bob").to_string();
        let as_alice = ["--namespace", &scene.namespace, "--as", "alice", "create", "--filename", "-"];
        let refusal = try_kubectl(&as_alice, &forged).await.expect_err("alice is not bob");
        assert!(refusal.contains("spec.by must be"), "{refusal}");

        let change = |user: &'static str, patch: &'static str| {
            let namespace = scene.namespace.clone();
            async move {
                let arguments = [
                    "--namespace",
                    &namespace,
                    "--as",
                    user,
                    "patch",
                    "stack",
                    "main",
                    "--type=merge",
                    "--patch",
                    patch,
                ];
                try_kubectl(&arguments, "").await
            }
        };
        for patch in [r#"{"spec":{"approval":null}}"#, r#"{"spec":{"approval":{"mode":"Never"}}}"#] {
            let refusal = change("mallory", patch).await.expect_err("mallory must not disable approvals");
            assert!(refusal.contains("spec.approval"), "{refusal}");
        }
        change("mallory", r#"{"spec":{"refresh":true}}"#).await.expect("mallory may change other fields");
        let plan = until_awaiting_after(&main, &first, Some(&plan)).await;

        // A user with permission to create Updates cannot bypass the approval by creating an Update.
        let update = json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "metadata": {"name": "bypass"},
            "spec": {"workspaceName": "main", "stackName": main.get().await.spec.stack, "type": "up"},
        });
        let as_mallory = ["--namespace", &scene.namespace, "--as", "mallory", "create", "--filename", "-"];
        try_kubectl(&as_mallory, &update.to_string()).await.expect("mallory may create Updates");
        let bypass = until_update(scene, "bypass", "to have failed", WaitLimit::Run, Update::is_complete).await;
        assert_eq!(failure(&bypass), Some(update_reason::SPEC_INVALID), "{:?}", bypass.status);
        assert!(main.log.operations().await.is_empty(), "nothing ran without an approval");

        approve(scene, &plan, "alice").await;
        main.until_applied(&first).await;
    });
}

#[test]
fn a_plan_that_no_longer_matches_the_state_is_made_again() {
    run("plan-violated", async |scene| {
        permit(scene, "alice").await;
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let main = start(scene, &source, json!({"mode": "Always"})).await;
        let plan = until_awaiting(&main, &first).await;
        approve(scene, &plan, "alice").await;
        main.until_applied(&first).await;
        let second = source.push(&with_text("two").files()).await;
        let plan = until_awaiting(&main, &second).await;
        assert_eq!(plan.changes.get("update"), Some(&1), "{plan:?}");
        // Another client destroys the resource, so the run can no longer update the resource as planned. The state must
        // keep the resource of the stack itself, because a preview of an empty state fails.
        let stack = main.get().await.spec.stack;
        let pod = pulumi_controller::api::names::workspace_pod("main");
        let destroy =
            format!("pulumi destroy --yes --skip-preview --non-interactive --stack {stack} --target '**::step'");
        let exec = ["--namespace", &scene.namespace, "exec", &pod, "--container", "pulumi", "--", "sh", "-c", &destroy];
        kubectl(&exec, "").await;
        approve(scene, &plan, "alice").await;
        let created = |stack: &Stack| {
            let plan = stack.status.as_ref().and_then(|status| status.plan.as_ref());
            plan.is_some_and(|plan| plan.changes.contains_key("create"))
                && has_condition(stack, RECONCILING, "True", stack_reason::AWAITING_APPROVAL)
        };
        let awaiting = main.until("to wait for the approval of a new plan", WaitLimit::Run, created).await;
        let updates = main.updates().await;
        let results: Vec<_> = updates.iter().rev().map(|update| (update.spec.kind, failure(update))).collect();
        let expected = [(UpdateKind::Preview, None), (UpdateKind::Up, Some(update_reason::PLAN_VIOLATED))];
        assert_eq!(results.get(..2), Some(expected.as_slice()), "{results:?}");
        approve(scene, &awaiting.status.and_then(|status| status.plan).expect("a plan"), "alice").await;
        main.until_applied(&second).await;
        let operations = ["create step", "delete step", "create step"];
        assert_eq!(main.log.operations().await, once(&operations), "the update was not executed");
    });
}

#[test]
fn only_risky_plans_require_an_approval_in_the_mode_on_risk() {
    run("on-risk", async |scene| {
        permit(scene, "alice").await;
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").step("other", json!({"value": "other"})).files()).await;
        let expression = "changes.delete == 0 && resources.all(r, r.name != 'secret')";
        let main = start(scene, &source, json!({"mode": "OnRisk", "autoApproveExpr": expression})).await;
        let applied = main.until_applied(&first).await;
        assert_eq!(approvers(&applied), [""; 0], "a creation requires no approval");

        let second = source.push(&with_text("one").files()).await;
        let plan = until_awaiting(&main, &second).await;
        assert_eq!(plan.changes.get("delete"), Some(&1), "{plan:?}");
        let waits = main.get().await;
        let ready = condition(&waits, READY).expect("Ready condition").message.clone();
        assert!(ready.contains("autoApproveExpr is false") && ready.contains("(delete urn:pulumi:"), "{ready}");
        approve(scene, &plan, "alice").await;
        main.until_applied(&second).await;
        let operations = main.log.operations().await;
        let deleted = operations.iter().filter(|operation| *operation == "delete other done").count();
        assert_eq!(deleted, 1, "{operations:?}");
    });
}

#[test]
fn a_destroy_waits_for_its_approval() {
    run("approval-destroy", async |scene| {
        permit(scene, "alice").await;
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let approval = json!({"mode": "Never", "destroy": true});
        stack.spec.approval = serde_json::from_value(approval).expect("approval settings");
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        main.delete().await;
        let awaiting = main
            .until("to wait for the approval of its destroy", WaitLimit::Run, |stack| {
                has_condition(stack, RECONCILING, "True", stack_reason::AWAITING_APPROVAL)
            })
            .await;
        let plan = awaiting.status.and_then(|status| status.plan).expect("a plan");
        assert_eq!(plan.operation.as_str(), "destroy");
        assert!(plan.resources.iter().any(|resource| resource.urn.ends_with("::step")), "{plan:?}");
        assert_eq!(main.log.operations().await, once(&["create step"]), "nothing is destroyed");
        approve(scene, &plan, "alice").await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
    });
}

/// Waits until a plan with this operation requires an approval. Returns the plan and the message.
async fn until_awaiting_operation(stack: &StackHandle<'_>, operation: &str) -> (StackPlan, String) {
    let awaiting = stack
        .until("to wait for the approval of an operation", WaitLimit::Run, |stack| {
            let plan = stack.status.as_ref().and_then(|status| status.plan.as_ref());
            has_condition(stack, READY, "False", stack_reason::AWAITING_APPROVAL)
                && plan.is_some_and(|plan| plan.changes.contains_key(operation))
        })
        .await;
    let message = condition(&awaiting, READY).expect("Ready condition").message.clone();
    (*awaiting.status.and_then(|status| status.plan).expect("a plan"), message)
}

#[test]
fn hidden_changes_of_protected_resources_require_an_approval() {
    run("hidden-changes", async |scene| {
        let source = scene.source("app").await;
        let program = || Program::new("approvals").step("other", json!({}));
        let original = || program().step("db", json!({"value": "one"})).output("id", json!("${db.id}")).files();
        let first = source.push(&original()).await;
        let settings = json!({"mode": "OnRisk", "protect": ["urn:pulumi:*::db"], "maxDeletes": -1});
        let main = start(scene, &source, settings).await;
        let applied = main.until_applied(&first).await;
        let id = applied.status.and_then(|status| status.outputs.get("id").cloned()).expect("the ID of the resource");
        let created = main.log.operations().await;

        let alias = json!({"properties": {"name": "db", "value": "two"}, "options": {"aliases": [{"name": "db"}]}});
        source.push(&program().step_with("renamed", alias).files()).await;
        let (plan, message) = until_awaiting_operation(&main, "rename").await;
        assert!(message.contains("it changes protected resources: urn:pulumi:"), "{message}");
        let is_previous = |resource: &PlannedResource| resource.operation == "rename" && resource.urn.ends_with("::db");
        assert!(plan.resources.iter().any(is_previous), "{plan:?}");

        source.push(&program().step_with("db", json!({"get": {"id": id}})).files()).await;
        let (_, message) = until_awaiting_operation(&main, "relinquish").await;
        assert!(message.contains("it changes protected resources: urn:pulumi:"), "{message}");

        source.push(&original()).await;
        let literal = Some(LiteralRef { value: "db".to_owned() });
        let gone = ResourceRef { kind: "Literal".to_owned(), literal, ..ResourceRef::default() };
        main.change(json!({"spec": {"refresh": true, "envRefs": {"PROVIDER_GONE": gone}}})).await;
        let (_, message) = until_awaiting_operation(&main, "missing").await;
        assert!(message.starts_with("approval needed (0/1): 1 to create, 1 missing, plan "), "{message}");
        assert!(message.contains("it changes protected resources: urn:pulumi:"), "{message}");

        let other = format!("{}-other", main.get().await.spec.stack);
        let without_refresh = json!({"refresh": null, "envRefs": {"PROVIDER_GONE": null}, "stack": other});
        main.change(json!({ "spec": without_refresh })).await;
        let is_for_other = |stack: &Stack| {
            let ready = condition(stack, READY);
            ready.is_some_and(|ready| ready.message.contains("it is for another Pulumi stack ("))
        };
        main.until("to wait for the approval of the other Pulumi stack", WaitLimit::Run, is_for_other).await;
        assert_eq!(main.log.operations().await, created, "no plan ran without an approval");
    });
}

#[test]
fn approval_settings_without_effect_are_rejected() {
    run("approval-settings", async |scene| {
        let flux = json!({"fluxSource": {"sourceRef": {"kind": "GitRepository", "name": "app"}}});
        let git = json!({"projectRepo": "https://git.example.com/app", "branch": "main"});
        let rows = [
            (&flux, json!(null), None),
            (&flux, json!({"approvers": 2, "destroy": true}), None),
            (&flux, json!({"mode": "Never", "destroy": true, "approvers": 2}), None),
            (&flux, json!({"mode": "OnRisk", "protect": ["*"], "maxDeletes": -1, "maxReplaces": -1}), None),
            (&git, json!({"excludeAuthor": true}), None),
            (&flux, json!({"protect": ["*"]}), Some("require mode: OnRisk")),
            (&flux, json!({"mode": "Never", "approvers": 2}), Some("require destroy: true")),
            (&flux, json!({"mode": "OnRisk", "maxDeletes": -2}), Some("maxDeletes")),
            (&flux, json!({"excludeAuthor": true}), Some("excludeAuthor requires projectRepo")),
        ];
        for (source, approval, expected) in rows {
            let mut stack = json!({
                "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "settings"},
                "spec": {"stack": "dev", "approval": approval},
            });
            let spec = stack["spec"].as_object_mut().expect("a spec");
            spec.extend(source.as_object().expect("a source").clone());
            let create = ["--namespace", &scene.namespace, "create", "--dry-run=server", "--filename", "-"];
            match (try_kubectl(&create, &stack.to_string()).await, expected) {
                (Ok(_), None) => {}
                (Err(refusal), Some(words)) => assert!(refusal.contains(words), "{stack}: {refusal}"),
                (found, expected) => panic!("{stack}: {found:?} instead of {expected:?}"),
            }
        }
    });
}
