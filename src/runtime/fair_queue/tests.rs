//! Tests for the order of runs: table tests, and property tests with arbitrary event sequences.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

mod adopted;
mod groups;
mod shares;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn run(uid: &str, namespace: &str, node: &str) -> Run {
    Run {
        uid: uid.to_owned(),
        namespace: namespace.to_owned(),
        workspace: uid.to_owned(),
        node: node.to_owned(),
        pending_since: at(0),
        ..Run::default()
    }
}

fn queue(all: usize, each_namespace: usize, each_node: usize) -> FairQueue<String> {
    FairQueue::new(Limits { all, each_namespace, each_node })
}

/// Repeatedly completes a run and starts the next run. Returns the runs in the order in which they started.
fn started_in_turn(
    queue: &mut FairQueue<String>,
    runs: &BTreeMap<String, Run>,
    first: &str,
    now: Instant,
) -> Vec<String> {
    let mut order = Vec::new();
    let mut ended = first.to_owned();
    loop {
        queue.close(&ended, now);
        let Some(next) = queue.next_requeue(now) else { return order };
        assert_eq!(queue.request(&runs[&next], next.clone(), now), Ok(()), "the slot is reserved for this run");
        order.push(next.clone());
        ended = next;
    }
}

/// Returns the order in which queued runs start. Initially, the only slot is in use.
fn order(requests: &[Run]) -> Vec<String> {
    let now = Instant::now();
    let mut queue = queue(1, 1, 1);
    let first = run("first", "first", "n");
    queue.adopt(&first, now);
    for run in requests {
        assert!(queue.request(run, run.uid.clone(), now).is_err());
    }
    let runs = requests.iter().map(|run| (run.uid.clone(), run.clone())).collect();
    started_in_turn(&mut queue, &runs, "first", now)
}

