//! Tests for the order of the work queue and for its entries.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn key(name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').unwrap_or(("apps", name));
    (namespace.to_owned(), name.to_owned())
}

impl WorkQueue {
    /// Starts reconciliations until no slot is free, and returns the names of the objects.
    fn started(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.start()).map(|key| key.1.clone()).collect()
    }

    /// Ends a reconciliation without a requeue.
    fn end(&mut self, name: &str) -> Next {
        self.finish(&Arc::new(key(name)), None, Instant::now())
    }

    /// Reconciles all due objects one after another, and returns their names.
    fn drained(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(started) = self.start() {
            names.push(started.1.clone());
            if self.finish(&started, None, Instant::now()) == Next::Add {
                self.add(&started, Urgency::Normal);
            }
        }
        names
    }
}

#[test]
fn the_slots_of_a_namespace_and_all_slots_are_limited() {
    let mut queue = WorkQueue::new(3, 2);
    for name in ["a/1", "a/2", "a/3", "b/4", "b/5"] {
        queue.add(&key(name), Urgency::Normal);
    }
    assert_eq!(queue.started(), ["1", "4", "2"], "namespace a uses two slots");
    queue.add(&key("a/6"), Urgency::Urgent);
    assert_eq!(queue.started(), ["6"], "urgent objects use separate slots");
    assert_eq!(queue.end("a/6"), Next::Recorded);
    assert_eq!(queue.started(), Vec::<String>::new(), "the slot was for an urgent object");
    queue.end("a/1");
    assert_eq!(queue.started(), ["5"], "namespace a would use two slots again, but namespace b has waited");
    queue.end("b/4");
    assert_eq!(queue.started(), ["3"]);
}

#[test]
fn first_reconciliations_have_low_priority_until_the_object_is_promoted() {
    let mut queue = WorkQueue::new(1, 1);
    queue.add(&key("known"), Urgency::Normal);
    assert_eq!(queue.drained(), ["known"]);
    queue.promote(&key("promoted-before"));
    queue.promote(&key("known"));
    for name in ["first", "second", "promoted-before", "promoted-later", "known"] {
        queue.add(&key(name), Urgency::Normal);
    }
    queue.promote(&key("promoted-later"));
    assert_eq!(queue.promoted(), ["promoted-before", "promoted-later"], "no promotion after the first reconciliation");
    assert_eq!(queue.drained(), ["promoted-before", "known", "promoted-later", "first", "second"]);
    assert_eq!(queue.promoted(), Vec::<String>::new());
}

#[test]
fn urgent_objects_do_not_wait_for_queued_objects() {
    let mut queue = WorkQueue::new(1, 1);
    queue.add(&key("granted"), Urgency::Queued);
    assert_eq!(queue.drained(), ["granted"]);
    for name in ["queued-1", "queued-2", "granted"] {
        queue.add(&key(name), Urgency::Queued);
    }
    queue.add(&key("open"), Urgency::Urgent);
    queue.expedite(&key("granted"));
    queue.expedite(&key("unknown"));
    assert_eq!(queue.promoted(), ["granted"], "an unknown object is not recorded");
    assert_eq!(queue.started(), ["open", "queued-1"]);
    assert_eq!(queue.end("open"), Next::Recorded);
    assert_eq!(queue.started(), ["granted"]);
    queue.add(&key("queued-2"), Urgency::Urgent);
    queue.end("granted");
    assert_eq!(queue.started(), ["queued-2"], "the object has become urgent");
    queue.add(&key("new"), Urgency::Queued);
    queue.promote(&key("new"));
    queue.end("queued-2");
    assert_eq!(queue.started(), Vec::<String>::new(), "the first reconciliation of a queued object is not urgent");
}

