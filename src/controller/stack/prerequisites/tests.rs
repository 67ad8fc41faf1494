//! What has to be done first, as tables.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::api::conditions::{Claim, Status};
use crate::api::pulumi::{LastUpdate, StackStatus};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

/// A Stack whose last run has succeeded at second 1000.
fn succeeded() -> Stack {
    let mut stack = Stack::new("base", StackSpec::default());
    stack.metadata.generation = Some(2);
    let last = LastUpdate {
        name: Some("base-1".to_owned()),
        generation: 2,
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

fn one(rule: Rule, stack: Option<Stack>, second: i64) -> Standing {
    judge(&[Needed { name: "base".to_owned(), rule, stack }], at(second))
}

fn waits(message: &str) -> Standing {
    Standing::Waits { message: format!("waits for base: {message}"), stale: Vec::new() }
}

#[test]
fn a_prerequisite_has_succeeded_on_what_it_asks_for_now() {
    let annotate = |stack: &mut Stack| {
        stack.annotations_mut().insert(names::ANNOTATION_RECONCILIATION_REQUEST.to_owned(), "again".to_owned());
    };
    let rows = [
        ("missing", None, waits("it does not exist")),
        ("never ran", changed(|stack| stack.status = None), waits("it has not run yet")),
        ("succeeded", Some(succeeded()), Standing::Satisfied),
        ("failed", ran(|last| last.state = Some("failed".to_owned())), waits("its last run has failed")),
        (
            "changed since",
            changed(|stack| stack.metadata.generation = Some(3)),
            waits("its spec has changed, and has not run yet"),
        ),
        ("asked for", changed(annotate), waits("it is asked to run again, and has not yet")),
        ("has answered", ran(|last| last.reconcile_request = Some("before".to_owned())), Standing::Satisfied),
    ];
    for (name, stack, wanted) in rows {
        assert_eq!(one(Rule::Succeeded { within: None }, stack, 999_999), wanted, "{name}");
    }
}

#[test]
fn one_that_ran_too_long_ago_is_asked_to_run_again_always_by_the_same_request() {
    let hour = Rule::Succeeded { within: Some(SignedDuration::from_hours(1)) };
    assert_eq!(one(hour.clone(), Some(succeeded()), 4600), Standing::Satisfied);
    let stale = vec![Stale { name: "base".to_owned(), request: "after-base-1".to_owned() }];
    let message = "waits for base: it ran more than 1h0m0s ago and is asked to run again".to_owned();
    for second in [4601, 99_999] {
        let wanted = Standing::Waits { message: message.clone(), stale: stale.clone() };
        assert_eq!(one(hour.clone(), Some(succeeded()), second), wanted);
    }
    let failed = ran(|last| last.state = Some("failed".to_owned()));
    assert_eq!(one(hour, failed, 99_999), waits("its last run has failed"), "it tries again by itself");
}

#[test]
fn a_dependency_is_ready_and_has_seen_its_spec() {
    let ready = |status: Status, reason: &str| {
        changed(|stack| {
            let conditions = &mut stack.status.as_mut().unwrap().conditions;
            conditions::set(conditions, &Claim { kind: READY, status, reason, message: "said" }, 2, at(1));
        })
    };
    let mut edited = ready(Status::True, "ProcessingCompleted");
    edited.as_mut().unwrap().metadata.generation = Some(3);
    let rows = [
        ("missing", None, waits("it does not exist")),
        ("nothing is said", Some(succeeded()), waits("it is not ready")),
        ("ready", ready(Status::True, "ProcessingCompleted"), Standing::Satisfied),
        ("not ready", ready(Status::False, "UpdateFailed"), waits("it is not ready (UpdateFailed)")),
        ("edited", edited, waits("its spec has changed")),
    ];
    for (name, stack, wanted) in rows {
        assert_eq!(one(Rule::Ready, stack, 1000), wanted, "{name}");
    }
}

#[test]
fn all_of_them_are_looked_at() {
    let needed = |name: &str, rule: Rule, stack| Needed { name: name.to_owned(), rule, stack };
    let short = Rule::Succeeded { within: Some(SignedDuration::from_secs(1)) };
    let all = [
        needed("a", short.clone(), Some(succeeded())),
        needed("b", Rule::Ready, None),
        needed("c", short, ran(|last| last.name = Some("c-7".to_owned()))),
    ];
    let Standing::Waits { message, stale } = judge(&all, at(9999)) else { panic!("they are not satisfied") };
    assert!(message.contains("a: it ran") && message.contains("; b: it does not exist; c: it ran"), "{message}");
    assert_eq!(stale.iter().map(|stale| stale.request.as_str()).collect::<Vec<_>>(), ["after-base-1", "after-c-7"]);
    assert_eq!(judge(&[], at(0)), Standing::Satisfied);
}

#[test]
fn what_a_spec_asks_for() {
    let spec: StackSpec = serde_json::from_value(json!({
        "stack": "dev",
        "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}},
        "prerequisites": [{"name": "a"}, {"name": "b", "requirement": {"succeededWithinDuration": "1h"}}],
        "dependsOn": [{"name": "c"}],
    }))
    .unwrap();
    let hour = Some(SignedDuration::from_hours(1));
    let wanted = [("a", Rule::Succeeded { within: None }), ("b", Rule::Succeeded { within: hour }), ("c", Rule::Ready)];
    assert_eq!(asked(&spec), wanted.map(|(name, rule)| (name.to_owned(), rule)));
    assert_eq!(["a", "c", "d"].map(|name| names_it(&spec, name)), [true, true, false]);
}

#[test]
fn a_cycle_is_found_from_each_of_its_stacks_and_from_no_other() {
    let edges: BTreeMap<&str, Vec<&str>> = [
        ("a", vec!["x", "b"]),
        ("b", vec!["c"]),
        ("c", vec!["a"]),
        ("self", vec!["self"]),
        ("before", vec!["a"]),
        ("x", vec!["y"]),
        ("diamond", vec!["x", "y"]),
    ]
    .into();
    let needs =
        |name: &str| -> Vec<String> { edges.get(name).into_iter().flatten().map(|name| (*name).to_owned()).collect() };
    let path = |of: &str| cycle(of, &needs).map(|path| path.join(" → "));
    assert_eq!(path("a").as_deref(), Some("a → b → c → a"));
    assert_eq!(path("b").as_deref(), Some("b → c → a → b"));
    assert_eq!(path("self").as_deref(), Some("self → self"));
    assert_eq!([path("before"), path("x"), path("diamond"), path("nobody")], [None, None, None, None]);
}
