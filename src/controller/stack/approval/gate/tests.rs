use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::api::auto::PlannedResource;
use crate::api::pulumi::{ApprovalSpec, ApprovedStack, PulumiStack, RunInputs, RunRecord, StackSpec, StackStatus};
use crate::artifact::Digest;

/// Digest of the plan in these tests.
fn digest() -> Digest {
    Digest::of(b"plan")
}

fn approval(by: &str, decision: ApprovalDecision, plan: &Digest) -> Approval {
    let spec = ApprovalSpec {
        stack_ref: ApprovedStack { name: "web".to_owned() },
        plan_digest: plan.to_string(),
        decision,
        by: by.to_owned(),
        reason: None,
    };
    Approval::new(&format!("web-{by}"), spec)
}

fn approve(by: &str) -> Approval {
    approval(by, ApprovalDecision::Approve, &digest())
}

fn candidate(content: &str) -> RunCandidate {
    let inputs = RunInputs { generation: 1, digest: Some(Digest::of(content.as_bytes())), ..RunInputs::default() };
    RunCandidate { revision: content.to_owned(), inputs }
}

/// Returns the observed state after a preview of the content `a`, which saved a plan with one deletion.
fn observed(policy: Value, approvals: Vec<Approval>) -> Observed {
    let mut stack = Stack::new("web", StackSpec::default());
    stack.metadata.generation = Some(1);
    stack.spec.approval = serde_json::from_value(policy).unwrap();
    let resource = PlannedResource {
        urn: "urn:pulumi:dev::web::aws:s3:Bucket::logs".to_owned(),
        operation: "delete".to_owned(),
        properties: Vec::new(),
    };
    let plan = StackPlan {
        digest: digest(),
        update_name: "web-1".to_owned(),
        file_digest: Digest::of(b"file"),
        operation: PreviewOf::Up,
        refresh: None,
        revision: Some("a".to_owned()),
        changes: [("delete".to_owned(), 1)].into(),
        resources: vec![resource.clone()],
        resource_count: 1,
        created: None,
    };
    let last = LastUpdate {
        kind: Some("preview".to_owned()),
        state: Some("succeeded".to_owned()),
        inputs: candidate("a").inputs,
        last_attempted_commit: Some("a".to_owned()),
        ..LastUpdate::default()
    };
    stack.status = Some(StackStatus { plan: Some(Box::new(plan)), last_update: Some(last), ..StackStatus::default() });
    let changes = UpdatePlan { resources: vec![resource], resource_count: 1, file_digest: None };
    let plan = Some(ObservedPlan { changes: Some(changes), approvals, misdirected: 0, expression: None });
    Observed { plan, ..Observed::of(stack) }
}

fn gate_of(observed: &Observed) -> Gate {
    gate(observed, &candidate("a"), UpdateKind::Up, &Due::Done(None))
}

/// Returns the users whose approvals the gate counted.
fn executed(gate: &Gate) -> Option<Vec<&str>> {
    match gate {
        Gate::Execute(plan, _) => Some(plan.approved_by.iter().map(String::as_str).collect()),
        _ => None,
    }
}

#[test]
fn a_plan_waits_until_enough_different_users_have_approved_it() {
    let of = |policy: Value, approvals| gate_of(&observed(policy, approvals));
    let waits = |gate: Gate, words: &str| {
        assert!(matches!(&gate, Gate::Await(message) if message.contains(words)), "{gate:?}");
    };
    waits(of(json!({"mode": "Always"}), vec![]), "approval needed (0/1): 1 to delete");
    let two = json!({"mode": "Always", "approvers": 2});
    waits(of(two.clone(), vec![approve("alice"), approve("alice")]), "approval needed (1/2): 1 to delete");
    assert_eq!(executed(&of(two, vec![approve("bob"), approve("alice")])), Some(vec!["alice", "bob"]));
    assert_eq!(executed(&of(json!({"mode": "Always"}), vec![approve("alice")])), Some(vec!["alice"]));
    let other = approval("alice", ApprovalDecision::Approve, &Digest::of(b"older plan"));
    waits(of(json!({"mode": "Always"}), vec![other]), "approval needed (0/1): 1 to delete");
}

#[test]
fn one_rejection_outweighs_any_number_of_approvals() {
    let reject = approval("carol", ApprovalDecision::Reject, &digest());
    let approvals = vec![approve("alice"), approve("bob"), reject.clone()];
    let gate = gate_of(&observed(json!({"mode": "Always"}), approvals));
    assert!(matches!(&gate, Gate::Rejected(message) if message.starts_with("user carol rejected plan")), "{gate:?}");
    let risky = json!({"mode": "OnRisk", "maxDeletes": 1});
    let gate = gate_of(&observed(risky, vec![reject]));
    assert!(matches!(gate, Gate::Rejected(_)), "a plan that requires no approval can be rejected: {gate:?}");
}

