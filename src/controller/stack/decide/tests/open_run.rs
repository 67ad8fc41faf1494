//! Tests for the decisions during an open run.

use super::*;
use crate::runtime::run_limiter::{Full, SlotWait};

#[test]
fn the_update_of_a_recorded_run_is_created_and_its_result_recorded() {
    let mut recorded = stack();
    let current = current_update(&observed(recorded.clone()), &resolved(), &up());
    recorded.status.as_mut().expect("value is set").current_update = Some(Box::new(current.clone()));
    let ready = Some(workspace(&stack(), Status::True, "Succeeded"));
    let made = Observed { workspace: ready.clone(), ..observed(recorded.clone()) };
    assert_eq!(decide(&made, now()), Action::CreateUpdate(current.clone()));
    let gone = Observed { workspace: None, ..observed(recorded.clone()) };
    assert_eq!(decide(&gone, now()), Action::RecordLostRun(current.clone()));
    let mut edited = made.clone();
    (edited.stack.metadata.generation, edited.stack.spec.targets) = (Some(2), vec!["urn".to_owned()]);
    let lost = Action::RecordLostRun(current);
    assert_eq!(decide(&edited, now()), lost, "the spec has changed since the record");
    let mut deleted = made.clone();
    deleted.stack.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(decide(&deleted, now()), lost, "a user has removed the finalizers of the Update");
    type Change = fn(&mut CurrentUpdate);
    let changes: [(&str, Change); 2] = [
        ("the API server rejected the Update", |current| current.rejected = Some(true)),
        ("a preview changes no resources", |current| current.kind = UpdateKind::Preview),
    ];
    for (name, change) in changes {
        let mut unstarted = deleted.clone();
        change(unstarted.stack.status.as_mut().and_then(|s| s.current_update.as_mut()).expect("a recorded run"));
        assert_eq!(decide(&unstarted, now()), Action::ForgetUpdate, "{name}");
    }
    let mut update = Update::new("app-1", UpdateSpec::default());
    let bound = UpdateStatus { run: Some(crate::api::auto::RunBinding::default()), ..UpdateStatus::default() };
    update.status = Some(bound);
    let open = Observed { update: Some(update.clone()), workspace: ready, ..observed(recorded) };
    assert!(matches!(decide(&open, now()), Action::AwaitUpdate(_)));
    let mut conditions = Vec::new();
    let condition = ConditionUpdate { kind: "Complete", status: Status::True, reason: "Updated", message: "" };
    conditions::set(&mut conditions, &condition, 1, now());
    update.status = Some(UpdateStatus { conditions, ..UpdateStatus::default() });
    assert_eq!(decide(&Observed { update: Some(update), ..open }, now()), Action::RecordResult);
}

