use proptest::prelude::*;
use serde_json::json;

use super::super::{Exit, FailureKind, classify, classify_with_plan};
use super::*;
use crate::pulumi::run_summary::summary_of;

const B: &str = "urn:pulumi:dev::example::testing:index:Step::b";
const X: &str = "urn:pulumi:dev::example::testing:index:Step::x";
const NEW_PLAN: &str = "\n(the controller makes a new plan)";

/// Returns the summary of a failed run. Each error consists of a URN and a message.
fn failed(errors: &[(&str, &str)]) -> RunSummary {
    let diagnostic = |(urn, message): &(&str, &str)| json!({"diagnosticEvent": {"urn": urn, "message": format!("{message}\n"), "color": "never", "severity": "error"}});
    let end = json!({"summaryEvent": {"durationSeconds": 1, "resourceChanges": {"same": 2}, "result": "failed"}});
    summary_of(&errors.iter().map(diagnostic).chain([end]).map(|event| format!("{event}\n")).collect::<String>())
}

fn message_of(errors: &[(&str, &str)]) -> String {
    let failure = classify_with_plan(Exit { code: Some(1), signal: None }, "", "", &failed(errors), None);
    assert_eq!(failure.kind, FailureKind::PlanViolated, "{errors:?}");
    failure.message
}

fn assert_deviation(urn: &str, error: &str, expected: &str) {
    let message = message_of(&[(urn, error)]);
    assert_eq!(message, format!("the run deviated from its plan: {expected}{NEW_PLAN}"), "{error}");
}

/// The errors are recordings of version 3.259 of the CLI.
#[test]
fn each_deviating_property_is_named_without_its_values() {
    for (changes, expected) in [
        ("~~value[{two}!={three}]", "property value differs from its planned value"),
        ("=~value[{other}]", "property value (planned: keep, found: change)"),
        ("~-value[{two}]", "property value (planned: change, found: remove)"),
        (
            "=+name[{b}], =+steps[{1}], ~+value[{two}!={two}], ~+value[{two}!={two}]",
            "property name (planned: keep, found: add), property steps (planned: keep, found: add), property value \
             (planned: change, found: add)",
        ),
        ("~~secretValue[{&{{hunter33}}}!={&{{hunter44}}}]", "property secretValue differs from its planned value"),
        (
            "++secretValue[{&{{super]}]\nsecret}}}!={&{{[secret]}}}]",
            "property secretValue differs from its planned value",
        ),
        ("=~[secret]Value[{1}]", "properties changed"),
    ] {
        let error = format!("resource {B} violates plan: properties changed: {changes}");
        assert_deviation(B, &error, &format!("testing:index:Step b: {expected}"));
        let error =
            format!("resource complete event returned an error: resource violates plan: properties changed: {changes}");
        assert_deviation(B, &error, &format!("testing:index:Step b: {expected}"));
    }
}

/// The errors are recordings of version 3.259 of the CLI.
#[test]
fn each_deviating_operation_is_named() {
    let expected = format!("expected resource operations for {B} but none were seen");
    let deleted = format!("resource {B} violates plan: resource unexpectedly not deleted");
    let protected = format!("resource {B} violates plan: protect changed (expected true)");
    for (urn, error, expected) in [
        (B, deleted.as_str(), "testing:index:Step b: the plan deletes this resource, but the run keeps it"),
        (B, &protected, "testing:index:Step b: protect changed (expected true)"),
        (B, &expected, "testing:index:Step b: the planned operation did not take place"),
        (
            B,
            "create is not allowed by the plan: no steps were expected for this resource",
            "testing:index:Step b: operation create, but the plan contains no such operation",
        ),
        (
            "",
            "delete is not allowed by the plan: this resource is constrained to update",
            "unknown resource: operation delete, but the planned operation is update",
        ),
        (
            "",
            "delete is not allowed by the plan: this resource is constrained to same",
            "unknown resource: operation delete, but the plan keeps this resource unchanged",
        ),
    ] {
        assert_deviation(urn, error, expected);
    }
}

#[test]
fn a_resource_without_urn_is_described_by_the_caller() {
    let deletion = "delete is not allowed by the plan: this resource is constrained to same";
    let run = failed(&[("", deletion)]);
    assert!(has_unnamed_deletion(&run) && !has_unnamed_deletion(&failed(&[(B, deletion)])));
    let urns = |count: usize| (0..count).map(|number| format!("{B}{number}")).collect::<Vec<_>>();
    assert_eq!(describe_candidates(&[]), None);
    assert_eq!(describe_candidates(&urns(1)).unwrap(), "testing:index:Step b0");
    let many = describe_candidates(&urns(7)).unwrap();
    assert!(many.starts_with("one of testing:index:Step b0, ") && many.ends_with("Step b4 and 2 more"), "{many}");
    let message = violation("", &run, describe_candidates(&urns(2)).as_deref()).unwrap();
    let words = "plan: one of testing:index:Step b0, testing:index:Step b1: operation delete, but the plan keeps";
    assert!(message.contains(words), "{message}");
}