#[test]
fn namespaces_take_turns_and_their_runs_keep_their_order() {
    let requests = [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")];
    let requests = requests.map(|(uid, namespace)| run(uid, namespace, "n"));
    assert_eq!(order(&requests), ["a1", "b1", "c1", "a2", "b2", "a3"]);
}

#[test]
fn runs_are_ordered_by_priority_and_then_by_pending_time() {
    let queued = |uid: &str, namespace, priority, pending_since| Run {
        priority,
        pending_since: at(pending_since),
        ..run(uid, namespace, "n")
    };
    let requests = [
        queued("late", "a", 0, 30),
        queued("early", "a", 0, 10),
        queued("low", "a", -1, 0),
        queued("urgent-late", "a", 5, 40),
        queued("urgent", "a", 5, 20),
    ];
    assert_eq!(order(&requests), ["urgent", "urgent-late", "early", "late", "low"]);
    // The priority and the pending time do not affect the order in which different namespaces get slots.
    let requests = [queued("other", "b", 0, 50), requests[3].clone(), requests[4].clone(), requests[1].clone()];
    assert_eq!(order(&requests), ["other", "urgent", "urgent-late", "early"]);
}

#[test]
fn only_runs_that_wait_for_a_slot_have_an_age() {
    let now = Instant::now();
    let oldest = |requests: &[Run]| {
        let mut queue = queue(1, 1, 1);
        queue.adopt(&Run { group: Some(local("g", "a", 1)), ..run("open", "a", "n") }, now);
        for run in requests {
            assert!(queue.request(run, run.uid.clone(), now).is_err());
        }
        queue.uses().oldest
    };
    let created =
        |uid: &str, pending, created| Run { pending_since: at(pending), created: at(created), ..run(uid, "a", "n") };
    let background = Run { is_background: true, ..created("drift", 1, 1) };
    let in_full_group = Run { group: Some(local("g", "a", 1)), ..created("grouped", 1, 1) };
    assert_eq!(oldest(&[]), None);
    assert_eq!(oldest(std::slice::from_ref(&background)), None);
    assert_eq!(oldest(std::slice::from_ref(&in_full_group)), None);
    assert_eq!(oldest(&[background, in_full_group, created("b", 20, 10), created("c", 30, 10)]), Some(at(20)));
    assert_eq!(oldest(&[created("forged", -5000, 10)]), Some(at(10)), "not before the creation");
}

#[test]
fn a_new_namespace_does_not_wait_behind_all_runs_of_another() {
    let many = (0..40).map(|n| run(&format!("a{n:02}"), "a", "n")).chain([run("b", "b", "n")]);
    assert_eq!(order(&many.collect::<Vec<_>>())[..3], ["a00", "b", "a01"]);
}

#[test]
fn the_namespace_with_the_fewest_open_runs_is_served_first() {
    let now = Instant::now();
    let mut queue = queue(5, 4, 6);
    for uid in ["a1", "a2", "a3"] {
        assert_eq!(queue.request(&run(uid, "a", "n"), String::new(), now), Ok(()));
    }
    assert_eq!(queue.request(&run("b1", "b", "n"), String::new(), now), Ok(()));
    for (uid, namespace) in [("a4", "a"), ("b2", "b"), ("b3", "b")] {
        assert!(queue.request(&run(uid, namespace, "n"), uid.to_owned(), now).is_err());
    }
    queue.close("a1", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("b2"), "namespace a has two slots, b has one");
    queue.close("a2", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("a4"), "namespace a has one slot, b has two");
}

#[test]
fn a_namespace_is_limited_even_while_slots_are_free() {
    let now = Instant::now();
    let mut queue = queue(4, 2, 4);
    assert_eq!(queue.request(&run("a1", "a", "n"), String::new(), now), Ok(()));
    assert_eq!(queue.request(&run("a2", "a", "n"), String::new(), now), Ok(()));
    let full = Full::Namespace { name: "a".to_owned(), limit: 2, is_annotated: false };
    assert_eq!(queue.request(&run("a3", "a", "n"), "a3".to_owned(), now), Err(full));
    assert_eq!(queue.request(&run("b1", "b", "n"), String::new(), now), Ok(()), "another namespace has a free slot");
    queue.close("a1", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("a3"));
}

#[test]
fn a_run_that_several_limits_delay_reports_the_limit_with_the_smallest_scope() {
    let now = Instant::now();
    let mut queue = queue(2, 1, 2);
    for (uid, namespace) in [("a1", "a"), ("b1", "b")] {
        assert_eq!(queue.request(&run(uid, namespace, "n"), String::new(), now), Ok(()));
    }
    let of_namespace = Full::Namespace { name: "a".to_owned(), limit: 1, is_annotated: false };
    assert_eq!(queue.request(&run("a2", "a", "n"), String::new(), now), Err(of_namespace));
    let of_node = Full::Node { name: "n".to_owned(), limit: 2 };
    assert_eq!(queue.request(&run("c1", "c", "n"), String::new(), now), Err(of_node));
    assert_eq!(queue.request(&run("c2", "c", "m"), String::new(), now), Err(Full::All { limit: 2 }));
}

/// Starts runs of `namespace` on a node until a run must wait. Returns the number of started runs and the reason for
/// the wait.
fn fill(queue: &mut FairQueue<String>, namespace: &str, node: &str) -> (usize, Full) {
    let mut started = 0;
    loop {
        let uid = format!("{namespace}-{node}-{started}");
        match queue.request(&run(&uid, namespace, node), uid, Instant::now()) {
            Ok(()) => started += 1,
            Err(full) => return (started, full),
        }
    }
}

#[test]
fn a_namespace_uses_at_most_half_of_the_free_slots_of_a_node() {
    let on_node = || Full::ReservedOnNode { name: "one".to_owned() };
    let full = |limit| Full::Node { name: "one".to_owned(), limit };
    for (each_node, expected) in [
        (1, vec![(1, full(1)), (0, full(1))]),
        (2, vec![(1, on_node()), (1, full(2)), (0, full(2))]),
        (4, vec![(2, on_node()), (1, on_node()), (1, full(4))]),
        (6, vec![(3, on_node()), (2, on_node()), (1, full(6))]),
        (8, vec![(4, on_node()), (2, on_node()), (1, on_node()), (1, full(8))]),
    ] {
        let mut queue = queue(100, 50, each_node);
        let started: Vec<_> =
            (0..expected.len()).map(|number| fill(&mut queue, &format!("ns{number}"), "one")).collect();
        assert_eq!(started, expected, "{each_node} slots for each node");
    }
}

#[test]
fn a_namespace_uses_at_most_half_of_all_free_slots() {
    let mut queue = queue(8, 5, 100);
    assert_eq!(fill(&mut queue, "a", "one"), (4, Full::Reserved));
    assert_eq!(fill(&mut queue, "b", "two"), (2, Full::Reserved));
    assert_eq!(fill(&mut queue, "c", "one"), (1, Full::Reserved));
    assert_eq!(fill(&mut queue, "d", "one"), (1, Full::All { limit: 8 }));
}

#[test]
fn one_namespace_can_use_all_slots_if_the_limits_allow_it() {
    let namespace = |limit| Full::Namespace { name: "a".to_owned(), limit, is_annotated: false };
    assert_eq!(fill(&mut queue(4, 4, 9), "a", "one"), (4, namespace(4)));
    assert_eq!(fill(&mut queue(9, 9, 4), "a", "one"), (4, Full::Node { name: "one".to_owned(), limit: 4 }));
}

#[test]
fn a_run_starts_when_enough_slots_are_free_for_other_namespaces() {
    let now = Instant::now();
    let mut queue = queue(10, 5, 4);
    for (uid, namespace) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        assert_eq!(queue.request(&run(uid, namespace, "one"), String::new(), now), Ok(()));
    }
    let reserved = Full::ReservedOnNode { name: "one".to_owned() };
    for (uid, namespace) in [("a3", "a"), ("b2", "b")] {
        assert_eq!(queue.request(&run(uid, namespace, "one"), uid.to_owned(), now), Err(reserved.clone()));
    }
    assert_eq!(queue.request(&run("a4", "a", "two"), String::new(), now), Ok(()), "another node");
    assert_eq!(queue.request(&run("c1", "c", "one"), String::new(), now), Ok(()), "a third namespace");
    queue.close("c1", now);
    assert_eq!(queue.next_requeue(now), None, "both namespaces still have runs on the node");
    queue.close("a2", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("b2"), "b has one run on the node, and two slots are free");
}

