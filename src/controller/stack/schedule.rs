//! Whether a run is due, and when to look again. Pure: the table of the Pulumi Kubernetes Operator v2, with these
//! corrections: a new artifact after the limit gets the whole budget, and an artifact is its revision and its digest.

use jiff::{SignedDuration, Timestamp};

use crate::api::auto::UpdateKind;
use crate::api::conditions::{stack_reason, update_reason};
use crate::api::pulumi::LastUpdate;
use crate::api::resolve::Answer;

/// After so many failures in a row nothing is retried until an input changes.
pub const MAX_FAILURES: i64 = 3;
/// The first wait after a failure; each further failure waits three times as long.
const FIRST_COOLDOWN: SignedDuration = SignedDuration::from_secs(10);
/// No wait is longer.
const LONGEST_COOLDOWN: SignedDuration = SignedDuration::from_hours(24);
/// How soon a stack that another update has locked is tried again. It spends no retry.
const CONFLICT_RETRY: SignedDuration = SignedDuration::from_secs(30);

/// How long a run waits that follows so many interruptions: at once the first time, and never longer than the last of these.
const INTERRUPTION_PAUSES: [SignedDuration; 5] = [
    SignedDuration::ZERO,
    SignedDuration::from_secs(10),
    SignedDuration::from_secs(30),
    SignedDuration::from_secs(90),
    SignedDuration::from_mins(5),
];
/// No wait for a workspace that a run could not start in is longer.
const LONGEST_REFUSAL: SignedDuration = SignedDuration::from_secs(60);

/// The inputs that a run answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    pub generation: i64,
    pub reconcile_request: Option<String>,
    pub requested_at: Option<String>,
    pub revision: String,
    pub digest: String,
}

/// Whether a run is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Run now; the text says why and becomes the update's message.
    Now(String),
    /// The last run failed; try again after this time.
    After(SignedDuration),
    /// The last run failed too often; only a changed input starts another one.
    GivenUp,
    /// Nobody knows how the last run ended; only a changed input starts another one, or a person's answer.
    OutcomeUnknown,
    /// The state names creations in doubt. The same.
    PendingCreates,
    /// A person has given up the last run; only a changed input starts another one.
    Abandoned,
    /// The last run succeeded on these inputs.
    Done,
}

/// Whether a run of this kind is due, given the last one and what a person has answered to it.
pub fn due(
    last: Option<&LastUpdate>,
    answer: Option<Answer>,
    inputs: &Inputs,
    kind: UpdateKind,
    now: Timestamp,
) -> Due {
    let Some(last) = last else { return Due::Now("Initial stack update".to_owned()) };
    if let Some(reason) = changed_request(last, inputs, kind) {
        return Due::Now(reason);
    }
    // A destroy runs on the artifact that is in place: a newer one is no reason to run.
    let new_artifact = kind == UpdateKind::Up
        && (last.last_attempted_commit.as_deref() != Some(inputs.revision.as_str())
            || last.digest.as_deref().is_some_and(|d| d != inputs.digest));
    if new_artifact {
        return Due::Now(format!("New commit detected: \"{}\"", inputs.revision));
    }
    match (last.state.as_deref(), answer) {
        (Some("succeeded"), _) => Due::Done,
        (_, Some(Answer::Retry | Answer::Clear)) => Due::Now("A person has answered".to_owned()),
        (_, Some(Answer::Abandon)) => Due::Abandoned,
        (_, None) => match last.reason.as_deref() {
            Some(update_reason::RUN_OUTCOME_UNKNOWN) => Due::OutcomeUnknown,
            Some(update_reason::PENDING_CREATES) => Due::PendingCreates,
            // Nothing has run, or it is nobody's failure: it is tried until it can be done.
            _ if last.failures >= MAX_FAILURES && !was_refused(last) && !was_interrupted(last) => Due::GivenUp,
            _ => retry(last, now),
        },
    }
}

/// A reason to run that comes from the object itself.
fn changed_request(last: &LastUpdate, inputs: &Inputs, kind: UpdateKind) -> Option<String> {
    if kind == UpdateKind::Destroy && last.kind.as_deref() != Some(UpdateKind::Destroy.as_str()) {
        return Some("Stack marked for deletion".to_owned());
    }
    if last.generation != inputs.generation {
        return Some(format!("New stack generation: {}", inputs.generation));
    }
    if inputs.reconcile_request.is_some() && last.reconcile_request != inputs.reconcile_request {
        return Some(format!("Sync request: \"{}\"", inputs.reconcile_request.as_deref().unwrap_or_default()));
    }
    if inputs.requested_at.is_some() && last.requested_at != inputs.requested_at {
        return Some(format!("Requested at: \"{}\"", inputs.requested_at.as_deref().unwrap_or_default()));
    }
    None
}

