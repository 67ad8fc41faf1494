//! Tests of concurrency groups.

use super::*;

fn grouped(uid: &str, namespace: &str, group: Group) -> Run {
    Run { group: Some(group), ..run(uid, namespace, "n") }
}

fn request(queue: &mut FairQueue<String>, run: &Run) -> Result<(), Full> {
    queue.request(run, run.uid.clone(), Instant::now())
}

#[test]
fn the_runs_of_a_group_are_limited_and_do_not_block_other_runs() {
    let mut queue = queue(5, 5, 5);
    let member = |uid: &str| grouped(uid, "a", local("state", "a", 1));
    assert_eq!(request(&mut queue, &member("a1")), Ok(()));
    let full = Full::Group { name: "state".to_owned(), limit: 1, is_shared: false };
    assert_eq!(request(&mut queue, &member("a2")), Err(full.clone()));
    assert_eq!(request(&mut queue, &member("a3")), Err(full));
    assert_eq!(request(&mut queue, &run("a4", "a", "n")), Ok(()), "a run without a group");
    assert_eq!(request(&mut queue, &grouped("a5", "a", local("other", "a", 1))), Ok(()), "a run of another group");
    assert_eq!(request(&mut queue, &grouped("b1", "b", local("state", "b", 1))), Ok(()), "another namespace");
    assert_eq!(queue.open(), 4, "the waiting runs hold no slot");
    queue.close("a1", Instant::now());
    assert_eq!(queue.next_requeue(Instant::now()).as_deref(), Some("a2"));
    assert_eq!(queue.next_requeue(Instant::now()), None, "the group has one slot");
}

#[test]
fn a_run_that_waits_for_its_group_does_not_block_lower_ranks_of_its_namespace() {
    let now = Instant::now();
    let mut queue = queue(2, 2, 2);
    let urgent = Run { priority: 100, ..grouped("urgent", "a", local("state", "a", 1)) };
    assert_eq!(request(&mut queue, &grouped("a1", "a", local("state", "a", 1))), Ok(()));
    assert_eq!(request(&mut queue, &run("a2", "a", "n")), Ok(()));
    assert!(request(&mut queue, &urgent).is_err());
    assert!(request(&mut queue, &run("a3", "a", "n")).is_err());
    queue.close("a2", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("a3"), "the group of the urgent run is full");
    queue.close("a1", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("urgent"));
}

#[test]
fn the_lowest_limit_of_the_open_and_queued_runs_applies() {
    let now = Instant::now();
    let mut queue = queue(9, 9, 9);
    let member = |uid: &str, limit| grouped(uid, "a", local("state", "a", limit));
    assert_eq!(request(&mut queue, &member("1", 3)), Ok(()));
    assert_eq!(request(&mut queue, &member("2", 3)), Ok(()));
    let full = |limit| Err(Full::Group { name: "state".to_owned(), limit, is_shared: false });
    assert_eq!(queue.wait_of_new(&member("new", 3)), None);
    assert_eq!(queue.wait_of_new(&member("alone", 1)), full(1).err(), "the limit of a run that is not queued yet");
    assert_eq!(request(&mut queue, &member("alone", 1)), full(1));
    assert_eq!(request(&mut queue, &member("3", 3)), full(1), "otherwise, the run with the limit 1 waits forever");
    queue.close("1", now);
    assert_eq!(queue.next_requeue(now), None);
    queue.close("2", now);
    // The runs have equal ranks, so their names determine the order.
    assert_eq!(queue.next_requeue(now).as_deref(), Some("3"));
    assert_eq!(queue.next_requeue(now), None, "one run at a time while the run with the limit 1 is queued");
    queue.withdraw("3", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("alone"));
}

#[test]
fn a_shared_group_limits_the_runs_of_all_its_namespaces() {
    let mut queue = queue(9, 9, 9);
    let member = |uid: &str, namespace: &str| grouped(uid, namespace, shared("aws", 2));
    assert_eq!(request(&mut queue, &member("a1", "a")), Ok(()));
    assert_eq!(request(&mut queue, &member("b1", "b")), Ok(()));
    let full = Full::Group { name: "aws".to_owned(), limit: 2, is_shared: true };
    assert_eq!(request(&mut queue, &member("c1", "c")), Err(full));
    let stranger = grouped("d1", "d", local("aws", "d", 1));
    assert_eq!(request(&mut queue, &stranger), Ok(()), "a group of one namespace with the same name");
    queue.close("a1", Instant::now());
    assert_eq!(queue.next_requeue(Instant::now()).as_deref(), Some("c1"));
}

