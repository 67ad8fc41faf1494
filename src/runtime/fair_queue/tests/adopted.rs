//! Tests for runs that started before this process or in another shard.

use super::*;

/// Adopts `count` runs of a namespace on the node `one`.
fn adopt(queue: &mut FairQueue<String>, namespace: &str, count: usize, share: Share) {
    for number in 0..count {
        let uid = format!("adopted-{namespace}-{number:02}");
        queue.adopt(&Run { share, ..run(&uid, namespace, "one") }, Instant::now());
    }
}

#[test]
fn surplus_runs_of_a_namespace_take_no_slots_from_other_namespaces() {
    let on_node = |name: &str| Full::ReservedOnNode { name: name.to_owned() };
    let full_node = || Full::Node { name: "one".to_owned(), limit: 6 };
    let full = || Full::All { limit: 10 };
    // Columns: the numbers of adopted runs of the namespaces a and b, the number of runs of the namespace c that start
    // on the same node, and the number of runs of the namespace d that then start on another node.
    let rows = [
        ((0, 0), (3, on_node("one")), (3, on_node("two"))),
        ((3, 0), (2, on_node("one")), (3, on_node("two"))),
        ((5, 0), (2, on_node("one")), (2, Full::Reserved)),
        ((40, 0), (2, on_node("one")), (2, Full::Reserved)),
        ((40, 40), (1, full_node()), (1, full())),
        ((40, 2), (1, full_node()), (1, Full::Reserved)),
    ];
    for ((a, b), on_same_node, on_other_node) in rows {
        let mut queue = queue(10, 5, 6);
        adopt(&mut queue, "a", a, Share::default());
        adopt(&mut queue, "b", b, Share::default());
        assert_eq!(fill(&mut queue, "c", "one"), on_same_node, "{a} and {b} adopted runs");
        assert_eq!(fill(&mut queue, "d", "two"), on_other_node, "{a} and {b} adopted runs");
    }
}

#[test]
fn a_namespace_with_surplus_runs_waits_until_the_surplus_has_ended() {
    let now = Instant::now();
    let mut queue = queue(10, 5, 10);
    adopt(&mut queue, "a", 7, Share::default());
    let of_namespace = Full::Namespace { name: "a".to_owned(), limit: 5, is_annotated: false };
    assert_eq!(queue.request(&run("a1", "a", "one"), "a1".to_owned(), now), Err(of_namespace));
    for number in 0..2 {
        queue.close(&format!("adopted-a-{number:02}"), now);
        assert_eq!(queue.next_requeue(now), None, "{number}");
    }
    queue.close("adopted-a-02", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("a1"));
}

#[test]
fn the_share_of_a_namespace_determines_how_many_adopted_runs_count() {
    let share = |limit, weight| Share { limit, weight };
    // Columns: the share of a namespace with 40 adopted runs, and the number of runs that another namespace can start.
    let rows = [
        (share(None, 1), (3, Full::Reserved)),
        (share(Some(2), 1), (4, Full::Reserved)),
        (share(Some(10), 1), (3, Full::Reserved)),
        (share(Some(10), 3), (1, Full::Reserved)),
        (share(Some(10), 100), (0, Full::All { limit: 10 })),
        (share(None, 100), (3, Full::Reserved)),
    ];
    for (share, expected) in rows {
        let mut queue = queue(10, 5, 10);
        adopt(&mut queue, "a", 40, share);
        assert_eq!(fill(&mut queue, "b", "two"), expected, "{share:?}");
    }
}

#[test]
fn all_adopted_runs_count_if_the_flags_reserve_no_slots() {
    let mut queue = queue(4, 4, 9);
    adopt(&mut queue, "a", 3, Share::default());
    assert_eq!(fill(&mut queue, "b", "one"), (1, Full::All { limit: 4 }));
}

