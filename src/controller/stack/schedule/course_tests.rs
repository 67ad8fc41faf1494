//! Whole courses of runs: when they begin, and how they end, by the numbers of the Pulumi Kubernetes Operator and what is
//! mended of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::api::pulumi::StackSpec;

/// A Stack on its way: its last run, what it is to run now, and the clock.
struct Course {
    pace: Pace,
    kind: UpdateKind,
    inputs: Inputs,
    last: Option<LastUpdate>,
    now: i64,
}

impl Course {
    fn new(spec: &StackSpec, kind: UpdateKind) -> Course {
        let inputs = Inputs {
            generation: 1,
            reconcile_request: None,
            requested_at: None,
            revision: "a".to_owned(),
            digest: "sha256:a".to_owned(),
            content_id: None,
            selection: None,
            config_inputs: None,
            force_at: None,
            reset_at: None,
            mounted_inputs: std::collections::BTreeMap::new(),
        };
        Course { pace: Pace::of(spec), kind, inputs, last: None, now: 0 }
    }

    fn due(&self) -> Due {
        let now = Timestamp::from_second(self.now).expect("in range");
        due(self.last.as_ref(), None, &self.inputs, self.kind, &self.pace, now)
    }

    /// A run that takes no time.
    fn run(&mut self, succeeds: bool) {
        let failed = update_reason::UPDATE_FAILED;
        let failures = match succeeds {
            true => 0,
            false => failures_after(self.last.as_ref(), &self.inputs, failed, &self.pace),
        };
        self.last = Some(LastUpdate {
            kind: Some(self.kind.as_str().to_owned()),
            state: Some(if succeeds { "succeeded" } else { "failed" }.to_owned()),
            reason: (!succeeds).then(|| failed.to_owned()),
            generation: self.inputs.generation,
            reconcile_request: self.inputs.reconcile_request.clone(),
            requested_at: self.inputs.requested_at.clone(),
            last_attempted_commit: Some(self.inputs.revision.clone()),
            digest: Some(self.inputs.digest.clone()),
            last_resync_time: Timestamp::from_second(self.now).ok().map(Time),
            failures,
            ..LastUpdate::default()
        });
    }

    /// When each of the next runs begins, from now on, if all of them fail; at most so many.
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

/// The operator's four attempts.
const BUDGET: [i64; 4] = [0, 10, 40, 130];

#[test]
fn a_stack_that_fails_is_tried_four_times_and_each_new_input_gets_them_all_again() {
    let mut course = Course::new(&StackSpec::default(), UpdateKind::Up);
    assert_eq!(course.failing(99), BUDGET);
    assert_eq!(course.due(), Due::GivenUp);
    course.now += 1_000_000;
    assert_eq!(course.due(), Due::GivenUp, "time alone revives nothing");
    let changes: [(&str, fn(&mut Inputs)); 5] = [
        ("a new commit", |inputs| inputs.revision = "b".to_owned()),
        ("the same commit with other bytes", |inputs| inputs.digest = "sha256:b".to_owned()),
        ("a new spec", |inputs| inputs.generation = 2),
        ("a request", |inputs| inputs.reconcile_request = Some("now".to_owned())),
        ("a request in Flux's way", |inputs| inputs.requested_at = Some("now".to_owned())),
    ];
    for (what, change) in changes {
        change(&mut course.inputs);
        assert_eq!(course.failing(99), BUDGET, "{what}");
        assert_eq!(course.due(), Due::GivenUp, "{what}");
    }
}

#[test]
fn a_new_commit_in_a_cooldown_runs_at_once_with_the_whole_budget() {
    let mut course = Course::new(&StackSpec::default(), UpdateKind::Up);
    assert_eq!(course.failing(3), BUDGET[..3]);
    course.now += 1;
    course.inputs.revision = "b".to_owned();
    assert_eq!(course.failing(99), BUDGET);
}

#[test]
fn a_failure_after_a_success_on_the_same_inputs_is_the_second() {
    let every_minute = StackSpec { continue_resync_on_commit_match: Some(true), ..StackSpec::default() };
    let mut course = Course::new(&every_minute, UpdateKind::Up);
    course.run(true);
    course.now = 60;
    assert_eq!(course.failing(3), [0, 30, 120], "30 s and 90 s after a failure");
    assert_eq!(course.last.as_ref().map(|last| last.failures), Some(3));
}

#[test]
fn what_is_done_in_intervals_goes_on_after_any_number_of_failures() {
    let specs = [
        StackSpec { continue_resync_on_commit_match: Some(true), ..StackSpec::default() },
        StackSpec { interval: Some("1m".to_owned()), ..StackSpec::default() },
    ];
    for spec in specs {
        let mut course = Course::new(&spec, UpdateKind::Up);
        assert_eq!(course.failing(7), [0, 10, 40, 130, 190, 250, 310], "every minute once the retries are spent");
        course.run(true);
        course.now += 60;
        assert!(matches!(course.due(), Due::Now(_)));
    }
}

#[test]
fn a_stack_with_a_retry_interval_is_never_given_up() {
    let spec = StackSpec { retry_interval: Some("5m".to_owned()), ..StackSpec::default() };
    assert_eq!(Course::new(&spec, UpdateKind::Up).failing(6), [0, 300, 600, 900, 1200, 1500]);
}

#[test]
fn the_longest_wait_is_what_the_stack_says() {
    let spec = StackSpec { retry_max_backoff_duration_seconds: Some(20), ..StackSpec::default() };
    assert_eq!(Course::new(&spec, UpdateKind::Up).failing(99), [0, 10, 30, 50]);
}

#[test]
fn a_preview_that_fails_has_the_same_course() {
    let mut course = Course::new(&StackSpec::default(), UpdateKind::Preview);
    assert_eq!(course.failing(99), BUDGET);
    assert_eq!(course.due(), Due::GivenUp);
}

#[test]
fn a_state_that_nobody_knows_is_tried_again_like_a_failure() {
    let mut course = Course::new(&StackSpec::default(), UpdateKind::Up);
    course.run(true);
    course.last.as_mut().expect("it has run").state = Some("odd".to_owned());
    assert_eq!(course.due(), Due::After(SignedDuration::from_secs(10)));
}