#[test]
fn a_namespace_with_many_other_runs_gets_its_turn_in_a_shared_group() {
    let now = Instant::now();
    let mut queue = queue(9, 9, 9);
    let member = |uid: &str, namespace: &str| grouped(uid, namespace, shared("aws", 1));
    // Namespace a always has more open runs than namespace b.
    for uid in ["a1", "a2", "a3"] {
        queue.adopt(&run(uid, "a", "n"), now);
    }
    assert_eq!(request(&mut queue, &member("first", "z")), Ok(()));
    for (uid, namespace) in [("b4", "b"), ("a4", "a"), ("b5", "b"), ("b6", "b")] {
        assert!(request(&mut queue, &member(uid, namespace)).is_err());
    }
    let mut ended = "first".to_owned();
    let mut order = Vec::new();
    while order.len() < 4 {
        queue.close(&ended, now);
        ended = queue.next_requeue(now).expect("the group has a free slot");
        let namespace = if ended.starts_with('a') { "a" } else { "b" };
        assert_eq!(request(&mut queue, &member(&ended, namespace)), Ok(()));
        order.push(ended.clone());
    }
    assert_eq!(order, ["b4", "a4", "b5", "b6"]);
}

#[test]
fn runs_outside_a_shared_group_do_not_delay_the_group_in_other_namespaces() {
    let now = Instant::now();
    let mut queue = queue(1, 1, 1);
    assert_eq!(request(&mut queue, &run("open", "z", "n")), Ok(()));
    let late = Run { pending_since: at(5000), ..grouped("a-last", "a", shared("aws", 1)) };
    let _ = request(&mut queue, &late);
    let _ = request(&mut queue, &run("a0", "a", "n"));
    let _ = request(&mut queue, &grouped("b-member", "b", shared("aws", 1)));
    let mut ended = "open".to_owned();
    let mut order = Vec::new();
    for next in 1..=4 {
        queue.close(&ended, now);
        // Namespace a always has another run before its run in the group.
        let _ = request(&mut queue, &run(&format!("a{next}"), "a", "n"));
        ended = queue.next_requeue(now).expect("a free slot");
        let started = match ended.as_str() {
            "b-member" => grouped("b-member", "b", shared("aws", 1)),
            "a-last" => late.clone(),
            uid => run(uid, "a", "n"),
        };
        assert_eq!(request(&mut queue, &started), Ok(()));
        order.push(ended.clone());
    }
    assert!(order.contains(&"b-member".to_owned()), "{order:?}");
}

#[test]
fn an_open_run_keeps_its_group_after_a_restart() {
    let mut queue = queue(9, 9, 9);
    queue.adopt(&grouped("a1", "a", local("state", "a", 1)), Instant::now());
    assert!(request(&mut queue, &grouped("a2", "a", local("state", "a", 1))).is_err());
}

#[test]
fn a_reserved_slot_is_released_if_the_group_of_the_run_changes() {
    let now = Instant::now();
    let mut queue = queue(2, 2, 2);
    let member = |uid: &str| grouped(uid, "a", local("state", "a", 1));
    assert_eq!(request(&mut queue, &member("a1")), Ok(()));
    assert!(request(&mut queue, &member("a2")).is_err());
    queue.adopt(&grouped("b1", "b", shared("aws", 1)), now);
    queue.close("a1", now);
    assert_eq!(queue.next_requeue(now).as_deref(), Some("a2"));
    assert!(request(&mut queue, &grouped("a2", "a", shared("aws", 1))).is_err(), "the shared group is full");
    assert_eq!(request(&mut queue, &member("a3")), Ok(()), "the group of the namespace is free");
}

#[test]
fn the_metrics_contain_the_names_of_shared_groups_only() {
    let mut queue = queue(9, 9, 9);
    for (uid, group) in [("1", local("state", "a", 1)), ("2", local("state", "a", 1)), ("3", shared("aws", 1))] {
        let _ = request(&mut queue, &grouped(uid, "a", group));
    }
    let uses: Vec<_> = queue.uses().groups.into_iter().map(|(name, uses)| (name, uses.open, uses.queued)).collect();
    assert_eq!(uses, [("Local".to_owned(), 1, 1), ("aws".to_owned(), 1, 0)]);
}
