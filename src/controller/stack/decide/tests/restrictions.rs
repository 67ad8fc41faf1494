//! Tests for the decisions while a pause or a schedule prevents runs, and for the expiry.

use super::*;
use crate::api::pulumi::RunSchedule;
use crate::controller::namespaces::RunSettings;

fn freeze() -> Option<RunSchedule> {
    let freezes = json!({"freezes": [{"from": "1970-01-01T00:00:00Z", "to": "1970-01-01T01:00:00Z"}]});
    Some(serde_json::from_value(freezes).expect("a schedule"))
}

fn paused() -> RunSettings {
    RunSettings { pause: Some("paused".to_owned()), ..RunSettings::default() }
}

fn with_spec(change: fn(&mut StackSpec)) -> Stack {
    let mut changed = stack();
    change(&mut changed.spec);
    changed
}

#[test]
fn a_due_run_waits_for_the_end_of_a_pause_or_a_freeze() {
    let expects = |observed: &Observed, reason: &str, until: Option<i64>| {
        let expected = until.map(|second| Timestamp::from_second(second).expect("timestamp in range"));
        match decide(observed, now()) {
            Action::AwaitPermission(held) => assert_eq!((held.reason, held.until), (reason, expected)),
            other => panic!("{reason}: {other:?}"),
        }
    };
    expects(&Observed { run_settings: paused(), ..observed(stack()) }, "Paused", None);
    let preview = with_spec(|spec| spec.preview = Some(true));
    expects(&Observed { run_settings: paused(), ..observed(preview) }, "Paused", None);
    expects(&observed(with_spec(|spec| spec.schedule = freeze())), "OutsideSchedule", Some(3600));
    let mut deleted = with_spec(|spec| {
        spec.schedule = freeze();
        spec.destroy_on_finalize = Some(true);
    });
    deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    deleted.status.as_mut().expect("value is set").last_update = Some(last("up", "succeeded"));
    deleted.status.as_mut().expect("value is set").last_applied_revision = Some("main@sha1:a".to_owned());
    expects(&observed(deleted), "OutsideSchedule", Some(3600));
}

#[test]
fn previews_and_plans_do_not_wait_for_a_schedule() {
    let starts = |observed: &Observed| matches!(decide(observed, now()), Action::ApplyWorkspace(..));
    assert!(starts(&observed(stack())));
    assert!(starts(&observed(with_spec(|spec| {
        spec.schedule = freeze();
        spec.preview = Some(true);
    }))));
    assert!(starts(&observed(with_spec(|spec| {
        spec.schedule = freeze();
        spec.approval = serde_json::from_value(json!({"mode": "Always"})).expect("approval settings");
    }))));
}

#[test]
fn a_pause_or_a_freeze_does_not_affect_a_settled_stack() {
    let mut settled = with_spec(|spec| spec.schedule = freeze());
    settled.status.as_mut().expect("value is set").last_update = Some(last("up", "succeeded"));
    let observed = Observed {
        run_settings: paused(),
        workspace: Some(workspace(&settled, Status::True, "Succeeded")),
        ..observed(settled)
    };
    assert_eq!(decide(&observed, now()), Action::Settled(Settled::Done(None)));
}

#[test]
fn a_recorded_run_that_has_not_started_is_withdrawn() {
    let recorded = |change: fn(&mut StackSpec), settings: RunSettings| {
        let mut recorded = with_spec(change);
        let current = current_update(&observed(recorded.clone()), &resolved(), &up());
        recorded.status.as_mut().expect("value is set").current_update = Some(Box::new(current));
        let workspace = Some(workspace(&stack(), Status::True, "Succeeded"));
        Observed { run_settings: settings, workspace, ..observed(recorded) }
    };
    let rows: [(&str, fn(&mut StackSpec), RunSettings, bool); 3] = [
        ("no restriction", |_| {}, RunSettings::default(), false),
        ("paused", |_| {}, paused(), true),
        ("freeze", |spec| spec.schedule = freeze(), RunSettings::default(), true),
    ];
    for (name, change, settings, expected) in rows {
        let recorded = recorded(change, settings);
        let without_update = decide(&recorded, now());
        assert_eq!(matches!(without_update, Action::RecordLostRun(_)), expected, "{name}: {without_update:?}");
        let mut update = Update::new("app-1", UpdateSpec::default());
        let queued = decide(&Observed { update: Some(update.clone()), ..recorded.clone() }, now());
        assert_eq!(matches!(queued, Action::RevokeUpdate(_)), expected, "{name}: {queued:?}");
        let run = Some(crate::api::auto::RunBinding::default());
        update.status = Some(UpdateStatus { run, ..UpdateStatus::default() });
        let started = decide(&Observed { update: Some(update), ..recorded }, now());
        assert!(matches!(started, Action::AwaitUpdate(_)), "{name}: {started:?}");
    }
}

#[test]
fn an_expired_stack_is_deleted_after_its_open_run() {
    let expired = |mut stack: Stack| {
        (stack.spec.expires_at, stack.spec.destroy_on_finalize) = (Some(Time(now())), Some(true));
        let announced = now() - SignedDuration::from_mins(1);
        stack.status = Some(crate::controller::stack::expiry::announced(&stack, "announced", announced));
        stack
    };
    assert!(matches!(decide(&observed(expired(stack())), now()), Action::Expire(_)));
    let during_pause = Observed { run_settings: paused(), ..observed(expired(stack())) };
    assert!(!matches!(decide(&during_pause, now()), Action::Expire(_)));
    let running = open(Status::True, "Progressing");
    let running = Observed { stack: expired(running.stack.clone()), ..running };
    assert!(matches!(decide(&running, now()), Action::AwaitUpdate(_)));
}

/// The API server rejects such a Stack, but not if the API server stored the Stack before the rule existed.
#[test]
fn the_expiry_does_not_decide_whether_the_resources_are_destroyed() {
    let mut stack = stack();
    stack.spec.expires_at = Some(Time(now()));
    stack.status.as_mut().expect("value is set").last_applied_revision = Some("main@sha1:a".to_owned());
    let Action::Invalid(message) = decide(&observed(stack.clone()), now()) else { panic!("the choice is missing") };
    assert!(message.contains("require spec.destroyOnFinalize"), "{message}");
    stack.metadata.deletion_timestamp = Some(Time(now()));
    stack.status = Some(crate::controller::stack::expiry::expired(&stack, "expired", now()));
    for (choice, expected) in [(None, false), (Some(false), false), (Some(true), true)] {
        stack.spec.destroy_on_finalize = choice;
        assert_eq!(deletion::has_to_destroy(&stack), expected, "{choice:?}");
    }
}

#[test]
fn a_destroy_above_the_limit_waits_for_a_confirmation() {
    let mut deleted = with_spec(|spec| spec.destroy_on_finalize = Some(true));
    deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    deleted.status.as_mut().expect("value is set").last_applied_revision = Some("main@sha1:a".to_owned());
    let confirmation = deleted.destroy_confirmation().expect("the Stack is being deleted");
    let mut exceeded = Observed { is_destroy_limit_exceeded: true, ..observed(deleted) };
    for (value, waits) in [(None, true), (Some("true".to_owned()), true), (Some(confirmation), false)] {
        let annotation = value.clone().map(|value| (names::ANNOTATION_CONFIRM_DESTROY.to_owned(), value));
        exceeded.stack.metadata.annotations = Some(annotation.into_iter().collect());
        assert_eq!(matches!(decide(&exceeded, now()), Action::AwaitConfirmation(_)), waits, "{value:?}");
    }
}
