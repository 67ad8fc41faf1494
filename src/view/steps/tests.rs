//! Tests that each state in `docs/spec/v1/stack.md` has a summary and a next step.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::view::fixtures::{DIGEST, PLAN, condition, now, stack};

/// The reference of Stacks.
const REFERENCE: &str = include_str!("../../../docs/spec/v1/stack.md");

/// Returns the rows of the reference table that has this header, as trimmed cells.
fn table(header: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = REFERENCE.split_once(header).unwrap_or_else(|| panic!("no table {header}"));
    let lines = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Returns the conditions that a row of the state table describes. A cell without a condition contains `–`.
fn conditions_of(row: &[&str], message: &str) -> Vec<Value> {
    let cells = row.iter().skip(1).zip(["Ready", "Reconciling", "Stalled"]);
    let parsed = cells.filter_map(|(cell, kind)| {
        let (status, reason) = cell.split_once(" / ")?;
        Some(condition(kind, status, reason.trim_matches('`'), message))
    });
    parsed.collect()
}

fn with(conditions: &[Value]) -> Stack {
    stack("web", &json!({}), &json!({ "conditions": conditions }))
}

fn steps(stack: &Stack) -> Vec<String> {
    State::of(stack).next_steps()
}

/// Asserts that each step consists of a sentence and a command, and that the summary is specific to the reason.
fn assert_explained(stack: &Stack, row: &str) {
    let (state, steps) = (State::of(stack), steps(stack));
    assert!(!steps.is_empty(), "{row}");
    assert!(steps.iter().all(|step| step.contains(":\n    kubectl ")), "{row}: {steps:?}");
    let summary = state.summary();
    assert!(summary.ends_with('.'), "{row}: {summary}");
    assert!(summary != UNKNOWN && summary != UNKNOWN_STALLED, "{row}: the summary of an unknown reason");
}

#[test]
fn every_state_in_the_reference_has_a_summary_and_a_next_step() {
    let rows = table("| state | Ready | Reconciling | Stalled |");
    assert!(rows.len() > 25, "found only {} states", rows.len());
    for row in rows.iter().filter(|row| !row.iter().any(|cell| cell.starts_with("unchanged"))) {
        let conditions = conditions_of(row, "why");
        assert!(!conditions.is_empty(), "{row:?}");
        let stack = with(&conditions);
        if row.get(1).is_some_and(|ready| ready.starts_with("True")) {
            assert_eq!((State::of(&stack).phase, steps(&stack)), (Phase::Ready, Vec::new()), "{row:?}");
        } else {
            assert_explained(&stack, &format!("{row:?}"));
        }
    }
}

#[test]
fn every_stalled_reason_in_the_reference_has_its_own_next_step() {
    let code = |cell: &'static str| cell.split('`').skip(1).step_by(2);
    let rows = table("| reason of `Stalled` | solution |");
    let reasons: BTreeSet<&str> = rows.iter().filter_map(|row| row.first().copied()).flat_map(code).collect();
    assert!(reasons.len() > 12, "found only {reasons:?}");
    let unknown = steps(&with(&[condition("Stalled", "True", "NewReason", "why")]));
    for reason in reasons {
        let stack = with(&[condition("Stalled", "True", reason, "why")]);
        assert_explained(&stack, reason);
        assert_ne!(steps(&stack), unknown, "{reason}");
    }
}

#[test]
fn states_without_a_condition_have_a_next_step() {
    let suspended =
        |conditions: &[Value]| stack("web", &json!({ "suspend": true }), &json!({ "conditions": conditions }));
    let ready = suspended(&[condition("Ready", "True", "ProcessingCompleted", "done")]);
    assert_eq!(steps(&ready), ["Resume the Stack:\n    kubectl pulumi resume -n apps web"]);
    let stalled = steps(&suspended(&[condition("Stalled", "True", "SpecInvalid", "why")]));
    assert!(stalled.iter().any(|step| step.contains("kubectl pulumi resume")), "{stalled:?}");
    assert_explained(&stack("web", &json!({}), &json!({})), "Pending");
    let running = json!({ "conditions": [condition("Ready", "Unknown", "NotReadyInProgress", "running")],
        "currentUpdate": { "name": "web-1" } });
    assert_explained(&stack("web", &json!({}), &running), "Running");
}

#[test]
fn the_step_of_a_queued_run_lists_the_other_runs() {
    let rows = [
        "waiting for a run slot: 10 of 10 in use (--max-concurrent-runs); estimated start at 14:05 UTC",
        "waiting for concurrency group aws: 1 of 1 runs open (spec.concurrencyGroup)",
    ];
    for why in rows {
        let message = format!("up of revision main@sha1:a (web-1): {why}");
        let status = json!({ "conditions": [condition("Ready", "Unknown", "NotReadyInProgress", &message)],
            "currentUpdate": { "name": "web-1" } });
        let stack = stack("web", &json!({}), &status);
        assert_explained(&stack, why);
        assert!(State::of(&stack).summary().starts_with("A run is queued."), "{why}");
        assert!(steps(&stack).concat().ends_with("kubectl get updates -A"), "{why}");
    }
}

#[test]
fn a_destroy_can_be_skipped_in_every_state_in_which_it_waits() {
    let keeps = |spec: &Value, conditions: &[Value]| {
        let mut stack = stack("web", spec, &json!({ "conditions": conditions }));
        stack.metadata.deletion_timestamp = Some(Time(now()));
        let steps = steps(&stack);
        steps.iter().filter(|step| step.contains("{\"spec\":{\"destroyOnFinalize\":false}}")).count()
    };
    let destroys = json!({ "destroyOnFinalize": true });
    let retrying = || condition("Reconciling", "True", "RetryingAfterFailure", "why");
    for reason in
        ["DestroyUnconfirmed", "UpdateConflict", "NamespaceTerminating", "WorkspaceFailed", "BackendUpgradeRequired"]
    {
        assert_eq!(keeps(&destroys, &[condition("Stalled", "True", reason, "why")]), 1, "{reason}");
    }
    assert_eq!(keeps(&destroys, &[retrying()]), 1);
    assert_eq!(keeps(&json!({}), &[retrying()]), 0, "nothing is destroyed");
    assert_eq!(keeps(&json!({}), &[retrying(), condition("Expiring", "True", "Expired", "expired")]), 0);
    let not_found = condition("Stalled", "True", "StackNotFound", "why");
    assert_eq!(keeps(&destroys, &[not_found]), 0, "the decision abandon has the same effect");
}

#[test]
fn the_step_of_a_pause_or_a_schedule_depends_on_its_origin() {
    let of = |reason: &str, message: &str, spec: &Value| {
        let status = json!({ "conditions": [condition("Ready", "False", reason, message),
            condition("Reconciling", "True", reason, message)] });
        steps(&stack("web", spec, &status)).join("\n")
    };
    let namespace =
        "namespace apps is paused: audit; to resume, remove the annotation pulumi.com/pause of the namespace";
    let rows = [
        (namespace, true, false),
        ("the controller is paused (--pause), so no run starts", false, true),
        ("unknown", true, true),
    ];
    for (message, of_namespace, of_controller) in rows {
        let steps = of("Paused", message, &json!({}));
        assert_eq!(steps.contains("kubectl annotate namespace apps pulumi.com/pause-"), of_namespace, "{message}");
        assert_eq!(steps.contains("kubectl get deployments -A -l "), of_controller, "{message}");
    }
    let closed = "up waits: outside the windows of spec.schedule until 2026-12-01T08:00:00Z";
    let window = json!({ "schedule": { "windows": [{ "start": "08:00", "end": "17:00" }] } });
    assert!(of("OutsideSchedule", closed, &window).contains("kubectl edit -n apps stack web"));
    let of_namespace = of("OutsideSchedule", closed, &json!({}));
    assert!(!of_namespace.contains("kubectl edit") && of_namespace.contains("pulumi\\.com/schedule"), "{of_namespace}");
}

#[test]
fn a_policy_violation_a_lock_and_an_abandoned_run_have_their_own_steps() {
    let of = |conditions: &[Value], more: &Value| {
        let mut status = json!({ "conditions": conditions });
        for (key, value) in more.as_object().into_iter().flatten() {
            status[key] = value.clone();
        }
        let stack = stack("web", &json!({}), &status);
        (State::of(&stack).summary(), steps(&stack).join("\n"))
    };
    let retrying = |reason: &str| [condition("Reconciling", "True", reason, "why")];
    let violation = json!({ "lastUpdate": { "reason": "PolicyViolation" } });
    let (summary, steps) = of(&retrying("RetryingAfterFailure"), &violation);
    assert!(summary.contains("policy") && steps.starts_with("Correct the program"), "{summary} {steps}");
    let (_, steps) = of(&retrying("UpdateConflict"), &json!({}));
    assert!(steps.contains("kubectl exec -n apps service/web-workspace -c pulumi -- pulumi cancel --yes"), "{steps}");
    let stalled = [condition("Stalled", "True", "RunOutcomeUnknown", "why")];
    let abandoned = json!({ "handledResolve": "web-1=abandon", "lastUpdate": { "name": "web-1" } });
    let (summary, steps) = of(&stalled, &abandoned);
    assert!(summary.contains("abandoned") && steps.contains("kubectl pulumi reconcile"), "{summary} {steps}");
    let later = json!({ "handledResolve": "web-1=abandon", "lastUpdate": { "name": "web-2" } });
    assert!(of(&stalled, &later).1.contains("--decision retry"), "the decision names an earlier run");
}

#[test]
fn results_of_a_ready_stack_have_a_next_step() {
    let ready = || condition("Ready", "True", "ProcessingCompleted", "done");
    let of = |other: Value, more: Value| {
        let status = json!({ "conditions": [ready(), other], "drift": { "updateName": "web-3", "count": 1 },
            "policyViolations": more });
        steps(&stack("web", &json!({}), &status)).join("\n")
    };
    let rows = [
        (condition("Drifted", "True", "DriftDetected", ""), "kubectl pulumi reconcile -n apps web --refresh"),
        (condition("Drifted", "Unknown", "CheckFailed", ""), "kubectl pulumi logs -n apps web web-3"),
        (condition("Drifted", "Unknown", "SpecInvalid", ""), "kubectl edit -n apps stack web"),
        (condition("OutputsWritten", "False", "OutputsNotWritten", ""), "kubectl pulumi reconcile -n apps web"),
        (condition("Expiring", "True", "ExpiresSoon", ""), "kubectl edit -n apps stack web"),
    ];
    for (other, expected) in rows {
        let steps = of(other.clone(), json!(null));
        assert!(steps.ends_with(expected), "{other}: {steps}");
    }
    let mandatory = of(condition("Drifted", "False", "NoDrift", ""), json!({ "mandatory": 1 }));
    assert!(mandatory.contains("Correct the program"), "{mandatory}");
    assert_eq!(of(condition("Drifted", "False", "NoDrift", ""), json!({ "advisory": 1 })), "");
}

#[test]
fn an_approval_without_a_terminal_names_the_complete_digest() {
    let waiting = |more: Value| {
        let mut status = more;
        status["conditions"] = json!([
            condition("Ready", "False", "AwaitingApproval", "why"),
            condition("Reconciling", "True", "AwaitingApproval", "why"),
        ]);
        steps(&stack("web", &json!({}), &status))
    };
    let plan = json!({ "digest": PLAN, "updateName": "web-1", "fileDigest": DIGEST, "operation": "up",
        "changes": { "create": 1 }, "resources": [], "resourceCount": 1 });
    let step = format!("kubectl pulumi approve -n apps web --plan {PLAN}");
    assert!(waiting(json!({ "plan": plan })).iter().any(|found| found.ends_with(&step)));
    assert_eq!(waiting(json!({})).len(), 2, "without a plan in the status");
}

#[test]
fn the_steps_name_the_object_that_the_user_must_correct() {
    let steps_of = |conditions: &[Value]| steps(&with(conditions)).join("\n");
    let invalid = "invalid annotation pulumi.com/schedule of namespace apps: unknown field `frezes`";
    let found = steps_of(&[
        condition("Ready", "False", "SpecInvalid", invalid),
        condition("Stalled", "True", "SpecInvalid", invalid),
    ]);
    assert!(found.contains("kubectl edit namespace ") && !found.contains(" stack "), "{found}");
    let waits = "app-1: waiting for Secret \"keys\" (environment variable KEY): not found in namespace apps";
    let found = steps_of(&[
        condition("Ready", "Unknown", "StackProcessing", waits),
        condition("Reconciling", "True", "StackProcessing", waits),
    ]);
    assert!(found.starts_with("Create the object"), "{found}");
}

/// Returns the steps of a Stack that is stalled with a reason.
fn stalled(reason: &str, spec: &Value, related: Related<'_>) -> String {
    let status = json!({ "conditions": [condition("Stalled", "True", reason, "why")] });
    State::of(&stack("web", spec, &status)).with(related).next_steps().join("\n")
}

#[test]
fn only_a_flux_source_is_reconciled_on_its_own() {
    let git = json!({ "projectRepo": "https://git.example/app", "branch": "main", "gitAuthSecret": "git",
        "policyPacks": [{ "name": "house", "sourceRef": { "kind": "GitRepository", "name": "policies" } }] });
    let flux = json!({ "fluxSource": { "sourceRef": { "kind": "GitRepository", "name": "app" } } });
    let auth = json!({ "token": { "name": "token", "key": "token" } });
    let template =
        json!({ "workspaceTemplate": { "spec": { "git": { "url": "https://git.example/app", "auth": auth } } } });
    let rows = [
        (&git, "Correct spec.projectRepo, spec.branch, spec.gitAuthSecret, spec.policyPacks[house] in the Stack:"),
        (&git, "kubectl edit -n apps secret git"),
        (&flux, "kubectl pulumi reconcile -n apps web --with-source"),
        (&flux, "Or correct spec.fluxSource in the Stack:\n    kubectl edit -n apps stack web"),
        (&json!({ "programRef": { "name": "app" } }), "kubectl get programs -n apps"),
        (&template, "Correct spec.workspaceTemplate.spec.git in the Stack:"),
        (&template, "kubectl edit -n apps secret token"),
    ];
    for (spec, expected) in rows {
        let waiting = json!({ "conditions": [condition("Reconciling", "True", "SourceUnavailable", "why")] });
        let waiting = steps(&stack("web", spec, &waiting)).join("\n");
        let found = stalled("SourceUnavailable", spec, Related::default());
        assert_eq!(found, waiting);
        assert!(found.contains(expected), "{spec}: {found}");
        assert_eq!(found.contains("--with-source"), spec["fluxSource"].is_object(), "{found}");
    }
}

#[test]
fn the_events_of_a_pod_are_a_step_only_if_the_pod_exists() {
    let workspace = |reason: &str| -> Workspace {
        let status = json!({ "conditions": [condition("Ready", "False", reason, "why")] });
        serde_json::from_value(json!({ "metadata": {}, "spec": {}, "status": status })).unwrap()
    };
    let template = json!({ "workspaceTemplate": { "spec": { "resources": {}, "podTemplate": {}, "git": {} } } });
    let edit = "\n    kubectl edit -n apps stack web";
    let rows = [
        ("PodFailed", false, json!({}), "kubectl pulumi events -n apps web".to_owned()),
        ("PodFailed", true, json!({}), format!("or correct the Stack:{edit}")),
        ("SpecInvalid", true, json!({}), format!("the object that the cause names:{edit}")),
        (
            "SpecInvalid",
            true,
            template,
            format!("spec.workspaceTemplate.spec.podTemplate, spec.workspaceTemplate.spec.resources:{edit}"),
        ),
    ];
    for (reason, lacks_pod, spec, expected) in rows {
        let workspace = workspace(reason);
        let related = Related { workspace: Some(&workspace), lacks_pod, ..Related::default() };
        let found = stalled("WorkspaceFailed", &spec, related);
        assert!(found.ends_with(&expected), "{reason}: {found}");
    }
}

#[test]
fn a_run_that_did_not_start_has_no_log() {
    let secret = |name: &str| json!({ "type": "Secret", "secret": { "name": name, "key": "token" } });
    let status = json!({ "conditions": [condition("Reconciling", "True", "RetryingAfterFailure", "why")],
        "lastUpdate": { "name": "web-1", "reason": "RunRefused" } });
    let of = |spec: Value| steps(&stack("web", &spec, &status)).join("\n");
    let one = of(json!({ "envRefs": { "A": secret("keys"), "B": secret("keys") } }));
    assert!(
        one.contains("kubectl edit -n apps stack web") && one.contains("kubectl edit -n apps secret keys"),
        "{one}"
    );
    assert!(!one.contains("logs"), "{one}");
    let unsafe_name = of(json!({ "envRefs": { "A": secret("$(reboot)") } }));
    assert!(!unsafe_name.contains("reboot"), "a user copies the commands to a shell: {unsafe_name}");
    let two = of(json!({ "envRefs": { "A": secret("keys"), "B": secret("other") } }));
    assert!(!two.contains("secret"), "the steps do not name the wrong Secret: {two}");
}

#[test]
fn the_steps_of_a_conflict_name_both_stacks() {
    let shop = Related { same_pulumi_stack: Some("shop"), ..Related::default() };
    let found = stalled("UpdateConflict", &json!({}), shop);
    let hand_over =
        "stack shop --type merge -p '{\"spec\":{\"destroyOnFinalize\":false}}' && kubectl delete -n apps stack shop";
    assert!(found.contains("kubectl edit -n apps stack web") && found.ends_with(hand_over), "{found}");
    let unknown = stalled("UpdateConflict", &json!({}), Related::default());
    assert!(unknown.ends_with("kubectl delete -n apps stack OTHER"), "{unknown}");

    let deleted = |applied: &str, backend: &str| {
        let applied = json!({ "name": applied, "project": "shop", "backend": backend });
        let status = json!({ "conditions": [condition("Stalled", "True", "UpdateConflict", "why")],
            "appliedStack": applied });
        let spec = json!({ "backend": "s3://user@state/?region=eu", "destroyOnFinalize": true });
        let mut stack = stack("web", &spec, &status);
        stack.metadata.deletion_timestamp = Some(Time(now()));
        State::of(&stack).with(shop).next_steps().join("\n")
    };
    for (applied, backend) in [("dev", "s3://state"), ("organization/shop/dev", "s3://state")] {
        let found = deleted(applied, backend);
        assert!(found.starts_with("To hand the resources over to Stack shop"), "{found}");
        assert!(
            found.contains("kubectl patch -n apps stack web") && found.ends_with("kubectl delete -n apps stack shop")
        );
    }
    for (applied, backend) in [("prod", "s3://state"), ("dev", "s3://other")] {
        let found = deleted(applied, backend);
        assert!(found.starts_with("To destroy the resources, restore") && !found.contains("delete -n"), "{found}");
    }
}

#[test]
fn a_missing_pulumi_stack_can_be_abandoned() {
    let found = stalled("StackNotFound", &json!({}), Related::default());
    assert!(found.contains("--decision create") && found.ends_with("--decision abandon"), "{found}");
}

#[test]
fn remaining_resources_are_acknowledged_with_their_identifiers() {
    let orphaned = |id: &str| json!({ "id": id, "name": "dev", "since": "2026-11-02T11:00:00Z" });
    let status = json!({ "conditions": [condition("Ready", "True", "ProcessingCompleted", "done")],
        "orphanedStacks": [orphaned("1d62187f"), orphaned("2e73298a")] });
    let found = steps(&stack("web", &json!({}), &status)).join("\n");
    assert!(found.ends_with("stack web pulumi.com/acknowledge=1d62187f,2e73298a"), "{found}");
}
