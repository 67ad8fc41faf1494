//! Tests for the status after a run.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::*;
use crate::api::pulumi::PulumiStack;
use crate::controller::stack::identity;

#[test]
fn the_last_update_contains_the_inputs_of_the_recorded_run() {
    let mut stack = stack(None);
    let words = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(object, word)| ((*object).to_owned(), (*word).to_owned())).collect()
    };
    let mounted = words(&[("Secret/a", "1")]);
    let seen = CurrentUpdate {
        inputs: RunInputs { config_inputs: Some("a".to_owned()), mounted_inputs: mounted.clone(), ..current().inputs },
        ..current()
    };
    stack.status = Some(started(&stack, &seen, None, at(10)));
    let last =
        |status: StackStatus| status.last_update.map(|last| (last.inputs.config_inputs, last.inputs.mounted_inputs));
    let ended = with_result(&stack, &ended_update(None), None, at(20));
    assert_eq!(last(ended.clone()), Some((Some("a".to_owned()), mounted)));
    stack.status = Some(ended);
    let first = Baseline { config: Some("b".to_owned()), mounted: words(&[("Secret/b", "2")]) };
    let both = words(&[("Secret/a", "1"), ("Secret/b", "2")]);
    assert_eq!(last(with_first_inputs(&stack, &first)), Some((Some("b".to_owned()), both)));
}

#[test]
fn a_preview_does_not_change_the_last_applied_revision() {
    let ran = |before: Option<StackStatus>, kind: UpdateKind, revision: &str| {
        let mut stack = stack(None);
        stack.status = before.or(stack.status);
        let current = CurrentUpdate { kind, commit: Some(revision.to_owned()), ..current() };
        stack.status = Some(started(&stack, &current, None, at(10)));
        with_result(&stack, &ended_update(None), None, at(20))
    };
    let brief_of = |status: &StackStatus| {
        let last = status.last_update.clone().unwrap_or_default();
        let outcome = status.history.first().map(|newest| newest.last_reconciled_status.clone());
        (brief(status), last.last_attempted_commit, last.last_successful_commit, outcome.unwrap_or_default())
    };
    let text = |text: &str| Some(text.to_owned());
    let (previewed, applied) =
        (|| vec!["Ready=True/Previewed".to_owned()], vec!["Ready=True/ProcessingCompleted".to_owned()]);
    let first = ran(None, UpdateKind::Preview, "main@sha1:a");
    assert_eq!(brief_of(&first), (previewed(), text("main@sha1:a"), None, "Previewed".to_owned()));
    let second = ran(Some(first), UpdateKind::Up, "main@sha1:a");
    assert_eq!(
        brief_of(&second),
        (applied, text("main@sha1:a"), text("main@sha1:a"), "ProcessingCompleted".to_owned())
    );
    let third = ran(Some(second), UpdateKind::Preview, "main@sha1:b");
    assert_eq!(brief_of(&third), (previewed(), text("main@sha1:b"), text("main@sha1:a"), "Previewed".to_owned()));
    assert_eq!(third.last_applied_revision.as_deref(), Some("main@sha1:a"));
}

