//! Table tests for dependencies.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::api::conditions::{ConditionUpdate, Status};
use crate::api::pulumi::{LastUpdate, StackStatus};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("timestamp in range")
}

/// Returns a Stack whose last run succeeded at second 1000.
fn succeeded() -> Stack {
    let mut stack = Stack::new("base", StackSpec::default());
    stack.metadata.generation = Some(2);
    let last = LastUpdate {
        inputs: RunInputs { generation: 2, ..RunInputs::default() },
        name: Some("base-1".to_owned()),
        state: Some("succeeded".to_owned()),
        last_resync_time: Some(Time(at(1000))),
        ..LastUpdate::default()
    };
    stack.status =
        Some(StackStatus { last_update: Some(last), observed_generation: Some(2), ..StackStatus::default() });
    stack
}

fn changed(change: impl FnOnce(&mut Stack)) -> Option<Stack> {
    let mut stack = succeeded();
    change(&mut stack);
    Some(stack)
}

fn ran(change: impl FnOnce(&mut LastUpdate)) -> Option<Stack> {
    changed(|stack| change(stack.status.as_mut().unwrap().last_update.as_mut().unwrap()))
}

fn one(rule: Rule, stack: Option<Stack>, second: i64) -> DependencyState {
    check_all(&[needed("base", rule, stack)], second)
}

/// Returns a dependency that has only the fields in the cache.
fn needed(name: &str, rule: Rule, stack: Option<Stack>) -> Dependency {
    let stack = stack.map(|stack| Arc::new(Stack { status: stack.status.map(part_of_status), ..stack }));
    Dependency { name: name.to_owned(), rule, stack, result: None }
}

fn check_all(needed: &[Dependency], second: i64) -> DependencyState {
    check(&Stack::new("app", StackSpec::default()), "main@sha1:2", needed, at(second))
}

fn waits(message: &str) -> DependencyState {
    DependencyState::Unmet(format!("waiting for base: {message}"))
}

#[test]
fn a_prerequisite_is_satisfied_if_its_current_inputs_succeeded() {
    let annotate = |stack: &mut Stack| {
        stack.annotations_mut().insert(names::ANNOTATION_RECONCILIATION_REQUEST.to_owned(), "again".to_owned());
    };
    let previewed = |previews: bool| {
        changed(|stack| {
            stack.spec.preview = previews.then_some(true);
            stack.status.as_mut().unwrap().last_update.as_mut().unwrap().kind = Some("preview".to_owned());
        })
    };
    let rows = [
        ("missing", None, waits("not found")),
        ("has a plan", previewed(false), waits("last run created a plan that is not executed yet")),
        ("only previews", previewed(true), DependencyState::Satisfied),
        ("never ran", changed(|stack| stack.status = None), waits("has not run")),
        ("succeeded", Some(succeeded()), DependencyState::Satisfied),
        ("failed", ran(|last| last.state = Some("failed".to_owned())), waits("last run failed")),
        (
            "changed since",
            changed(|stack| stack.metadata.generation = Some(3)),
            waits("spec has changed since the last run"),
        ),
        ("run requested", changed(annotate), waits("requested run has not ended")),
        (
            "requested run has ended",
            ran(|last| last.inputs.reconcile_request = Some("before".to_owned())),
            DependencyState::Satisfied,
        ),
    ];
    for (name, stack, expected) in rows {
        assert_eq!(one(Rule::Succeeded { within: None }, stack, 999_999), expected, "{name}");
    }
}

#[test]
fn a_stale_prerequisite_gets_the_same_run_request_repeatedly() {
    let limit = SignedDuration::from_hours(1);
    let hour = Rule::Succeeded { within: Some(limit) };
    assert_eq!(one(hour.clone(), Some(succeeded()), 4600), DependencyState::Satisfied);
    let stale = vec![Stale { name: "base".to_owned(), limit, request: "after-base-1".to_owned() }];
    let message = "waiting for base: last run ended more than 1h0m0s ago; requested another run".to_owned();
    for second in [4601, 99_999] {
        let expected = DependencyState::Stale { message: message.clone(), dependencies: stale.clone() };
        assert_eq!(one(hour.clone(), Some(succeeded()), second), expected);
    }
    let failed = ran(|last| last.state = Some("failed".to_owned()));
    assert_eq!(one(hour, failed, 99_999), waits("last run failed"), "a failed run is retried without a request");
}