fn retry(last: &LastUpdate, now: Timestamp) -> Due {
    let wait = pause_after(last);
    let word = match last.reason.as_deref() {
        Some(stack_reason::UPDATE_CONFLICT) => "Waited for the lock",
        Some(update_reason::ABORTED) => "Run again after an interruption",
        _ => "Backoff time elapsed",
    };
    let since = last.last_resync_time.as_ref().map_or(wait, |time| now.duration_since(time.0));
    if since >= wait {
        return Due::Now(format!("{word}: {}s", wait.as_secs()));
    }
    Due::After(wait - since)
}

/// How long to wait after a run that failed.
pub fn pause_after(last: &LastUpdate) -> SignedDuration {
    match last.reason.as_deref() {
        Some(stack_reason::UPDATE_CONFLICT) => CONFLICT_RETRY,
        Some(update_reason::RUN_REFUSED) => cooldown(last.failures).min(LONGEST_REFUSAL),
        Some(update_reason::ABORTED) => pause_after_interruptions(last.interruptions),
        _ => cooldown(last.failures),
    }
}

fn was_refused(last: &LastUpdate) -> bool {
    last.reason.as_deref() == Some(update_reason::RUN_REFUSED)
}

fn was_interrupted(last: &LastUpdate) -> bool {
    last.reason.as_deref() == Some(update_reason::ABORTED)
}

/// A pod that goes away is nobody's failure: the first run after it starts at once. One that goes away each time does not
/// keep the cluster busy.
fn pause_after_interruptions(interruptions: i64) -> SignedDuration {
    let before = usize::try_from(interruptions.saturating_sub(1)).unwrap_or_default();
    let longest = INTERRUPTION_PAUSES.last().copied().unwrap_or_default();
    INTERRUPTION_PAUSES.get(before).copied().unwrap_or(longest)
}

/// Interruptions in a row after a run that ended for this reason. What could not run for a lock, or for what its workspace is
/// in, is between them.
pub fn interruptions_after(previous: Option<&LastUpdate>, current: &Inputs, reason: Option<&str>) -> i64 {
    let before = previous.filter(|last| answers(last, current)).map_or(0, |last| last.interruptions);
    match reason {
        Some(update_reason::ABORTED) => before.saturating_add(1),
        Some(stack_reason::UPDATE_CONFLICT | update_reason::RUN_REFUSED) => before,
        _ => 0,
    }
}

/// How long to wait after so many failures.
fn cooldown(failures: i64) -> SignedDuration {
    let factor = u32::try_from(failures.max(0)).ok().and_then(|n| 3_i32.checked_pow(n)).unwrap_or(i32::MAX);
    FIRST_COOLDOWN.checked_mul(factor).map_or(LONGEST_COOLDOWN, |wait| wait.min(LONGEST_COOLDOWN))
}

/// Ends that spend no retry.
const UNCOUNTED: [&str; 4] = [
    update_reason::UPDATE_CONFLICT,
    update_reason::ABORTED,
    update_reason::PENDING_CREATES,
    update_reason::RUN_OUTCOME_UNKNOWN,
];

/// The failure counter after a run that failed for this reason: counting starts anew when an input has changed since the
/// run before, what could not even start does not count among what failed, and a lock, an interruption and creations in doubt
/// are no failures.
pub fn failures_after(previous: Option<&LastUpdate>, current: &Inputs, reason: &str) -> i64 {
    let same_kind = |last: &LastUpdate| was_refused(last) == (reason == update_reason::RUN_REFUSED);
    match previous {
        Some(last) if answers(last, current) && same_kind(last) => {
            last.failures + i64::from(!UNCOUNTED.contains(&reason))
        }
        _ => 0,
    }
}