#[test]
fn the_result_of_an_update_is_copied_to_the_status() {
    let mut stack = stack(None);
    stack.status = Some(started(&stack, &current(), None, at(10)));
    assert_eq!(stack.status.as_ref().and_then(|s| s.attempts), Some(1));
    let mut outputs = Secret::default();
    outputs.metadata.annotations = Some([(names::ANNOTATION_SECRETS.to_owned(), "[\"token\"]".to_owned())].into());
    outputs.data = Some(
        [("url", "\"http://x\""), ("token", "\"hidden\""), ("count", "3")]
            .map(|(k, v)| (k.to_owned(), ByteString(v.as_bytes().to_vec())))
            .into(),
    );
    let status = with_result(&stack, &ended_update(None), Some(&outputs), at(20));
    assert_eq!(status.current_update, None);
    assert_eq!(status.last_applied_revision.as_deref(), Some("main@sha1:b"));
    let text = serde_json::to_string(&status.outputs).expect("valid JSON");
    assert_eq!(text, r#"{"count":3,"token":"[secret]","url":"http://x"}"#);
    let last = status.last_update.expect("value is set");
    assert_eq!((last.state.as_deref(), last.failures), (Some("succeeded"), 0));
    assert_eq!(last.last_successful_commit.as_deref(), Some("main@sha1:b"));
}

#[test]
fn canceled_runs_are_recorded_and_revoked_runs_are_not() {
    let absorbed_so = |change: fn(&mut Update)| {
        let mut stack = stack(None);
        stack.status = Some(started(&stack, &current(), None, at(10)));
        let mut update = ended_update(Some("Canceled"));
        change(&mut update);
        with_result(&stack, &update, None, at(20))
    };
    let deleted = |update: &mut Update| update.metadata.deletion_timestamp = Some(Time(at(15)));
    let canceled = absorbed_so(deleted);
    assert_eq!(brief(&canceled), ["Ready=False/Canceled", "Stalled=True/Canceled"]);
    assert_eq!(canceled.history.first().map(|run| run.last_reconciled_status.as_str()), Some("Canceled"));
    let last = canceled.last_update.expect("last update");
    assert_eq!((last.reason.as_deref(), last.canceled_by_user, last.failures), (Some("Canceled"), Some(true), 1));
    let killed = absorbed_so(|update| {
        *update = ended_update(Some("Aborted"));
        update.annotations_mut().insert(names::ANNOTATION_CANCEL.to_owned(), "now".to_owned());
    });
    assert_eq!(brief(&killed), ["Ready=False/Canceled", "Stalled=True/Canceled"], "regardless of how the run ended");
    let timed_out = absorbed_so(|_| {});
    assert_eq!(brief(&timed_out), ["Ready=False/UpdateFailed", "Reconciling=True/RetryingAfterFailure"]);
    assert_eq!(timed_out.last_update.and_then(|last| last.canceled_by_user), None);
    let taken_back = absorbed_so(|update| {
        update.metadata.deletion_timestamp = Some(Time(at(15)));
        update
            .annotations_mut()
            .insert(names::ANNOTATION_REVOKED.to_owned(), "the source has a newer revision".to_owned());
    });
    assert_eq!((taken_back.last_update, taken_back.current_update), (None, None));
}

#[test]
fn a_failure_is_counted_and_keeps_the_last_successful_revision() {
    let good = LastUpdate {
        inputs: RunInputs { generation: 3, ..RunInputs::default() },
        state: Some("failed".to_owned()),
        last_attempted_commit: Some("main@sha1:b".to_owned()),
        last_successful_commit: Some("main@sha1:a".to_owned()),
        failures: 1,
        ..LastUpdate::default()
    };
    let mut stack = stack(Some(good));
    stack.status = Some(started(&stack, &current(), None, at(10)));
    let last =
        with_result(&stack, &ended_update(Some("UpdateFailed")), None, at(20)).last_update.expect("value is set");
    assert_eq!(last.failures, 2);
    assert_eq!(last.message.as_deref(), Some("boom"));
    assert_eq!(last.last_successful_commit.as_deref(), Some("main@sha1:a"));
    let last =
        with_result(&stack, &ended_update(Some("UpdateConflict")), None, at(20)).last_update.expect("value is set");
    assert_eq!(last.failures, 1, "a lock is not a failure");
}

#[test]
fn runs_after_an_interruption_check_for_pending_creates() {
    let next = |before: Option<PendingCreates>, update: &Update| {
        let mut stack = stack(None);
        stack.status = Some(started(&stack, &CurrentUpdate { pending_creates: before, ..current() }, None, at(10)));
        with_result(&stack, update, None, at(20)).last_update.expect("value is set").pending_creates
    };
    let (stop, keep) = (Some(PendingCreates::Stop), Some(PendingCreates::Keep));
    let rows = [
        ("failed without interruption", None, failed_update("UpdateFailed", false), None),
        ("interrupted", None, failed_update("Aborted", true), stop),
        ("killed after the grace period", None, failed_update("Canceled", true), stop),
        ("ended before its pod", None, failed_update("Aborted", false), None),
        ("unknown outcome", None, failed_update("RunOutcomeUnknown", false), stop),
        ("creates are pending", stop, failed_update("PendingCreates", false), stop),
        ("then locked", stop, failed_update("UpdateConflict", false), stop),
        ("resolved by a user, then locked", keep, failed_update("UpdateConflict", true), keep),
        ("resolved by a user, but the run could not start", keep, failed_update("RunRefused", false), keep),
        ("locked with pending creates", None, failed_update("UpdateConflict", true), stop),
        ("resolved by a user, then interrupted again", keep, failed_update("Aborted", true), stop),
        ("succeeded", stop, ended_update(None), None),
    ];
    for (name, before, update, expected) in rows {
        assert_eq!(next(before, &update), expected, "{name}");
    }
}

#[test]
fn unavailable_outputs_keep_their_previous_values() {
    let mut stack = stack(None);
    stack.status = Some(started(&stack, &current(), None, at(10)));
    stack.status.as_mut().expect("value is set").outputs = [("url".to_owned(), Value::from("http://x"))].into();
    let mut lost = ended_update(None);
    let ended_so = lost.status.as_mut().expect("value is set");
    (ended_so.outputs_unavailable, ended_so.message) = (Some(true), Some("outputs exceed the quota".to_owned()));
    let absorbed_so = with_result(&stack, &lost, None, at(20));
    assert_eq!(absorbed_so.outputs.len(), 1);
    assert!(absorbed_so.conditions[0].message.ends_with("(main@sha1:b); outputs exceed the quota"), "{absorbed_so:?}");
    assert_eq!(brief(&absorbed_so), ["Ready=True/ProcessingCompleted"], "missing outputs are not a failure");
    lost.status.as_mut().expect("value is set").outputs = Some("app-1-stack-outputs".to_owned());
    let mut known = Secret { data: Some([("url".to_owned(), ByteString(b"2".to_vec()))].into()), ..Secret::default() };
    known.metadata.annotations = Some([(names::ANNOTATION_SECRETS.to_owned(), "[\"token\"]".to_owned())].into());
    let partly = with_result(&stack, &lost, Some(&known), at(20)).outputs;
    assert_eq!(serde_json::to_string(&partly).expect("valid JSON"), r#"{"token":"[secret]","url":2}"#);
    assert!(with_result(&stack, &ended_update(None), None, at(20)).outputs.is_empty());
}

#[test]
fn the_revisions_and_outcome_of_a_run_are_recorded() {
    let run = |origin: Option<&str>, before: Option<StackStatus>, failed: Option<&str>| {
        let mut stack = stack(None);
        stack.status = before.or(stack.status);
        let current = CurrentUpdate { origin_revision: origin.map(str::to_owned), ..current() };
        stack.status = Some(started(&stack, &current, None, at(10)));
        with_result(&stack, &ended_update(failed), None, at(20))
    };
    let outcomes = |status: &StackStatus| {
        status
            .history
            .iter()
            .map(|s| format!("{} {}", s.last_reconciled_status, s.total_reconciliations))
            .collect::<Vec<_>>()
    };
    let first = run(Some("main@sha1:a"), None, None);
    assert_eq!(first.last_applied_origin_revision.as_deref(), Some("main@sha1:a"));
    assert_eq!(first.last_attempted_revision.as_deref(), Some("main@sha1:b"));
    let second = run(Some("main@sha1:c"), Some(first), Some("UpdateFailed"));
    assert_eq!(
        second.last_applied_origin_revision.as_deref(),
        Some("main@sha1:a"),
        "the revision of a failed run is not the applied revision"
    );
    let third = run(None, Some(second), None);
    assert_eq!(third.last_applied_origin_revision, None);
    assert_eq!(outcomes(&third), ["ProcessingCompleted 2", "UpdateFailed 1"]);
    let locked = run(None, Some(third), Some("UpdateConflict"));
    assert_eq!(outcomes(&locked), ["UpdateConflict 1", "ProcessingCompleted 2", "UpdateFailed 1"]);
}

#[test]
fn destroying_a_missing_stack_fails_only_if_resources_may_exist() {
    let (here, there) = (Some("s3://a".to_owned()), Some("s3://b".to_owned()));
    let pulumi_stack = |backend| PulumiStack { name: "dev".to_owned(), project: None, backend };
    let destroyed = |applied: Option<PulumiStack>| {
        let mut stack = stack(None);
        stack.status.as_mut().expect("value is set").applied_stack = applied;
        let current =
            CurrentUpdate { kind: UpdateKind::Destroy, pulumi_stack: Some(pulumi_stack(here.clone())), ..current() };
        stack.status = Some(started(&stack, &current, None, at(10)));
        with_result(&stack, &ended_update(Some("StackNotFound")), None, at(20))
    };
    let message = |status: &StackStatus| {
        conditions::find(&status.conditions, STALLED).map(|stalled| stalled.message.clone()).unwrap_or_default()
    };
    let not_found = destroyed(Some(pulumi_stack(here.clone())));
    assert_eq!(brief(&not_found), ["Ready=False/StackNotFound", "Stalled=True/StackNotFound"]);
    assert_eq!(not_found.applied_stack, Some(pulumi_stack(here.clone())), "the stack may still have resources");
    let text = message(&not_found);
    assert!(text.starts_with("boom. ") && text.contains("app-1=abandon") && !text.contains("clear"), "{text}");
    let moved = message(&destroyed(Some(pulumi_stack(there))));
    assert!(moved.contains("this Stack last updated stack dev in backend s3://b"), "{moved}");
    let never_applied = destroyed(None);
    assert_eq!(brief(&never_applied), ["Ready=True/ProcessingCompleted"]);
    assert_eq!(never_applied.last_update.and_then(|last| last.state).as_deref(), Some("succeeded"));
}

#[test]
fn the_applied_stack_is_recorded_until_a_destroy_succeeds() {
    let after = |before: StackStatus, kind: UpdateKind, failure: Option<&str>, changes: &[(&str, i64)]| {
        let mut stack = stack(None);
        stack.status = Some(before);
        stack.status = Some(started(&stack, &CurrentUpdate { kind, ..current() }, None, at(10)));
        let mut update = ended_update(failure);
        update.spec.kind = kind;
        let result = update.status.as_mut().expect("value is set");
        result.changes = changes.iter().map(|(operation, count)| ((*operation).to_owned(), *count)).collect();
        result.termination_evidence = Some(crate::api::auto::TerminationEvidence::Agent);
        result.backend = Some("s3://a".to_owned());
        with_result(&stack, &update, None, at(20))
    };
    let backend = |status: &StackStatus| status.applied_stack.as_ref().and_then(|applied| applied.backend.clone());
    let failed = after(StackStatus::default(), UpdateKind::Up, Some("UpdateFailed"), &[]);
    assert_eq!(failed.applied_stack, None);
    let partly = after(failed, UpdateKind::Up, Some("UpdateFailed"), &[("create", 1)]);
    assert_eq!(backend(&partly).as_deref(), Some("s3://a"));
    let failed_to_destroy = after(partly, UpdateKind::Destroy, Some("UpdateFailed"), &[("delete", 1)]);
    assert_eq!(backend(&failed_to_destroy).as_deref(), Some("s3://a"));
    let destroyed = after(failed_to_destroy, UpdateKind::Destroy, None, &[("delete", 1)]);
    assert_eq!(destroyed.applied_stack, None);
}

#[test]
fn resources_of_a_status_without_applied_stack_remain_recorded_until_a_destroy_succeeds() {
    let by_operator = |kind: &str, state: &str| json!({"lastUpdate": {"type": kind, "state": state, "generation": 2}});
    let failed_destroy = json!({"type": "destroy", "state": "failed", "generation": 2, "digest": Digest::of(b"a")});
    let before = [
        ("an up of the operator", by_operator("up", "succeeded")),
        ("a failed destroy of the operator", by_operator("destroy", "failed")),
        ("an up of an earlier version", json!({"lastAppliedRevision": "main@sha1:a"})),
        ("outputs of an earlier version", json!({"outputs": {"a": 1}})),
        ("a failed destroy of an earlier version", json!({"lastUpdate": failed_destroy})),
    ];
    let runs = [
        (UpdateKind::Up, Some("UpdateFailed"), true),
        (UpdateKind::Preview, Some("UpdateFailed"), true),
        (UpdateKind::Preview, None, true),
        (UpdateKind::Destroy, Some("InvalidAccessToken"), true),
        (UpdateKind::Destroy, Some("StackNotFound"), true),
        (UpdateKind::Destroy, None, false),
    ];
    for (name, status) in before {
        for (kind, failure, expected) in runs {
            let mut stack = stack(None);
            stack.status = Some(serde_json::from_value(status.clone()).expect("valid status"));
            stack.status = Some(started(&stack, &CurrentUpdate { kind, ..current() }, None, at(10)));
            let mut update = ended_update(failure);
            update.spec.kind = kind;
            let found = with_result(&stack, &update, None, at(20));
            let applied = found.applied_stack.as_ref().map(|applied| applied.name.as_str());
            assert_eq!(applied, expected.then_some("dev"), "{name}, then {kind:?} {failure:?}");
            stack.status = Some(found);
            assert_eq!(identity::has_applied(&stack), expected, "{name}, then {kind:?} {failure:?}");
        }
    }
}

#[test]
fn only_a_successful_run_handles_a_request_for_a_refresh() {
    let after = |failure: Option<&str>| {
        let mut stack = stack(None);
        let inputs = RunInputs { refresh_at: Some("t".to_owned()), ..current().inputs };
        stack.status = Some(started(&stack, &CurrentUpdate { inputs, ..current() }, None, at(10)));
        let status = with_result(&stack, &ended_update(failure), None, at(20));
        (status.last_handled_refresh_at, status.last_update.and_then(|last| last.inputs.refresh_at))
    };
    let t = || Some("t".to_owned());
    assert_eq!(after(None), (t(), t()));
    assert_eq!(after(Some("UpdateFailed")), (None, t()), "the retry also refreshes the state");
}

/// Returns the Stack with a recorded run that applies the user's decision about the run `app-0`.
fn resolving(reason: &str, decision: &str) -> Stack {
    let mut stack = stack(Some(LastUpdate { name: Some("app-0".to_owned()), ..failed(reason, 0) }));
    stack.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), decision.to_owned());
    stack.status = Some(started(&stack, &current(), None, at(10)));
    stack
}