#[test]
fn a_full_node_does_not_delay_runs_on_other_nodes() {
    let now = Instant::now();
    let mut queue = queue(3, 3, 1);
    assert_eq!(queue.request(&run("a1", "a", "one"), String::new(), now), Ok(()));
    let full = Full::Node { name: "one".to_owned(), limit: 1 };
    assert_eq!(queue.request(&run("a2", "a", "one"), "a2".to_owned(), now), Err(full));
    assert_eq!(queue.request(&run("a3", "a", "two"), String::new(), now), Ok(()));
    assert_eq!(queue.request(&run("b4", "b", "three"), String::new(), now), Ok(()));
    assert_eq!(queue.request(&run("b5", "b", "four"), "b5".to_owned(), now), Err(Full::All { limit: 3 }));
    queue.close("a3", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("b5"), "a2 is ahead in the queue, but its node is full");
    queue.close("a1", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("a2"));
}

#[test]
fn a_requeued_run_on_another_node_keeps_its_position_but_not_its_slot() {
    let now = Instant::now();
    let mut queue = queue(2, 2, 1);
    queue.adopt(&run("first", "a", "one"), now);
    queue.adopt(&run("second", "a", "two"), now);
    let moves = |node| Run { pending_since: at(-1), ..run("moves", "a", node) };
    assert!(queue.request(&moves("one"), "moves".to_owned(), now).is_err());
    assert!(queue.request(&run("stays", "a", "one"), "stays".to_owned(), now).is_err());
    queue.close("first", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("moves"));
    assert!(queue.request(&moves("two"), "moves".to_owned(), now).is_err());
    assert_eq!(queue.next_requeue(now).as_deref(), Some("stays"), "the slot on the previous node is free");
    assert!(queue.request(&run("last", "a", "two"), "last".to_owned(), now).is_err());
    queue.close("second", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("moves"));
}

