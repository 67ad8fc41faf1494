//! Tests for slots under load, with simulated time.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::*;

fn slots(total: usize, per_key: usize, waiting_per_key: usize) -> FairSlots {
    FairSlots::new(Limits { total, per_key, waiting_per_key })
}

impl FairSlots {
    fn keys(&self) -> usize {
        self.0.lock().keys()
    }
}

/// Returns a slot if a slot is free.
async fn try_acquire(slots: &FairSlots, key: &str) -> Option<Slot> {
    timeout(Duration::from_millis(1), slots.acquire(key)).await.ok().and_then(Result::ok)
}

#[tokio::test(start_paused = true)]
async fn the_slots_of_a_key_and_all_slots_are_limited() {
    let slots = slots(3, 2, 8);
    let first = try_acquire(&slots, "a").await.expect("all slots are free");
    let second = try_acquire(&slots, "a").await.expect("two slots per key");
    assert!(try_acquire(&slots, "a").await.is_none(), "key a has two slots");
    let third = try_acquire(&slots, "b").await.expect("key b has no slot yet");
    assert!(try_acquire(&slots, "c").await.is_none(), "all slots are in use");
    drop(first);
    let fourth = try_acquire(&slots, "c").await.expect("one slot is free");
    drop((second, third, fourth));
    assert_eq!(slots.keys(), 0, "keys without slots are removed");
}

#[tokio::test(start_paused = true)]
async fn a_key_waits_one_turn_regardless_of_the_queue_of_another_key() {
    let slots = slots(1, 1, 1000);
    let (served, mut order) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let mut spawn = |key: &'static str, count: usize| {
        for _ in 0..count {
            let (slots, served) = (slots.clone(), served.clone());
            tasks.spawn(async move {
                let slot = slots.acquire(key).await.expect("acquired slot");
                served.send(key).expect("receiver is open");
                sleep(Duration::from_secs(1)).await;
                drop(slot);
            });
        }
    };
    spawn("crowd", 500);
    sleep(Duration::from_millis(1)).await;
    spawn("one", 1);
    sleep(Duration::from_millis(1)).await;
    spawn("two", 2);
    tasks.join_all().await;
    let mut keys = Vec::new();
    while let Ok(key) = order.try_recv() {
        keys.push(key);
    }
    assert_eq!(keys.len(), 503);
    assert_eq!(keys.get(..6), Some(&["crowd", "one", "two", "crowd", "two", "crowd"][..]), "the keys alternate");
}

