//! Delays the first report of a state. Many runs end within a second, so reports of their states would cause writes to
//! the API server that no client can use.

use jiff::{SignedDuration, Timestamp};

use crate::api::auto::Update;

/// Minimum age of a reported state. The API server rounds times down to whole seconds, so the controller reports a
/// state one to two seconds after its start.
const MIN_AGE: SignedDuration = SignedDuration::from_secs(2);

/// Returns the remaining delay before the first report of a state that began at `since`. Returns `None` if the report
/// is due. The clocks of two processes can differ slightly, so `since` can be in the near future. If the difference is
/// larger, the age is unknown, and the report is due.
pub fn delay(since: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let age = now.duration_since(since);
    (age.abs() < MIN_AGE).then(|| MIN_AGE - age.max(SignedDuration::ZERO))
}

/// Returns the remaining delay before the first report of the progress of a run.
pub fn delay_of_run(update: &Update, now: Timestamp) -> Option<SignedDuration> {
    delay(update.status.as_ref()?.start_time.as_ref()?.0, now)
}

/// Returns the remaining delay before the first report that a run waits for a slot. Returns `None` if the status of the
/// Update already contains a report.
pub fn delay_of_wait(update: &Update, now: Timestamp) -> Option<SignedDuration> {
    let is_new = update.status.as_ref().is_none_or(|status| status.conditions.is_empty());
    delay(update.metadata.creation_timestamp.as_ref()?.0, now).filter(|_| is_new)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::auto::{UpdateSpec, UpdateStatus};
    use crate::api::conditions::{self, ConditionUpdate, PROGRESSING, Status};

    #[test]
    fn a_state_is_reported_when_it_has_lasted_for_two_seconds() {
        let at = |millisecond: i64| Timestamp::from_millisecond(millisecond).unwrap();
        let left = |now: i64| delay(at(10_000), at(now)).map(|left| left.as_millis());
        let rows = [
            (8_000, None),
            (8_500, Some(2000)),
            (10_000, Some(2000)),
            (11_500, Some(500)),
            (12_000, None),
            (99_000, None),
        ];
        for (now, expected) in rows {
            assert_eq!(left(now), expected, "{now}");
        }
    }

    #[test]
    fn only_the_first_report_of_a_wait_is_delayed() {
        let now = Timestamp::from_second(10).unwrap();
        let mut update = Update::new("app-1", UpdateSpec::default());
        update.metadata.creation_timestamp = Some(Time(now));
        assert!(delay_of_wait(&update, now).is_some());
        let mut status = UpdateStatus::default();
        let condition = ConditionUpdate { kind: PROGRESSING, status: Status::False, reason: "Queued", message: "" };
        conditions::set(&mut status.conditions, &condition, 1, now);
        update.status = Some(status);
        assert_eq!(delay_of_wait(&update, now), None, "a changed reason is reported immediately");
    }
}
