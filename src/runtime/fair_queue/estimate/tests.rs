//! Tests of the displayed estimates.

use super::*;

/// Returns a time in minutes.
fn minute(minutes: i64) -> Timestamp {
    Timestamp::from_second(minutes * 60).unwrap()
}

fn estimate(made: i64, start: Option<i64>, ahead: usize) -> Estimate {
    Estimate { ahead, start: start.map(minute), is_near: false, made: minute(made) }
}

#[test]
fn the_message_contains_the_position_and_the_start_in_minutes() {
    let rows = [
        (estimate(0, None, 0), ""),
        (estimate(0, None, 1), "; 1 run of this namespace is ahead"),
        (estimate(0, Some(65), 0), "; estimated start at 01:05 UTC"),
        (estimate(0, Some(65), 3), "; 3 runs of this namespace are ahead; estimated start at 01:05 UTC"),
        (estimate(0, Some(12 * 60), 0), "; estimated start at 1970-01-01 12:00 UTC"),
    ];
    for (estimate, expected) in rows {
        assert_eq!(estimate.to_string(), expected);
    }
}

#[test]
fn only_a_considerably_different_estimate_is_displayed() {
    let rows = [
        ("5 minutes later", estimate(0, Some(20), 1), estimate(5, Some(25), 1), false),
        ("6 minutes later", estimate(0, Some(20), 1), estimate(5, Some(26), 1), true),
        ("6 minutes earlier", estimate(0, Some(20), 1), estimate(5, Some(14), 1), true),
        ("a quarter of a long time", estimate(0, Some(200), 1), estimate(0, Some(240), 1), false),
        ("more than a quarter of a long time", estimate(0, Some(200), 1), estimate(0, Some(280), 1), true),
        ("another position", estimate(0, Some(20), 9), estimate(5, Some(20), 1), false),
        ("the start is no longer known", estimate(0, Some(20), 1), estimate(5, None, 1), true),
        ("the start is known", estimate(0, None, 1), estimate(5, Some(20), 1), true),
        ("a few runs less, without a start", estimate(0, None, 9), estimate(5, None, 5), false),
        ("half of the runs, without a start", estimate(0, None, 9), estimate(5, None, 4), true),
        ("the next run, without a start", estimate(0, None, 1), estimate(5, None, 0), true),
        ("still the next run, without a start", estimate(0, None, 0), estimate(5, None, 0), false),
        ("the start has passed", estimate(0, Some(4), 1), estimate(5, Some(6), 1), true),
    ];
    for (name, before, new, is_displayed) in rows {
        let mut estimates = Estimates::default();
        assert_eq!(estimates.display("a", Some(before)), Some(before), "{name}");
        let expected = if is_displayed { new } else { before };
        assert_eq!(estimates.display("a", Some(new)), Some(expected), "{name}");
        assert_eq!(estimates.display("a", None), Some(expected), "{name}: no new estimate");
    }
}

#[test]
fn an_estimate_is_computed_at_most_every_four_minutes() {
    let mut estimates = Estimates::default();
    assert!(estimates.is_outdated("a", minute(0)));
    estimates.display("a", Some(estimate(0, Some(30), 1)));
    assert!(!estimates.is_outdated("a", minute(3)) && estimates.is_outdated("a", minute(4)));
    estimates.display("a", Some(estimate(4, Some(31), 1)));
    assert!(!estimates.is_outdated("a", minute(7)), "the estimate was computed, but is not displayed");
    estimates.forget("a");
    assert_eq!(estimates.display("a", None), None);
    estimates.display("b", Some(estimate(0, Some(2), 1)));
    assert!(estimates.is_outdated("b", minute(2)), "the start has passed");
}

#[test]
fn an_estimate_near_the_head_of_the_queue_is_computed_more_often() {
    let rows = [
        ("first run of the namespace", is_near(0, 1), 1, 1),
        ("the second estimate", is_near(0, 1), 2, 2),
        ("the last estimate", is_near(0, 1), MAX_DISPLAYED, 4),
        ("tenth run", is_near(9, 64), 1, 1),
        ("eleventh run", is_near(10, 64), 1, 4),
        ("many queued runs", is_near(0, 65), 1, 4),
    ];
    for (name, is_near, count, expected) in rows {
        assert_eq!(interval(is_near, count), expected, "{name}");
    }
    let mut estimates = Estimates::default();
    assert_eq!(estimates.requeue_interval("a"), Duration::from_secs(300));
    estimates.display("a", Some(estimate(0, Some(30), 20)));
    assert_eq!(estimates.requeue_interval("a"), Duration::from_secs(300));
    let near = Estimate { is_near: true, ..estimate(4, Some(31), 9) };
    let displayed = estimates.display("a", Some(near)).unwrap();
    assert_eq!(displayed.to_string(), estimate(0, Some(30), 20).to_string(), "the message does not change");
    assert_eq!(estimates.requeue_interval("a"), Duration::from_secs(75));
    assert!(!estimates.is_outdated("a", minute(4)) && estimates.is_outdated("a", minute(5)));
}

#[test]
fn the_number_of_displayed_estimates_of_a_run_is_limited() {
    let mut estimates = Estimates::default();
    let mut displayed = Vec::new();
    for step in 0..100 {
        let (made, start) = (step * 5, step * 5 + 20 + (step % 2) * 30);
        displayed.extend(estimates.display("a", Some(estimate(made, Some(start), 1))));
    }
    displayed.dedup_by_key(|estimate| estimate.start);
    let expected = usize::try_from(MAX_DISPLAYED).unwrap();
    assert!(displayed.len() <= expected + 1, "{displayed:?}");
    let last = displayed.last().copied();
    assert_eq!(last.and_then(|estimate| estimate.start), None, "the last start has passed, so it is removed");
}

#[test]
fn the_number_of_recorded_estimates_is_limited() {
    let mut estimates = Estimates::default();
    for number in 0..2 * MAX_RECORDED {
        estimates.display(&number.to_string(), Some(estimate(0, Some(30), 1)));
    }
    assert_eq!(estimates.0.len(), MAX_RECORDED);
    assert!(estimates.display("new", Some(estimate(61, Some(90), 1))).is_some(), "old estimates are removed");
    assert_eq!(estimates.0.len(), 1);
}