#[test]
fn a_user_decision_applies_until_a_run_has_a_result() {
    type Change = fn(&Stack) -> StackStatus;
    let revoke: Change = |stack| {
        let mut revoked = Update::new("app-1", crate::api::auto::UpdateSpec::default());
        revoked.metadata.deletion_timestamp = Some(Time(at(15)));
        revoked.annotations_mut().insert(names::ANNOTATION_REVOKED.to_owned(), "the namespace is paused".to_owned());
        with_result(stack, &revoked, None, at(20))
    };
    let forget: Change = |stack| without_current_update(stack, false);
    let discard_started: Change = |stack| without_discarded_run(stack, &changed_update(UpdateKind::Up, "dev"), at(20));
    let succeed: Change = |stack| with_result(stack, &ended_update(None), None, at(20));
    let fail: Change = |stack| with_result(stack, &failed_update("PendingCreates", true), None, at(20));
    let rows = [
        ("revoked", "PendingCreates", "app-0=clear", revoke, true),
        ("revoked", "RunOutcomeUnknown", "app-0=retry", revoke, true),
        ("revoked", "StackNotFound", "app-0=retry", revoke, true),
        ("revoked", "Aborted", "app-0=retry", revoke, true),
        ("forgotten, or discarded before the start", "PendingCreates", "app-0=clear", forget, true),
        ("discarded after the start", "PendingCreates", "app-0=clear", discard_started, false),
        ("succeeded", "PendingCreates", "app-0=clear", succeed, false),
        ("failed", "PendingCreates", "app-0=clear", fail, false),
    ];
    for (name, reason, decision, end, is_restored) in rows {
        let mut stack = resolving(reason, decision);
        assert_eq!(annotations::resolution(&stack), None, "{name} {reason}: the recorded run applies the decision");
        stack.status = Some(end(&stack));
        assert_eq!(annotations::resolution(&stack).is_some(), is_restored, "{name} {reason}");
        let handled = stack.status.as_ref().and_then(|status| status.handled_resolve.as_deref());
        assert_eq!(handled, (!is_restored).then_some(decision), "{name} {reason}");
        let next = started(&stack, &current(), None, at(30)).handled_resolve;
        assert_eq!(next.as_deref(), Some(decision), "{name} {reason}: no later run applies the decision again");
    }
}

