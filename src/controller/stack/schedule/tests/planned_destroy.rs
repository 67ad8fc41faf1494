//! Tests for the destroy of a Stack that requires a plan.

use super::*;

/// Generation of the Stack after its deletion.
const DELETED: i64 = 2;

/// Returns the last run of a deleted Stack: a preview with this generation, which failed for this reason.
fn failed_preview(generation: i64, reason: &str) -> LastUpdate {
    LastUpdate {
        inputs: RunInputs { generation, ..last("failed", 2).inputs },
        kind: Some("preview".to_owned()),
        reason: Some(reason.to_owned()),
        ..last("failed", 2)
    }
}

fn due_of(last: &LastUpdate, decision: Option<Decision>, change: fn(&mut RunInputs), second: i64) -> Due {
    let mut candidate = candidate();
    candidate.inputs.generation = DELETED;
    change(&mut candidate.inputs);
    due(Some(last), decision, &candidate, UpdateKind::Destroy, &plain(), at(second))
}

#[test]
fn a_failed_preview_of_a_destroy_is_retried_like_a_failed_destroy() {
    let failed = |reason: &str| failed_preview(DELETED, reason);
    let marked = || Due::Now("Stack marked for deletion".to_owned());
    let canceled = LastUpdate { canceled_by_user: Some(true), ..failed("Canceled") };
    let succeeded =
        LastUpdate { state: Some("succeeded".to_owned()), reason: None, ..failed_preview(DELETED, "UpdateFailed") };
    let wait = |seconds| Due::After(SignedDuration::from_secs(seconds));
    let rows = [
        ("within the backoff", failed("UpdateFailed"), None, 1000, wait(30)),
        ("after the backoff", failed("UpdateFailed"), None, 1030, Due::Now("Backoff time elapsed: 30s".to_owned())),
        ("a rejected token", failed("InvalidAccessToken"), None, 1000, wait(600)),
        ("canceled by a user", canceled, None, 999_999, Due::Canceled),
        ("not found", failed("StackNotFound"), None, 999_999, Due::DecisionRequired("StackNotFound")),
        (
            "not found, retry",
            failed("StackNotFound"),
            Some(Decision::Retry),
            1000,
            Due::Now("Retry requested by user".to_owned()),
        ),
        (
            "the layout of the backend",
            failed("BackendUpgradeRequired"),
            None,
            999_999,
            Due::DecisionRequired("BackendUpgradeRequired"),
        ),
        ("not found, abandoned", failed("StackNotFound"), Some(Decision::Abandon), 1000, Due::Abandoned),
        ("of an up, before the deletion", failed_preview(1, "UpdateFailed"), None, 1000, marked()),
        ("the preview succeeded, so the destroy is due", succeeded, None, 1000, marked()),
    ];
    for (name, last, decision, second, expected) in rows {
        assert_eq!(due_of(&last, decision, |_| {}, second), expected, "{name}");
    }
}

#[test]
fn a_new_request_or_spec_repeats_a_canceled_preview_of_a_destroy() {
    let canceled = LastUpdate { canceled_by_user: Some(true), ..failed_preview(DELETED, "Canceled") };
    let changes: [fn(&mut RunInputs); 2] =
        [|inputs| inputs.requested_at = Some("t".to_owned()), |inputs| inputs.generation = DELETED + 1];
    for change in changes {
        let due = due_of(&canceled, None, change, 1000);
        assert!(matches!(due, Due::Now(_)), "{due:?}");
    }
}