#[test]
fn an_approval_by_the_author_of_the_commit_does_not_count() {
    let policy = json!({"mode": "Always", "excludeAuthor": true});
    let with_author = |author: Option<&str>, email: Option<&str>, by: &str| {
        let mut observed = observed(policy.clone(), vec![approve(by)]);
        let last = observed.stack.status.as_mut().and_then(|status| status.last_update.as_mut()).unwrap();
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let source = SourceMetadata { author: owned(author), author_email: owned(email), ..SourceMetadata::default() };
        last.source = Some(Box::new(source));
        gate_of(&observed)
    };
    for (author, email, by, expected) in [
        (Some("Alice"), Some("alice@example.com"), "bob@example.com", Ok(())),
        (Some("Alice"), Some("alice@example.com"), "Alice@example.com", Err("cannot approve")),
        (Some("alice"), None, "alice", Err("cannot approve")),
        (None, None, "alice", Err("is unknown")),
        (Some(""), Some(""), "alice", Err("is unknown")),
    ] {
        let gate = with_author(author, email, by);
        match expected {
            Ok(()) => assert!(executed(&gate).is_some(), "{author:?} {email:?} {by}: {gate:?}"),
            Err(words) => assert!(matches!(&gate, Gate::Await(message) if message.contains(words)), "{gate:?}"),
        }
    }
}

#[test]
fn any_changed_input_requires_a_new_plan() {
    let approved = || observed(json!({"mode": "Always"}), vec![approve("alice")]);
    let now = || Due::Now("because".to_owned());
    assert_eq!(gate(&approved(), &candidate("b"), UpdateKind::Up, &now()), Gate::Plan("because".to_owned()));
    let mut inputs = candidate("a");
    inputs.inputs.requested_at = Some("2".to_owned());
    assert_eq!(gate(&approved(), &inputs, UpdateKind::Up, &now()), Gate::Plan("because".to_owned()));
    let mut reset = candidate("a");
    reset.inputs.reset_at = Some("2".to_owned());
    let done = gate(&approved(), &reset, UpdateKind::Up, &Due::Done(None));
    assert!(executed(&done).is_some(), "a reset of the failure count changes no input: {done:?}");
    let mut without_update = approved();
    without_update.plan = Some(ObservedPlan { changes: None, ..without_update.plan.unwrap() });
    assert!(matches!(gate_of(&without_update), Gate::Plan(_)), "the Update with the plan was deleted");
    let mut without_plan = approved();
    without_plan.stack.status.as_mut().unwrap().plan = None;
    assert!(matches!(gate_of(&without_plan), Gate::Plan(_)));
    let waits = Due::After(SignedDuration::from_secs(10));
    assert_eq!(gate(&approved(), &candidate("a"), UpdateKind::Up, &waits), Gate::Open, "the backoff applies");
    assert!(executed(&gate(&approved(), &candidate("a"), UpdateKind::Up, &now())).is_some(), "the retry of a conflict");
}

#[test]
fn the_settings_decide_which_operations_require_a_plan() {
    let of = |policy: Value, kind| {
        let mut observed = observed(policy, vec![]);
        observed.stack.status = None;
        gate(&observed, &candidate("a"), kind, &Due::Now("because".to_owned()))
    };
    let plan = Gate::Plan("because".to_owned());
    for (policy, kind, expected) in [
        (Value::Null, UpdateKind::Up, Gate::Open),
        (json!({"mode": "Never", "destroy": true}), UpdateKind::Up, Gate::Open),
        (json!({"mode": "Never", "destroy": true}), UpdateKind::Destroy, plan.clone()),
        (json!({}), UpdateKind::Up, plan.clone()),
        (json!({}), UpdateKind::Destroy, Gate::Open),
        (json!({"approvers": 2, "destroy": true}), UpdateKind::Destroy, plan.clone()),
        (json!({"mode": "Always"}), UpdateKind::Up, plan.clone()),
        (json!({"mode": "Always"}), UpdateKind::Preview, Gate::Open),
        (json!({"mode": "Always"}), UpdateKind::Destroy, Gate::Open),
        (json!({"mode": "OnRisk", "destroy": true}), UpdateKind::Destroy, plan),
    ] {
        assert_eq!(of(policy.clone(), kind), expected, "{policy} {kind:?}");
    }
}

#[test]
fn a_plan_without_risk_or_changes_requires_no_approval() {
    let of = |policy: Value, expression| {
        let mut observed = observed(policy, vec![]);
        observed.plan.as_mut().unwrap().expression = expression;
        gate_of(&observed)
    };
    assert_eq!(executed(&of(json!({"mode": "OnRisk", "maxDeletes": 1}), None)), Some(vec![]));
    let gate = of(json!({"mode": "OnRisk"}), None);
    assert!(matches!(&gate, Gate::Await(message) if message.contains("it deletes or loses 1 resource(s)")), "{gate:?}");
    let expression = json!({"mode": "OnRisk", "autoApproveExpr": "true", "maxDeletes": 1});
    assert_eq!(of(expression.clone(), None), Gate::Evaluating);
    assert_eq!(executed(&of(expression.clone(), Some(Ok(true)))), Some(vec![]));
    assert!(matches!(of(expression.clone(), Some(Ok(false))), Gate::Await(_)));
    let invalid = of(expression.clone(), Some(Err(ExpressionError::Invalid("no".to_owned()))));
    assert_eq!(invalid, Gate::Invalid("spec.approval.autoApproveExpr: no".to_owned()));
    let failed = of(expression, Some(Err(ExpressionError::Failed("no".to_owned()))));
    assert!(matches!(failed, Gate::Await(_)), "a failed evaluation approves nothing: {failed:?}");
    let mut unchanged = observed(json!({"mode": "Always"}), vec![]);
    unchanged.stack.status.as_mut().and_then(|status| status.plan.as_mut()).unwrap().resource_count = 0;
    assert_eq!(executed(&gate_of(&unchanged)), Some(vec![]));
}

