//! Tests for the delays between runs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;
use crate::api::pulumi::RunInputs;

fn backoff(spec: StackSpec) -> StackBackoff {
    StackBackoff::of(&spec)
}

fn failed(reason: &str, failures: i64) -> LastUpdate {
    LastUpdate { reason: Some(reason.to_owned()), failures, ..LastUpdate::default() }
}

#[test]
fn the_spec_determines_the_resync_interval() {
    let seconds = |spec: StackSpec| backoff(spec).resync.map(|every| every.as_secs());
    let operators = |resync, frequency| StackSpec {
        continue_resync_on_commit_match: resync,
        resync_frequency_seconds: frequency,
        ..StackSpec::default()
    };
    let interval = |text: &str| StackSpec { interval: Some(text.to_owned()), ..StackSpec::default() };
    let rows = [
        ("no resync setting", StackSpec::default(), None),
        ("only a resync frequency", operators(None, Some(600)), None),
        ("resync is disabled", operators(Some(false), Some(600)), None),
        ("no frequency", operators(Some(true), None), Some(60)),
        ("a frequency below the minimum", operators(Some(true), Some(5)), Some(60)),
        ("a frequency", operators(Some(true), Some(600)), Some(600)),
        ("an interval", interval("1h"), Some(3600)),
        ("no interval", interval("0s"), None),
        ("both", StackSpec { interval: Some("5m".to_owned()), ..operators(Some(true), Some(600)) }, Some(300)),
    ];
    for (name, spec, expected) in rows {
        assert_eq!(seconds(spec), expected, "{name}");
    }
}

#[test]
fn delays_after_failures_equal_the_delays_of_pko() {
    let backoffs = |longest: Option<i64>| -> Vec<i64> {
        let backoff = backoff(StackSpec { retry_max_backoff_duration_seconds: longest, ..StackSpec::default() });
        (1..=10).map(|failures| backoff.backoff_after(failures).as_secs()).collect()
    };
    assert_eq!(backoffs(None), [10, 30, 90, 270, 810, 2430, 7290, 21870, 65610, 86400]);
    assert_eq!(backoffs(Some(100))[..4], [10, 30, 90, 100]);
    assert_eq!(backoffs(Some(1))[..2], [10, 10], "the first delay is never shortened");
    assert_eq!(backoff(StackSpec::default()).backoff_after(1_000_000).as_secs(), 86400);
}

#[test]
fn the_spec_and_the_reason_determine_the_delay_after_a_failure() {
    let plain = backoff(StackSpec::default());
    let paced = backoff(StackSpec { retry_interval: Some("20s".to_owned()), ..StackSpec::default() });
    let often = backoff(StackSpec { interval: Some("5m".to_owned()), ..StackSpec::default() });
    let impatient = backoff(StackSpec { retry_on_update_conflict: Some(false), ..StackSpec::default() });
    let (failure, conflict) = (update_reason::UPDATE_FAILED, update_reason::UPDATE_CONFLICT);
    let rows = [
        ("a failure", plain, failed(failure, 3), 90),
        ("many failures", plain, failed(failure, 99), 86_400),
        ("with a retryInterval", paced, failed(failure, 99), 20),
        ("a failure within an interval", often, failed(failure, 2), 30),
        ("many failures within an interval", often, failed(failure, 99), 300),
        ("an unavailable backend", plain, failed(update_reason::BACKEND_UNAVAILABLE, 2), 30),
        ("a backend that stays unavailable", plain, failed(update_reason::BACKEND_UNAVAILABLE, 99), 300),
        ("an invalid token", plain, failed(update_reason::INVALID_ACCESS_TOKEN, 1), 600),
        ("an invalid token within an interval", often, failed(update_reason::INVALID_ACCESS_TOKEN, 99), 600),
        ("an invalid token, with a retryInterval", paced, failed(update_reason::INVALID_ACCESS_TOKEN, 1), 20),
        ("a lock", plain, failed(conflict, 2), 30),
        ("a lock, with a retryInterval", paced, failed(conflict, 0), 30),
        ("a lock that counts as a failure", impatient, failed(conflict, 3), 90),
        ("could not start", plain, failed(update_reason::RUN_REFUSED, 99), 60),
        ("interrupted", plain, failed(update_reason::ABORTED, 99), 0),
    ];
    for (name, backoff, last, wait) in rows {
        assert_eq!(backoff.delay_after(&last).as_secs(), wait, "{name}");
    }
}

