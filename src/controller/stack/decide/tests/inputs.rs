//! Tests for refresh requests, and for changed Secrets and ConfigMaps that contain configuration values or that the pod
//! mounts.

use std::collections::BTreeMap;

use super::*;
use crate::api::auto::{RunProgress, UpdatePhase};
use crate::api::pulumi::RunInputs;
use crate::controller::stack::action::Baseline;
use crate::controller::stack::schedule;

#[test]
fn a_changed_config_input_starts_a_run_and_the_first_hash_is_recorded() {
    let seen = |before: Option<&str>, state: &str, now_seen: Option<&str>| {
        let mut stack = stack();
        let last = LastUpdate {
            inputs: RunInputs { config_inputs: before.map(str::to_owned), ..last("up", state).inputs },
            ..last("up", state)
        };
        stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
        let mut workspace = workspace(&stack, Status::True, "Succeeded");
        workspace.status.as_mut().expect("value is set").config_inputs = now_seen.map(str::to_owned);
        decide(&Observed { workspace: Some(workspace), ..observed(stack) }, now())
    };
    let Action::Start(current) = seen(Some("a"), "succeeded", Some("b")) else { panic!("expected Action::Start") };
    assert_eq!(current.inputs.config_inputs.as_deref(), Some("b"), "the run records the new hash");
    assert_eq!(seen(Some("a"), "succeeded", Some("a")), Action::Settled(Settled::Done(None)));
    assert_eq!(seen(Some("a"), "succeeded", None), Action::Settled(Settled::Done(None)));
    let recorded = Baseline { config: Some("b".to_owned()), ..Baseline::default() };
    assert_eq!(seen(None, "succeeded", Some("b")), Action::RecordBaseline(recorded.clone()));
    assert_eq!(seen(None, "failed", Some("b")), Action::RecordBaseline(recorded.clone()));
    assert_eq!(seen(None, "succeeded", None), Action::Settled(Settled::Done(None)));
}

#[test]
fn config_values_that_the_last_run_used_start_no_run() {
    let seen = |state: &str, now_seen: &str| {
        let mut stack = stack();
        let read = Some("b".to_owned());
        let last = LastUpdate {
            inputs: RunInputs { config_inputs: Some("a".to_owned()), ..last("up", state).inputs },
            run_config_inputs: read,
            ..last("up", state)
        };
        stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
        let mut workspace = workspace(&stack, Status::True, "Succeeded");
        workspace.status.as_mut().expect("value is set").config_inputs = Some(now_seen.to_owned());
        Observed { workspace: Some(workspace), ..observed(stack) }
    };
    assert_eq!(
        decide(&seen("succeeded", "a"), now()),
        Action::Settled(Settled::Done(None)),
        "the new hash is not reported yet"
    );
    let mut reported = seen("succeeded", "b");
    let recorded = Baseline { config: Some("b".to_owned()), ..Baseline::default() };
    assert_eq!(decide(&reported, now()), Action::RecordBaseline(recorded.clone()));
    assert_eq!(decide(&seen("failed", "b"), now()), Action::RecordBaseline(recorded.clone()));
    assert_eq!(decide(&seen("succeeded", "c"), now()).name(), "Start", "the input has changed since the run");
    reported.stack.status = Some(status::with_first_inputs(&reported.stack, &recorded));
    assert_eq!(decide(&reported, now()), Action::Settled(Settled::Done(None)));
    reported.workspace.as_mut().and_then(|w| w.status.as_mut()).expect("status").config_inputs = Some("a".to_owned());
    assert_eq!(decide(&reported, now()).name(), "Start", "the input was reverted after the run");
}

