//! Tests for the events about runs.

use super::*;
use crate::api::auto::UpdateStatus;
use crate::api::pulumi::{PolicyViolation, RunInputs, StackSpec, StackStatus};
use crate::artifact::Digest;

fn stack(before: Option<LastUpdate>) -> Stack {
    let mut stack = Stack::new("app", StackSpec::default());
    stack.metadata.namespace = Some("apps".to_owned());
    stack.status =
        Some(StackStatus { current_update: Some(Box::new(current())), last_update: before, ..StackStatus::default() });
    stack
}

fn current() -> CurrentUpdate {
    CurrentUpdate {
        inputs: RunInputs { generation: 1, digest: Some(Digest::of(b"b")), ..RunInputs::default() },
        message: "New commit detected".to_owned(),
        commit: Some("latest@sha256:b".to_owned()),
        origin_revision: Some("main@sha1:b".to_owned()),
        ..CurrentUpdate::default()
    }
}

fn last(kind: &str, state: &str, changes: &[(&str, i64)]) -> LastUpdate {
    LastUpdate {
        inputs: RunInputs { generation: 1, digest: Some(Digest::of(b"b")), ..RunInputs::default() },
        kind: Some(kind.to_owned()),
        state: Some(state.to_owned()),
        message: (state == "failed").then(|| "boom".to_owned()),
        last_attempted_commit: Some("latest@sha256:b".to_owned()),
        changes: changes.iter().map(|(operation, count)| ((*operation).to_owned(), *count)).collect(),
        ..LastUpdate::default()
    }
}

fn brief(events: &[Event]) -> Vec<String> {
    let line = |event: &Event| {
        let status = if event.metadata.contains_key(COMMIT_STATUS.0) { " (commit status)" } else { "" };
        format!("{:?} {}: {}{status}", event.kind, event.reason, event.message)
    };
    events.iter().map(line).collect()
}

#[test]
fn the_events_of_an_ended_run_depend_on_its_result() {
    let done = "Normal StackCreated: Successfully updated stack (commit status)";
    let up = |state: &str, changes: &[(&str, i64)]| last("up", state, changes);
    let rows: [(&str, Option<LastUpdate>, LastUpdate, &[&str]); 8] = [
        ("a run without changes", None, up("succeeded", &[("same", 3)]), &[done]),
        (
            "a run with changes",
            Some(up("succeeded", &[])),
            up("succeeded", &[("create", 2), ("delete", 1), ("same", 3)]),
            &[done, "Normal ProcessingCompleted: 2 created, 1 deleted"],
        ),
        (
            "recovered without changes",
            Some(up("failed", &[])),
            up("succeeded", &[("same", 3)]),
            &[done, "Normal ProcessingCompleted: The stack has recovered from its last failure"],
        ),
        (
            "recovered with changes",
            Some(up("failed", &[])),
            up("succeeded", &[("update", 1)]),
            &[done, "Normal ProcessingCompleted: The stack has recovered from its last failure: 1 updated"],
        ),
        ("failed", None, up("failed", &[("create", 1)]), &["Warning StackUpdateFailure: Failed to update stack: boom"]),
        (
            "a preview",
            None,
            last("preview", "succeeded", &[("create", 1)]),
            &[
                "Normal StackCreated: Successfully previewed stack: 1 to create (commit status)",
                "Normal ProcessingCompleted: Preview: 1 to create",
            ],
        ),
        (
            "a failed destroy",
            None,
            last("destroy", "failed", &[]),
            &["Warning StackUpdateFailure: Failed to destroy stack: boom"],
        ),
        (
            "a destroy",
            None,
            last("destroy", "succeeded", &[("delete", 1)]),
            &[
                "Normal StackDestroyed: Successfully destroyed stack (commit status)",
                "Normal ProcessingCompleted: 1 deleted",
            ],
        ),
    ];
    for (name, before, last, expected) in rows {
        let events = ended(&stack(before), &last, None, None);
        assert_eq!(brief(&events), expected, "{name}");
        for event in &events {
            let revisions = [REVISION, ORIGIN_REVISION].map(|key| event.metadata.get(key).map(String::as_str));
            assert_eq!(revisions, [Some("latest@sha256:b"), Some("main@sha1:b")], "{name}");
        }
    }
}