/// Returns an Update with an open run whose spec a user has changed.
fn changed_update(kind: UpdateKind, stack_name: &str) -> Update {
    let mut update = ended_update(None);
    (update.spec.kind, update.spec.stack_name) = (kind, stack_name.to_owned());
    let run = Some(crate::api::auto::RunBinding::default());
    update.status = Some(crate::api::auto::UpdateStatus { run, ..Default::default() });
    update
}

#[test]
fn a_discarded_run_may_have_changed_resources_and_executed_its_plan() {
    let rows = [
        ("an up", UpdateKind::Up, "dev", true, true),
        ("an up of another Pulumi stack", UpdateKind::Up, "prod", true, false),
        ("a preview", UpdateKind::Preview, "dev", true, false),
        ("an up that has not started", UpdateKind::Up, "dev", false, false),
    ];
    for (name, kind, stack_name, has_started, may_have_resources) in rows {
        let last = LastUpdate { inputs: current().inputs, ..failed("UpdateFailed", 1) };
        let mut stack = stack(Some(last));
        let pulumi_stack = Some(identity::desired(&stack, None));
        let status = stack.status.as_mut().expect("value is set");
        status.current_update = Some(Box::new(CurrentUpdate { pulumi_stack, ..current() }));
        status.plan = serde_json::from_value(json!({
            "digest": Digest::of(b"plan"), "updateName": "app-0", "fileDigest": Digest::of(b"file"),
        }))
        .expect("valid plan");
        let mut update = changed_update(kind, stack_name);
        if !has_started {
            update.status = None;
        }
        let status = without_discarded_run(&stack, &update, at(20));
        assert_eq!(status.current_update, None, "{name}");
        assert_eq!(status.plan.is_none(), has_started, "{name}");
        let pending_creates = status.last_update.as_ref().and_then(|last| last.pending_creates);
        assert_eq!(pending_creates.is_some(), may_have_resources, "{name}");
        stack.status = Some(status);
        assert_eq!(identity::has_applied(&stack), may_have_resources, "{name}");
    }
}

#[test]
fn the_removal_of_a_recorded_run_keeps_other_handled_decisions() {
    for handled in ["app-8=clear", "app-9=abandon", "not a decision"] {
        let mut stack = stack(Some(LastUpdate { name: Some("app-9".to_owned()), ..failed("PendingCreates", 0) }));
        stack.status.as_mut().expect("value is set").handled_resolve = Some(handled.to_owned());
        assert_eq!(without_current_update(&stack, false).handled_resolve.as_deref(), Some(handled));
    }
}