#[test]
fn changing_the_priority_moves_a_queued_run() {
    let now = Instant::now();
    let mut queue = queue(1, 1, 1);
    queue.adopt(&run("open", "a", "n"), now);
    assert!(queue.request(&run("one", "a", "n"), "one".to_owned(), now).is_err());
    assert!(queue.request(&run("two", "a", "n"), "two".to_owned(), now).is_err());
    assert!(queue.request(&Run { priority: 1, ..run("two", "a", "n") }, "two".to_owned(), now).is_err());
    assert_eq!(queue.queued(), 2);
    queue.close("open", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("two"));
}

/// Event. The number in `Ask`, `Close` and `Withdraw` selects a run, and the number in `Pass` is the number of seconds
/// by which the time advances.
#[derive(Clone, Debug)]
enum Event {
    Ask(u8),
    Close(u8),
    Withdraw(u8),
    Requeue,
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => any::<u8>().prop_map(Event::Ask),
        3 => any::<u8>().prop_map(Event::Close),
        1 => any::<u8>().prop_map(Event::Withdraw),
        2 => Just(Event::Requeue),
        1 => (0..40_u64).prop_map(Event::Pass),
    ];
    proptest::collection::vec(event, 0..120)
}

/// Returns one of 24 runs in three namespaces on two nodes. Half of the runs have a group: one of two groups in their
/// namespace, or a shared group.
fn numbered(number: u8) -> Run {
    let number = number % 24;
    let (priority, pending_since) = (i32::from(number % 5) - 2, at(i64::from(number % 7)));
    let run = run(&format!("{number:02}"), &format!("namespace{}", number % 3), &format!("node{}", number % 2));
    let group = match number / 3 {
        0 | 1 => Some(local("g", &run.namespace, 1)),
        2 => Some(local("h", &run.namespace, 1 + usize::from(number % 2))),
        3 => Some(shared("g", 2)),
        _ => None,
    };
    Run { priority, pending_since, group, ..run }
}

fn local(name: &str, namespace: &str, limit: usize) -> Group {
    Group { key: GroupKey { namespace: Some(namespace.to_owned()), name: name.to_owned() }, limit }
}

fn shared(name: &str, limit: usize) -> Group {
    Group { key: GroupKey { namespace: None, name: name.to_owned() }, limit }
}

fn is_group_full(queue: &FairQueue<String>, run: &Run) -> bool {
    let taken = queue.taken_slots();
    let key = run.group.as_ref().map(|group| &group.key);
    key.is_some_and(|key| taken.full_group(key, queue.queue.group_limit(key)).is_some())
}

/// Returns the groups that have more open runs than the limit of one of these runs permits.
fn exceeded_groups(queue: &FairQueue<String>) -> Vec<&GroupKey> {
    let groups: Vec<&Group> = queue.open_runs().filter_map(|run| run.group.as_ref()).collect();
    let open = |key: &GroupKey| groups.iter().filter(|group| group.key == *key).count();
    groups.iter().filter(|group| open(&group.key) > group.limit).map(|group| &group.key).collect()
}