#[test]
fn the_deletions_in_a_plan_file_are_found() {
    let plan = json!({"manifest": {}, "resourcePlans": {
        "urn:a": {"goal": {"type": "t"}, "steps": ["update"]}, "urn:b": {"steps": ["delete"]}, "urn:c": {"goal": null},
    }});
    assert_eq!(deletions(plan.to_string().as_bytes()).unwrap(), ["urn:b".to_owned()].into());
    assert!(deletions("{}".as_bytes()).unwrap().is_empty());
    assert!(deletions("\"text\"".as_bytes()).is_err());
}

#[test]
fn a_failed_operation_with_a_plan_is_a_failure_without_the_operations_that_depend_on_it() {
    let unseen = "expected resource operations for urn:pulumi:dev::example::testing:index:Step::b but none were seen";
    let create = "creating x: the input failOn is create";
    let exit = Exit { code: Some(1), signal: None };
    let failure = classify_with_plan(exit, "", "", &failed(&[(X, create), (B, unseen)]), None);
    assert_eq!(failure.kind, FailureKind::Failed);
    assert_eq!(failure.message, "testing:index:Step x: creating x: the input failOn is create");
    let violation = "create is not allowed by the plan: no steps were expected for this resource";
    let message = message_of(&[(X, create), (B, violation), (B, unseen)]);
    assert!(message.starts_with("the run deviated from its plan: testing:index:Step b: operation create"), "{message}");
    let without_plan = classify(exit, "", "", &failed(&[(B, violation)]));
    assert_eq!(without_plan.kind, FailureKind::Failed, "a program can print such an error");
}

#[test]
fn a_deviation_of_the_stack_outputs_is_detected_although_the_cli_reports_no_error() {
    assert!(message_of(&[]).contains("the outputs of the stack differ"), "{}", message_of(&[]));
    let exit = Exit { code: Some(1), signal: None };
    let program = summary_of(include_str!("../../testdata/program-failed.events.jsonl"));
    assert_eq!(classify_with_plan(exit, "", "", &program, None).kind, FailureKind::Failed);
    assert_eq!(classify_with_plan(exit, "", "error: panic\n", &failed(&[]), None).kind, FailureKind::Failed);
}

#[test]
fn a_plan_with_secrets_of_another_key_is_detected() {
    let exit = Exit { code: Some(1), signal: None };
    let stderr = "error: decrypting secret value: cipher: message authentication failed\n";
    let failure = classify_with_plan(exit, "", stderr, &RunSummary::default(), None);
    assert_eq!(failure.kind, FailureKind::PlanViolated);
    assert!(failure.message.contains("the secrets in the plan cannot be decrypted"), "{}", failure.message);
    for (stderr, expected) in [
        ("error: decrypting secret value: [503] Service Unavailable\n", FailureKind::BackendUnavailable),
        ("error: getting stack: incorrect passphrase\n", FailureKind::Failed),
    ] {
        assert_eq!(classify_with_plan(exit, "", stderr, &RunSummary::default(), None).kind, expected, "{stderr}");
    }
}

#[test]
fn no_value_remains_in_an_error_about_properties() {
    let before = "error: resource urn violates plan: properties changed: ";
    for (list, expected, is_complete) in [
        ("~~a[{two}!={three}], =-b, -=c[{map[k:{[{1} {2}]}]}]", "~~a, =-b, -=c", true),
        ("++a[{&{{line\nother line}}}!={&{{x}}}]", "++a", true),
        ("++a[{&{{-----BEGIN", "++a", false),
        ("++a[{&{{x]}}}], ~~hidden[{1}]", "++a", false),
        ("++a[{1}] hidden", "++a", false),
        ("++a[{1}], hidden", "++a", false),
        ("hidden", "", false),
    ] {
        let expected = (format!("{before}{expected}"), is_complete);
        assert_eq!(without_values(&format!("{before}{list}")), expected, "{list}");
    }
    assert_eq!(without_values("~~a[{two}]"), ("~~a[{two}]".to_owned(), true), "another message");
}

proptest! {
    #[test]
    fn arbitrary_errors_never_cause_a_panic(list in "([+~=-]{0,2}|[a-z]|, |[\\[{\\]}]|\n|ä){0,40}") {
        let text = format!("violates plan: properties changed: {list}");
        let (kept, _) = without_values(&text);
        prop_assert!(kept.len() <= text.len());
        prop_assert_eq!(&without_values(&kept).0, &kept);
        let _ = violation("", &failed(&[(B, &text)]), None);
    }
}