#[test]
fn only_changes_of_watched_mounted_objects_start_a_run() {
    let words = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(object, word)| ((*object).to_owned(), (*word).to_owned())).collect()
    };
    let (secret, map) = ("Secret/aws", "ConfigMap/settings");
    // Columns: the hashes in the last run, the hashes in the pod, the watched objects, and the message of the next run.
    type Words<'a> = Vec<(&'a str, &'a str)>;
    let rows: [(&str, Words<'_>, Words<'_>, &[&str], Option<&str>); 7] = [
        ("no input has changed", vec![(secret, "1")], vec![(secret, "1")], &[secret], None),
        (
            "a watched input has changed",
            vec![(secret, "1")],
            vec![(secret, "2")],
            &[secret],
            Some("Secret aws has changed"),
        ),
        ("an unwatched input has changed", vec![(secret, "1")], vec![(secret, "2")], &[], None),
        (
            "another, unwatched input has changed",
            vec![(secret, "1"), (map, "1")],
            vec![(secret, "2"), (map, "1")],
            &[map],
            None,
        ),
        (
            "both inputs have changed, and one of them is watched",
            vec![(secret, "1"), (map, "1")],
            vec![(secret, "2"), (map, "2")],
            &[map],
            Some("ConfigMap settings has changed"),
        ),
        ("the first hash is not a change", vec![], vec![(secret, "1")], &[secret], None),
        ("the input is no longer mounted", vec![(secret, "1")], vec![], &[secret], None),
    ];
    for (name, before, now_seen, watched, expected) in rows {
        let mut stack = stack();
        let last = LastUpdate {
            inputs: RunInputs { mounted_inputs: words(&before), ..last("up", "succeeded").inputs },
            ..last("up", "succeeded")
        };
        stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
        let mut workspace = workspace(&stack, Status::True, "Succeeded");
        workspace.status.as_mut().expect("value is set").mounted_inputs = words(&now_seen);
        let watched = watched.iter().map(|object| (*object).to_owned()).collect();
        let action = decide(&Observed { workspace: Some(workspace), watched, ..observed(stack) }, now());
        match (action, expected) {
            (Action::Start(current), Some(message)) => {
                assert_eq!(current.message, message, "{name}");
                let unwatched = current.inputs.mounted_inputs.get(secret).map(String::as_str);
                let seen = if name.starts_with("both") { Some("1") } else { Some("2") };
                assert_eq!(unwatched, seen, "{name}: the hash of an unwatched object stays the same");
            }
            (Action::Settled(Settled::Done(None)), None) => {}
            (Action::RecordBaseline(first), None) => assert_eq!(first.mounted, words(&now_seen), "{name}"),
            (other, _) => panic!("{name}: unexpected {other:?}"),
        }
    }
}

#[test]
fn an_invalid_stack_name_is_rejected_before_its_source_is_resolved() {
    let mut observed = Observed::of(stack());
    observed.stack.spec.stack = "a/b/c/d".to_owned();
    let Action::Invalid(message) = decide(&observed, now()) else { panic!("expected Action::Invalid") };
    assert!(message.contains("<organization>/<project>/<stack>"), "{message}");
}