/// Whether a run was made for exactly these inputs.
fn answers(last: &LastUpdate, inputs: &Inputs) -> bool {
    last.generation == inputs.generation
        && last.reconcile_request == inputs.reconcile_request
        && last.requested_at == inputs.requested_at
        && last.last_attempted_commit.as_deref() == Some(inputs.revision.as_str())
        && last.digest.as_deref().is_none_or(|d| d == inputs.digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn inputs() -> Inputs {
        Inputs {
            generation: 1,
            reconcile_request: None,
            requested_at: None,
            revision: "main@sha1:a".to_owned(),
            digest: "sha256:a".to_owned(),
        }
    }

    fn last(state: &str, failures: i64) -> LastUpdate {
        LastUpdate {
            kind: Some("up".to_owned()),
            state: Some(state.to_owned()),
            generation: 1,
            last_attempted_commit: Some("main@sha1:a".to_owned()),
            digest: Some("sha256:a".to_owned()),
            last_resync_time: Some(Time(at(1000))),
            failures,
            ..LastUpdate::default()
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn the_table_of_when_a_run_is_due() {
        let now = |text: &str| Due::Now(text.to_owned());
        let up = UpdateKind::Up;
        let changed = |change: fn(&mut Inputs)| {
            let mut inputs = inputs();
            change(&mut inputs);
            inputs
        };
        let rows = [
            ("never ran", None, inputs(), 1000, now("Initial stack update")),
            ("done", Some(last("succeeded", 0)), inputs(), 9999, Due::Done),
            (
                "new spec",
                Some(last("succeeded", 0)),
                changed(|i| i.generation = 2),
                1000,
                now("New stack generation: 2"),
            ),
            (
                "asked for",
                Some(last("succeeded", 0)),
                changed(|i| i.reconcile_request = Some("x".to_owned())),
                1000,
                now("Sync request: \"x\""),
            ),
            (
                "asked for in Flux's way",
                Some(last("succeeded", 0)),
                changed(|i| i.requested_at = Some("t".to_owned())),
                1000,
                now("Requested at: \"t\""),
            ),
            (
                "new commit",
                Some(last("succeeded", 0)),
                changed(|i| i.revision = "main@sha1:b".to_owned()),
                1000,
                now("New commit detected: \"main@sha1:b\""),
            ),
            (
                "same commit, other bytes",
                Some(last("succeeded", 0)),
                changed(|i| i.digest = "sha256:b".to_owned()),
                1000,
                now("New commit detected: \"main@sha1:a\""),
            ),
            (
                "inside the first cooldown",
                Some(last("failed", 0)),
                inputs(),
                1004,
                Due::After(SignedDuration::from_secs(6)),
            ),
            ("after it", Some(last("failed", 0)), inputs(), 1010, now("Backoff time elapsed: 10s")),
            ("second cooldown", Some(last("failed", 1)), inputs(), 1029, Due::After(SignedDuration::from_secs(1))),
            ("given up", Some(last("failed", 3)), inputs(), 999_999, Due::GivenUp),
            (
                "nobody knows how it ended",
                Some(LastUpdate { reason: Some("RunOutcomeUnknown".to_owned()), ..last("failed", 0) }),
                inputs(),
                999_999,
                Due::OutcomeUnknown,
            ),
            (
                "a request that was taken away",
                Some(LastUpdate { requested_at: Some("t".to_owned()), ..last("succeeded", 0) }),
                inputs(),
                1000,
                Due::Done,
            ),
            (
                "new commit inside the cooldown",
                Some(last("failed", 2)),
                changed(|i| i.revision = "b".to_owned()),
                1001,
                now("New commit detected: \"b\""),
            ),
            (
                "new commit after giving up",
                Some(last("failed", 3)),
                changed(|i| i.revision = "b".to_owned()),
                1001,
                now("New commit detected: \"b\""),
            ),
        ];
        for (name, last, inputs, second, wanted) in rows {
            assert_eq!(due(last.as_ref(), None, &inputs, up, at(second)), wanted, "{name}");
        }
    }

    #[test]
    fn a_destroy_is_due_once_and_not_for_a_new_commit() {
        let destroy = UpdateKind::Destroy;
        let moved = Inputs { revision: "b".to_owned(), digest: "sha256:b".to_owned(), ..inputs() };
        assert_eq!(
            due(Some(&last("succeeded", 0)), None, &inputs(), destroy, at(1000)),
            Due::Now("Stack marked for deletion".to_owned())
        );
        let destroyed = |state: &str| LastUpdate { kind: Some("destroy".to_owned()), ..last(state, 0) };
        assert_eq!(due(Some(&destroyed("succeeded")), None, &moved, destroy, at(1000)), Due::Done);
        assert_eq!(
            due(Some(&destroyed("failed")), None, &moved, destroy, at(1000)),
            Due::After(SignedDuration::from_secs(10))
        );
    }

    #[test]
    fn a_lock_of_another_is_waited_for_without_spending_a_retry() {
        let locked = LastUpdate { reason: Some(stack_reason::UPDATE_CONFLICT.to_owned()), ..last("failed", 0) };
        let wait = Due::After(SignedDuration::from_secs(20));
        assert_eq!(due(Some(&locked), None, &inputs(), UpdateKind::Up, at(1010)), wait);
        assert_eq!(failures_after(Some(&locked), &inputs(), stack_reason::UPDATE_CONFLICT), 0);
    }

    #[test]
    fn a_run_that_could_not_start_is_tried_for_ever_and_does_not_count_among_failures() {
        let refused =
            |failures| LastUpdate { reason: Some(update_reason::RUN_REFUSED.to_owned()), ..last("failed", failures) };
        let up = UpdateKind::Up;
        assert_eq!(due(Some(&refused(0)), None, &inputs(), up, at(1000)), Due::After(SignedDuration::from_secs(10)));
        assert_eq!(due(Some(&refused(99)), None, &inputs(), up, at(1000)), Due::After(SignedDuration::from_secs(60)));
        assert!(matches!(due(Some(&refused(99)), None, &inputs(), up, at(1060)), Due::Now(_)));
        assert_eq!(failures_after(Some(&refused(99)), &inputs(), update_reason::RUN_REFUSED), 100);
        assert_eq!(failures_after(Some(&refused(99)), &inputs(), update_reason::UPDATE_FAILED), 0);
        assert_eq!(failures_after(Some(&last("failed", 2)), &inputs(), update_reason::RUN_REFUSED), 0);
    }

    #[test]
    fn an_interruption_is_run_again_at_once_and_never_given_up() {
        let aborted = |interruptions, failures| LastUpdate {
            reason: Some(update_reason::ABORTED.to_owned()),
            interruptions,
            ..last("failed", failures)
        };
        let up = UpdateKind::Up;
        let again = Due::Now("Run again after an interruption: 0s".to_owned());
        assert_eq!(due(Some(&aborted(1, 0)), None, &inputs(), up, at(1000)), again);
        assert_eq!(due(Some(&aborted(1, 99)), None, &inputs(), up, at(1000)), again, "it is nobody's failure");
        let pauses: Vec<i64> = (0..9).map(|n| pause_after_interruptions(n).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 10, 30, 90, 300, 300, 300, 300]);
        assert_eq!(failures_after(Some(&last("failed", 2)), &inputs(), update_reason::ABORTED), 2);
        let after = |previous: &LastUpdate, reason| interruptions_after(Some(previous), &inputs(), reason);
        assert_eq!(after(&aborted(2, 0), Some(update_reason::ABORTED)), 3);
        assert_eq!(after(&aborted(2, 0), Some(update_reason::UPDATE_CONFLICT)), 2);
        assert_eq!(after(&aborted(2, 0), Some(update_reason::UPDATE_FAILED)), 0);
        assert_eq!(after(&aborted(2, 0), None), 0);
        let other = Inputs { revision: "b".to_owned(), ..inputs() };
        assert_eq!(interruptions_after(Some(&aborted(2, 0)), &other, Some(update_reason::ABORTED)), 1);
    }

    #[test]
    fn a_run_in_doubt_waits_for_an_answer_or_a_new_input() {
        let up = UpdateKind::Up;
        let doubt = |reason: &str| LastUpdate { reason: Some(reason.to_owned()), ..last("failed", 0) };
        let now = Due::Now("A person has answered".to_owned());
        for (reason, waits) in [
            (update_reason::PENDING_CREATES, Due::PendingCreates),
            (update_reason::RUN_OUTCOME_UNKNOWN, Due::OutcomeUnknown),
        ] {
            let answered = |answer| due(Some(&doubt(reason)), answer, &inputs(), up, at(999_999));
            assert_eq!(answered(None), waits);
            assert_eq!(answered(Some(Answer::Retry)), now);
            assert_eq!(answered(Some(Answer::Clear)), now);
            assert_eq!(answered(Some(Answer::Abandon)), Due::Abandoned);
            let pushed = Inputs { revision: "b".to_owned(), ..inputs() };
            let due = due(Some(&doubt(reason)), Some(Answer::Abandon), &pushed, up, at(1000));
            assert!(matches!(due, Due::Now(_)), "{due:?}");
        }
        let aborted = doubt(update_reason::ABORTED);
        assert_eq!(due(Some(&aborted), Some(Answer::Abandon), &inputs(), up, at(1000)), Due::Abandoned);
    }

    #[test]
    fn cooldowns_are_those_of_the_operator() {
        let seconds: Vec<i64> = (0..10).map(|n| cooldown(n).as_secs()).collect();
        assert_eq!(seconds, [10, 30, 90, 270, 810, 2430, 7290, 21870, 65610, 86400]);
        assert_eq!(cooldown(1_000_000).as_secs(), 86400);
    }

    #[test]
    fn failures_count_for_the_same_inputs_only() {
        let other = Inputs { revision: "b".to_owned(), ..inputs() };
        let failed = update_reason::UPDATE_FAILED;
        assert_eq!(failures_after(None, &inputs(), failed), 0);
        assert_eq!(failures_after(Some(&last("failed", 1)), &inputs(), failed), 2);
        assert_eq!(failures_after(Some(&last("failed", 3)), &other, failed), 0);
        assert_eq!(failures_after(Some(&last("succeeded", 0)), &inputs(), failed), 1);
    }
}