#[test]
fn an_object_waits_at_most_once_and_is_never_reconciled_concurrently() {
    let mut queue = WorkQueue::new(2, 2);
    for _ in 0..3 {
        queue.add(&key("web"), Urgency::Normal);
    }
    assert_eq!(queue.started(), ["web"]);
    queue.add(&key("web"), Urgency::Urgent);
    assert_eq!(queue.started(), Vec::<String>::new(), "the reconciliation is in progress");
    assert_eq!(queue.end("web"), Next::Add, "the object was added during the reconciliation");
    queue.add(&key("web"), Urgency::Normal);
    assert_eq!(queue.drained(), ["web"]);
}

#[test]
fn delayed_objects_become_due_in_the_order_of_their_times() {
    let (mut queue, now) = (WorkQueue::new(4, 4), Instant::now());
    let seconds = Duration::from_secs;
    for (name, delay) in [("late", Some(20)), ("soon", Some(5)), ("idle", None), ("changed", Some(5))] {
        queue.add(&key(name), Urgency::Normal);
        assert_eq!(queue.started(), [name]);
        assert_eq!(queue.finish(&Arc::new(key(name)), delay.map(seconds), now), Next::Recorded);
    }
    queue.add(&key("changed"), Urgency::Normal);
    assert_eq!(queue.drained(), ["changed"], "a change does not wait for the delay");
    assert_eq!(queue.next_time(), Some(now + seconds(5)));
    assert_eq!(queue.take_due(now + seconds(4)), None);
    let mut due = |at| std::iter::from_fn(|| queue.take_due(at)).map(|key| key.1.clone()).collect::<Vec<_>>();
    assert_eq!(due(now + seconds(6)), ["soon"]);
    assert_eq!(due(now + seconds(60)), ["late"]);
    assert_eq!((queue.next_time(), queue.drained()), (None, Vec::new()), "the caller adds the due objects");
    queue.add(&key("endless"), Urgency::Normal);
    assert_eq!(queue.started(), ["endless"]);
    queue.finish(&Arc::new(key("endless")), Some(Duration::MAX), now);
    assert_eq!(queue.next_time(), Some(now + MAX_DELAY));
}

#[test]
fn a_deleted_object_leaves_no_entry() {
    let mut queue = WorkQueue::new(1, 1);
    for name in ["running", "waiting", "promoted"] {
        queue.add(&key(name), Urgency::Normal);
    }
    queue.promote(&key("promoted"));
    assert_eq!(queue.started(), ["promoted"]);
    queue.finish(&Arc::new(key("promoted")), Some(Duration::from_secs(1)), Instant::now());
    assert_eq!(queue.started(), ["running"]);
    for name in ["running", "waiting", "promoted", "unknown"] {
        queue.forget(&key(name));
    }
    assert!(!queue.has_begun(&key("running")), "a new object with this name has not been reconciled");
    assert_eq!((queue.next_time(), queue.started()), (None, Vec::new()), "the running object keeps its slot");
    queue.add(&key("running"), Urgency::Normal);
    assert_eq!(queue.end("running"), Next::Deleted, "the caller adds the new object with the same name");
    assert!(queue.objects.is_empty() && queue.delayed.is_empty(), "{queue:?}");
    queue.add(&key("other"), Urgency::Normal);
    assert_eq!(queue.drained(), ["other"], "the slot is free");
}

#[test]
fn the_entries_of_deleted_objects_use_no_memory() {
    let mut queue = WorkQueue::new(4, 4);
    let keys: Vec<ObjectKey> = (0..10_000).map(|number| key(&number.to_string())).collect();
    keys.iter().for_each(|key| queue.add(key, Urgency::Normal));
    keys.iter().skip(10).for_each(|key| queue.forget(key));
    assert!(queue.objects.capacity() < 100, "{}", queue.objects.capacity());
    assert_eq!(queue.drained().len(), 10);
}

