//! The gate for runs: who gets in, who waits, who is woken.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;

use crate::runtime::runs::RunGate;
use crate::telemetry::metrics::Metrics;

fn gate(limit: usize) -> RunGate<&'static str> {
    RunGate::new(limit, Metrics::default())
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_woken_one_for_each_place_and_in_their_order() {
    let gate = gate(2);
    let mut wakes = pin!(gate.wakes());
    let (a, b) = (gate.acquire("a", "a").unwrap(), gate.acquire("b", "b").unwrap());
    for uid in ["c", "d", "c", "e"] {
        assert!(gate.acquire(uid, uid).is_none());
    }
    let idle = tokio::time::timeout(Duration::from_secs(60), wakes.next());
    assert!(idle.await.is_err(), "nobody is woken while there is no place");

    drop(a);
    assert_eq!(wakes.next().await, Some("c"));
    assert!(gate.acquire("d", "d").is_none(), "the place is kept for the one that was woken");
    assert!(gate.acquire("new", "new").is_none());
    let c = gate.acquire("c", "c").expect("its place was kept");
    drop((b, c));
    assert_eq!(wakes.next().await, Some("d"));
    assert_eq!(wakes.next().await, Some("e"));
}

#[tokio::test(start_paused = true)]
async fn the_place_of_one_that_does_not_come_goes_to_the_next() {
    let gate = gate(1);
    let mut wakes = pin!(gate.wakes());
    let a = gate.acquire("a", "a").unwrap();
    assert!(gate.acquire("gone", "gone").is_none() && gate.acquire("next", "next").is_none());
    drop(a);
    assert_eq!(wakes.next().await, Some("gone"));
    assert_eq!(wakes.next().await, Some("next"), "after a while");
    assert!(gate.acquire("next", "next").is_some());
}

#[tokio::test(start_paused = true)]
async fn one_that_withdraws_is_passed_over_at_once() {
    let gate = gate(1);
    let mut wakes = pin!(gate.wakes());
    let a = gate.acquire("a", "a").unwrap();
    for uid in ["b", "c", "d"] {
        assert!(gate.acquire(uid, uid).is_none());
    }
    gate.withdraw("b");
    drop(a);
    assert_eq!(wakes.next().await, Some("c"));
    gate.withdraw("c");
    let at_once = tokio::time::timeout(Duration::from_millis(1), wakes.next());
    assert_eq!(at_once.await, Ok(Some("d")));
}

#[tokio::test]
async fn runs_from_before_a_restart_count_but_are_never_refused() {
    let gate = gate(2);
    let adopted: Vec<_> = ["a", "b", "c"].map(|uid| gate.adopt(uid)).into();
    assert!(gate.acquire("d", "d").is_none());
    let mut adopted = adopted.into_iter();
    drop(adopted.next());
    assert!(gate.acquire("d", "d").is_none(), "still as many as are allowed");
    drop(adopted.next());
    assert!(gate.acquire("d", "d").is_some());
}

#[tokio::test]
async fn two_permits_of_one_run_take_one_place() {
    let gate = gate(1);
    let first = gate.acquire("a", "a").unwrap();
    let second = gate.acquire("a", "a").expect("it is open");
    drop(first);
    assert!(gate.acquire("b", "b").is_none());
    drop(second);
    assert!(gate.acquire("b", "b").is_some());
}

#[tokio::test]
async fn the_numbers_are_shown() {
    let metrics = Metrics::default();
    let gate = RunGate::new(1, metrics.clone());
    let _a = gate.acquire("a", ()).unwrap();
    assert!(gate.acquire("b", ()).is_none());
    let text = metrics.encode().unwrap();
    assert!(text.contains("runs_open 1\n") && text.contains("runs_waiting 1\n"), "{text}");
}