/// An administrator can lower the limit of a namespace while its runs are open. These runs are not surplus runs.
#[test]
fn open_runs_keep_the_share_with_which_they_started() {
    let now = Instant::now();
    let mut queue = queue(4, 2, 4);
    let with = |uid: &str, limit, weight| Run { share: Share { limit: Some(limit), weight }, ..run(uid, "a", "one") };
    for uid in ["a1", "a2", "a3", "a4"] {
        assert_eq!(queue.request(&with(uid, 4, 100), String::new(), now), Ok(()));
    }
    assert!(queue.request(&with("a5", 1, 1), "a5".to_owned(), now).is_err());
    assert_eq!(queue.request(&run("b1", "b", "two"), "b1".to_owned(), now), Err(Full::All { limit: 4 }));
}

#[test]
fn a_reserved_run_counts_with_the_latest_share_of_its_namespace() {
    let now = Instant::now();
    let mut queue = queue(3, 2, 3);
    adopt(&mut queue, "z", 1, Share::default());
    let with = |uid: &str, limit| Run { share: Share { limit: Some(limit), weight: 100 }, ..run(uid, "a", "one") };
    assert_eq!(queue.request(&with("a1", 1), String::new(), now), Ok(()));
    assert!(queue.request(&with("a2", 1), "a2".to_owned(), now).is_err());
    // The new limit permits the queued run a2, which has requested its slot with the previous limit.
    assert!(queue.request(&with("a3", 3), "a3".to_owned(), now).is_err());
    assert_eq!(queue.next_requeue(now).as_deref(), Some("a2"));
    assert_eq!(queue.request(&run("b1", "b", "two"), "b1".to_owned(), now), Err(Full::All { limit: 3 }));
}

proptest! {
    /// Regardless of the shares and of the order of the events, all runs that the queue has started count.
    #[test]
    fn a_run_to_which_the_queue_has_granted_a_slot_is_never_a_surplus_run(
        events in proptest::collection::vec((0..4_u8, any::<bool>(), 1..9_usize, 1..6_usize, 0..16_usize), 1..80),
        all in 1..12_usize, each_namespace in 1..12_usize, each_node in 1..9_usize,
    ) {
        let now = Instant::now();
        let mut queue = queue(all, each_namespace, each_node);
        for (number, (namespace, is_first, limit, weight, ended)) in events.into_iter().enumerate() {
            let (share, node) = (Share { limit: Some(limit), weight }, if is_first { "one" } else { "two" });
            let asking = Run { share, ..run(&format!("{number:03}"), &namespace.to_string(), node) };
            if queue.request(&asking, asking.uid.clone(), now).is_err() {
                queue.withdraw(&asking.uid, now);
            }
            let mut open: Vec<String> = queue.open.keys().cloned().collect();
            open.sort();
            if let Some(ended) = open.get(ended) {
                queue.close(ended, now);
            }
            let taken = queue.taken_slots();
            prop_assert_eq!(taken.all, queue.open.len());
            let on_nodes = ["one", "two"].map(|node| queue.open.values().filter(|open| open.run.node == node).count());
            prop_assert_eq!([taken.on_node("one"), taken.on_node("two")], on_nodes);
        }
    }

    /// One namespace can have any number of adopted runs. Another namespace can then start as many runs as if the first
    /// namespace had acquired all its slots in the queue.
    #[test]
    fn surplus_runs_never_reduce_the_slots_of_another_namespace(
        all in 2..20_usize, each_node in 1..20_usize, weight in 1..9_usize, surplus in 0..40_usize,
    ) {
        let each_namespace = all - 1;
        let share = Share { limit: None, weight };
        let started = |adopted: usize| {
            let mut queue = queue(all, each_namespace, each_node);
            let mut number = 0;
            let mut asks = true;
            while asks {
                let asking = Run { share, ..run(&format!("a{number:02}"), "a", "one") };
                asks = queue.request(&asking, String::new(), Instant::now()).is_ok();
                number += 1;
            }
            adopt(&mut queue, "a", adopted, share);
            fill(&mut queue, "b", "one").0
        };
        prop_assert_eq!(started(surplus), started(0));
    }
}