#[test]
fn a_dependency_is_satisfied_if_its_current_generation_is_ready() {
    let ready = |status: Status, reason: &str| {
        changed(|stack| {
            let conditions = &mut stack.status.as_mut().unwrap().conditions;
            conditions::set(conditions, &ConditionUpdate { kind: READY, status, reason, message: "detail" }, 2, at(1));
        })
    };
    let mut edited = ready(Status::True, "ProcessingCompleted");
    edited.as_mut().unwrap().metadata.generation = Some(3);
    let rows = [
        ("missing", None, waits("not found")),
        ("no condition", Some(succeeded()), waits("not ready")),
        ("ready", ready(Status::True, "ProcessingCompleted"), DependencyState::Satisfied),
        ("not ready", ready(Status::False, "UpdateFailed"), waits("not ready (UpdateFailed)")),
        ("edited", edited, waits("latest spec is not reconciled yet")),
    ];
    for (name, stack, expected) in rows {
        assert_eq!(one(Rule::Ready, stack, 1000), expected, "{name}");
    }
}

#[test]
fn all_unsatisfied_prerequisites_are_reported() {
    let short = Rule::Succeeded { within: Some(SignedDuration::from_secs(1)) };
    let all = [
        needed("a", short.clone(), Some(succeeded())),
        needed("b", Rule::Ready, None),
        needed("c", short, ran(|last| last.name = Some("c-7".to_owned()))),
        needed("d", Rule::Succeeded { within: None }, None),
    ];
    let expected = "waiting for b: not found; d: not found; a: last run ended more than 1s ago; \
                    c: last run ended more than 1s ago";
    let without_request = DependencyState::Unmet(expected.to_owned());
    assert_eq!(check_all(&all, 9999), without_request, "no run is requested while another dependency is unmet");
    let [a, _, c, _] = all;
    let DependencyState::Stale { message, dependencies } = check_all(&[a, c], 9999) else {
        panic!("expected stale dependencies")
    };
    let expected = "waiting for a: last run ended more than 1s ago; requested another run; \
                    c: last run ended more than 1s ago; requested another run";
    assert_eq!(message, expected);
    let requests: Vec<_> = dependencies.iter().map(|stale| stale.request.as_str()).collect();
    assert_eq!(requests, ["after-base-1", "after-c-7"]);
    assert_eq!(check_all(&[], 0), DependencyState::Satisfied);
}

#[test]
fn prerequisites_and_dependencies_are_read_from_the_spec() {
    let spec: StackSpec = serde_json::from_value(json!({
        "stack": "dev",
        "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}},
        "prerequisites": [{"name": "a"}, {"name": "b", "requirement": {"succeededWithinDuration": "1h"}},
            {"name": "e", "requirement": {"succeededWithinDuration": "0s"}}],
        "dependsOn": [{"name": "c"}, {"name": "c", "namespace": "base"}, {"name": "d", "readyExpr": "dep.spec.suspend"}],
    }))
    .unwrap();
    let hour = Some(SignedDuration::from_hours(1));
    let expected = [
        ("apps", "a", Rule::Succeeded { within: None }),
        ("apps", "b", Rule::Succeeded { within: hour }),
        ("apps", "e", Rule::Succeeded { within: Some(SignedDuration::from_secs(1)) }),
        ("apps", "c", Rule::Ready),
        ("base", "c", Rule::Ready),
        ("apps", "d", Rule::Expression("dep.spec.suspend".to_owned())),
    ];
    assert_eq!(
        rules(&spec, "apps"),
        expected.map(|(namespace, name, rule)| ((namespace.to_owned(), name.to_owned()), rule))
    );
    let elsewhere = cross_namespace_reference(&spec, "apps");
    let expected = "spec.dependsOn: Stack base/c is in another namespace, and --no-cross-namespace-refs is set";
    assert_eq!(elsewhere.as_deref(), Some(expected));
    assert_eq!(cross_namespace_reference(&StackSpec { depends_on: Vec::new(), ..spec }, "apps"), None);
}

