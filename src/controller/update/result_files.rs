//! Stores the outputs and the plan of a completed run in Secrets.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::api::auto::Update;
use crate::controller::update::context::Context;
use crate::controller::update::deadline;
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::outputs::{self, Stored};
use crate::controller::update::plans;
use crate::controller::update::request::RunTimeouts;
use crate::runtime::reconcile::ReconcileError;

/// Time for which the controller retries after the run has completed. Retries are necessary if the API server forbids
/// creating a Secret, for example because of a quota or policy.
const RETRY_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// Result of an attempt to store the outputs and the plan.
#[derive(Debug)]
pub(super) enum Files {
    /// No retry is necessary. Contains the outcome of the run, which is a failure if the plan could not be stored.
    Stored(Box<RunOutcome>),
    /// The controller retries the write. Contains the message for the status.
    NotYet(String),
}

/// Stores the outputs and the plan of a completed run before the controller writes the status that references them.
/// `pod` is the pod of the run, if it exists.
pub(super) async fn store(
    update: &Update,
    pod: Option<&Pod>,
    outcome: RunOutcome,
    context: &Context,
    now: Timestamp,
) -> Result<Files, ReconcileError> {
    let may_retry = may_retry(update, outcome.ended, context.timeouts, pod, now);
    let outcome = match outputs::store(update, &outcome, context, may_retry).await? {
        Stored::Yes => outcome,
        Stored::No(why) => outcome.without_outputs(&why),
        Stored::NotYet(why) => {
            return Ok(Files::NotYet(format!("run ended; failed to store its outputs, retrying: {why}")));
        }
    };
    let outcome = match plans::store(update, &outcome, context, may_retry).await? {
        Stored::Yes => outcome,
        Stored::No(why) => outcome.without_plan(&why),
        Stored::NotYet(why) => {
            return Ok(Files::NotYet(format!("run ended; failed to store its plan, retrying: {why}")));
        }
    };
    Ok(Files::Stored(Box::new(outcome)))
}

/// Returns whether the controller retries a write that the API server has forbidden. The run holds its slot during the
/// retries, and the agent reports the end of the run. The retries therefore end at the deadline of the run, and a run
/// that has ended in the distant future is not retried.
fn may_retry(
    update: &Update,
    ended: Option<Timestamp>,
    timeouts: RunTimeouts,
    pod: Option<&Pod>,
    now: Timestamp,
) -> bool {
    let is_recent = ended.is_some_and(|ended| now.duration_since(ended).abs() < RETRY_TIMEOUT);
    is_recent && deadline::end_expired(update, timeouts, pod, now).is_none()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::auto::{RunBinding, UpdateSpec, UpdateStatus};

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("timestamp in range")
    }

    #[test]
    fn forbidden_writes_are_retried_for_five_minutes_but_not_after_the_deadline_of_the_run() {
        let spec = PodSpec { termination_grace_period_seconds: Some(30), ..PodSpec::default() };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        // The deadline of a run with a timeout is twice the timeout plus 330 seconds after the start.
        let retries = |timeout: &str, ended: Option<i64>, now: i64| {
            let spec = UpdateSpec { timeout: Some(timeout.to_owned()), ..UpdateSpec::default() };
            let mut update = Update::new("app-1", spec);
            let (run, start_time) = (Some(RunBinding::default()), Some(Time(second(1000))));
            update.status = Some(UpdateStatus { run, start_time, ..UpdateStatus::default() });
            may_retry(&update, ended.map(second), RunTimeouts::default(), Some(&pod), second(now))
        };
        let rows = [
            ("0s", Some(2000), 2299, true),
            ("0s", Some(2000), 2300, false),
            ("0s", None, 2000, false),
            ("0s", Some(2000), 1701, true),
            ("0s", Some(4_000_000_000), 2000, false),
            ("60s", Some(1400), 1450, true),
            ("60s", Some(1400), 1451, false),
        ];
        for (timeout, ended, now, expected) in rows {
            assert_eq!(retries(timeout, ended, now), expected, "timeout {timeout}, ended at {ended:?}, {now}");
        }
    }
}
