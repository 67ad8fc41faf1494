//! Tests the checks with short histories, with and without violations.

use jiff::{SignedDuration, Timestamp};

use super::doubt::PendingCreates;
use super::*;
use crate::facts::{Event, LatestRevision, Phase, RemovedManually, Run, RunOutcome, State};

/// Complete history of the first revision.
const FIRST_REVISION: &str = "create first@1 begin; create third@1 begin; create first@1 done; create third@1 done; \
                              create second@1 begin; create second@1 done; create turn1@1 begin; create turn1@1 done";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000 + second).unwrap()
}

fn urn(name: &str) -> String {
    format!("urn:pulumi:dev::chaos::testing:index:Step::{name}")
}

/// Parses events such as `create first@1 begin`. The events are one second apart. A suffix such as `#2` selects another
/// process.
fn history(text: &str) -> Vec<Event> {
    let mut events = Vec::new();
    for (sequence, sentence) in (1_u64..).zip(text.split("; ").filter(|sentence| !sentence.is_empty())) {
        let (sentence, pid) = sentence.split_once(" #").unwrap_or((sentence, "1"));
        let words: Vec<&str> = sentence.split(' ').collect();
        let (operation, called, phase) = (words[0], words[1], words[2]);
        let (name, _) = called.split_once('@').unwrap();
        let begins =
            |event: &&Event| event.phase == Phase::Begin && event.called == called && event.pid.to_string() == pid;
        let id = match phase {
            "begin" => sequence.to_string(),
            _ => events.iter().rfind(begins).map(|event| event.id.clone()).unwrap_or_default(),
        };
        events.push(Event {
            sequence,
            urn: urn(name),
            called: called.to_owned(),
            operation: word(operation),
            phase: word(phase),
            pid: pid.parse().unwrap(),
            time: at(i64::try_from(sequence).unwrap()),
            id,
        });
    }
    events
}

fn word<T: serde::de::DeserializeOwned>(word: &str) -> T {
    serde_json::from_value(serde_json::json!(word)).unwrap()
}

fn state(called: &[&str], pending: &[&str]) -> State {
    let name = |called: &str| called.split('@').next().unwrap().to_owned();
    State {
        resources: called.iter().map(|called| (urn(&name(called)), (*called).to_owned())).collect(),
        pending_creates: pending.iter().map(|name| urn(name)).collect(),
    }
}

fn run(update: &str, number: u64, ended: i64, outcome: Option<RunOutcome>) -> Run {
    Run {
        update: update.to_owned(),
        number,
        is_destroy: false,
        created: at(0),
        has_begun: true,
        ended: outcome.as_ref().map(|_| at(ended)),
        outcome,
        exists: true,
    }
}

/// Returns a manual removal that takes place shortly after the event with this number.
fn removed_manually(name: &str, after: u64) -> RemovedManually {
    RemovedManually { urn: urn(name), after, at: at(i64::try_from(after).unwrap() + 2) }
}

fn failed(reason: &str) -> Option<RunOutcome> {
    Some(RunOutcome::Failed { reason: reason.to_owned(), message: "it broke".to_owned() })
}

/// Returns a Stack at revision 1 without faults.
fn good() -> Facts {
    Facts {
        stack: "s".to_owned(),
        events: history(FIRST_REVISION),
        removed_manually: Vec::new(),
        state: state(&["first@1", "second@1", "third@1", "turn1@1"], &[]),
        locks: Vec::new(),
        latest: LatestRevision { revision: "main@sha1:1".to_owned(), number: 1 },
        applied: Some("main@sha1:1".to_owned()),
        stuck: None,
        runs: vec![run("u1", 1, 8, Some(RunOutcome::Succeeded))],
        hits: Vec::new(),
    }
}

/// Returns the kinds and the messages of all violations.
fn found(facts: &Facts) -> (Vec<Kind>, String) {
    let broken = find_violations(facts);
    let text = broken.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    (broken.into_iter().map(|broken| broken.kind).collect(), text)
}

fn with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = good();
    change(&mut facts);
    facts
}