#[test]
fn a_new_revision_of_a_shared_source_is_applied_in_dependency_order() {
    let on = |namespace: &str, source: &str, applied: Option<&str>| {
        let source = json!({"stack": "dev", "fluxSource": {"sourceRef": {"kind": "GitRepository", "name": source}}});
        let mut stack = Stack::new("base", serde_json::from_value(source).unwrap());
        stack.metadata.namespace = Some(namespace.to_owned());
        let mut status = StackStatus { last_applied_revision: applied.map(str::to_owned), ..StackStatus::default() };
        let ready =
            ConditionUpdate { kind: READY, status: Status::True, reason: "ProcessingCompleted", message: "done" };
        conditions::set(&mut status.conditions, &ready, 0, at(1));
        stack.status = Some(status);
        stack
    };
    let behind = waits("has not applied revision main@sha1:2 of the same source");
    let rows = [
        ("applied", on("apps", "app", Some("main@sha1:2")), DependencyState::Satisfied),
        ("another source", on("apps", "app", Some("main@sha1:1")), behind.clone()),
        ("none", on("apps", "app", None), behind),
        ("of another source", on("apps", "base", None), DependencyState::Satisfied),
        ("of another namespace", on("base", "app", None), DependencyState::Satisfied),
    ];
    for (name, stack, expected) in rows {
        let needed = needed("base", Rule::Ready, Some(stack));
        assert_eq!(check(&on("apps", "app", None), "main@sha1:2", &[needed], at(9)), expected, "{name}");
    }
}

#[test]
fn an_expression_replaces_the_default_readiness_check() {
    let rule = || Rule::Expression("dep.spec.suspend".to_owned());
    let stalled = DependencyState::Invalid(
        "invalid spec.dependsOn: readyExpr of base, \"dep.spec.suspend\": result must be a bool, not int".to_owned(),
    );
    let rows = [
        (Ok(true), DependencyState::Satisfied),
        (Ok(false), waits("readyExpr is false")),
        (
            Err(ExpressionError::Failed("no such key: spec".to_owned())),
            waits("failed to evaluate readyExpr: no such key: spec"),
        ),
        (Err(ExpressionError::Invalid("result must be a bool, not int".to_owned())), stalled.clone()),
        (Err(ExpressionError::LimitExceeded("result must be a bool, not int".to_owned())), stalled),
    ];
    for (result, expected) in rows {
        let text = format!("{result:?}");
        let needed = Dependency { result: Some(result), ..needed("base", rule(), Some(succeeded())) };
        assert_eq!(check_all(&[needed], 9), expected, "{text}");
    }
    let unknown = needed("base", rule(), Some(succeeded()));
    assert_eq!(check_all(&[unknown], 9), DependencyState::Evaluating);
    let missing = needed("base", rule(), None);
    assert_eq!(check_all(&[missing], 9), waits("not found"));
}

#[test]
fn a_name_that_no_stack_can_have_is_invalid() {
    let long = "a".repeat(43);
    for (spec, expected) in [
        (json!({"prerequisites": [{"name": "base"}], "dependsOn": [{"name": "network.a"}]}), None),
        (json!({"prerequisites": [{"name": ""}]}), Some("prerequisites: \"\"".to_owned())),
        (json!({"prerequisites": [{"name": "base"}, {"name": "A_B"}]}), Some("prerequisites: \"A_B\"".to_owned())),
        (json!({"dependsOn": [{"name": long}]}), Some(format!("dependsOn: {long:?}"))),
    ] {
        let mut whole = json!({"stack": "dev"});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let expected = expected.map(|part| format!("invalid spec.{part} is not a valid name of a Stack"));
        assert_eq!(check_names(&serde_json::from_value(whole).unwrap()).err(), expected, "{spec}");
    }
}