fn check(queue: &FairQueue<String>) -> Result<(), TestCaseError> {
    let (taken, limits) = (queue.taken_slots(), &queue.limits);
    prop_assert!(taken.all <= limits.all);
    prop_assert_eq!(taken.all, queue.open_runs().count(), "granted slots of no run are surplus");
    for node in ["node0", "node1"] {
        prop_assert!(taken.on_node(node) <= limits.each_node, "{node}");
        prop_assert_eq!(taken.on_node(node), queue.open_runs().filter(|run| run.node == node).count(), "{}", node);
        for namespace in ["namespace0", "namespace1", "namespace2"] {
            prop_assert!(taken.in_namespace(namespace) <= limits.each_namespace, "{namespace}");
            let half = limits.each_node.div_ceil(2);
            let leaves_half = limits.each_namespace >= limits.all || taken.of_both(namespace, node) <= half;
            prop_assert!(leaves_half, "{namespace} uses more than half of the slots of {node}");
        }
    }
    for queued in queue.queue.runs() {
        let has_slot = taken.has_free_slot(&queued.namespace, &queued.node, queued.share, limits);
        let is_full = taken.all == limits.all || !has_slot || is_group_full(queue, queued);
        prop_assert!(is_full, "{queued:?} waits despite a free slot");
        prop_assert!(!queue.open.contains_key(&queued.uid) && !queue.reserved.contains_key(&queued.uid));
    }
    prop_assert!(exceeded_groups(queue).is_empty(), "{:?}", exceeded_groups(queue));
    prop_assert!(queue.queue.is_consistent());
    Ok(())
}

/// Returns the namespaces with a run that could start in an additional free slot, and the number of slots that each
/// namespace uses.
fn eligible(queue: &FairQueue<String>) -> BTreeMap<String, usize> {
    let taken = queue.taken_slots();
    let queued = queue.queue.runs().filter(|run| {
        taken.has_free_slot(&run.namespace, &run.node, run.share, &queue.limits) && !is_group_full(queue, run)
    });
    queued.map(|run| (run.namespace.clone(), taken.in_namespace(&run.namespace))).collect()
}