#[test]
fn a_run_that_has_not_started_is_revoked_when_its_inputs_change() {
    let recorded = |change: fn(&mut Stack)| {
        let mut recorded = stack();
        let current = current_update(&observed(recorded.clone()), &resolved(), &up());
        recorded.status.as_mut().expect("value is set").current_update = Some(Box::new(current));
        change(&mut recorded);
        Observed {
            update: Some(Update::new("app-1", UpdateSpec::default())),
            workspace: Some(workspace(&stack(), Status::True, "Succeeded")),
            ..observed(recorded)
        }
    };
    let revoked = |observed: &Observed| matches!(decide(observed, now()), Action::RevokeUpdate(_));
    assert!(matches!(decide(&recorded(|_| {}), now()), Action::AwaitUpdate(_)));
    let mut queued = recorded(|_| {});
    let update = queued.update.as_mut().expect("value is set");
    let condition =
        ConditionUpdate { kind: PROGRESSING, status: Status::False, reason: "Queued", message: "queued: all" };
    let status = update.status.get_or_insert_default();
    conditions::set(&mut status.conditions, &condition, 1, now());
    match decide(&queued, now()) {
        Action::AwaitUpdate(message) => assert!(message.starts_with("queued: all; up of revision"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert!(revoked(&recorded(|s| s.spec.suspend = Some(true))));
    let edited = |stack: &mut Stack| {
        stack.metadata.generation = Some(2);
        stack.spec.targets = vec!["urn".to_owned()];
    };
    assert!(revoked(&recorded(edited)));
    let with_ttl = |stack: &mut Stack| {
        stack.metadata.generation = Some(2);
        stack.spec.ttl = Some("1h".to_owned());
    };
    assert!(!revoked(&recorded(with_ttl)), "the field does not affect the run");
    assert!(revoked(&recorded(|s| s.metadata.deletion_timestamp = Some(Time(now())))));
    assert!(revoked(&Observed { workspace: None, ..recorded(|_| {}) }));
    let moved = Resolved { digest: crate::artifact::Digest::of(b"other"), ..resolved() };
    assert!(revoked(&Observed { source: Some(Ok(moved)), ..recorded(|_| {}) }));
    let mut emptied = workspace(&stack(), Status::False, "ArtifactUnavailable");
    emptied.status.as_mut().expect("value is set").artifact = None;
    let lost = Observed { workspace: Some(emptied), in_store: false, ..recorded(|_| {}) };
    assert!(matches!(decide(&lost, now()), Action::Fetch(_)));
}

#[test]
fn a_queued_background_run_is_revoked_when_a_user_requests_a_run() {
    let decided = |background: Option<bool>, annotations: &[&str]| {
        let mut recorded = stack();
        recorded.status.get_or_insert_default().last_update = Some(last("up", "succeeded"));
        let current = current_update(&observed(recorded.clone()), &resolved(), &up());
        recorded.status.get_or_insert_default().current_update =
            Some(Box::new(CurrentUpdate { background, ..current }));
        recorded.annotations_mut().extend(annotations.iter().map(|name| ((*name).to_owned(), "t".to_owned())));
        let observed = Observed {
            update: Some(Update::new("app-1", UpdateSpec::default())),
            workspace: Some(workspace(&stack(), Status::True, "Succeeded")),
            ..observed(recorded)
        };
        decide(&observed, now()).name()
    };
    let refresh = [names::ANNOTATION_REQUESTED_AT, names::ANNOTATION_REFRESH];
    assert_eq!(decided(Some(true), &[]), "AwaitUpdate");
    assert_eq!(decided(Some(true), &[names::ANNOTATION_REQUESTED_AT]), "RevokeUpdate");
    assert_eq!(decided(Some(true), &refresh), "RevokeUpdate");
    assert_eq!(decided(None, &refresh), "AwaitUpdate", "the run of the request starts next");
}

/// Returns a Git artifact whose selected files have this digest.
fn selected(content: &[u8], selection: &str) -> Resolved {
    let spec = StackSpec {
        project_repo: Some("https://git.example.com/app.git".to_owned()),
        branch: Some("main".to_owned()),
        ..StackSpec::default()
    };
    let expected = crate::source::git::RepositorySpec::of_stack(&spec, "apps").expect("valid").expect("a repository");
    let origin = crate::source::git::Origin {
        key: std::sync::Arc::new(expected.key),
        commit: "a".repeat(40),
        selection: Some(selection.to_owned()),
        warnings: Vec::new(),
    };
    Resolved { origin: Origin::Git(Box::new(origin)), digest: crate::artifact::Digest::of(content), ..resolved() }
}

#[test]
fn a_queued_run_is_kept_if_the_selected_files_are_unchanged() {
    let first = selected(b"first", "paths-1");
    let mut recorded = stack();
    let current = current_update(&observed(recorded.clone()), &first, &up());
    recorded.status.as_mut().expect("value is set").current_update = Some(Box::new(current));
    let mut placed = build_workspace::workspace(&recorded, &reference(&first)).expect("valid");
    placed.status = Some(WorkspaceStatus { artifact: placed.spec.artifact.clone(), ..WorkspaceStatus::default() });
    let mut lost = placed.clone();
    lost.status = None;
    let is_revoked = |source: Resolved, workspace: &Workspace| {
        let observed = Observed {
            source: Some(Ok(source)),
            update: Some(Update::new("app-1", UpdateSpec::default())),
            workspace: Some(workspace.clone()),
            ..observed(recorded.clone())
        };
        matches!(decide(&observed, now()), Action::RevokeUpdate(_))
    };
    assert!(!is_revoked(first.clone(), &placed));
    assert!(!is_revoked(selected(b"second", "paths-1"), &placed), "the run may use the older artifact");
    assert!(is_revoked(selected(b"second", "paths-2"), &placed));
    assert!(is_revoked(selected(b"second", "paths-1"), &lost), "the older artifact is no longer available");
    assert!(is_revoked(Resolved { digest: crate::artifact::Digest::of(b"second"), ..resolved() }, &placed));
}

#[test]
fn an_unknown_outcome_is_reported_and_its_resolution_forwarded_once() {
    let unresolved = || open(Status::Unknown, "RunOutcomeUnknown");
    assert_eq!(decide(&unresolved(), now()), Action::ReportUnknownOutcome("detail".to_owned()));
    let name = unresolved().update.expect("value is set").name_any();
    let resolved_with = |value: String| {
        let mut observed = unresolved();
        observed.stack.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), value);
        observed
    };
    let resolution = format!("{name}=retry");
    let mut resolved = resolved_with(resolution.clone());
    assert_eq!(decide(&resolved, now()), Action::ForwardResolution(resolution.clone()));
    let update = resolved.update.as_mut().expect("value is set");
    update.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), resolution);
    assert_eq!(
        decide(&resolved, now()),
        Action::ReportUnknownOutcome("detail".to_owned()),
        "the Update reports the reason"
    );
    assert_eq!(
        decide(&resolved_with("app-0=retry".to_owned()), now()),
        Action::ReportUnknownOutcome("detail".to_owned())
    );
}