#[test]
fn no_notification_is_sent_when_an_automatic_run_starts() {
    let kind = |before: Option<LastUpdate>| begun(&stack(before), &current()).map(|event| event.kind);
    assert_eq!(kind(None), Some(EventKind::Notification));
    assert_eq!(kind(Some(last("up", "failed", &[]))), None);
    assert_eq!(kind(Some(last("up", "succeeded", &[]))), None);
    let older = LastUpdate {
        inputs: RunInputs { digest: Some(Digest::of(b"a")), ..last("up", "succeeded", &[]).inputs },
        ..last("up", "succeeded", &[])
    };
    assert_eq!(kind(Some(older)), Some(EventKind::Notification));
}

#[test]
fn a_lock_conflict_is_reported_once() {
    let locked = |holder: &str| LastUpdate {
        reason: Some(update_reason::UPDATE_CONFLICT.to_owned()),
        message: Some(format!("the stack is locked by {holder}")),
        ..last("up", "failed", &[])
    };
    let conflict_events =
        |before: Option<LastUpdate>, holder: &str| brief(&ended(&stack(before), &locked(holder), None, None));
    let alice = ["Warning StackUpdateConflictDetected: Update conflict: the stack is locked by alice"];
    assert_eq!(conflict_events(None, "alice"), alice);
    assert_eq!(conflict_events(Some(last("up", "failed", &[])), "alice"), alice);
    assert_eq!(conflict_events(Some(locked("alice")), "alice"), [""; 0]);
    assert_eq!(conflict_events(Some(locked("bob")), "alice"), alice, "a lock of another holder");
}

#[test]
fn the_next_step_reports_a_run_in_the_pulumi_stack_of_another_stack() {
    let pulumi_stack = Some(PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() });
    let reason = Some("DuplicateStack".to_owned());
    let last_update = Some(LastUpdate { reason, pulumi_stack, ..last("up", "failed", &[]) });
    let mut stack = stack(None);
    let status = stack.status.get_or_insert_default();
    status.applied_stack = Some(PulumiStack { name: "prod".to_owned(), ..PulumiStack::default() });
    let status = StackStatus { last_update, ..StackStatus::default() };
    assert_eq!(brief(&recorded(&stack, &status, None, None)), Vec::<String>::new(), "no resources remain");
}

#[test]
fn a_state_that_was_empty_is_reported_once() {
    let stack = stack(None);
    let last_update = Some(last("up", "succeeded", &[("create", 2)]));
    let applied_stack = Some(PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() });
    let mut status = StackStatus { last_update, applied_stack, ..StackStatus::default() };
    let result = UpdateStatus { state_was_empty: Some(true), ..UpdateStatus::default() };
    orphaned_stacks::record_lost_state(&mut status, &result, jiff::Timestamp::UNIX_EPOCH);
    let is_about_loss = |event: &&Event| format!("{event:?}").contains("contained no resources before the run");
    let events = recorded(&stack, &status, None, None);
    assert_eq!(events.iter().filter(is_about_loss).count(), 1, "{:?}", brief(&events));
    let stack = Stack { status: Some(status.clone()), ..stack };
    let events = recorded(&stack, &status, None, None);
    assert_eq!(events.iter().filter(is_about_loss).count(), 0, "{:?}", brief(&events));
}

#[test]
fn orphaned_resources_are_reported_when_the_change_is_first_detected() {
    let of = |backend: Option<&str>| PulumiStack {
        name: "dev".to_owned(),
        project: Some("web".to_owned()),
        backend: backend.map(str::to_owned),
    };
    let with = |recorded: Option<&str>| {
        let mut stack =
            stack(Some(LastUpdate { pulumi_stack: Some(of(Some("s3://a"))), ..last("up", "succeeded", &[]) }));
        let status = stack.status.as_mut().expect("value is set");
        status.applied_stack = Some(of(Some("s3://a")));
        status.current_update = Some(Box::new(CurrentUpdate { pulumi_stack: Some(of(recorded)), ..current() }));
        stack
    };
    let begun = |recorded: Option<&str>| {
        let stack = with(recorded);
        let current = stack.status.as_ref().and_then(|status| status.current_update.clone()).expect("value is set");
        orphan_event(&stack, &current).map(|event| brief(&[event]))
    };
    let ended_in = |kind: &str, recorded: Option<&str>, backend: &str| {
        let last = LastUpdate { pulumi_stack: Some(of(Some(backend))), ..last(kind, "failed", &[]) };
        brief(&ended(&with(recorded), &last, None, None))
            .into_iter()
            .filter(|line| line.contains(RESOURCES_ORPHANED))
            .count()
    };
    let events = begun(Some("s3://b")).expect("an orphan event");
    assert!(
        events[0].starts_with(
            "Warning ResourcesOrphaned: the Stack now manages stack dev of project web in backend s3://b; its resources in \
             stack dev of project web in backend s3://a remain"
        ),
        "{events:?}"
    );
    assert_eq!((begun(Some("s3://a")), begun(None)), (None, None));
    let preview = CurrentUpdate { kind: UpdateKind::Preview, pulumi_stack: Some(of(Some("s3://b"))), ..current() };
    assert!(orphan_event(&with(None), &preview).is_none(), "a preview does not manage a Pulumi stack");
    assert_eq!(ended_in("up", Some("s3://b"), "s3://b"), 0, "already reported when the run started");
    assert_eq!(ended_in("up", None, "s3://b"), 1, "only the agent reported the backend");
    assert_eq!(ended_in("preview", None, "s3://b"), 0, "a preview does not manage a Pulumi stack");
    assert_eq!(ended_in("up", None, "s3://a"), 0);
}