#[test]
fn a_plan_for_another_pulumi_stack_always_requires_an_approval() {
    let of = |policy: Value, planned: &str, resource_count: i64| {
        let mut observed = observed(policy, vec![]);
        let stack = |name: &str| PulumiStack { name: name.to_owned(), ..PulumiStack::default() };
        let status = observed.stack.status.as_mut().unwrap();
        status.applied_stack = Some(stack("dev"));
        status.plan.as_mut().unwrap().resource_count = resource_count;
        status.last_update.as_mut().unwrap().pulumi_stack = Some(stack(planned));
        gate_of(&observed)
    };
    let on_risk = json!({"mode": "OnRisk", "maxDeletes": -1, "maxReplaces": -1});
    for (policy, resource_count) in [(&on_risk, 1), (&on_risk, 0), (&json!({"mode": "Always"}), 0)] {
        assert!(executed(&of(policy.clone(), "acme/dev", resource_count)).is_some() || *policy != on_risk);
        let gate = of(policy.clone(), "prod", resource_count);
        let expected = "it is for another Pulumi stack (stack prod in the default backend of the workspace), and the resources in stack dev";
        assert!(matches!(&gate, Gate::Await(message) if message.contains(expected)), "{policy}: {gate:?}");
    }
}

#[test]
fn a_plan_after_a_failed_run_that_removed_missing_resources_requires_an_approval() {
    let of = |kind: &str, reason: Option<&str>, operation: &str| {
        let mut observed = observed(json!({"mode": "OnRisk", "maxDeletes": -1}), vec![]);
        let run = |kind: &str, reason: Option<&str>, operation: &str| RunRecord {
            name: "web-1".to_owned(),
            kind: kind.to_owned(),
            reason: reason.map(str::to_owned),
            changes: [(operation.to_owned(), 2)].into(),
            ..RunRecord::default()
        };
        let older = run("up", Some("PlanViolated"), "missing");
        observed.stack.status.as_mut().unwrap().runs =
            vec![run("preview", None, "missing"), run(kind, reason, operation), older];
        gate_of(&observed)
    };
    let expected = "reason: the failed run web-1 removed 2 missing resource(s) from the state";
    let gate = of("up", Some("PlanViolated"), "missing");
    assert!(matches!(&gate, Gate::Await(message) if message.contains(expected)), "{gate:?}");
    for (reason, operation) in [(None, "missing"), (Some("UpdateFailed"), "create")] {
        assert!(executed(&of("up", reason, operation)).is_some(), "{reason:?} {operation}");
    }
}

#[test]
fn a_recorded_run_is_revoked_if_its_approval_no_longer_applies() {
    let why = |change: fn(&mut Observed), approved_by: &[&str]| {
        let mut observed = observed(json!({"mode": "Always"}), vec![approve("alice")]);
        change(&mut observed);
        let plan = ApprovedPlan {
            digest: digest(),
            update_name: "web-1".to_owned(),
            file_digest: Digest::of(b"file"),
            approved_by: approved_by.iter().map(|by| (*by).to_owned()).collect(),
        };
        withdrawn(&observed, &CurrentUpdate { kind: UpdateKind::Up, plan: Some(plan), ..CurrentUpdate::default() })
    };
    let without_approvals: fn(&mut Observed) = |observed| observed.plan.as_mut().unwrap().approvals.clear();
    assert_eq!(why(|_| {}, &["alice"]), None);
    assert_eq!(why(without_approvals, &["alice"]), Some("the approval of its plan was withdrawn"));
    assert_eq!(why(without_approvals, &[]), None, "the plan required no approval");
    let rejected: fn(&mut Observed) = |observed| {
        let reject = approval("carol", ApprovalDecision::Reject, &digest());
        observed.plan.as_mut().unwrap().approvals.push(reject);
    };
    assert_eq!(why(rejected, &["alice"]), Some("a user rejected its plan"));
    assert_eq!(why(rejected, &[]), Some("a user rejected its plan"));
    let newer: fn(&mut Observed) = |observed| {
        let plan = observed.stack.status.as_mut().and_then(|status| status.plan.as_mut());
        plan.unwrap().digest = Digest::of(b"newer plan");
    };
    assert_eq!(why(newer, &["alice"]), Some("a newer plan exists"));
    assert_eq!(why(|observed| observed.plan = None, &["alice"]), Some("its plan no longer exists"));
    assert_eq!(withdrawn(&observed(json!({"mode": "Always"}), vec![]), &CurrentUpdate::default()), None);
}
