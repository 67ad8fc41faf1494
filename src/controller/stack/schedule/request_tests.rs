//! Tests the effect of Flux's annotations on a Stack.

use super::tests::{at, inputs, last, plain};
use super::*;

#[test]
fn each_flux_request_runs_a_stack_once() {
    let asked = |requested: Option<&str>, force: Option<&str>, reset: Option<&str>| Inputs {
        requested_at: requested.map(str::to_owned),
        force_at: force.map(str::to_owned),
        reset_at: reset.map(str::to_owned),
        ..inputs()
    };
    let t = Some("t");
    let rows = [
        (asked(t, None, None), Some("Requested at: \"t\""), Some("Requested at: \"t\"")),
        (asked(t, t, None), Some("Forced at: \"t\""), Some("Forced at: \"t\"")),
        (asked(t, None, t), Some("Requested at: \"t\""), Some("Requested at: \"t\"")),
    ];
    for (inputs, after_success, after_failures) in rows {
        for (state, failures, wanted) in [("succeeded", 0, after_success), ("failed", 3, after_failures)] {
            let before = last(state, failures);
            let due = |last: &LastUpdate| due(Some(last), None, &inputs, UpdateKind::Up, &plain(), at(1001));
            assert_eq!(due(&before), Due::Now(wanted.unwrap_or_default().to_owned()), "{state} {inputs:?}");
            let answered = LastUpdate {
                requested_at: inputs.requested_at.clone(),
                force_at: inputs.force_at.clone(),
                reset_at: inputs.reset_at.clone(),
                ..before
            };
            assert!(!matches!(due(&answered), Due::Now(_)), "once: {state} {inputs:?}");
        }
    }
}

#[test]
fn a_late_force_or_reset_annotation_is_handled_on_its_own() {
    let requested = |state: &str, failures| LastUpdate { requested_at: Some("t".to_owned()), ..last(state, failures) };
    let inputs = |force: bool, reset: bool| Inputs {
        requested_at: Some("t".to_owned()),
        force_at: force.then(|| "t".to_owned()),
        reset_at: reset.then(|| "t".to_owned()),
        ..inputs()
    };
    let due = |last: &LastUpdate, inputs: &Inputs| due(Some(last), None, inputs, UpdateKind::Up, &plain(), at(1001));
    let forced = Due::Now("Forced at: \"t\"".to_owned());
    let reset = Due::Now("Failure count reset at: \"t\"".to_owned());
    assert_eq!(due(&requested("succeeded", 0), &inputs(true, false)), forced);
    assert_eq!(due(&requested("failed", 3), &inputs(true, false)), forced);
    assert_eq!(due(&requested("failed", 3), &inputs(false, true)), reset);
    assert_eq!(due(&requested("succeeded", 0), &inputs(false, true)), Due::Done(None), "there is nothing to forget");
    let failed = update_reason::UPDATE_FAILED;
    assert_eq!(failures_after(Some(&requested("failed", 3)), &inputs(false, true), failed, &plain()), 1);
    assert_eq!(failures_after(Some(&requested("failed", 2)), &inputs(false, false), failed, &plain()), 3);
}