#[test]
fn the_deletion_of_a_stack_without_a_destroy_names_the_remaining_resources() {
    let deleted = |destroy: Option<bool>, preview: bool, applied: bool| {
        let mut stack = stack(None);
        (stack.spec.destroy_on_finalize, stack.spec.preview) = (destroy, Some(preview));
        let applied_stack = applied.then(|| PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() });
        stack.status = Some(StackStatus { applied_stack, ..StackStatus::default() });
        brief(&left_behind(&stack))
    };
    let kept = deleted(None, false, true);
    assert_eq!(kept.len(), 1);
    let expected = "Normal ResourcesOrphaned: the Stack was deleted without a destroy because spec.destroyOnFinalize is not true; its \
                    resources in stack dev in";
    assert!(kept[0].starts_with(expected), "{kept:?}");
    assert_eq!(deleted(Some(false), true, true), kept);
    let previewed = deleted(Some(true), true, true);
    assert!(previewed[0].starts_with("Warning ResourcesOrphaned: ") && previewed[0].ends_with(" without spec.preview"));
    assert_eq!(deleted(Some(true), false, true), [""; 0], "the destroy has ended or a user has abandoned it");
    assert_eq!(deleted(None, false, false), [""; 0], "no run has changed resources");
}

#[test]
fn the_summary_of_a_preview_lists_the_changed_resources_without_values() {
    let resource = |operation: &str, name: &str, properties: &[&str]| PlannedResource {
        urn: format!("urn:pulumi:dev::web::aws:s3/bucket:Bucket::{name}"),
        operation: operation.to_owned(),
        properties: properties.iter().map(|property| (*property).to_owned()).collect(),
    };
    let preview = last("preview", "succeeded", &[("create", 1), ("update", 1)]);
    let text = |resources: Vec<PlannedResource>| {
        let resource_count = i64::try_from(resources.len()).unwrap();
        let plan = UpdatePlan { resources, resource_count, ..UpdatePlan::default() };
        ended(&stack(None), &preview, Some(&plan), None).pop().unwrap().message
    };
    let few = vec![resource("create", "logs", &[]), resource("update", "site", &["tags.owner", "acl"])];
    let expected = "Preview: 1 to create, 1 to update\n- create aws:s3/bucket:Bucket logs\n- update aws:s3/bucket:Bucket site \
                    (tags.owner, acl)";
    assert_eq!(text(few), expected);
    let many = text((0..100).map(|number| resource("create", &format!("bucket-{number}"), &[])).collect());
    assert!(many.len() <= 1024, "{}", many.len());
    let listed = many.lines().count() - 2;
    assert!(many.ends_with(&format!("\n- and {} more", 100 - listed)), "{many}");
}

#[test]
fn a_plan_sets_no_commit_status() {
    let planned = last("preview", "succeeded", &[("create", 1)]);
    let with = |save_plan: Option<bool>| {
        let mut stack = stack(None);
        stack.status.as_mut().unwrap().current_update = Some(Box::new(CurrentUpdate { save_plan, ..current() }));
        brief(&ended(&stack, &planned, None, None))
    };
    let summary = "Normal ProcessingCompleted: Preview: 1 to create";
    assert_eq!(with(Some(true)), [summary]);
    let done = "Normal StackCreated: Successfully previewed stack: 1 to create (commit status)";
    assert_eq!(with(None), [done, summary]);
}

fn violations(policies: usize) -> PolicyViolations {
    let violation = |number: usize| PolicyViolation {
        pack: "house".to_owned(),
        policy: format!("policy-{number}"),
        urn: "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs".to_owned(),
        message: "No bucket is public.".to_owned(),
        ..PolicyViolation::default()
    };
    let mandatory = i64::try_from(policies).unwrap();
    let violations = (0..policies).map(violation).collect();
    PolicyViolations { mandatory, violations, ..PolicyViolations::default() }
}

