//! Deadline of a run. Normally, the agent enforces the timeout of a run. A Pulumi program can prevent this, because
//! it runs as the same user as the agent. The controller therefore deletes the pod of a run that exceeds its
//! deadline. All functions are pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::api::auto::Update;
use crate::api::{duration, names};
use crate::controller::update::request::{self, RunTimeouts};

/// Time within which the agent must report that a canceled run has ended, in addition to the termination grace period
/// of the pod.
const REPORT_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// Maximum termination grace period that a deadline includes, in seconds.
const MAX_GRACE_SECONDS: i64 = names::MAX_TERMINATION_GRACE_SECONDS.cast_signed();

/// Returns the timeout of the run, such as `3h0m0s`, if the timeout has elapsed since the controller recorded the
/// binding. The run must then not start. Otherwise, a run that waits for an interactive session to end could hold its
/// run slot forever.
pub fn start_expired(update: &Update, timeouts: RunTimeouts, now: Timestamp) -> Option<String> {
    let (bound_at, timeout) = limit(update, timeouts)?;
    (now.duration_since(bound_at) > timeout).then(|| duration::display(timeout))
}

/// Returns the timeout of the run, such as `3h0m0s`, if the deadline of the run has passed.
///
/// The deadline is the time at which the binding was recorded plus twice the timeout, the termination grace period of
/// `pod`, and `REPORT_TIMEOUT`. The run starts within one timeout after the controller has recorded the binding. The
/// agent cancels the run one timeout after the start, and the cancellation takes at most the grace period. A tenant can
/// create the pod without the Workspace controller, so the deadline never includes more than the maximum grace period.
pub fn end_expired(update: &Update, timeouts: RunTimeouts, pod: Option<&Pod>, now: Timestamp) -> Option<String> {
    let (bound_at, timeout) = limit(update, timeouts)?;
    let grace = pod.and_then(|pod| pod.spec.as_ref()?.termination_grace_period_seconds);
    let grace = grace.unwrap_or(names::TERMINATION_GRACE_SECONDS.cast_signed());
    let grace = grace.clamp(0, MAX_GRACE_SECONDS);
    (now.duration_since(bound_at) > allowed(timeout, grace)).then(|| duration::display(timeout))
}

/// Returns the time at which the deadline of a run passes if the pod has the maximum termination grace period. Returns
/// `None` if the run has no timeout. `bound_at` is the time at which the binding was recorded.
pub fn latest_end(update: &Update, timeouts: RunTimeouts, bound_at: Timestamp) -> Option<Timestamp> {
    let allowed = allowed(timeout(update, timeouts)?, MAX_GRACE_SECONDS);
    Some(bound_at.saturating_add(allowed).unwrap_or(Timestamp::MAX))
}

/// Returns the time between the binding of a run and its deadline.
fn allowed(timeout: SignedDuration, grace_seconds: i64) -> SignedDuration {
    let parts = [timeout, SignedDuration::from_secs(grace_seconds), REPORT_TIMEOUT];
    parts.into_iter().fold(timeout, SignedDuration::saturating_add)
}

/// Returns the time at which the binding was recorded, and the timeout of the run. Returns `None` if the run has no
/// binding or no timeout.
fn limit(update: &Update, timeouts: RunTimeouts) -> Option<(Timestamp, SignedDuration)> {
    let status = update.status.as_ref().filter(|status| status.run.is_some())?;
    let bound_at = status.start_time.as_ref()?.0;
    Some((bound_at, timeout(update, timeouts)?))
}

