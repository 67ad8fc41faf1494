//! Tests for the runs that the limiter starts, queues and requeues.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};

use crate::runtime::fair_queue::estimate::Estimate;
use crate::runtime::run_limiter::{Limits, Run, RunLimiter, SlotWait};
use crate::telemetry::metrics::Metrics;

fn run_limiter(limit: usize) -> RunLimiter<&'static str> {
    RunLimiter::new(limits(limit), Metrics::default())
}

fn limits(limit: usize) -> Limits {
    Limits { all: limit, each_namespace: limit, each_node: limit + 1 }
}

fn run(uid: &str) -> Run {
    Run {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        workspace: uid.to_owned(),
        node: "node".to_owned(),
        pending_since: Timestamp::UNIX_EPOCH,
        ..Run::default()
    }
}

#[tokio::test(start_paused = true)]
async fn one_queued_run_is_requeued_for_each_free_slot_in_order() {
    let run_limiter = run_limiter(2);
    let mut requeues = pin!(run_limiter.requeues());
    let (a, b) = (run_limiter.acquire(&run("a"), "a").unwrap(), run_limiter.acquire(&run("b"), "b").unwrap());
    for uid in ["c", "d", "c", "e"] {
        assert!(run_limiter.acquire(&run(uid), uid).is_err());
    }
    let idle = tokio::time::timeout(Duration::from_secs(60), requeues.next());
    assert!(idle.await.is_err(), "no run is requeued without a free slot");

    drop(a);
    assert_eq!(requeues.next().await, Some("c"));
    assert!(run_limiter.acquire(&run("d"), "d").is_err(), "the slot is reserved for the requeued run");
    assert!(run_limiter.acquire(&run("new"), "new").is_err());
    let c = run_limiter.acquire(&run("c"), "c").expect("reserved slot");
    drop((b, c));
    assert_eq!(requeues.next().await, Some("d"));
    assert_eq!(requeues.next().await, Some("e"));
}