#[test]
fn the_summary_of_a_preview_lists_policy_violations() {
    let preview = last("preview", "succeeded", &[("create", 100)]);
    let resource = |number: usize| PlannedResource {
        urn: format!("urn:pulumi:dev::web::aws:s3/bucket:Bucket::bucket-{number}"),
        operation: "create".to_owned(),
        properties: Vec::new(),
    };
    let plan = UpdatePlan { resources: (0..100).map(resource).collect(), resource_count: 100, ..UpdatePlan::default() };
    let text = |plan: Option<&UpdatePlan>, policies: usize| {
        ended(&stack(None), &preview, plan, Some(&violations(policies))).pop().unwrap().message
    };
    let expected = "Preview: 100 to create\n\n1 mandatory policy violation:\n- mandatory `policy-0` of house \
                    aws:s3/bucket:Bucket logs: No bucket is public.";
    assert_eq!(text(None, 1), expected);
    let long = text(Some(&plan), 20);
    assert!(long.len() <= 1024 && long.contains("more\n\n20 mandatory policy violations:\n- "), "{long}");
}

#[test]
fn the_event_about_a_failed_run_lists_policy_violations() {
    let failed = LastUpdate { reason: Some("PolicyViolation".to_owned()), ..last("preview", "failed", &[]) };
    let text = |last: &LastUpdate| brief(&ended(&stack(None), last, None, Some(&violations(1))));
    let expected = "Warning StackUpdateFailure: Failed to preview stack: 1 mandatory policy violation:\n- mandatory `policy-0` of \
                    house aws:s3/bucket:Bucket logs: No bucket is public.";
    assert_eq!(text(&failed), [expected]);
    let other = LastUpdate { reason: Some("UpdateFailed".to_owned()), ..failed };
    assert_eq!(text(&other), ["Warning StackUpdateFailure: Failed to preview stack: boom"]);
}

#[test]
fn a_changed_set_of_policy_violations_is_reported_once() {
    let reported = |before: Option<PolicyViolations>, after: Option<PolicyViolations>| {
        let mut stack = stack(None);
        stack.status.get_or_insert_default().policy_violations = before;
        let status = StackStatus { policy_violations: after, ..StackStatus::default() };
        policy_violations(&stack, &status).map(|event| brief(&[event]))
    };
    let expected = "Warning PolicyViolation: 1 mandatory policy violation:\n- mandatory `policy-0` of house \
                    aws:s3/bucket:Bucket logs: No bucket is public.";
    assert_eq!(reported(None, Some(violations(1))), Some(vec![expected.to_owned()]));
    assert_eq!(reported(Some(violations(1)), Some(violations(1))), None);
    let mut other_resource = violations(1);
    other_resource.violations[0].urn = "urn:pulumi:dev::web::a:b:C::other".to_owned();
    assert_eq!(reported(Some(violations(1)), Some(other_resource)), None, "the same policy");
    assert!(reported(Some(violations(1)), Some(violations(2))).is_some());
    assert_eq!(reported(Some(violations(1)), None), None);
    let mut exempted = PolicyViolations { mandatory: 0, exempted: Some(1), ..violations(1) };
    exempted.violations[0].exemption = "EXC-1: legacy".to_owned();
    assert_eq!(reported(None, Some(exempted.clone())), None, "an exempted violation is no reason for an event");
    assert!(reported(Some(exempted), Some(violations(1))).is_some(), "the exception was removed");
}

#[test]
fn one_event_lists_the_policy_violations_of_a_run() {
    let reasons = |kind: &str, state: &str, reason: Option<&str>| {
        let last_update = Some(LastUpdate { reason: reason.map(str::to_owned), ..last(kind, state, &[]) });
        let found = violations(1);
        let status = StackStatus { last_update, policy_violations: Some(found.clone()), ..StackStatus::default() };
        let events = recorded(&stack(None), &status, None, Some(&found));
        events.into_iter().map(|event| event.reason).collect::<Vec<_>>()
    };
    let violated = Some("PolicyViolation");
    assert_eq!(reasons("up", "succeeded", None), ["PolicyViolation", "StackCreated"]);
    assert_eq!(reasons("up", "failed", Some("UpdateFailed")), ["PolicyViolation", "StackUpdateFailure"]);
    assert_eq!(reasons("up", "failed", violated), ["StackUpdateFailure"]);
    assert_eq!(reasons("preview", "failed", violated), ["StackUpdateFailure"]);
    assert_eq!(reasons("preview", "succeeded", None), ["StackCreated", "ProcessingCompleted"]);
}
