//! Tests of the simulated queue.

use proptest::prelude::*;

use super::*;
use crate::runtime::fair_queue::{Group, GroupKey, Limits};

fn minute(minutes: i64) -> Timestamp {
    Timestamp::from_second(minutes * 60).unwrap()
}

/// Returns a run whose expected duration is given in minutes.
fn run(uid: &str, namespace: &str, expected: Option<i64>) -> Run {
    Run {
        uid: uid.to_owned(),
        namespace: namespace.to_owned(),
        workspace: uid.to_owned(),
        node: "n".to_owned(),
        expected: expected.map(SignedDuration::from_mins),
        ..Run::default()
    }
}

fn open(uid: &str, namespace: &str, expected: Option<i64>, started: i64) -> Run {
    Run { started: Some(minute(started)), ..run(uid, namespace, expected) }
}

/// Returns the run's position and start, as estimated at minute 10 with two slots.
fn estimate(open: &[Run], queued: &[Run], target: &str) -> (usize, Option<i64>) {
    let mut queue = FairQueue::new(Limits { all: 2, each_namespace: 2, each_node: 2 });
    let now = Instant::now();
    open.iter().for_each(|run| queue.adopt(run, now));
    let target = queued.iter().find(|run| run.uid == target).expect("the target is queued");
    let mut new = None;
    for run in queued {
        if run.uid == target.uid && queued.last() == Some(run) {
            new = Some(Forecast::new(&queue, run, minute(10)).estimate());
        }
        assert!(queue.request(run, (), now).is_err(), "{run:?} waits");
    }
    let estimate = Forecast::new(&queue, target, minute(10)).estimate();
    assert_eq!(new.unwrap_or(estimate), estimate, "the forecast before the last run is queued");
    let Estimate { ahead, start, .. } = estimate;
    assert_eq!(queue.queued(), queued.len(), "the simulation does not change the queue");
    (ahead, start.map(|start| start.as_second() / 60))
}

#[test]
fn the_start_depends_on_the_runs_that_end_first() {
    let group = Some(Group { key: GroupKey { namespace: Some("a".to_owned()), name: "g".to_owned() }, limit: 1 });
    let grouped = |run: Run| Run { group: group.clone(), ..run };
    let both = [open("1", "a", Some(20), 5), open("2", "b", Some(30), 8)];
    let rows = [
        ("first slot", both.to_vec(), vec![run("x", "a", Some(5))], (0, Some(25))),
        ("second slot", both.to_vec(), vec![run("w", "a", Some(100)), run("x", "a", Some(5))], (1, Some(38))),
        ("after a queued run", both.to_vec(), vec![run("w", "a", Some(5)), run("x", "a", Some(5))], (1, Some(30))),
        ("another namespace", both.to_vec(), vec![run("v", "b", Some(5)), run("x", "a", Some(5))], (0, Some(25))),
        (
            "unknown duration",
            vec![open("1", "a", None, 5), open("2", "b", None, 8)],
            vec![run("x", "a", None)],
            (0, None),
        ),
        (
            "one unknown duration",
            vec![open("1", "a", None, 5), open("2", "b", Some(30), 8)],
            vec![run("x", "a", None)],
            (0, Some(38)),
        ),
        (
            "longer than expected",
            vec![open("1", "a", Some(1), 5), open("2", "b", Some(30), 8)],
            vec![run("x", "a", None)],
            (0, Some(11)),
        ),
        (
            "group",
            vec![open("1", "a", Some(20), 5), grouped(open("2", "a", Some(30), 8))],
            vec![grouped(run("x", "a", None))],
            (0, Some(38)),
        ),
    ];
    for (name, open, queued, expected) in rows {
        assert_eq!(estimate(&open, &queued, "x"), expected, "{name}");
    }
}

#[test]
fn a_long_queue_has_no_estimated_start() {
    let queued: Vec<Run> = (0..=MAX_QUEUED).map(|number| run(&format!("{number:04}"), "a", Some(1))).collect();
    let open = [open("1", "a", Some(20), 5), open("2", "a", Some(30), 8)];
    assert_eq!(estimate(&open, &queued, "0009"), (9, None));
    let (ahead, start) = estimate(&open, &queued[1..], "0009");
    assert!(ahead == 8 && start.is_some(), "{ahead} {start:?}");
}

proptest! {
    /// The order of the estimates equals the order in which the runs start. If each run takes exactly as long as
    /// expected, each estimate equals the actual start time.
    #[test]
    fn the_runs_start_at_their_estimates(
        durations in proptest::collection::vec((0..3_u8, 1..60_i64), 3..30), all in 1..4_usize,
    ) {
        let instant = Instant::now();
        let mut queue = FairQueue::new(Limits { all, each_namespace: all, each_node: all });
        let runs: Vec<Run> = durations.iter().enumerate().map(|(number, (namespace, duration))| {
            run(&format!("{number:03}"), &namespace.to_string(), Some(*duration))
        }).collect();
        let mut ends = BTreeSet::new();
        for run in &runs {
            if queue.request(run, run.clone(), instant).is_ok() {
                ends.insert((SignedDuration::from_mins(0) + run.expected.unwrap(), run.uid.clone()));
            }
        }
        let waiting = runs.iter().filter(|run| !ends.iter().any(|(_, open)| *open == run.uid));
        let estimates: Vec<_> = waiting.map(|run| {
            (run.uid.clone(), Forecast::new(&queue, run, Timestamp::UNIX_EPOCH).estimate().start)
        }).collect();
        let mut starts = Vec::new();
        while let Some((time, ended)) = ends.pop_first() {
            queue.close(&ended, instant);
            while let Some(next) = queue.next_requeue(instant) {
                prop_assert_eq!(queue.request(&next, next.clone(), instant), Ok(()));
                starts.push((next.uid.clone(), Timestamp::UNIX_EPOCH.checked_add(time).ok()));
                ends.insert((time + next.expected.unwrap(), next.uid));
            }
        }
        starts.sort();
        prop_assert_eq!(starts, estimates);
    }
}