/// Returns the timeout of the run, or `None` if the run has no timeout.
fn timeout(update: &Update, timeouts: RunTimeouts) -> Option<SignedDuration> {
    let timeout = request::timeout(update, timeouts).signed();
    timeout.is_positive().then_some(timeout)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::auto::{RunBinding, UpdateSpec, UpdateStatus};

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("timestamp in range")
    }

    /// Returns an Update whose binding was recorded at second 1,000.
    fn bound(timeout: Option<&str>) -> Update {
        let spec = UpdateSpec { timeout: timeout.map(str::to_owned), ..UpdateSpec::default() };
        let mut update = Update::new("web-1", spec);
        let (run, start_time) = (Some(RunBinding::default()), Some(Time(second(1000))));
        update.status = Some(UpdateStatus { run, start_time, ..UpdateStatus::default() });
        update
    }

    fn pod(grace: Option<i64>) -> Pod {
        let spec = PodSpec { termination_grace_period_seconds: grace, ..PodSpec::default() };
        Pod { spec: Some(spec), ..Pod::default() }
    }

    #[test]
    fn a_run_that_is_not_started_within_its_timeout_expires() {
        let timeouts = RunTimeouts { default: Duration::from_secs(60), maximum: Duration::from_secs(600) };
        for (timeout, last) in [(None, 1060), (Some("20s"), 1020), (Some("0s"), 1600), (Some("1h"), 1600)] {
            let update = bound(timeout);
            assert_eq!(start_expired(&update, timeouts, second(last)), None, "{timeout:?}");
            assert!(start_expired(&update, timeouts, second(last + 1)).is_some(), "{timeout:?}");
        }
        let expired = start_expired(&bound(Some("90s")), timeouts, second(5000));
        assert_eq!(expired.as_deref(), Some("1m30s"));
    }

    #[test]
    fn the_deadline_includes_the_termination_grace_period() {
        let timeouts = RunTimeouts { default: Duration::from_secs(60), maximum: Duration::ZERO };
        let update = bound(None);
        let rows = [
            (Some(pod(Some(30))), 1450),
            (Some(pod(None)), 2020),
            (None, 2020),
            (Some(pod(Some(14_400))), 15_820),
            (Some(pod(Some(14_401))), 15_820),
            (Some(pod(Some(i64::MAX))), 15_820),
            (Some(pod(Some(-600))), 1420),
        ];
        for (pod, last) in rows {
            assert_eq!(end_expired(&update, timeouts, pod.as_ref(), second(last)), None, "{pod:?}");
            assert!(end_expired(&update, timeouts, pod.as_ref(), second(last + 1)).is_some(), "{pod:?}");
        }
        assert_eq!(latest_end(&update, timeouts, second(1000)), Some(second(15_820)));
        assert_eq!(latest_end(&update, timeouts, Timestamp::MAX), Some(Timestamp::MAX));
        assert_eq!(latest_end(&update, RunTimeouts::default(), second(1000)), None, "no timeout");
    }

    #[test]
    fn a_change_to_the_update_does_not_change_the_deadline_of_its_bound_run() {
        let timeouts = RunTimeouts { default: Duration::from_secs(3600), maximum: Duration::from_secs(7200) };
        for changed in [None, Some("1s"), Some("0s"), Some("99999999999999999999h")] {
            let mut update = bound(changed);
            let run = RunBinding { timeout: Some("1m0s".to_owned()), ..RunBinding::default() };
            update.status.as_mut().expect("value is set").run = Some(run);
            for timeouts in [timeouts, RunTimeouts::default()] {
                assert_eq!(start_expired(&update, timeouts, second(1060)), None, "{changed:?}");
                assert_eq!(start_expired(&update, timeouts, second(1061)).as_deref(), Some("1m0s"), "{changed:?}");
                assert_eq!(end_expired(&update, timeouts, Some(&pod(Some(30))), second(1450)), None, "{changed:?}");
                assert!(end_expired(&update, timeouts, Some(&pod(Some(30))), second(1451)).is_some(), "{changed:?}");
                assert_eq!(latest_end(&update, timeouts, second(1000)), Some(second(15_820)), "{changed:?}");
            }
        }
    }

    #[test]
    fn a_run_without_a_timeout_or_a_binding_has_no_deadline() {
        let without = RunTimeouts::default();
        assert_eq!(end_expired(&bound(None), without, None, Timestamp::MAX), None);
        assert_eq!(start_expired(&bound(None), without, Timestamp::MAX), None);
        let timeouts = RunTimeouts { default: Duration::from_secs(60), maximum: Duration::ZERO };
        let mut waiting = bound(None);
        waiting.status = Some(UpdateStatus::default());
        assert_eq!(end_expired(&waiting, timeouts, None, Timestamp::MAX), None);
    }
}