#[tokio::test(start_paused = true)]
async fn canceling_a_waiter_leaks_no_slot_or_key() {
    let slots = slots(1, 1, 2);
    let held = slots.acquire("a").await.expect("free slot");
    // One caller waits for the key's slot, and another caller waits for the common slot.
    for key in ["a", "b"] {
        assert!(timeout(Duration::from_secs(1), slots.acquire(key)).await.is_err(), "{key} waits for a slot");
    }
    assert_eq!(slots.keys(), 1, "key b is removed");
    drop(held);
    for key in ["a", "b"] {
        drop(try_acquire(&slots, key).await.expect("free slot"));
    }
    assert_eq!(slots.keys(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_waiters_per_key_is_bounded() {
    let slots = slots(1, 1, 2);
    let held = slots.acquire("a").await.expect("free slot");
    let mut waiting = JoinSet::new();
    for _ in 0..2 {
        let slots = slots.clone();
        waiting.spawn(async move { slots.acquire("a").await.map(drop) });
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(slots.acquire("a").await.err(), Some(Busy { waiting: 2 }));
    assert!(timeout(Duration::from_secs(1), slots.acquire("b")).await.is_err(), "key b can still wait");
    drop(held);
    assert!(waiting.join_all().await.iter().all(Result::is_ok), "all waiting callers get a slot");
}

#[test]
fn the_waiters_of_some_keys_leave_places_for_other_keys() {
    let slots = FairSlots::with_places(Limits { total: 1, per_key: 1, waiting_per_key: 100 }, 8);
    let held = slots.enqueue("held").expect("a free slot requires no place");
    let enter = |key: &str| (0..10).map_while(|_| slots.enqueue(key).ok()).collect::<Vec<_>>();
    let mut waiting = Vec::new();
    for (key, expected) in [("a", 4), ("b", 2), ("c", 1), ("d", 1), ("e", 0)] {
        let entered = enter(key);
        assert_eq!(entered.len(), expected, "{key}");
        waiting.push(entered);
    }
    assert_eq!(slots.keys(), 5, "a refused caller leaves no key");
    drop(waiting[0].pop());
    assert_eq!(slots.enqueue("a").err(), Some(Busy { waiting: 3 }));
    let newcomer = enter("e");
    assert_eq!(newcomer.len(), 1, "the free place is for another key");
    drop(held);
    assert_eq!(enter("f").len(), 1, "a key with a granted slot leaves its place");
    drop((waiting, newcomer));
    assert_eq!((slots.keys(), slots.0.lock().waiting()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_paused_key_does_not_block_other_keys() {
    let slots = slots(1, 1, 2);
    let mut held = slots.acquire("a").await.expect("free slot");
    assert!(try_acquire(&slots, "b").await.is_none());
    held.release_common();
    assert!(try_acquire(&slots, "b").await.is_some());
    assert!(try_acquire(&slots, "a").await.is_none(), "key a waits until the slot is released");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_queued_again_do_not_delay_a_key_that_stays_queued() {
    let slots = slots(1, 1, 100);
    for key in ["returning-1", "returning-2"] {
        let slots = slots.clone();
        tokio::spawn(async move {
            // Between two calls, the key has no callers.
            loop {
                drop((slots.acquire(key).await, sleep(Duration::from_secs(1)).await));
            }
        });
    }
    let mut stays = JoinSet::new();
    for _ in 0..5 {
        let slots = slots.clone();
        stays.spawn(async move { drop((slots.acquire("stays").await, sleep(Duration::from_secs(1)).await)) });
    }
    let all = timeout(Duration::from_secs(20), stays.join_all()).await;
    assert!(all.is_ok(), "the key gets every third slot");
}

/// Call: key, start time, timeout of the wait, and working time. The times are in milliseconds.
type Call = (usize, u64, u64, u64);

/// Executes the calls. Returns the peak of all slots in use, the peak of the slots that one key used, and the number of
/// calls that got a slot.
async fn run(slots: &FairSlots, calls: Vec<Call>) -> (usize, usize, usize) {
    let used = Arc::new(Mutex::new((HashMap::<usize, usize>::new(), 0_usize, 0_usize)));
    let mut tasks = JoinSet::new();
    for (key, comes, waits, works) in calls {
        let (slots, used) = (slots.clone(), used.clone());
        tasks.spawn(async move {
            sleep(Duration::from_millis(comes)).await;
            let name = format!("key-{key}");
            let Ok(Ok(slot)) = timeout(Duration::from_millis(waits), slots.acquire(&name)).await else { return false };
            {
                let mut used = used.lock().expect("whole");
                *used.0.entry(key).or_default() += 1;
                used.1 = used.1.max(used.0.values().sum());
                used.2 = used.2.max(used.0.values().copied().max().unwrap_or_default());
            }
            sleep(Duration::from_millis(works)).await;
            *used.lock().expect("whole").0.entry(key).or_default() -= 1;
            drop(slot);
            true
        });
    }
    let served = tasks.join_all().await.into_iter().filter(|served| *served).count();
    let used = used.lock().expect("whole");
    (used.1, used.2, served)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_call_sequence_exceeds_a_limit_or_leaks_a_slot(
        (total, per_key) in (1_usize..5, 1_usize..4),
        calls in prop::collection::vec((0_usize..5, 0_u64..50, 0_u64..60, 0_u64..20), 0..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("built");
        runtime.block_on(async {
            let slots = slots(total, per_key, 100);
            let (in_total, by_one, _) = run(&slots, calls).await;
            prop_assert!(in_total <= total && by_one <= per_key, "{in_total} of {total}, {by_one} of {per_key}");
            prop_assert_eq!(slots.keys(), 0);
            // All slots must be free after the calls.
            let mut held = Vec::new();
            for index in 0..total {
                let slot = try_acquire(&slots, &format!("key-{index}")).await;
                prop_assert!(slot.is_some(), "slot {} is lost", index);
                held.push(slot);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_new_key_gets_the_next_free_slot(sizes in prop::collection::vec(1_usize..40, 1..6), per_key in 1_usize..3) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("built");
        runtime.block_on(async {
            let slots = slots(per_key, per_key, 1000);
            let crowds = sizes.len();
            for (key, count) in sizes.into_iter().enumerate() {
                for _ in 0..count {
                    let slots = slots.clone();
                    tokio::spawn(async move {
                        let slot = slots.acquire(&format!("crowd-{key}")).await;
                        sleep(Duration::from_secs(1)).await;
                        drop(slot);
                    });
                }
            }
            // By this time, each of the other keys has received a slot.
            sleep(Duration::from_secs(u64::try_from(crowds).expect("in range")) + Duration::from_millis(500)).await;
            let began = Instant::now();
            let slot = slots.acquire("newcomer").await;
            prop_assert!(slot.is_ok());
            let waited = began.elapsed();
            // The new key must get the next free slot.
            prop_assert!(waited <= Duration::from_secs(1), "{:?} behind {} crowds", waited, crowds);
            Ok(())
        })?;
    }
}
