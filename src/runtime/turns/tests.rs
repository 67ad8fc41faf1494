//! Whose turn it is: tables for the order, and what holds for any sequence of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn run(uid: &str, namespace: &str, node: &str) -> Run {
    Run { uid: uid.to_owned(), namespace: namespace.to_owned(), node: node.to_owned() }
}

fn turns(all: usize, each_node: usize) -> Turns<String> {
    Turns::new(Limits { all, each_node })
}

/// Ends a run and opens the next one whose turn it is, again and again; says who was opened, in order.
fn opened_in_turn(turns: &mut Turns<String>, runs: &BTreeMap<String, Run>, first: &str, now: Instant) -> Vec<String> {
    let mut order = Vec::new();
    let mut ended = first.to_owned();
    loop {
        turns.close(&ended, now);
        let Some(next) = turns.next_wake(now) else { return order };
        assert_eq!(turns.ask(&runs[&next], next.clone(), now), Ok(()), "its place was kept");
        order.push(next.clone());
        ended = next;
    }
}

#[test]
fn namespaces_take_turns_and_each_has_its_own_order() {
    let now = Instant::now();
    let mut turns = turns(1, 1);
    let asked = [("a0", "a"), ("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")];
    let runs: BTreeMap<_, _> = asked.map(|(uid, namespace)| (uid.to_owned(), run(uid, namespace, "n"))).into();
    for (uid, _) in asked {
        let answer = turns.ask(&runs[uid], uid.to_owned(), now);
        assert_eq!(answer.is_ok(), uid == "a0", "{uid}: {answer:?}");
    }
    assert_eq!(opened_in_turn(&mut turns, &runs, "a0", now), ["a1", "b1", "c1", "a2", "b2", "a3"]);
}

#[test]
fn one_that_comes_late_does_not_wait_behind_all_of_a_large_namespace() {
    let now = Instant::now();
    let mut turns = turns(1, 1);
    let mut runs: BTreeMap<_, _> =
        (0..40).map(|n| format!("a{n:02}")).map(|uid| (uid.clone(), run(&uid, "a", "n"))).collect();
    for (uid, run) in &runs {
        let _ = turns.ask(run, uid.clone(), now);
    }
    runs.insert("b".to_owned(), run("b", "b", "n"));
    assert!(turns.ask(&runs["b"], "b".to_owned(), now).is_err());
    assert_eq!(opened_in_turn(&mut turns, &runs, "a00", now)[..3], ["a01", "b", "a02"]);
}

#[test]
fn a_node_that_is_full_does_not_keep_others_from_theirs() {
    let now = Instant::now();
    let mut turns = turns(3, 1);
    assert_eq!(turns.ask(&run("a1", "a", "one"), String::new(), now), Ok(()));
    let full = Full::Node { name: "one".to_owned(), limit: 1 };
    assert_eq!(turns.ask(&run("a2", "a", "one"), "a2".to_owned(), now), Err(full));
    assert_eq!(turns.ask(&run("a3", "a", "two"), String::new(), now), Ok(()));
    assert_eq!(turns.ask(&run("a4", "a", "three"), String::new(), now), Ok(()));
    assert_eq!(turns.ask(&run("a5", "a", "four"), "a5".to_owned(), now), Err(Full::All { limit: 3 }));
    turns.close("a3", now);
    assert_eq!(turns.next_wake(now).as_deref(), Some("a5"), "a2 is before it, but its node is full");
    turns.close("a1", now);
    assert_eq!(turns.next_wake(now).as_deref(), Some("a2"));
}

#[test]
fn one_that_was_woken_and_is_on_another_node_now_keeps_its_turn_but_not_its_place() {
    let now = Instant::now();
    let mut turns = turns(2, 1);
    turns.adopt(&run("first", "a", "one"), now);
    turns.adopt(&run("second", "a", "two"), now);
    assert!(turns.ask(&run("moves", "a", "one"), "moves".to_owned(), now).is_err());
    assert!(turns.ask(&run("stays", "a", "one"), "stays".to_owned(), now).is_err());
    turns.close("first", now);
    assert_eq!(turns.next_wake(now).as_deref(), Some("moves"));
    assert!(turns.ask(&run("moves", "a", "two"), "moves".to_owned(), now).is_err());
    assert_eq!(turns.next_wake(now).as_deref(), Some("stays"), "the place on its old node is free");
    assert!(turns.ask(&run("last", "a", "two"), "last".to_owned(), now).is_err());
    turns.close("second", now);
    assert_eq!(turns.next_wake(now).as_deref(), Some("moves"));
}

#[test]
fn the_words_name_the_limit_and_not_the_moment() {
    let node = |limit| Full::Node { name: "n1".to_owned(), limit };
    for (full, words) in [
        (Full::All { limit: 10 }, "waits for its turn: 10 runs may be open at once"),
        (Full::All { limit: 1 }, "waits for its turn: one run may be open at once"),
        (node(4), "waits for its turn: 4 runs may be open at once on node n1"),
        (node(1), "waits for its turn: one run may be open at once on node n1"),
    ] {
        assert_eq!(full.to_string(), words);
    }
}