#[test]
fn the_condition_message_shows_the_progress_of_an_open_run() {
    let running_message = |change: &dyn Fn(&mut Observed)| {
        let mut observed = open(Status::True, "Progressing");
        change(&mut observed);
        match decide(&observed, now()) {
            Action::AwaitUpdate(message) => message.split_once(" of revision main@sha1:a (").map(|(word, rest)| {
                format!("{word}{}", rest.split_once(')').map(|(_, rest)| rest).unwrap_or_default())
            }),
            other => panic!("{other:?}"),
        }
    };
    fn status(observed: &mut Observed) -> &mut UpdateStatus {
        observed.update.as_mut().expect("value is set").status.get_or_insert_default()
    }
    let resources = |done: i64, total: i64| {
        move |observed: &mut Observed| {
            let progress = RunProgress { resources_done: done, resources_total: total, ..RunProgress::default() };
            status(observed).progress = Some(progress);
        }
    };
    assert_eq!(running_message(&|_| ()).as_deref(), Some("running: up"));
    assert_eq!(running_message(&resources(0, 0)).as_deref(), Some("running: up"), "no resource step yet");
    assert_eq!(running_message(&resources(1, 3)).as_deref(), Some("running: 1 of 3 resources; up"));
    let encrypting = |observed: &mut Observed| {
        let step = Some("encrypting 60 secret configuration values".to_owned());
        status(observed).progress = Some(RunProgress { step, ..RunProgress::default() });
    };
    let expected = "running: encrypting 60 secret configuration values; up";
    assert_eq!(running_message(&encrypting).as_deref(), Some(expected));
    let with_last = |observed: &mut Observed| {
        resources(1, 3)(observed);
        let changes = [("same".to_owned(), 4), ("create".to_owned(), 1)].into();
        let last = LastUpdate { changes, ..last("up", "succeeded") };
        observed.stack.status.as_mut().expect("value is set").last_update = Some(last);
    };
    assert_eq!(
        running_message(&with_last).as_deref(),
        Some("running: 1 of 4 resources; up"),
        "the stack resource does not count"
    );
    let canceling = |observed: &mut Observed| status(observed).phase = Some(UpdatePhase::Canceling);
    assert_eq!(running_message(&canceling).as_deref(), Some("canceling: up"));
    let unbound = |reason: &'static str| {
        move |observed: &mut Observed| {
            let status = status(observed);
            status.run = None;
            let condition = ConditionUpdate { kind: PROGRESSING, status: Status::False, reason, message: "detail" };
            conditions::set(&mut status.conditions, &condition, 1, now());
        }
    };
    assert_eq!(running_message(&unbound("Queued")).as_deref(), Some("detail; up"));
    assert_eq!(running_message(&unbound("WorkspaceNotReady")).as_deref(), Some("detail; up"));
    let new = |observed: &mut Observed| *status(observed) = UpdateStatus::default();
    assert_eq!(running_message(&new).as_deref(), Some("queued: up"));
}

#[test]
fn a_requested_refresh_applies_until_a_run_has_succeeded() {
    let refresh_of = |spec: StackSpec, last_update: Option<LastUpdate>, handled: Option<&str>| {
        let mut stack = Stack { spec: StackSpec { stack: "dev".to_owned(), ..spec }, ..stack() };
        for key in [names::ANNOTATION_REQUESTED_AT, names::ANNOTATION_REFRESH] {
            stack.annotations_mut().insert(key.to_owned(), "t".to_owned());
        }
        let last_handled_refresh_at = handled.map(str::to_owned);
        stack.status = Some(StackStatus { last_update, last_handled_refresh_at, ..StackStatus::default() });
        let workspace = Some(workspace(&stack, Status::True, "Succeeded"));
        let observed = Observed { workspace, ..observed(stack) };
        let Action::Start(current) = decide(&observed, now()) else { panic!("expected Action::Start") };
        (current.kind, current.refresh, current.inputs.refresh_at)
    };
    let t = || Some("t".to_owned());
    let earlier = || Some(last("up", "succeeded"));
    assert_eq!(refresh_of(StackSpec::default(), earlier(), None), (UpdateKind::Up, Some(true), t()));
    let preview = StackSpec { preview: Some(true), ..StackSpec::default() };
    assert_eq!(refresh_of(preview, earlier(), None), (UpdateKind::Preview, Some(true), t()));
    let always = StackSpec { refresh: Some(true), ..StackSpec::default() };
    assert_eq!(refresh_of(always, earlier(), None), (UpdateKind::Up, None, t()), "the spec already requests it");
    // The request is already handled, and only the new spec starts a run.
    let handled = LastUpdate {
        inputs: RunInputs { generation: 0, requested_at: t(), refresh_at: t(), ..last("up", "succeeded").inputs },
        ..last("up", "succeeded")
    };
    assert_eq!(refresh_of(StackSpec::default(), Some(handled), Some("t")), (UpdateKind::Up, None, t()));
}