#[test]
fn the_message_contains_why_a_run_waits() {
    let Action::AwaitUpdate(message) = decide(&open(Status::False, "InteractiveSession"), now()) else {
        panic!("expected Action::AwaitUpdate")
    };
    assert!(message.starts_with("detail; up of revision main@sha1:a"), "{message}");
    let Action::AwaitUpdate(message) = decide(&open(Status::True, "Progressing"), now()) else {
        panic!("expected Action::AwaitUpdate")
    };
    assert!(message.starts_with("running: up of revision main@sha1:a"), "{message}");
}

#[test]
fn the_start_of_a_run_is_reported_after_two_seconds() {
    let started = |status: Status, reason: &str, seconds: i64| {
        let mut open = open(status, reason);
        let start_time = now() - SignedDuration::from_secs(seconds);
        let update = open.update.as_mut().and_then(|update| update.status.as_mut()).expect("value is set");
        update.start_time = Some(Time(start_time));
        decide(&open, now()).name()
    };
    assert_eq!(started(Status::True, "Progressing", 1), "DelayReport");
    assert_eq!(started(Status::True, "Progressing", 2), "AwaitUpdate");
    assert_eq!(started(Status::False, "InteractiveSession", 1), "AwaitUpdate");
    assert_eq!(started(Status::Unknown, "RunOutcomeUnknown", 1), "ReportUnknownOutcome");
}

fn recorded_run(stack: &Stack) -> &crate::api::pulumi::CurrentUpdate {
    stack.status.as_ref().and_then(|status| status.current_update.as_deref()).expect("a recorded run")
}

#[test]
fn an_update_with_another_spec_than_the_recorded_one_is_discarded() {
    let mut recorded = stack();
    let current = current_update(&observed(recorded.clone()), &resolved(), &up());
    let current = build_update::with_spec_digest(&recorded, &current).expect("valid");
    let created = build_update::update(&recorded, &current).expect("valid");
    recorded.status.as_mut().expect("value is set").current_update = Some(Box::new(current));
    let ready = Some(workspace(&stack(), Status::True, "Succeeded"));
    let with = |update: &Update| {
        let observed = Observed { workspace: ready.clone(), ..observed(recorded.clone()) };
        decide(&Observed { update: Some(update.clone()), ..observed }, now())
    };
    assert!(matches!(with(&created), Action::AwaitUpdate(_)));
    let mut rounded = created.clone();
    rounded.spec.pending_since = Some(Time(now()));
    assert!(matches!(with(&rounded), Action::AwaitUpdate(_)));
    assert_eq!(build_update::with_created(recorded_run(&recorded), &created), None);
    let rejected = CurrentUpdate { rejected: Some(true), ..recorded_run(&recorded).clone() };
    assert_eq!(build_update::with_created(&rejected, &created).as_ref(), Some(recorded_run(&recorded)));
    let mut planted = created.clone();
    planted.spec.kind = UpdateKind::Preview;
    assert!(matches!(with(&planted), Action::DiscardUpdate(_)));
    let admitted = build_update::with_created(recorded_run(&recorded), &planted).expect("a webhook changed the spec");
    assert!(build_update::is_recorded(&planted, &admitted));
    let mut conditions = Vec::new();
    let condition = ConditionUpdate { kind: "Complete", status: Status::True, reason: "Updated", message: "" };
    conditions::set(&mut conditions, &condition, 1, now());
    planted.status = Some(UpdateStatus { conditions, ..UpdateStatus::default() });
    assert!(matches!(with(&planted), Action::DiscardUpdate(_)), "its result is not recorded");
    let mut done = created;
    done.status = planted.status;
    assert_eq!(with(&done), Action::RecordResult);
}

