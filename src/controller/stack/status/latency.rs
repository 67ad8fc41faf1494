//! Latency of a Stack: the time from when the first run of a new artifact becomes due until the controller records its
//! result.

use std::time::Duration;

use jiff::Timestamp;

use crate::api::auto::UpdateKind;
use crate::api::pulumi::{Stack, StackStatus};

/// Latency of an artifact's first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Pulumi command of the run.
    pub kind: &'static str,
    pub has_succeeded: bool,
    /// Time from when the run became due until the controller recorded its result.
    pub time: Duration,
}

/// Returns the latency of the recorded run if it is the first run of its artifact. Other runs, such as retries and
/// drift checks, do not show how quickly a commit takes effect. If the run waits for a user, the measurement restarts
/// after the wait.
pub fn of_new_artifact(stack: &Stack, recorded: &StackStatus, now: Timestamp) -> Option<Latency> {
    let before = stack.status.as_ref()?;
    let last = recorded.last_update.as_ref()?;
    let previous = before.last_update.as_ref();
    let digest = last.inputs.digest.as_ref()?;
    if previous.is_some_and(|previous| previous.inputs.digest.as_ref() == Some(digest)) {
        return None;
    }
    let due = before.pending_since.as_ref()?.0;
    let kinds = [UpdateKind::Up, UpdateKind::Preview, UpdateKind::Destroy];
    let kind = kinds.into_iter().map(UpdateKind::as_str).find(|kind| last.kind.as_deref() == Some(*kind))?;
    let time = Duration::try_from(now.duration_since(due)).unwrap_or_default();
    Some(Latency { kind, has_succeeded: last.state.as_deref() == Some("succeeded"), time })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::pulumi::{LastUpdate, RunInputs, StackSpec};
    use crate::artifact::Digest;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn last(artifact: &str, state: &str) -> LastUpdate {
        let inputs = RunInputs { digest: Some(Digest::of(artifact.as_bytes())), ..RunInputs::default() };
        let (kind, state) = (Some("up".to_owned()), Some(state.to_owned()));
        LastUpdate { kind, state, inputs, ..LastUpdate::default() }
    }

    fn status(last_update: Option<LastUpdate>, due: Option<i64>) -> StackStatus {
        StackStatus { last_update, pending_since: due.map(|due| Time(at(due))), ..StackStatus::default() }
    }

    #[test]
    fn only_the_first_run_of_an_artifact_has_a_latency() {
        let succeeded = || Some(last("b", "succeeded"));
        let latency = |has_succeeded| Some(Latency { kind: "up", has_succeeded, time: Duration::from_secs(30) });
        // Columns: the previous status, the recorded run, and the expected latency.
        let rows = [
            (status(None, Some(70)), succeeded(), latency(true)),
            (status(Some(last("a", "succeeded")), Some(70)), succeeded(), latency(true)),
            (status(Some(last("a", "failed")), Some(70)), Some(last("b", "failed")), latency(false)),
            (status(Some(last("b", "failed")), Some(70)), succeeded(), None),
            (status(Some(last("a", "succeeded")), None), succeeded(), None),
            (status(Some(last("a", "succeeded")), Some(70)), None, None),
        ];
        for (before, run, expected) in rows {
            let mut stack = Stack::new("web", StackSpec::default());
            stack.status = Some(before.clone());
            assert_eq!(of_new_artifact(&stack, &status(run, None), at(100)), expected, "{before:?}");
        }
    }

    #[test]
    fn a_latency_is_not_negative_after_the_clock_was_set_back() {
        let mut stack = Stack::new("web", StackSpec::default());
        stack.status = Some(status(None, Some(200)));
        let latency = of_new_artifact(&stack, &status(Some(last("a", "succeeded")), None), at(100));
        assert_eq!(latency.map(|latency| latency.time), Some(Duration::ZERO));
    }
}