/// Something that happens to the run of a number.
#[derive(Clone, Debug)]
enum Event {
    Ask(u8),
    Close(u8),
    Withdraw(u8),
    Wake,
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => any::<u8>().prop_map(Event::Ask),
        3 => any::<u8>().prop_map(Event::Close),
        1 => any::<u8>().prop_map(Event::Withdraw),
        2 => Just(Event::Wake),
        1 => (0..40_u64).prop_map(Event::Pass),
    ];
    proptest::collection::vec(event, 0..120)
}

/// Twenty-four runs in three namespaces on two nodes.
fn numbered(number: u8) -> Run {
    let number = number % 24;
    run(&format!("{number:02}"), &format!("namespace{}", number % 3), &format!("node{}", number % 2))
}

fn check(turns: &Turns<String>) -> Result<(), TestCaseError> {
    prop_assert!(turns.taken() <= turns.limits.all);
    for node in ["node0", "node1"] {
        prop_assert!(turns.taken_on(node) <= turns.limits.each_node, "{node}");
    }
    for (waiting, _) in turns.waiting.values() {
        let is_full = turns.taken() == turns.limits.all || turns.taken_on(&waiting.node) == turns.limits.each_node;
        prop_assert!(is_full, "{waiting:?} waits beside a free place");
        prop_assert!(!turns.open.contains_key(&waiting.uid) && !turns.kept.contains_key(&waiting.uid));
    }
    let found: BTreeSet<&Turn> = turns.turns.values().collect();
    prop_assert_eq!(found, turns.waiting.keys().collect::<BTreeSet<_>>());
    Ok(())
}

proptest! {
    #[test]
    fn limits_hold_places_are_used_everybody_gets_in_and_nothing_is_left(
        events in events(), all in 1..6_usize, each_node in 1..4_usize,
    ) {
        let mut turns = turns(all, each_node);
        let mut now = Instant::now();
        let mut permits: BTreeMap<String, usize> = BTreeMap::new();
        for event in events {
            match event {
                Event::Ask(number) => {
                    let run = numbered(number);
                    if turns.ask(&run, run.uid.clone(), now).is_ok() {
                        *permits.entry(run.uid).or_default() += 1;
                    }
                }
                Event::Close(number) => {
                    if let Some(count) = permits.get_mut(&numbered(number).uid).filter(|count| **count > 0) {
                        *count -= 1;
                        turns.close(&numbered(number).uid, now);
                    }
                }
                Event::Withdraw(number) => turns.withdraw(&numbered(number).uid, now),
                Event::Wake => drop(turns.next_wake(now)),
                Event::Pass(seconds) => now += Duration::from_secs(seconds),
            }
            turns.grant(now);
            check(&turns)?;
        }
        // Whoever waits comes in, once those who are open end and places that nobody came for are given away.
        let mut waiting: BTreeSet<String> = turns.turns.keys().cloned().collect();
        while turns.waiting() > 0 || turns.taken() > 0 {
            for (uid, count) in std::mem::take(&mut permits) {
                (0..count).for_each(|_| turns.close(&uid, now));
            }
            while let Some(woken) = turns.next_wake(now) {
                let run = numbered(woken.parse().unwrap());
                prop_assert_eq!(turns.ask(&run, woken.clone(), now), Ok(()));
                waiting.remove(&woken);
                permits.insert(woken, 1);
            }
            now += PLACE_KEPT;
        }
        prop_assert!(waiting.is_empty(), "never woken: {waiting:?}");
        prop_assert!(turns.open.is_empty() && turns.kept.is_empty() && turns.turns.is_empty());
    }

    #[test]
    fn one_that_waits_is_passed_by_few_who_came_later(order in proptest::collection::vec((0..4_u8, any::<bool>()), 1..80)) {
        let now = Instant::now();
        let mut turns = turns(1, 1);
        turns.adopt(&run("open", "z", "n"), now);
        let mut open = "open".to_owned();
        // For each that waits: its namespace, how many of it are before it, and by how many later ones it was passed.
        let mut waiting: BTreeMap<String, (u8, usize, usize)> = BTreeMap::new();
        for (number, (namespace, end)) in order.into_iter().enumerate() {
            let uid = format!("{number:03}");
            let before = waiting.values().filter(|(other, ..)| *other == namespace).count();
            prop_assert!(turns.ask(&run(&uid, &namespace.to_string(), "n"), uid.clone(), now).is_err());
            waiting.insert(uid, (namespace, before, 0));
            if end {
                turns.close(&open, now);
                open = turns.next_wake(now).unwrap();
                let (namespace, before, passed) = waiting.remove(&open).unwrap();
                prop_assert!(passed <= before * 3, "{open} had {before} before it and was passed by {passed}");
                prop_assert_eq!(turns.ask(&run(&open, &namespace.to_string(), "n"), open.clone(), now), Ok(()));
                waiting.range_mut(..open.clone()).for_each(|(_, (_, _, passed))| *passed += 1);
            }
        }
    }
}