proptest! {
    #[test]
    fn all_queued_runs_start_without_exceeding_a_limit(
        events in events(), all in 1..6_usize, each_namespace in 1..4_usize, each_node in 1..4_usize,
    ) {
        let mut queue = queue(all, each_namespace, each_node);
        let mut now = Instant::now();
        let mut permits: BTreeMap<String, usize> = BTreeMap::new();
        for event in events {
            match event {
                Event::Ask(number) => {
                    let run = numbered(number);
                    let is_new = queue.queue.get(&run.uid).is_none() && queue.open_runs().all(|open| open.uid != run.uid);
                    let forecast = is_new.then(|| queue.wait_of_new(&run).is_none());
                    let is_granted = queue.request(&run, run.uid.clone(), now).is_ok();
                    prop_assert_eq!(forecast.unwrap_or(is_granted), is_granted, "{:?}", run);
                    prop_assert_eq!(queue.wait_of(&run.uid).is_none(), is_granted);
                    if is_granted {
                        *permits.entry(run.uid).or_default() += 1;
                    }
                }
                Event::Close(number) => {
                    if let Some(count) = permits.get_mut(&numbered(number).uid).filter(|count| **count > 0) {
                        *count -= 1;
                        queue.close(&numbered(number).uid, now);
                    }
                }
                Event::Withdraw(number) => queue.withdraw(&numbered(number).uid, now),
                Event::Requeue => drop(queue.next_requeue(now)),
                Event::Pass(seconds) => now += Duration::from_secs(seconds),
            }
            queue.reserve(now);
            check(&queue)?;
        }
        // When all open runs have completed and the unused reservations have expired, each queued run starts.
        let mut queued: BTreeSet<String> = queue.queue.runs().map(|run| run.uid.clone()).collect();
        while queue.queued() > 0 || queue.open_runs().next().is_some() {
            for (uid, count) in std::mem::take(&mut permits) {
                (0..count).for_each(|_| queue.close(&uid, now));
            }
            while let Some(requeued) = queue.next_requeue(now) {
                let run = numbered(requeued.parse().unwrap());
                prop_assert_eq!(queue.request(&run, requeued.clone(), now), Ok(()));
                queued.remove(&requeued);
                permits.insert(requeued, 1);
            }
            now += RESERVATION;
        }
        prop_assert!(queued.is_empty(), "never requeued: {queued:?}");
        prop_assert!(queue.open.is_empty() && queue.reserved.is_empty() && queue.queue.is_consistent());
    }

    /// Regardless of the runs and their priorities, a namespace with the fewest slots gets the next slot.
    #[test]
    fn a_free_slot_is_given_to_a_namespace_with_the_fewest_slots(
        requests in proptest::collection::vec(any::<u8>(), 1..60), ends in proptest::collection::vec(any::<u8>(), 1..60),
        all in 1..6_usize, each_namespace in 1..6_usize,
    ) {
        let now = Instant::now();
        let mut queue = queue(all, each_namespace, all + 1);
        let numbered = |number: u8| Run { group: None, ..numbered(number) };
        for number in requests {
            let run = numbered(number);
            if !queue.open.contains_key(&run.uid) {
                let _ = queue.request(&run, run.uid.clone(), now);
            }
        }
        for end in ends {
            let mut open: Vec<String> = queue.open.keys().cloned().collect();
            open.sort();
            let Some(ended) = open.get(usize::from(end) % open.len().max(1)).cloned() else { break };
            // The test reproduces the state within `close`, where the slot is free but not reserved yet.
            queue.open.remove(&ended);
            let before = eligible(&queue);
            queue.close(&ended, now);
            let Some(next) = queue.next_requeue(now) else { continue };
            let next = numbered(next.parse().unwrap());
            let fewest = before.values().min().copied();
            prop_assert_eq!(before.get(&next.namespace).copied(), fewest, "{} of {:?}", next.namespace, before);
            let first = queue.queue.runs().filter(|run| run.namespace == next.namespace && run.node == next.node);
            let overtaken =
                first.filter(|run| (-run.priority, run.pending_since) < (-next.priority, next.pending_since));
            prop_assert_eq!(overtaken.count(), 0, "within a namespace, priority and time define the order");
            prop_assert_eq!(queue.request(&next, next.uid.clone(), now), Ok(()));
        }
    }

    /// While a namespace waits for the only slot, each other namespace gets the slot at most once.
    #[test]
    fn a_queued_namespace_waits_at_most_once_for_each_other_namespace(
        order in proptest::collection::vec((0..4_u8, any::<bool>(), -2..3_i32), 1..80),
    ) {
        let now = Instant::now();
        let mut queue = queue(1, 1, 1);
        queue.adopt(&run("open", "z", "n"), now);
        let mut open = "open".to_owned();
        let mut runs: BTreeMap<String, Run> = BTreeMap::new();
        // For each namespace with queued runs, the other namespaces that have received a slot while the namespace
        // waited.
        let mut passed_by: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (number, (namespace, end, priority)) in order.into_iter().enumerate() {
            let (uid, namespace) = (format!("{number:03}"), namespace.to_string());
            let asking = Run { priority, ..run(&uid, &namespace, "n") };
            prop_assert!(queue.request(&asking, uid.clone(), now).is_err());
            runs.insert(uid, asking);
            passed_by.entry(namespace).or_default();
            if !end {
                continue;
            }
            queue.close(&open, now);
            open = queue.next_requeue(now).unwrap();
            let served = runs.remove(&open).unwrap();
            prop_assert_eq!(queue.request(&served, open.clone(), now), Ok(()));
            passed_by.values_mut().for_each(|passed| passed.push(served.namespace.clone()));
            passed_by.insert(served.namespace.clone(), Vec::new());
            passed_by.retain(|namespace, _| runs.values().any(|run| run.namespace == *namespace));
            for (namespace, passed) in &passed_by {
                let once: BTreeSet<&String> = passed.iter().collect();
                prop_assert_eq!(once.len(), passed.len(), "{} was overtaken by {:?}", namespace, passed);
            }
        }
    }
}