#[test]
fn stacks_wait_for_a_rate_limit_and_then_do_not_retry_together() {
    let limited = |name: &str, failures, seconds| LastUpdate {
        name: Some(name.to_owned()),
        retry_after_seconds: Some(seconds),
        ..failed(update_reason::UPDATE_FAILED, failures)
    };
    let paced = backoff(StackSpec { retry_interval: Some("20s".to_owned()), ..StackSpec::default() });
    for (seconds, latest) in [(60, 90), (2400, 3000)] {
        let delays: Vec<i64> =
            (0..30).map(|number| paced.delay_after(&limited(&format!("web-{number}"), 1, seconds)).as_secs()).collect();
        assert!(delays.iter().all(|delay| (seconds..=latest).contains(delay)), "{delays:?}");
        let distinct: std::collections::BTreeSet<_> = delays.iter().map(|delay| delay / 2).collect();
        assert!(distinct.len() > 8, "{delays:?}");
    }
    let last = limited("web", 99, 60);
    assert_eq!(paced.delay_after(&last), paced.delay_after(&last), "each reconciliation computes the same delay");
    assert_eq!(backoff(StackSpec::default()).delay_after(&last).as_secs(), 86_400, "the backoff is longer");
}

#[test]
fn delays_after_lock_conflicts_increase_up_to_five_minutes() {
    let waits: Vec<i64> = (0..8).chain([i64::MAX]).map(|n| delay_after_conflicts(n).as_secs()).collect();
    assert_eq!(waits, [30, 30, 60, 120, 240, 300, 300, 300, 300]);
}

#[test]
fn a_destroy_ignores_the_interval() {
    let spec = StackSpec { interval: Some("5m".to_owned()), ..StackSpec::default() };
    let mut stack = Stack::new("app", spec);
    stack.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    let backoff = StackBackoff::of_stack(&stack);
    let wait = |failures| backoff.delay_after(&failed(update_reason::UPDATE_FAILED, failures)).as_secs();
    assert_eq!([1, 2, 4, 8, 99].map(wait), [10, 30, 270, 21_870, 86_400]);
    assert!(backoff.resync.is_none());
}

#[test]
fn delays_after_interruptions_increase_up_to_five_minutes() {
    let pauses: Vec<i64> = (0..9).map(|n| delay_after_interruptions(n).as_secs()).collect();
    assert_eq!(pauses, [0, 0, 10, 30, 90, 300, 300, 300, 300]);
}

#[test]
fn interval_jitter_is_bounded_and_constant_for_each_run() {
    let hourly = StackSpec { interval: Some("1h".to_owned()), ..StackSpec::default() };
    let after = |name: &str| LastUpdate { name: Some(name.to_owned()), ..LastUpdate::default() };
    let jitter = |percentage: u8, spec: &StackSpec, name: &str| {
        StackBackoff::of(spec).with_jitter(percentage, spec, Some(&after(name))).jitter.as_secs()
    };
    let all: Vec<i64> = (0..200).map(|run| jitter(5, &hourly, &format!("app-{run}"))).collect();
    let (least, most) = (all.iter().min().copied(), all.iter().max().copied());
    assert!(least >= Some(-180) && least < Some(-150), "{least:?}");
    assert!(most <= Some(180) && most > Some(150), "{most:?}");
    assert_eq!(all[7], jitter(5, &hourly, "app-7"));
    assert_eq!(jitter(0, &hourly, "app-7"), 0, "jitter is disabled");
    assert_eq!(
        StackBackoff::of(&hourly).with_jitter(5, &hourly, None).jitter,
        SignedDuration::ZERO,
        "the jitter is zero before the first run"
    );
    let operators = StackSpec { continue_resync_on_commit_match: Some(true), ..StackSpec::default() };
    assert_eq!(jitter(5, &operators, "app-7"), 0, "resyncFrequencySeconds has no jitter");
}

proptest! {
    #[test]
    fn interval_jitter_depends_on_the_name_and_stays_within_its_percentage(
        seconds in 1..=u32::MAX,
        percentage in 0..100_u8,
        name in "[a-z0-9-]{1,63}",
        failures in 0..9_i64,
    ) {
        let spec = StackSpec { interval: Some(format!("{seconds}s")), ..StackSpec::default() };
        let last = LastUpdate { name: Some(name), ..LastUpdate::default() };
        let jitter = StackBackoff::of(&spec).with_jitter(percentage, &spec, Some(&last)).jitter;
        let most = i128::from(seconds) * 1000 * i128::from(percentage) / 100;
        prop_assert!(jitter.as_millis().abs() <= most, "got {jitter:?}, expected at most {most} ms");
        let pause = SignedDuration::from_secs(i64::from(seconds)) + jitter;
        prop_assert!(pause.is_positive(), "the delay must be positive");
        let later = LastUpdate { inputs: RunInputs { generation: failures, ..last.inputs.clone() }, failures, ..last };
        prop_assert_eq!(StackBackoff::of(&spec).with_jitter(percentage, &spec, Some(&later)).jitter, jitter);
    }
}