#[test]
fn a_change_to_a_field_that_does_not_affect_runs_starts_no_run() {
    let decided = |change: fn(&mut StackSpec)| {
        let mut stack = stack();
        let mut last = last("up", "succeeded");
        last.inputs.run_spec_digest = Some(run_spec::digest(&stack));
        stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
        stack.metadata.generation = Some(2);
        change(&mut stack.spec);
        let mut observed = observed(stack);
        match decide(&observed, now()) {
            Action::AdoptBaseline(status) => observed.stack.status = Some(*status),
            other => return (other.name(), other.name()),
        }
        ("AdoptBaseline", decide(&observed, now()).name())
    };
    assert_eq!(decided(|spec| spec.schedule = Some(Default::default())), ("AdoptBaseline", "Settled"));
    let drift = |spec: &mut StackSpec| spec.drift.get_or_insert_default().interval = Some("1h".to_owned());
    assert_eq!(decided(drift), ("AdoptBaseline", "Settled"));
    assert_eq!(decided(|spec| spec.drift = Some(Box::default())).0, "AdoptBaseline", "it has its own condition");
    let closed = |spec: &mut StackSpec| {
        spec.schedule =
            serde_json::from_value(json!({"windows": [{"start": "08:00", "end": "25:00"}]})).expect("valid");
    };
    assert_eq!(decided(closed).0, "Invalid", "the changed field is checked");
    let (first, _) = decided(|spec| spec.targets = vec!["urn".to_owned()]);
    assert_eq!(first, "ApplyWorkspace", "a run is due");
}

#[test]
fn a_change_to_a_field_that_does_not_affect_runs_keeps_the_plan_of_a_destroy() {
    let mut deleted = stack();
    let mut applied = last("up", "succeeded");
    applied.inputs.run_spec_digest = Some(run_spec::digest(&deleted));
    deleted.status = Some(StackStatus { last_update: Some(applied), ..StackStatus::default() });
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    // The deletion increments the generation.
    deleted.metadata.generation = Some(2);
    let preview = DueRun { operation: UpdateKind::Destroy, plan: PlanUse::Save, ..up() };
    let inputs = current_update(&observed(deleted.clone()), &resolved(), &preview).inputs;
    let rows: [(&str, fn(&mut StackSpec), bool); 3] = [
        ("ttl", |spec| spec.ttl = Some("1h".to_owned()), true),
        ("schedule", |spec| spec.schedule = Some(Default::default()), true),
        ("targets", |spec| spec.targets = vec!["urn".to_owned()], false),
    ];
    for (name, change, is_kept) in rows {
        let mut edited = deleted.clone();
        edited.metadata.generation = Some(3);
        change(&mut edited.spec);
        assert_eq!(run_spec::has_changed(&edited, &inputs), !is_kept, "{name}: the queued preview");
        let planned = LastUpdate { inputs: inputs.clone(), ..last("preview", "succeeded") };
        edited.status = Some(StackStatus { last_update: Some(planned.clone()), ..StackStatus::default() });
        let candidate = run::RunCandidate::new(&observed(edited), &resolved());
        assert_eq!(schedule::has_same_inputs(Some(&planned), &candidate), is_kept, "{name}: the plan");
    }
}

#[test]
fn a_resumed_stack_runs_even_if_its_spec_is_unchanged() {
    let mut stack = stack();
    let mut last = last("up", "succeeded");
    last.inputs.run_spec_digest = Some(run_spec::digest(&stack));
    stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
    (stack.metadata.generation, stack.spec.suspend) = (Some(2), Some(true));
    stack.status = Some(status::with_state(&stack, &status::State::Suspended(None), now()));
    (stack.metadata.generation, stack.spec.suspend) = (Some(3), None);
    assert_eq!(decide(&observed(stack), now()).name(), "ApplyWorkspace");
}
