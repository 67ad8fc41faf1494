//! Table tests for the run schedule.

mod planned_destroy;
mod run_sequence;

use super::*;
use crate::api::pulumi::StackSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("timestamp in range")
}

fn candidate() -> RunCandidate {
    RunCandidate {
        revision: "main@sha1:a".to_owned(),
        inputs: RunInputs { generation: 1, digest: Some(Digest::of(b"a")), ..RunInputs::default() },
    }
}

fn plain() -> StackBackoff {
    StackBackoff::of(&StackSpec::default())
}

fn last(state: &str, failures: i64) -> LastUpdate {
    LastUpdate {
        inputs: RunInputs { generation: 1, digest: Some(Digest::of(b"a")), ..RunInputs::default() },
        kind: Some("up".to_owned()),
        state: Some(state.to_owned()),
        reason: (state == "failed").then(|| update_reason::UPDATE_FAILED.to_owned()),
        last_attempted_commit: Some("main@sha1:a".to_owned()),
        last_resync_time: Some(Time(at(1000))),
        failures,
        ..LastUpdate::default()
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_run_starts_for_new_inputs_or_after_the_backoff() {
    let now = |text: &str| Due::Now(text.to_owned());
    let up = UpdateKind::Up;
    let changed = |change: fn(&mut RunCandidate)| {
        let mut candidate = candidate();
        change(&mut candidate);
        candidate
    };
    let rows = [
        ("never ran", None, candidate(), 1000, now("Initial stack update")),
        ("done", Some(last("succeeded", 0)), candidate(), 9999, Due::Done(None)),
        (
            "new spec",
            Some(last("succeeded", 0)),
            changed(|c| c.inputs.generation = 2),
            1000,
            now("New stack generation: 2"),
        ),
        (
            "sync requested",
            Some(last("succeeded", 0)),
            changed(|c| c.inputs.reconcile_request = Some("x".to_owned())),
            1000,
            now("Sync request: \"x\""),
        ),
        (
            "requested with the Flux annotation",
            Some(last("succeeded", 0)),
            changed(|c| c.inputs.requested_at = Some("t".to_owned())),
            1000,
            now("Requested at: \"t\""),
        ),
        (
            "new commit",
            Some(last("succeeded", 0)),
            changed(|c| c.revision = "main@sha1:b".to_owned()),
            1000,
            now("New commit detected: \"main@sha1:b\""),
        ),
        (
            "same commit, other bytes",
            Some(last("succeeded", 0)),
            changed(|c| c.inputs.digest = Some(Digest::of(b"b"))),
            1000,
            now("New commit detected: \"main@sha1:a\""),
        ),
        (
            "within the first delay",
            Some(last("failed", 1)),
            candidate(),
            1004,
            Due::After(SignedDuration::from_secs(6)),
        ),
        ("after the first delay", Some(last("failed", 1)), candidate(), 1010, now("Backoff time elapsed: 10s")),
        ("in the second delay", Some(last("failed", 2)), candidate(), 1029, Due::After(SignedDuration::from_secs(1))),
        ("many failures", Some(last("failed", 99)), candidate(), 1000, Due::After(SignedDuration::from_secs(86_400))),
        (
            "an invalid Update",
            Some(LastUpdate {
                reason: Some("SpecInvalid".to_owned()),
                message: Some("why".to_owned()),
                ..last("failed", 1)
            }),
            candidate(),
            999_999,
            Due::Invalid("why".to_owned()),
        ),
        (
            "unknown outcome",
            Some(LastUpdate { reason: Some("RunOutcomeUnknown".to_owned()), ..last("failed", 0) }),
            candidate(),
            999_999,
            Due::DecisionRequired("RunOutcomeUnknown"),
        ),
        (
            "a removed request",
            Some(LastUpdate {
                inputs: RunInputs { requested_at: Some("t".to_owned()), ..last("succeeded", 0).inputs },
                ..last("succeeded", 0)
            }),
            candidate(),
            1000,
            Due::Done(None),
        ),
        (
            "new commit within the delay",
            Some(last("failed", 2)),
            changed(|c| c.revision = "b".to_owned()),
            1001,
            now("New commit detected: \"b\""),
        ),
        (
            "new commit after many failures",
            Some(last("failed", 3)),
            changed(|c| c.revision = "b".to_owned()),
            1001,
            now("New commit detected: \"b\""),
        ),
    ];
    for (name, last, candidate, second, expected) in rows {
        assert_eq!(due(last.as_ref(), None, &candidate, up, &plain(), at(second)), expected, "{name}");
    }
}

#[test]
fn a_stack_with_an_interval_runs_again_after_success_and_failure() {
    let hourly = StackBackoff::of(&StackSpec { interval: Some("1h".to_owned()), ..StackSpec::default() });
    let seconds = SignedDuration::from_secs;
    let elapsed = Due::Now("Resync time elapsed: 1h0m0s".to_owned());
    let unresolved = |reason: &str| LastUpdate { reason: Some(reason.to_owned()), ..last("failed", 0) };
    let operators = |failures| LastUpdate { reason: None, ..last("failed", failures) };
    let rows = [
        ("before the interval has elapsed", last("succeeded", 0), 1600, Due::Done(Some(seconds(3000)))),
        ("now", last("succeeded", 0), 4600, elapsed.clone()),
        ("long after the interval", last("succeeded", 0), 99_999, elapsed.clone()),
        ("a failure is retried earlier", last("failed", 2), 1030, Due::Now("Backoff time elapsed: 30s".to_owned())),
        ("many failures, before the retry", last("failed", 8), 1600, Due::After(seconds(3000))),
        ("many failures, at the retry", last("failed", 8), 4600, Due::Now("Backoff time elapsed: 3600s".to_owned())),
        ("the operator stopped retrying, before the interval ends", operators(8), 1600, Due::After(seconds(3000))),
        ("the operator stopped retrying, after the interval", operators(8), 4600, elapsed),
        (
            "pending creates wait for a user",
            unresolved("PendingCreates"),
            99_999,
            Due::DecisionRequired("PendingCreates"),
        ),
        (
            "an unknown outcome waits for a user",
            unresolved("RunOutcomeUnknown"),
            99_999,
            Due::DecisionRequired("RunOutcomeUnknown"),
        ),
    ];
    for (name, last, second, expected) in rows {
        assert_eq!(due(Some(&last), None, &candidate(), UpdateKind::Up, &hourly, at(second)), expected, "{name}");
    }
    let destroyed = LastUpdate { kind: Some("destroy".to_owned()), ..last("succeeded", 0) };
    let due = due(Some(&destroyed), None, &candidate(), UpdateKind::Destroy, &hourly, at(99_999));
    assert_eq!(due, Due::Done(None), "a destroyed Stack does not run again");
}

#[test]
fn a_retry_interval_of_any_length_is_valid_if_the_clock_is_set_back() {
    let longest = format!("{}s", i64::MAX);
    let backoff = StackBackoff::of(&StackSpec { retry_interval: Some(longest), ..StackSpec::default() });
    let due = due(Some(&last("failed", 1)), None, &candidate(), UpdateKind::Up, &backoff, at(0));
    assert_eq!(due, Due::After(SignedDuration::MAX));
}

#[test]
fn a_commit_that_changes_no_selected_file_starts_no_run() {
    let chosen = |digest: &str| Some(format!("sha256:{digest}"));
    let commit = "5f18866e70838870f34ab0479bc7512ad5bdbb52";
    let done = LastUpdate {
        inputs: RunInputs { paths_digest: chosen("p"), ..last("succeeded", 0).inputs },
        last_attempted_commit: Some(commit.to_owned()),
        ..last("succeeded", 0)
    };
    let pushed = |selection: Option<String>| RunCandidate {
        revision: "main@sha1:b".to_owned(),
        inputs: RunInputs { digest: Some(Digest::of(b"b")), paths_digest: selection, ..candidate().inputs },
    };
    let due = |last: &LastUpdate, candidate: &RunCandidate| {
        due(Some(last), None, candidate, UpdateKind::Up, &plain(), at(1000))
    };
    assert_eq!(due(&done, &pushed(chosen("p"))), Due::Done(None));
    assert!(matches!(due(&done, &pushed(chosen("q"))), Due::Now(_)));
    assert!(matches!(due(&done, &pushed(None)), Due::Now(_)));
    let same = RunCandidate { revision: format!("main@sha1:{commit}"), ..candidate() };
    assert_eq!(due(&done, &same), Due::Done(None), "the run recorded the commit without the branch");
    let failed = LastUpdate { state: Some("failed".to_owned()), failures: 2, ..done };
    assert_eq!(failures_after(Some(&failed), &pushed(chosen("p")), update_reason::UPDATE_FAILED, &plain()), 3);
}

#[test]
fn a_destroy_runs_once_and_is_not_repeated_for_a_new_commit() {
    let destroy = UpdateKind::Destroy;
    let moved = RunCandidate {
        revision: "b".to_owned(),
        inputs: RunInputs { digest: Some(Digest::of(b"b")), ..candidate().inputs },
    };
    assert_eq!(
        due(Some(&last("succeeded", 0)), None, &candidate(), destroy, &plain(), at(1000)),
        Due::Now("Stack marked for deletion".to_owned())
    );
    let destroyed = |state: &str| LastUpdate { kind: Some("destroy".to_owned()), ..last(state, 0) };
    assert_eq!(due(Some(&destroyed("succeeded")), None, &moved, destroy, &plain(), at(1000)), Due::Done(None));
    assert_eq!(
        due(Some(&destroyed("failed")), None, &moved, destroy, &plain(), at(1000)),
        Due::After(SignedDuration::from_secs(10))
    );
}

#[test]
fn a_changed_config_input_starts_one_run() {
    let with = |last: LastUpdate, word: Option<&str>| LastUpdate {
        inputs: RunInputs { config_inputs: word.map(str::to_owned), ..last.inputs.clone() },
        ..last
    };
    let seen = |word: Option<&str>| RunCandidate {
        inputs: RunInputs { config_inputs: word.map(str::to_owned), ..candidate().inputs },
        ..candidate()
    };
    let rotated = Due::Now("A Secret or ConfigMap referenced by the configuration has changed".to_owned());
    let (up, destroy) = (UpdateKind::Up, UpdateKind::Destroy);
    let destroyed = LastUpdate { kind: Some("destroy".to_owned()), ..last("succeeded", 0) };
    let rows = [
        ("after a success", with(last("succeeded", 0), Some("a")), seen(Some("b")), up, rotated.clone()),
        ("after a failure", with(last("failed", 0), Some("a")), seen(Some("b")), up, rotated.clone()),
        ("after many failures", with(last("failed", 3), Some("a")), seen(Some("b")), up, rotated.clone()),
        ("of a preview", with(last("succeeded", 0), Some("a")), seen(Some("b")), UpdateKind::Preview, rotated.clone()),
        ("the run of the request", with(last("succeeded", 0), Some("b")), seen(Some("b")), up, Due::Done(None)),
        (
            "a failed run",
            with(last("failed", 1), Some("b")),
            seen(Some("b")),
            up,
            Due::After(SignedDuration::from_secs(5)),
        ),
        ("the first hash", last("succeeded", 0), seen(Some("a")), up, Due::Done(None)),
        ("the current hash is unknown", with(last("succeeded", 0), Some("a")), seen(None), up, Due::Done(None)),
        ("the stack is already destroyed", with(destroyed, Some("a")), seen(Some("b")), destroy, Due::Done(None)),
    ];
    for (name, last, candidate, kind, expected) in rows {
        assert_eq!(due(Some(&last), None, &candidate, kind, &plain(), at(1005)), expected, "{name}");
    }
    let failed = update_reason::UPDATE_FAILED;
    assert_eq!(failures_after(Some(&with(last("failed", 2), Some("a"))), &seen(Some("b")), failed, &plain()), 1);
    assert_eq!(failures_after(Some(&last("failed", 2)), &seen(Some("b")), failed, &plain()), 3);
}

#[test]
fn a_lock_conflict_is_retried_without_counting_as_a_failure() {
    let locked = LastUpdate { reason: Some(stack_reason::UPDATE_CONFLICT.to_owned()), ..last("failed", 0) };
    let wait = Due::After(SignedDuration::from_secs(20));
    assert_eq!(due(Some(&locked), None, &candidate(), UpdateKind::Up, &plain(), at(1010)), wait);
    assert_eq!(failures_after(Some(&locked), &candidate(), stack_reason::UPDATE_CONFLICT, &plain()), 0);
}

#[test]
fn rejected_runs_are_retried_without_limit_and_counted_separately() {
    let refused =
        |failures| LastUpdate { reason: Some(update_reason::RUN_REFUSED.to_owned()), ..last("failed", failures) };
    let up = UpdateKind::Up;
    assert_eq!(
        due(Some(&refused(0)), None, &candidate(), up, &plain(), at(1000)),
        Due::After(SignedDuration::from_secs(10))
    );
    assert_eq!(
        due(Some(&refused(99)), None, &candidate(), up, &plain(), at(1000)),
        Due::After(SignedDuration::from_secs(60))
    );
    assert!(matches!(due(Some(&refused(99)), None, &candidate(), up, &plain(), at(1060)), Due::Now(_)));
    assert_eq!(failures_after(Some(&refused(99)), &candidate(), update_reason::RUN_REFUSED, &plain()), 100);
    assert_eq!(failures_after(Some(&refused(99)), &candidate(), update_reason::UPDATE_FAILED, &plain()), 1);
    assert_eq!(failures_after(Some(&last("failed", 2)), &candidate(), update_reason::RUN_REFUSED, &plain()), 1);
}

#[test]
fn an_interrupted_run_is_retried_immediately_without_limit() {
    let aborted = |interruptions, failures| LastUpdate {
        reason: Some(update_reason::ABORTED.to_owned()),
        interruptions,
        ..last("failed", failures)
    };
    let up = UpdateKind::Up;
    let again = Due::Now("Retry after interruption: 0s".to_owned());
    assert_eq!(due(Some(&aborted(1, 0)), None, &candidate(), up, &plain(), at(1000)), again);
    assert_eq!(
        due(Some(&aborted(1, 99)), None, &candidate(), up, &plain(), at(1000)),
        again,
        "an interruption is not a failure"
    );
    assert_eq!(failures_after(Some(&last("failed", 2)), &candidate(), update_reason::ABORTED, &plain()), 2);
    let after = |previous: &LastUpdate, reason| interruptions_after(Some(previous), &candidate(), reason);
    assert_eq!(after(&aborted(2, 0), Some(update_reason::ABORTED)), 3);
    assert_eq!(after(&aborted(2, 0), Some(update_reason::UPDATE_CONFLICT)), 2);
    assert_eq!(after(&aborted(2, 0), Some(update_reason::UPDATE_FAILED)), 0);
    assert_eq!(after(&aborted(2, 0), None), 0);
    let other = RunCandidate { revision: "b".to_owned(), ..candidate() };
    assert_eq!(interruptions_after(Some(&aborted(2, 0)), &other, Some(update_reason::ABORTED)), 1);
}

#[test]
fn a_run_with_unknown_outcome_waits_for_a_user_decision_or_new_input() {
    let up = UpdateKind::Up;
    let unresolved = |reason: &str| LastUpdate { reason: Some(reason.to_owned()), ..last("failed", 0) };
    let now = Due::Now("Retry requested by user".to_owned());
    for (reason, waits) in [
        (update_reason::PENDING_CREATES, Due::DecisionRequired("PendingCreates")),
        (update_reason::RUN_OUTCOME_UNKNOWN, Due::DecisionRequired("RunOutcomeUnknown")),
    ] {
        let resolved_with =
            |decision| due(Some(&unresolved(reason)), decision, &candidate(), up, &plain(), at(999_999));
        assert_eq!(resolved_with(None), waits);
        assert_eq!(resolved_with(Some(Decision::Retry)), now);
        assert_eq!(resolved_with(Some(Decision::Clear)), now);
        assert_eq!(resolved_with(Some(Decision::Abandon)), Due::Abandoned);
        let pushed = RunCandidate { revision: "b".to_owned(), ..candidate() };
        let due = due(Some(&unresolved(reason)), Some(Decision::Abandon), &pushed, up, &plain(), at(1000));
        assert!(matches!(due, Due::Now(_)), "{due:?}");
    }
    let aborted = unresolved(update_reason::ABORTED);
    assert_eq!(due(Some(&aborted), Some(Decision::Abandon), &candidate(), up, &plain(), at(1000)), Due::Abandoned);
}

#[test]
fn failures_are_counted_only_for_the_same_inputs() {
    let other = RunCandidate { revision: "b".to_owned(), ..candidate() };
    let failed = update_reason::UPDATE_FAILED;
    assert_eq!(failures_after(None, &candidate(), failed, &plain()), 1);
    assert_eq!(failures_after(Some(&last("failed", 1)), &candidate(), failed, &plain()), 2);
    assert_eq!(failures_after(Some(&last("failed", 3)), &other, failed, &plain()), 1);
    assert_eq!(failures_after(Some(&last("succeeded", 0)), &candidate(), failed, &plain()), 1);
}

#[test]
fn a_run_canceled_by_a_user_waits_for_a_new_input() {
    let canceled = LastUpdate {
        reason: Some(update_reason::CANCELED.to_owned()),
        canceled_by_user: Some(true),
        ..last("failed", 1)
    };
    let hourly = StackBackoff::of(&StackSpec { interval: Some("1h".to_owned()), ..StackSpec::default() });
    let due = |last: &LastUpdate, candidate: &RunCandidate, kind| {
        due(Some(last), None, candidate, kind, &hourly, at(999_999))
    };
    assert_eq!(due(&canceled, &candidate(), UpdateKind::Up), Due::Canceled);
    let destroy = LastUpdate { kind: Some("destroy".to_owned()), ..canceled.clone() };
    assert_eq!(due(&destroy, &candidate(), UpdateKind::Destroy), Due::Canceled);
    let timed_out = LastUpdate { canceled_by_user: None, ..canceled.clone() };
    assert!(matches!(due(&timed_out, &candidate(), UpdateKind::Up), Due::Now(_)));
    let pushed = RunCandidate { revision: "b".to_owned(), ..candidate() };
    let requested =
        RunCandidate { inputs: RunInputs { requested_at: Some("t".to_owned()), ..candidate().inputs }, ..candidate() };
    for candidate in [pushed, requested] {
        assert!(matches!(due(&canceled, &candidate, UpdateKind::Up), Due::Now(_)), "{candidate:?}");
    }
    assert!(matches!(due(&canceled, &candidate(), UpdateKind::Destroy), Due::Now(_)), "the Stack is being deleted");
}

#[test]
fn each_flux_request_runs_a_stack_once() {
    let annotated = |requested: Option<&str>, force: Option<&str>, reset: Option<&str>| RunCandidate {
        inputs: RunInputs {
            requested_at: requested.map(str::to_owned),
            force_at: force.map(str::to_owned),
            reset_at: reset.map(str::to_owned),
            ..candidate().inputs
        },
        ..candidate()
    };
    let t = Some("t");
    let rows = [
        (annotated(t, None, None), Some("Requested at: \"t\""), Some("Requested at: \"t\"")),
        (annotated(t, t, None), Some("Forced at: \"t\""), Some("Forced at: \"t\"")),
        (annotated(t, None, t), Some("Requested at: \"t\""), Some("Requested at: \"t\"")),
    ];
    for (candidate, after_success, after_failures) in rows {
        for (state, failures, expected) in [("succeeded", 0, after_success), ("failed", 3, after_failures)] {
            let before = last(state, failures);
            let due = |last: &LastUpdate| due(Some(last), None, &candidate, UpdateKind::Up, &plain(), at(1001));
            assert_eq!(due(&before), Due::Now(expected.unwrap_or_default().to_owned()), "{state} {candidate:?}");
            let resolved_with = LastUpdate {
                inputs: RunInputs {
                    requested_at: candidate.inputs.requested_at.clone(),
                    force_at: candidate.inputs.force_at.clone(),
                    reset_at: candidate.inputs.reset_at.clone(),
                    ..before.inputs.clone()
                },
                ..before
            };
            assert!(!matches!(due(&resolved_with), Due::Now(_)), "once: {state} {candidate:?}");
        }
    }
}

#[test]
fn a_force_or_reset_annotation_that_follows_its_request_is_handled() {
    let requested = |state: &str, failures| LastUpdate {
        inputs: RunInputs { requested_at: Some("t".to_owned()), ..last(state, failures).inputs },
        ..last(state, failures)
    };
    let requested_candidate = |force: bool, reset: bool| RunCandidate {
        inputs: RunInputs {
            requested_at: Some("t".to_owned()),
            force_at: force.then(|| "t".to_owned()),
            reset_at: reset.then(|| "t".to_owned()),
            ..candidate().inputs
        },
        ..candidate()
    };
    let due = |last: &LastUpdate, candidate: &RunCandidate| {
        due(Some(last), None, candidate, UpdateKind::Up, &plain(), at(1001))
    };
    let forced = Due::Now("Forced at: \"t\"".to_owned());
    let reset = Due::Now("Failure count reset at: \"t\"".to_owned());
    assert_eq!(due(&requested("succeeded", 0), &requested_candidate(true, false)), forced);
    assert_eq!(due(&requested("failed", 3), &requested_candidate(true, false)), forced);
    assert_eq!(due(&requested("failed", 3), &requested_candidate(false, true)), reset);
    assert_eq!(
        due(&requested("succeeded", 0), &requested_candidate(false, true)),
        Due::Done(None),
        "no failure is counted"
    );
    let failed = update_reason::UPDATE_FAILED;
    assert_eq!(failures_after(Some(&requested("failed", 3)), &requested_candidate(false, true), failed, &plain()), 1);
    assert_eq!(failures_after(Some(&requested("failed", 2)), &requested_candidate(false, false), failed, &plain()), 3);
    let done = requested("succeeded", 0);
    let has_same_inputs = |force, reset| has_same_inputs(Some(&done), &requested_candidate(force, reset));
    assert!(has_same_inputs(false, true), "the reset replaces no plan and ends no drift check");
    assert!(!has_same_inputs(true, false), "a run is due");
}

#[test]
fn a_request_for_a_refresh_runs_a_stack_once() {
    let inputs = |refresh: Option<&str>| RunInputs {
        requested_at: Some("t".to_owned()),
        refresh_at: refresh.map(str::to_owned),
        ..candidate().inputs
    };
    let candidate = RunCandidate { inputs: inputs(Some("t")), ..candidate() };
    let due = |last: &LastUpdate| due(Some(last), None, &candidate, UpdateKind::Up, &plain(), at(1001));
    let refresh = Due::Now("Requested at: \"t\", with a refresh".to_owned());
    assert_eq!(due(&last("succeeded", 0)), refresh);
    let with = |inputs| LastUpdate { inputs, ..last("succeeded", 0) };
    assert_eq!(due(&with(inputs(None))), refresh, "the annotation was set after its request was handled");
    assert_eq!(due(&with(inputs(Some("t")))), Due::Done(None));
    assert!(!has_same_inputs(Some(&with(inputs(None))), &candidate), "a plan without the refresh is outdated");
}

#[test]
fn a_run_without_new_inputs_runs_in_the_background() {
    let run = |operation, plan| DueRun { operation, message: String::new(), refresh: false, plan };
    let up = || run(UpdateKind::Up, PlanUse::None);
    let new = RunCandidate { revision: "main@sha1:b".to_owned(), ..candidate() };
    let new = RunCandidate { inputs: RunInputs { digest: Some(Digest::of(b"b")), ..new.inputs.clone() }, ..new };
    let request = || Some("t".to_owned());
    let inputs = RunInputs { requested_at: request(), refresh_at: request(), ..candidate().inputs };
    let refresh = RunCandidate { inputs, ..candidate() };
    let rows = [
        ("first run", None, up(), candidate(), false),
        ("run at an interval", Some(last("succeeded", 0)), up(), candidate(), true),
        ("new commit", Some(last("succeeded", 0)), up(), new.clone(), false),
        ("retry", Some(last("failed", 1)), up(), candidate(), false),
        ("requested refresh", Some(last("succeeded", 0)), up(), refresh, false),
        ("correction of drift", Some(last("succeeded", 0)), DueRun { refresh: true, ..up() }, candidate(), false),
        ("drift check", Some(last("succeeded", 0)), run(UpdateKind::Refresh, PlanUse::None), new, true),
        ("destroy", Some(last("succeeded", 0)), run(UpdateKind::Destroy, PlanUse::None), candidate(), false),
        ("plan", Some(last("succeeded", 0)), run(UpdateKind::Up, PlanUse::Save), candidate(), false),
    ];
    for (name, last, run, candidate, expected) in rows {
        assert_eq!(is_background(last.as_ref(), &run, &candidate), expected, "{name}");
    }
}