fn and_then(facts: &mut Facts, more: &str) {
    facts.events = history(&format!("{FIRST_REVISION}; {more}"));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn valid_histories_pass_all_checks() {
    let second_run = |facts: &mut Facts, outcome| {
        facts.hits.push(at(9));
        facts.runs.push(run("u2", 1, 20, outcome));
    };
    let examples = [
        ("a Stack without faults", good()),
        (
            "the next run repeats an interrupted create",
            with(|facts| {
                facts.events = history(&format!("create first@1 begin; {FIRST_REVISION}"));
                facts.runs.insert(0, run("u0", 1, 1, failed("Aborted")));
                facts.runs[1].ended = Some(at(9));
                facts.hits.push(at(1));
            }),
        ),
        (
            "the next run repeats a canceled create",
            with(|facts| {
                let before = "create first@1 begin; create first@1 cancelled";
                facts.events = history(&format!("{before}; {FIRST_REVISION}"));
                facts.runs[0].ended = Some(at(10));
            }),
        ),
        (
            "a push deletes a resource and the next push creates it again",
            with(|facts| {
                and_then(facts, "delete turn1@1 begin; delete turn1@1 done; create turn1@1 begin; create turn1@1 done");
                second_run(facts, Some(RunOutcome::Succeeded));
            }),
        ),
        (
            "a delete that is not in the state is repeated",
            with(|facts| {
                and_then(
                    facts,
                    "delete turn1@1 begin; delete turn1@1 done; delete turn1@1 begin #2; delete turn1@1 done #2; \
                     create turn1@1 begin #2; create turn1@1 done #2",
                );
                second_run(facts, Some(RunOutcome::Succeeded));
            }),
        ),
        (
            "a newer push cancels a queued run",
            with(|facts| facts.runs.insert(0, Run { has_begun: false, ..run("u0", 0, 1, failed("Canceled")) })),
        ),
        (
            "a provider fails because it cannot reach the provider log",
            with(|facts| {
                let message = "reporting done of update first@1 to the provider log at http://log: refused".to_owned();
                let outcome = RunOutcome::Failed { reason: "UpdateFailed".to_owned(), message };
                facts.runs.push(run("u2", 1, 9, Some(outcome)));
            }),
        ),
        (
            "a resource that the user has removed may be created again",
            with(|facts| {
                and_then(facts, "create first@1 begin #2; create first@1 done #2");
                facts.removed_manually.push(removed_manually("first", 8));
                second_run(facts, Some(RunOutcome::Succeeded));
            }),
        ),
        (
            "an unfinished operation of a killed process is not a second run",
            with(|facts| {
                and_then(facts, "update first@1 begin; update first@1 begin #2; update first@1 done #2");
                second_run(facts, failed("UpdateFailed"));
            }),
        ),
        (
            "a run may fail because of the lock of an earlier run, without another fault",
            with(|facts| facts.runs.push(run("u2", 1, 900, failed("UpdateConflict")))),
        ),
        (
            "an Update that is deleted with its Stack needs no outcome",
            with(|facts| facts.runs.push(Run { exists: false, ..run("u0", 1, 0, None) })),
        ),
    ];
    for (what, facts) in examples {
        let (kinds, text) = found(&facts);
        assert!(kinds.is_empty(), "{what}: {text}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn histories_with_violations_are_reported() {
    let examples: Vec<(&str, Facts, Kind, &str)> = vec![
        (
            "created twice",
            with(|facts| and_then(facts, "create first@1 begin; create first@1 done")),
            Kind::Doubled,
            "first was created at",
        ),
        (
            "a resource is created twice after its manual removal",
            with(|facts| {
                and_then(facts, "create first@1 begin; create first@1 done; create first@1 begin; create first@1 done");
                facts.removed_manually.push(removed_manually("first", 8));
            }),
            Kind::Doubled,
            "again at",
        ),
        (
            "a second run started during the first",
            with(|facts| {
                and_then(
                    facts,
                    "update first@1 begin; update third@1 begin #2; update first@1 done; update third@1 done #2",
                );
            }),
            Kind::TwoRunsAtOnce,
            "process 2 began Update of third@1",
        ),
        (
            "a created resource is not in the state",
            with(|facts| and_then(facts, "create turn0@0 begin; create turn0@0 done")),
            Kind::Orphan,
            "turn0 was created and not deleted",
        ),
        ("a lock", with(|facts| facts.locks.push(".pulumi/locks/x".to_owned())), Kind::Lock, "x remains"),
        (
            "an older revision is applied",
            with(|facts| facts.applied = Some("main@sha1:0".to_owned())),
            Kind::NotApplied,
            "main@sha1:1 was pushed last",
        ),
        (
            "the state differs from the applied revision",
            with(|facts| facts.state = state(&["first@1", "second@0", "third@1", "turn1@1"], &[])),
            Kind::NotApplied,
            "second@0",
        ),
        ("no result", with(|facts| facts.runs.push(run("u2", 1, 0, None))), Kind::NoVerdict, "u2 has not ended"),
        (
            "a run succeeded without its creates",
            with(|facts| facts.runs[0].ended = Some(at(4))),
            Kind::FalseVerdict,
            "u1 has succeeded, but second@1 was not created before the end of the run",
        ),
        (
            "a run succeeded without its deletes",
            with(|facts| {
                facts.events = history(&format!("create turn0@0 begin; create turn0@0 done; {FIRST_REVISION}"));
                facts.runs[0].ended = Some(at(10));
            }),
            Kind::FalseVerdict,
            "u1 has succeeded, but turn0@0 still existed",
        ),
        (
            "a destroy succeeded without deletes",
            with(|facts| facts.runs.push(Run { is_destroy: true, ..run("u2", 1, 9, Some(RunOutcome::Succeeded)) })),
            Kind::FalseVerdict,
            "u2 has succeeded, but first@1 still existed",
        ),
        (
            "a run failed without a fault",
            with(|facts| facts.runs.push(run("u2", 1, 9, failed("UpdateFailed")))),
            Kind::FalseVerdict,
            "u2 has failed (UpdateFailed: it broke), but no fault affected it",
        ),
        (
            "a run ended without a request",
            with(|facts| facts.runs.push(run("u2", 1, 9, failed("Canceled")))),
            Kind::FalseVerdict,
            "u2 has failed (Canceled: it broke), but no fault affected it",
        ),
        (
            "the fault happened long before the run",
            with(|facts| {
                facts.hits.push(at(-300));
                facts.runs.push(run("u2", 1, 9, failed("Aborted")));
            }),
            Kind::FalseVerdict,
            "no fault affected it",
        ),
        ("stuck", with(|facts| facts.stuck = Some("Stalled: given up".to_owned())), Kind::Stuck, "given up"),
        (
            "a pending create that was not reported to the user",
            with(|facts| facts.state.pending_creates.extend([urn("turn2")])),
            Kind::UnreportedPendingCreate,
            "a pending create of turn2",
        ),
    ];
    for (what, facts, kind, message) in examples {
        let (kinds, text) = found(&facts);
        assert!(kinds.contains(&kind), "{what}: {kinds:?}: {text}");
        assert!(text.contains(message), "{what}: {text}");
    }
}

#[test]
fn each_check_reports_only_its_own_kind_of_violation() {
    let twice = with(|facts| and_then(facts, "create first@1 begin; create first@1 done"));
    assert_eq!(found(&twice).0, [Kind::Doubled]);
    let late = with(|facts| facts.runs.push(run("u2", 1, 0, None)));
    assert_eq!(found(&late).0, [Kind::NoVerdict]);
}

#[test]
fn pending_creates_are_resolved_into_existing_and_missing_resources() {
    let mut interrupted = good();
    interrupted.events = history("create first@1 begin; create third@1 begin; create first@1 done");
    interrupted.state = state(&[], &["first", "third"]);
    let found = find_pending_creates(&interrupted).unwrap();
    assert_eq!(found, PendingCreates { exist: vec![urn("first")], do_not_exist: vec![urn("third")] });

    interrupted.removed_manually.push(removed_manually("first", 3));
    assert_eq!(find_pending_creates(&interrupted).unwrap().exist, Vec::<String>::new(), "the resource was removed");

    assert!(find_pending_creates(&good()).unwrap_err().contains("no pending create"));
    let in_the_state = with(|facts| facts.state.pending_creates.extend([urn("first")]));
    assert!(find_pending_creates(&in_the_state).unwrap_err().contains("is in the state"));
}

#[test]
fn a_fault_excuses_a_failure_only_during_or_shortly_before_the_run() {
    let mut facts = good();
    let run = Run { created: at(100), ..run("u", 1, 120, failed("Aborted")) };
    for (hit, counts) in [(30, false), (50, true), (110, true), (121, true), (130, false)] {
        facts.hits = vec![at(0) + SignedDuration::from_secs(hit)];
        assert_eq!(verdicts::was_hit(&facts, &run), counts, "{hit}");
    }
}