#[tokio::test(start_paused = true)]
async fn the_next_run_gets_an_unclaimed_slot_after_a_timeout() {
    let run_limiter = run_limiter(1);
    let mut requeues = pin!(run_limiter.requeues());
    let a = run_limiter.acquire(&run("a"), "a").unwrap();
    assert!(run_limiter.acquire(&run("gone"), "gone").is_err() && run_limiter.acquire(&run("next"), "next").is_err());
    drop(a);
    assert_eq!(requeues.next().await, Some("gone"));
    assert_eq!(requeues.next().await, Some("next"), "after the reservation has expired");
    assert!(run_limiter.acquire(&run("next"), "next").is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_run_is_skipped_immediately() {
    let run_limiter = run_limiter(1);
    let mut requeues = pin!(run_limiter.requeues());
    let a = run_limiter.acquire(&run("a"), "a").unwrap();
    for uid in ["b", "c", "d"] {
        assert!(run_limiter.acquire(&run(uid), uid).is_err());
    }
    run_limiter.withdraw("b");
    drop(a);
    assert_eq!(requeues.next().await, Some("c"));
    run_limiter.withdraw("c");
    let at_once = tokio::time::timeout(Duration::from_millis(1), requeues.next());
    assert_eq!(at_once.await, Ok(Some("d")));
}

#[tokio::test(start_paused = true)]
async fn runs_that_are_no_longer_needed_lose_their_place_but_open_runs_keep_their_slots() {
    let run_limiter = run_limiter(2);
    let mut requeues = pin!(run_limiter.requeues());
    let (open, ends) = (run_limiter.acquire(&run("open"), "open").unwrap(), run_limiter.adopt(&run("ends")));
    for uid in ["a", "b", "c"] {
        assert!(run_limiter.acquire(&run(uid), uid).is_err());
    }
    drop(ends);
    assert_eq!(requeues.next().await, Some("a"));
    run_limiter.retain(|uid| uid == "c");
    let at_once = tokio::time::timeout(Duration::from_millis(1), requeues.next());
    assert_eq!(at_once.await, Ok(Some("c")), "neither the reserved run a nor the queued run b");
    let _c = run_limiter.acquire(&run("c"), "c").expect("reserved slot");
    assert!(run_limiter.acquire(&run("next"), "next").is_err(), "the open run still has its slot");
    drop(open);
    assert_eq!(requeues.next().await, Some("next"), "no other run is queued");
}

#[tokio::test]
async fn adopted_runs_count_toward_the_limit_but_are_never_rejected() {
    let run_limiter = run_limiter(2);
    let adopted: Vec<_> = ["a", "b", "c"].map(|uid| run_limiter.adopt(&run(uid))).into();
    assert!(run_limiter.acquire(&run("d"), "d").is_err());
    let mut adopted = adopted.into_iter();
    drop(adopted.next());
    assert!(run_limiter.acquire(&run("d"), "d").is_err(), "the limit still applies");
    drop(adopted.next());
    assert!(run_limiter.acquire(&run("d"), "d").is_ok());
}

#[tokio::test]
async fn two_permits_of_one_run_use_one_slot() {
    let run_limiter = run_limiter(1);
    let first = run_limiter.acquire(&run("a"), "a").unwrap();
    let second = run_limiter.acquire(&run("a"), "a").expect("run slot");
    drop(first);
    assert!(run_limiter.acquire(&run("b"), "b").is_err());
    drop(second);
    assert!(run_limiter.acquire(&run("b"), "b").is_ok());
}

#[tokio::test]
async fn a_run_that_moves_before_its_binding_uses_the_slot_of_its_new_node() {
    let run_limiter = RunLimiter::new(Limits { all: 3, each_namespace: 3, each_node: 1 }, Metrics::default());
    let on = |uid: &str, node: &str| Run { node: node.to_owned(), ..run(uid) };
    let _open = run_limiter.acquire(&on("open", "two"), "open").unwrap();
    drop(run_limiter.acquire(&on("moves", "one"), "moves").unwrap());
    assert!(run_limiter.acquire(&on("moves", "two"), "moves").is_err(), "the new node has no free slot");
    assert!(run_limiter.acquire(&on("next", "one"), "next").is_ok(), "the slot of the previous node is free");
}

#[tokio::test]
async fn the_message_of_a_queued_run_contains_its_estimated_start() {
    let run_limiter = run_limiter(1);
    let half_an_hour = SignedDuration::from_mins(30);
    let open = Run { expected: Some(half_an_hour), started: Some(Timestamp::now()), ..run("open") };
    let _permit = run_limiter.adopt(&open);
    let first = run_limiter.acquire(&run("first"), "first").unwrap_err();
    let start = first.wait.estimate.and_then(|estimate| estimate.start).expect("the duration is known");
    let wait = start.duration_since(Timestamp::now());
    assert!((half_an_hour - wait).abs() <= SignedDuration::from_mins(1), "{wait:?}");
    assert!(first.wait.to_string().contains("(--max-concurrent-runs-per-namespace); estimated start at "), "{first:?}");
    let second = run_limiter.acquire(&run("second"), "second").unwrap_err();
    let text = second.wait.to_string();
    assert!(text.ends_with("; 1 run of this namespace is ahead"), "its duration is unknown: {text}");
    assert_eq!(run_limiter.acquire(&run("first"), "first").unwrap_err(), first, "the message does not change");
}

#[tokio::test]
async fn a_run_waits_for_the_forecast_reason_and_keeps_the_displayed_estimate() {
    let run_limiter = run_limiter(1);
    assert_eq!(run_limiter.forecast(&run("first")), None, "a slot is free");
    let open = run_limiter.acquire(&run("open"), "open").expect("the forecast reserves no slot");
    let forecast = run_limiter.forecast(&run("new")).expect("no slot is free");
    assert_eq!(run_limiter.wait_of("new"), None, "the forecast does not queue the run");
    let displayed = SlotWait { estimate: forecast.estimate.map(|made| Estimate { ahead: 3, ..made }), ..forecast };
    run_limiter.record_displayed("new", displayed.estimate.expect("few runs are queued"));
    assert_eq!(run_limiter.acquire(&run("new"), "new").unwrap_err().wait.reason, displayed.reason);
    assert_eq!(run_limiter.wait_of("new").map(|wait| wait.to_string()), Some(displayed.to_string()));
    drop(open);
    assert_eq!(run_limiter.wait_of("new"), None, "the run may start");
}

#[tokio::test]
async fn open_and_waiting_runs_are_exported_as_metrics() {
    let metrics = Metrics::default();
    let run_limiter = RunLimiter::new(limits(1), metrics.clone());
    let _a = run_limiter.acquire(&run("a"), ()).unwrap();
    assert!(run_limiter.acquire(&run("b"), ()).is_err());
    let text = metrics.encode().unwrap();
    assert!(text.contains("runs_open 1\n") && text.contains("runs_waiting 1\n"), "{text}");
    for line in ["run_slots 1", r#"run_slots_used{namespace="team"} 1"#, r#"runs_queued{namespace="team"} 1"#] {
        assert!(text.contains(&format!("pulumi_controller_{line}\n")), "no {line} in\n{text}");
    }
}

#[tokio::test]
async fn a_namespace_without_runs_has_no_metrics() {
    let metrics = Metrics::default();
    let run_limiter = RunLimiter::new(limits(1), metrics.clone());
    drop(run_limiter.acquire(&run("a"), ()).unwrap());
    assert!(!metrics.encode().unwrap().contains(r#"{namespace="team"}"#));
    drop(run_limiter);
    assert!(metrics.encode().unwrap().contains("pulumi_controller_run_slots 1\n"), "the limiter is gone");
}
