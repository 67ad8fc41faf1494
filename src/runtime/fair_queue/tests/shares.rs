//! Tests for namespace weights and limits, and for the order in which namespaces get slots.

use super::*;

fn weighted(uid: &str, namespace: &str, weight: usize) -> Run {
    Run { share: Share { limit: None, weight }, ..run(uid, namespace, "n") }
}

#[test]
fn a_namespace_gets_slots_in_proportion_to_its_weight() {
    // Columns: the number of slots, the namespace weights, and the number of slots that each namespace uses while all
    // namespaces have queued runs.
    let rows = [
        (12, vec![1, 1, 1], vec![4, 4, 4]),
        (12, vec![2, 1, 1], vec![6, 3, 3]),
        (12, vec![3, 1], vec![9, 3]),
        (10, vec![4, 1], vec![8, 2]),
        (2, vec![100, 1], vec![1, 1]),
    ];
    for (all, weights, expected) in rows {
        let now = Instant::now();
        let mut queue = queue(all, all, all);
        let busy: Vec<Run> = (0..all).map(|number| run(&format!("busy{number}"), "busy", "n")).collect();
        busy.iter().for_each(|run| queue.adopt(run, now));
        for (number, weight) in weights.iter().enumerate() {
            for index in 0..all {
                let asking = weighted(&format!("{number}-{index:02}"), &number.to_string(), *weight);
                assert!(queue.request(&asking, asking.uid.clone(), now).is_err());
            }
        }
        busy.iter().for_each(|run| queue.close(&run.uid, now));
        let taken = queue.taken_slots();
        let found: Vec<usize> = (0..weights.len()).map(|number| taken.in_namespace(&number.to_string())).collect();
        assert_eq!(found, expected, "{all} slots, weights {weights:?}");
    }
}

#[test]
fn a_namespace_with_a_higher_weight_leaves_fewer_slots_for_other_namespaces() {
    for (weight, expected) in [(1, 5), (2, 7), (4, 8), (100, 10)] {
        let mut queue = queue(10, 5, 10);
        let share = Share { limit: Some(10), weight };
        let asking = (0..10).map(|number| Run { share, ..run(&number.to_string(), "a", "n") });
        let started = asking.filter(|run| queue.request(run, run.uid.clone(), Instant::now()).is_ok());
        assert_eq!(started.count(), expected, "weight {weight}");
    }
}

#[test]
fn an_administrator_raises_or_lowers_the_limit_of_a_namespace() {
    for (limit, expected) in [(None, 2), (Some(1), 1), (Some(3), 3)] {
        let mut queue = queue(8, 2, 8);
        let asking = |uid: usize| Run { share: Share { limit, weight: 1 }, ..run(&uid.to_string(), "a", "n") };
        for uid in 0..expected {
            assert_eq!(queue.request(&asking(uid), String::new(), Instant::now()), Ok(()), "{limit:?}");
        }
        let full = Full::Namespace { name: "a".to_owned(), limit: expected, is_annotated: limit.is_some() };
        assert_eq!(queue.request(&asking(9), String::new(), Instant::now()), Err(full));
    }
}

#[test]
fn the_latest_share_of_a_namespace_applies_to_all_its_queued_runs() {
    let now = Instant::now();
    let mut queue = queue(2, 2, 2);
    let limited = |uid: &str, limit| Run { share: Share { limit, weight: 1 }, ..run(uid, "a", "n") };
    assert_eq!(queue.request(&limited("1", Some(1)), String::new(), now), Ok(()));
    assert!(queue.request(&limited("2", Some(1)), "2".to_owned(), now).is_err());
    assert_eq!(queue.next_requeue(now), None);
    assert!(queue.request(&limited("3", None), "3".to_owned(), now).is_err(), "run 2 is the next run");
    assert_eq!(queue.next_requeue(now).as_deref(), Some("2"));
}

#[test]
fn the_run_of_a_newer_revision_takes_the_place_of_a_queued_run() {
    let now = Instant::now();
    let mut queue = queue(1, 1, 1);
    queue.adopt(&run("open", "z", "n"), now);
    let since = |uid: &str, second| Run { pending_since: at(second), ..run(uid, "a", "n") };
    for asking in [since("revision-1", 10), since("other", 20)] {
        assert!(queue.request(&asking, asking.uid.clone(), now).is_err());
    }
    queue.withdraw("revision-1", now);
    let newer = Run { workspace: "revision-1".to_owned(), ..since("revision-2", 10) };
    assert!(queue.request(&newer, newer.uid.clone(), now).is_err());
    queue.close("open", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("revision-2"), "the Stack keeps its pending time");
}

#[test]
fn a_namespace_keeps_its_turn_while_its_only_run_is_replaced() {
    let now = Instant::now();
    let mut queue = queue(1, 1, 1);
    queue.adopt(&run("open", "z", "n"), now);
    for asking in [run("a1", "a", "n"), run("b1", "b", "n"), run("b2", "b", "n")] {
        assert!(queue.request(&asking, asking.uid.clone(), now).is_err());
    }
    // Namespace a receives a commit before each free slot.
    queue.withdraw("a1", now);
    assert!(queue.request(&run("a2", "a", "n"), "a2".to_owned(), now).is_err());
    queue.close("open", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("a2"));
}

#[test]
fn the_number_of_recorded_namespaces_is_bounded() {
    let now = Instant::now();
    let mut queue = queue(1, 1, 1);
    queue.adopt(&run("open", "z", "n"), now);
    for number in 0..10_000 {
        let asking = run("asking", &format!("namespace-{number}"), "n");
        assert!(queue.request(&asking, String::new(), now).is_err());
        queue.withdraw("asking", now);
    }
    assert!(queue.queue.recorded() <= 3 * 1024, "{} namespaces", queue.queue.recorded());
}

proptest! {
    /// Regardless of the weights, no namespace with queued runs waits forever.
    #[test]
    fn each_namespace_gets_slots(weights in proptest::collection::vec(1..5_usize, 2..5), all in 1..6_usize) {
        let now = Instant::now();
        let mut queue = queue(all, all, all);
        let mut started = vec![0; weights.len()];
        let mut open: Vec<Run> = Vec::new();
        let asking = |namespace: usize, number: usize| {
            weighted(&format!("{namespace}-{number:04}"), &namespace.to_string(), weights[namespace])
        };
        let mut queued = BTreeMap::new();
        for (namespace, number) in (0..weights.len()).flat_map(|namespace| (0..200).map(move |number| (namespace, number))) {
            let run = asking(namespace, number);
            match queue.request(&run, run.uid.clone(), now) {
                Ok(()) => open.push(run),
                Err(_) => drop(queued.insert(run.uid.clone(), (namespace, run))),
            }
        }
        for _ in 0..100 {
            queue.close(&open.remove(0).uid, now);
            let next = queue.next_requeue(now).unwrap();
            let (namespace, run) = queued.remove(&next).unwrap();
            prop_assert_eq!(queue.request(&run, next, now), Ok(()));
            open.push(run);
            started[namespace] += 1;
        }
        prop_assert!(started.iter().all(|count| *count > 0), "{started:?}");
    }
}