/// Operation on one of six objects in three namespaces.
#[derive(Clone, Debug)]
enum Operation {
    Add(usize, Urgency),
    Promote(usize),
    Expedite(usize),
    Forget(usize),
    Start,
    Finish(usize, Option<u64>),
    Pass(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let urgency = prop_oneof![Just(Urgency::Normal), Just(Urgency::Queued), Just(Urgency::Urgent)];
    let object = || 0..6_usize;
    prop_oneof![
        4 => (object(), urgency).prop_map(|(object, urgency)| Operation::Add(object, urgency)),
        1 => object().prop_map(Operation::Promote),
        1 => object().prop_map(Operation::Expedite),
        1 => object().prop_map(Operation::Forget),
        4 => Just(Operation::Start),
        4 => (object(), proptest::option::of(0..9_u64)).prop_map(|(object, delay)| Operation::Finish(object, delay)),
        1 => (0..9_u64).prop_map(Operation::Pass),
    ]
}

proptest! {
    #[test]
    fn no_due_object_is_lost_or_reconciled_concurrently(operations in proptest::collection::vec(operation(), 0..80)) {
        let names = ["a/1", "a/2", "a/3", "b/4", "b/5", "c/6"];
        let (mut queue, mut now) = (WorkQueue::new(2, 1), Instant::now());
        let (mut due, mut running) = (HashSet::new(), Vec::<Arc<ObjectKey>>::new());
        let mut delayed = HashMap::<ObjectKey, Instant>::new();
        for operation in operations {
            match operation {
                Operation::Add(object, urgency) => {
                    queue.add(&key(names[object]), urgency);
                    due.insert(key(names[object]));
                    delayed.remove(&key(names[object]));
                }
                Operation::Promote(object) => queue.promote(&key(names[object])),
                Operation::Expedite(object) => queue.expedite(&key(names[object])),
                Operation::Forget(object) => {
                    queue.forget(&key(names[object]));
                    due.remove(&key(names[object]));
                    delayed.remove(&key(names[object]));
                }
                Operation::Start => {
                    if let Some(started) = queue.start() {
                        prop_assert!(!running.contains(&started), "{started:?} is reconciled concurrently");
                        prop_assert!(due.remove(&*started), "{started:?} is not due");
                        running.push(started);
                    }
                }
                Operation::Finish(object, delay) if object < running.len() => {
                    let (ended, delay) = (running.swap_remove(object), delay.map(Duration::from_secs));
                    match (queue.finish(&ended, delay, now), delay) {
                        (Next::Recorded, Some(delay)) => drop(delayed.insert((*ended).clone(), now + delay)),
                        (Next::Recorded, None) => {}
                        (Next::Add | Next::Deleted, _) if due.contains(&*ended) => queue.add(&ended, Urgency::Normal),
                        (Next::Add | Next::Deleted, _) => {}
                    }
                }
                Operation::Finish(..) => {}
                Operation::Pass(seconds) => {
                    now += Duration::from_secs(seconds);
                    let taken: HashSet<_> = std::iter::from_fn(|| queue.take_due(now)).map(|key| (*key).clone()).collect();
                    let passed: HashSet<_> = delayed.extract_if(|_, at| *at <= now).map(|(key, _)| key).collect();
                    prop_assert_eq!(&taken, &passed);
                    taken.iter().for_each(|key| queue.add(key, Urgency::Normal));
                    due.extend(taken);
                }
            }
            prop_assert!(running.len() <= 4, "two normal and two urgent reconciliations");
            for namespace in ["a", "b", "c"] {
                let number = running.iter().filter(|key| key.0 == namespace).count();
                prop_assert!(number <= 2, "one normal and one urgent reconciliation in {namespace}");
            }
        }
        for ended in running {
            if queue.finish(&ended, None, now) != Next::Recorded && due.contains(&*ended) {
                queue.add(&ended, Urgency::Normal);
            }
        }
        let mut drained = queue.drained();
        drained.sort();
        let mut expected: Vec<String> = due.into_iter().map(|key| key.1).collect();
        expected.sort();
        prop_assert_eq!(drained, expected);
        prop_assert_eq!((queue.normal.keys(), queue.urgent.keys()), (0, 0), "all slots are free");
    }
}
