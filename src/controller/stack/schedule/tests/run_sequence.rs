//! Tests for sequences of runs. The delays are the same as in the Pulumi Kubernetes Operator, but the number of retries
//! is unlimited.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::api::pulumi::StackSpec;

/// Stack with its last run, its current inputs and a clock.
struct RunSequence {
    backoff: StackBackoff,
    kind: UpdateKind,
    candidate: RunCandidate,
    last: Option<LastUpdate>,
    now: i64,
}

impl RunSequence {
    fn new(spec: &StackSpec, kind: UpdateKind) -> RunSequence {
        let candidate = RunCandidate {
            revision: "a".to_owned(),
            inputs: RunInputs { generation: 1, digest: Some(Digest::of(b"a")), ..RunInputs::default() },
        };
        RunSequence { backoff: StackBackoff::of(spec), kind, candidate, last: None, now: 0 }
    }

    fn due(&self) -> Due {
        let now = Timestamp::from_second(self.now).expect("timestamp in range");
        due(self.last.as_ref(), None, &self.candidate, self.kind, &self.backoff, now)
    }

    /// Simulates a run that takes no time.
    fn run(&mut self, succeeds: bool) {
        let failed = update_reason::UPDATE_FAILED;
        let failures = match succeeds {
            true => 0,
            false => failures_after(self.last.as_ref(), &self.candidate, failed, &self.backoff),
        };
        self.last = Some(LastUpdate {
            inputs: self.candidate.inputs.clone(),
            kind: Some(self.kind.as_str().to_owned()),
            state: Some(if succeeds { "succeeded" } else { "failed" }.to_owned()),
            reason: (!succeeds).then(|| failed.to_owned()),
            last_attempted_commit: Some(self.candidate.revision.clone()),
            last_resync_time: Timestamp::from_second(self.now).ok().map(Time),
            failures,
            ..LastUpdate::default()
        });
    }

    /// Returns the start times of the next runs, relative to the current time. At most `most` runs start, and all runs
    /// fail.
    fn failing(&mut self, most: usize) -> Vec<i64> {
        let begin = self.now;
        let mut begun = Vec::new();
        while begun.len() < most {
            match self.due() {
                Due::Now(_) => {
                    begun.push(self.now - begin);
                    self.run(false);
                }
                Due::After(wait) | Due::Done(Some(wait)) => self.now += wait.as_secs(),
                _ => break,
            }
        }
        begun
    }
}

/// Start times of the first six attempts, in seconds. The Pulumi Kubernetes Operator stops after the fourth attempt.
const FIRST: [i64; 6] = [0, 10, 40, 130, 400, 1210];

#[test]
fn a_failing_stack_is_retried_with_exponential_backoff() {
    let mut sequence = RunSequence::new(&StackSpec::default(), UpdateKind::Up);
    let begun = sequence.failing(14);
    assert_eq!(begun[..6], FIRST);
    let waits: Vec<i64> = begun.windows(2).skip(5).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [2430, 7290, 21_870, 65_610, 86_400, 86_400, 86_400, 86_400], "the backoff is at most one day");
    assert_eq!(sequence.last.as_ref().map(|last| last.failures), Some(14));
}

#[test]
fn a_new_input_runs_immediately_and_resets_the_backoff() {
    let changes: [(&str, fn(&mut RunCandidate)); 5] = [
        ("a new commit", |candidate| candidate.revision = "b".to_owned()),
        ("the same commit with other bytes", |candidate| candidate.inputs.digest = Some(Digest::of(b"b"))),
        ("a new spec", |candidate| candidate.inputs.generation = 2),
        ("a request", |candidate| candidate.inputs.reconcile_request = Some("now".to_owned())),
        ("a request with the Flux annotation", |candidate| candidate.inputs.requested_at = Some("now".to_owned())),
    ];
    for (what, change) in changes {
        let mut sequence = RunSequence::new(&StackSpec::default(), UpdateKind::Up);
        assert_eq!(sequence.failing(5), FIRST[..5]);
        sequence.now += 1;
        change(&mut sequence.candidate);
        assert_eq!(sequence.failing(6), FIRST, "{what}");
    }
}

#[test]
fn a_success_resets_the_failure_count() {
    let hourly = StackSpec { interval: Some("1h".to_owned()), ..StackSpec::default() };
    let mut sequence = RunSequence::new(&hourly, UpdateKind::Up);
    sequence.run(true);
    sequence.now = 3600;
    assert_eq!(sequence.failing(4), [0, 10, 40, 130]);
    assert_eq!(sequence.last.as_ref().map(|last| last.failures), Some(4));
}

#[test]
fn an_interval_limits_the_backoff_after_repeated_failures() {
    let specs = [
        StackSpec { continue_resync_on_commit_match: Some(true), ..StackSpec::default() },
        StackSpec { interval: Some("1m".to_owned()), ..StackSpec::default() },
    ];
    for spec in specs {
        let mut sequence = RunSequence::new(&spec, UpdateKind::Up);
        assert_eq!(sequence.failing(7), [0, 10, 40, 100, 160, 220, 280], "at most one minute between retries");
        sequence.run(true);
        sequence.now += 60;
        assert!(matches!(sequence.due(), Due::Now(_)));
    }
}

#[test]
fn the_retry_interval_replaces_the_backoff() {
    let spec = StackSpec { retry_interval: Some("5m".to_owned()), ..StackSpec::default() };
    assert_eq!(RunSequence::new(&spec, UpdateKind::Up).failing(6), [0, 300, 600, 900, 1200, 1500]);
}

#[test]
fn the_spec_sets_the_maximum_backoff() {
    let spec = StackSpec { retry_max_backoff_duration_seconds: Some(20), ..StackSpec::default() };
    assert_eq!(RunSequence::new(&spec, UpdateKind::Up).failing(6), [0, 10, 30, 50, 70, 90]);
}

#[test]
fn failed_previews_and_destroys_have_the_same_backoff() {
    for kind in [UpdateKind::Preview, UpdateKind::Destroy] {
        let mut sequence = RunSequence::new(&StackSpec::default(), kind);
        assert_eq!(sequence.failing(6), FIRST, "{kind:?}");
    }
}

#[test]
fn a_stack_that_pko_stopped_retrying_runs_only_after_a_new_input() {
    let mut sequence = RunSequence::new(&StackSpec::default(), UpdateKind::Up);
    sequence.failing(3);
    sequence.last.as_mut().expect("last update").reason = None;
    sequence.now += 1_000_000;
    assert_eq!(sequence.due(), Due::FailedPermanently);
    sequence.candidate.revision = "b".to_owned();
    assert_eq!(sequence.failing(6), FIRST);
}

#[test]
fn an_unknown_state_is_retried_like_a_failure() {
    let mut sequence = RunSequence::new(&StackSpec::default(), UpdateKind::Up);
    sequence.run(true);
    sequence.last.as_mut().expect("last update").state = Some("odd".to_owned());
    assert_eq!(sequence.due(), Due::After(SignedDuration::from_secs(10)));
}