/// A second leader can read the record before the Update exists, and add the check for pending creates.
#[test]
fn the_update_of_another_leader_is_accepted_after_a_check_was_added_to_the_record() {
    let mut recorded = stack();
    let current = current_update(&observed(recorded.clone()), &resolved(), &up());
    let current = build_update::with_spec_digest(&recorded, &current).expect("valid");
    let created = build_update::update(&recorded, &current).expect("valid");
    recorded.status = status::of_possible_run(&recorded, &current, now());
    let checked = build_update::with_spec_digest(&recorded, recorded_run(&recorded)).expect("valid");
    let again = build_update::update(&recorded, &checked).expect("valid");
    assert_ne!(created.spec, again.spec);
    recorded.status.as_mut().expect("value is set").current_update = Some(Box::new(checked));
    for (update, name) in [(created, "the first Update"), (again, "the Update with the check")] {
        let workspace = Some(workspace(&stack(), Status::True, "Succeeded"));
        let observed = Observed { workspace, update: Some(update), ..observed(recorded.clone()) };
        let action = decide(&observed, now());
        assert!(matches!(action, Action::AwaitUpdate(_)), "{name}: {action:?}");
    }
}

#[test]
fn the_reason_of_a_wait_remains_in_the_status_until_another_reason_is_known() {
    let other = SlotWait { reason: Full::All { limit: 9 }, estimate: None };
    let run = |wait: Option<&SlotWait>, reported: &str, age: i64| {
        let mut recorded = stack();
        let current = current_update(&observed(recorded.clone()), &resolved(), &up());
        let status = recorded.status.as_mut().expect("value is set");
        let message = reported.replace("RUN", &run::recorded_run(&current));
        let condition =
            ConditionUpdate { kind: "Reconciling", status: Status::True, reason: "Progressing", message: &message };
        conditions::set(&mut status.conditions, &condition, 1, now());
        status.current_update = Some(Box::new(current.clone()));
        let mut update = Update::new("app-1", UpdateSpec::default());
        update.metadata.creation_timestamp = Some(Time(now() - SignedDuration::from_secs(age)));
        let observed = Observed {
            update: Some(update),
            slot_wait: wait.cloned(),
            workspace: Some(workspace(&stack(), Status::True, "Succeeded")),
            ..observed(recorded)
        };
        match decide(&observed, now()) {
            Action::AwaitUpdate(message) => message.replace(&run::recorded_run(&current), "RUN"),
            action => action.name().to_owned(),
        }
    };
    let forecast = "waiting for a run slot: 1 of 1 in use (--max-concurrent-runs); RUN";
    let known = "waiting for a run slot: 9 of 9 in use (--max-concurrent-runs); RUN";
    assert_eq!(run(None, forecast, 60), "DelayReport");
    assert_eq!(run(None, "queued: RUN", 60), "DelayReport");
    assert_eq!(run(None, "failed to create the Update", 60), "queued: RUN");
    assert_eq!(run(Some(&other), forecast, 0), "DelayReport", "the run may start within two seconds");
    assert_eq!(run(Some(&other), forecast, 60), known);
    assert_eq!(run(Some(&other), "queued: RUN", 60), known);
}

#[test]
fn a_run_creates_the_applied_stack_only_without_confirmed_state_or_with_permission() {
    // Columns: whether the Stack has an applied stack, whether its state is confirmed, the user's decision, and the
    // result.
    let rows = [
        (false, None, None, None),
        (true, None, None, Some(true)),
        (true, Some(true), None, None),
        (true, Some(true), Some("app-0=retry"), None),
        (true, Some(true), Some("app-0=create"), Some(true)),
        (true, Some(true), Some("app-9=create"), None),
    ];
    for (is_applied, state_confirmed, decision, expected) in rows {
        let mut stack = stack();
        let status = stack.status.as_mut().expect("value is set");
        let applied = PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() };
        (status.applied_stack, status.state_confirmed) = (is_applied.then_some(applied), state_confirmed);
        status.last_update = Some(LastUpdate {
            name: Some("app-0".to_owned()),
            reason: Some("StackNotFound".to_owned()),
            ..last("up", "failed")
        });
        let decision = decision.map(|decision| (names::ANNOTATION_RESOLVE.to_owned(), decision.to_owned()));
        stack.metadata.annotations = Some(decision.into_iter().collect());
        let current = current_update(&observed(stack), &resolved(), &up());
        assert_eq!(current.create_stack, expected, "{is_applied} {state_confirmed:?}");
    }
}
