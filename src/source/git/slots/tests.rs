//! Tests slots under load, with simulated time. The parent module defines which namespaces are light.

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Starts `each` tasks per namespace. Each task receives `rate` bytes per second for up to `duration`. Returns a set
/// that yields the task results.
fn tasks(
    slots: &TaskSlots,
    namespaces: &[&str],
    each: usize,
    rate: u64,
    duration: Duration,
) -> JoinSet<Result<(), GitError>> {
    let mut tasks = JoinSet::new();
    for namespace in namespaces.iter().cycle().take(namespaces.len() * each) {
        let (slots, namespace) = (slots.clone(), names(&[*namespace]));
        tasks.spawn(async move {
            let slot = of_any(&slots, &namespace, 0).await?;
            let began = Instant::now();
            let received = move || Some(u64::try_from(began.elapsed().as_millis()).unwrap() * rate / 1000);
            let work = async {
                sleep(duration).await;
                Ok(())
            };
            slot.run("fetching the commit", 0, received, work).await
        });
    }
    tasks
}

/// Repeats a task until an attempt completes. The task runs for `duration` and receives no data. Waits for `backoff`
/// after each aborted attempt, like the async task that follows a repository.
async fn complete(slots: TaskSlots, namespace: &str, duration: Duration, backoff: Duration) {
    for ended in 0.. {
        let slot = of_any(&slots, &names(&[namespace]), ended).await.unwrap();
        let work = async {
            sleep(duration).await;
            Ok(())
        };
        if slot.run("packing the commit", ended, || None, work).await.is_ok() {
            return;
        }
        drop(slot);
        sleep(backoff).await;
    }
}

/// Returns the time for which a namespace waits until it receives a slot.
async fn wait(slots: &TaskSlots, namespace: &str) -> Duration {
    wait_after(slots, namespace, 0).await
}

/// Like [`wait`], for a task after `ended` aborted attempts. A task with more than [`MAX_ENDED_RESERVED`] aborted
/// attempts cannot use the reserved slot.
async fn wait_after(slots: &TaskSlots, namespace: &str, ended: u32) -> Duration {
    let started = Instant::now();
    let slot = timeout(Duration::from_secs(3600), of_any(slots, &names(&[namespace]), ended)).await;
    drop(slot.expect("should get a slot within an hour").expect("acquired slot"));
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_shared_repository_may_use_a_slot_of_any_of_its_namespaces() {
    let slots = TaskSlots::new(Limits { per_namespace: 1, ..FETCHES });
    let (busy, both) = (names(&["busy"]), names(&["busy", "other"]));
    let _held = of_any(&slots, &busy, 0).await.unwrap();
    let wait = async |namespaces: &[String]| timeout(SECOND, of_any(&slots, namespaces, 0)).await;
    assert!(wait(&busy).await.is_err(), "the namespace already uses its slot");
    assert!(wait(&both).await.unwrap().is_ok());
    assert!(wait(&[]).await.unwrap().is_err(), "should fail without a namespace");
}

#[tokio::test(start_paused = true)]
async fn a_light_namespace_waits_at_most_a_second_for_long_tasks() {
    let hour = Duration::from_secs(3600);
    let rows: [(&str, Limits, &[&str], u64); 6] = [
        ("silent servers for queries", QUERIES, &["a", "b"], 0),
        ("silent servers for fetches", FETCHES, &["a", "b"], 0),
        ("fetches at 8 KiB/s", FETCHES, &["a", "b"], 8 << 10),
        ("fast fetches", FETCHES, &["a", "b"], 256 << 10),
        ("each fetch is for another namespace", FETCHES, &["a", "b", "c"], 8 << 10),
        ("three namespaces with fast fetches", FETCHES, &["a", "b", "c"], 256 << 10),
    ];
    for (what, limits, hostile, rate) in rows {
        let slots = TaskSlots::new(limits);
        let mut tasks = tasks(&slots, hostile, 50, rate, hour);
        sleep(15 * SECOND).await;
        for round in 0..3 {
            let waited = wait(&slots, "victim").await;
            assert!(waited <= SECOND, "{what}, round {round}: waited {waited:?}");
            sleep(15 * SECOND).await;
        }
        let ended = tasks.join_next().await.unwrap().unwrap().expect_err("should be stopped").to_string();
        assert!(ended.contains("because other namespaces wait for a slot"), "{what}: {ended}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_of_a_light_namespace_is_bounded_from_the_start() {
    for limits in [QUERIES, FETCHES] {
        for hostile in [&["a", "b"][..], &["a", "b", "c"][..]] {
            let slots = TaskSlots::new(limits);
            let _slow = tasks(&slots, hostile, 50, 0, Duration::from_secs(3600));
            sleep(CHECK_INTERVAL / 2).await;
            let waited = wait(&slots, "victim").await;
            assert!(waited <= PREEMPTION + 2 * CHECK_INTERVAL, "all tasks have just started: {waited:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_long_tasks_of_many_namespaces_rarely_delay_a_light_namespace() {
    let slots = TaskSlots::new(FETCHES);
    let mut hostile = JoinSet::new();
    for namespace in ["a", "b", "c", "d"] {
        let slots = slots.clone();
        // Simulates new commits. Each new commit resets the number of aborted attempts.
        hostile.spawn(async move {
            loop {
                let slot = of_any(&slots, &names(&[namespace]), 0).await.unwrap();
                let work = std::future::pending::<Result<(), GitError>>();
                drop(slot.run("packing the commit", 0, || None, work).await);
            }
        });
    }
    sleep(30 * SECOND).await;
    let (mut longest, mut total) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..100 {
        let waited = wait(&slots, "victim").await;
        (longest, total) = (longest.max(waited), total + waited);
        sleep(5 * SECOND).await;
    }
    assert!(longest <= PREEMPTION + 2 * CHECK_INTERVAL, "the longest wait is {longest:?}");
    assert!(total <= 50 * SECOND, "100 waits take {total:?}");
}

#[tokio::test(start_paused = true)]
async fn many_new_namespaces_do_not_delay_a_namespace_with_few_tasks() {
    let slots = TaskSlots::new(FETCHES);
    let slot = of_any(&slots, &names(&["victim"]), 0).await.unwrap();
    sleep(SECOND / 2).await;
    drop(slot);
    let mut stream = JoinSet::new();
    for second in 0..30 {
        let slots = slots.clone();
        stream.spawn(async move {
            sleep(second * SECOND).await;
            // Simulates the deletion of the Stack after 4.5 s.
            let namespace = format!("new-{second}");
            let stack = complete(slots, &namespace, 60 * SECOND, 10 * SECOND);
            drop(timeout(Duration::from_millis(4500), stack).await);
        });
    }
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        sleep(2 * SECOND).await;
        longest = longest.max(wait(&slots, "victim").await);
    }
    assert!(longest <= PREEMPTION + 2 * CHECK_INTERVAL, "the longest wait is {longest:?}");
}

#[tokio::test(start_paused = true)]
async fn simultaneous_tasks_of_many_namespaces_are_not_ended_early() {
    let slots = TaskSlots::new(FETCHES);
    let mut crowd = JoinSet::new();
    for number in 0..60 {
        let slots = slots.clone();
        crowd.spawn(async move {
            let slot = of_any(&slots, &names(&[&format!("crowd-{number}")]), 0).await.unwrap();
            let work = async {
                sleep(2 * SECOND).await;
                Ok(())
            };
            slot.run("packing the commit", 0, || None, work).await
        });
    }
    let ended = crowd.join_all().await.into_iter().filter(Result::is_err).count();
    assert!(ended <= FETCHES.total, "only tasks at the end of the queue are stopped: {ended}");
}

#[tokio::test(start_paused = true)]
async fn long_tasks_complete_while_other_namespaces_repeat_longer_tasks() {
    let slots = TaskSlots::new(FETCHES);
    let mut others = JoinSet::new();
    for namespace in ["a", "b", "c"] {
        others.spawn(complete(slots.clone(), namespace, 24 * 3600 * SECOND, SECOND));
    }
    let light = slots.clone();
    others.spawn(async move {
        loop {
            wait(&light, "light").await;
            sleep(SECOND).await;
        }
    });
    sleep(60 * SECOND).await;
    let large = complete(slots.clone(), "large", 60 * SECOND, 10 * SECOND);
    timeout(900 * SECOND, large).await.unwrap_or_else(|_| panic!("{:#?}", slots.0.lock()));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_namespace_gets_the_reserved_slot_when_it_becomes_light() {
    let slots = TaskSlots::new(FETCHES);
    let slot = of_any(&slots, &names(&["once"]), 0).await.unwrap();
    sleep(6 * SECOND).await;
    drop(slot);
    let _fast = tasks(&slots, &["a", "b"], 1, 256 << 10, 3600 * SECOND);
    sleep(4 * SECOND).await;
    let waited = wait(&slots, "once").await;
    // The recorded slot time of 6 s decays to 3 s in 30 s.
    assert!((25 * SECOND..=27 * SECOND).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn only_slow_fetches_are_ended_for_a_namespace_that_is_not_light() {
    let slots = TaskSlots::new(FETCHES);
    let mut fast = tasks(&slots, &["a"], 2, 256 << 10, 300 * SECOND);
    let mut slow = tasks(&slots, &["b"], 1, 8 << 10, 300 * SECOND);
    sleep(30 * SECOND).await;
    let waited = wait_after(&slots, "large", 2).await;
    assert!(waited > 200 * SECOND, "without the slow task, two slots are in use and one is reserved: {waited:?}");
    assert!(
        slow.join_next().await.unwrap().unwrap().is_err(),
        "the slow task is stopped, although b has no other task"
    );
    while let Some(done) = fast.join_next().await {
        done.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn slow_tasks_are_not_ended_if_every_waiting_namespace_has_a_slot() {
    let slots = TaskSlots::new(FETCHES);
    let mut tasks = tasks(&slots, &["a", "b"], 5, 0, 60 * SECOND);
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_without_a_running_task_does_not_count_as_slow() {
    let slots = TaskSlots::new(FETCHES);
    let packs = of_any(&slots, &names(&["a"]), 0).await.unwrap();
    packs.run("fetching the commit", 0, || None, async { Ok(()) }).await.unwrap();
    let mut slow = tasks(&slots, &["a"], 1, 0, 3600 * SECOND);
    sleep(15 * SECOND).await;
    assert!(wait_after(&slots, "large", 2).await <= SECOND, "the other task of the namespace is stopped");
    assert!(slow.join_next().await.unwrap().unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn previously_ended_tasks_get_more_time() {
    let duration = async |ended: u32| {
        let slots = TaskSlots::new(Limits { total: 2, ..FETCHES });
        let _uninterruptible = of_any(&slots, &names(&["b"]), 0).await.unwrap();
        let slot = of_any(&slots, &names(&["a"]), 0).await.unwrap();
        let waiting = tokio::spawn({
            let slots = slots.clone();
            async move { wait_after(&slots, "large", 2).await }
        });
        let began = Instant::now();
        let work = std::future::pending::<Result<(), GitError>>();
        slot.run("fetching the commit", ended, || Some(0), work).await.expect_err("should be stopped");
        waiting.abort();
        began.elapsed()
    };
    for (ended, seconds) in [(0, 10), (1, 20), (3, 80), (9, 80)] {
        let lasted = duration(ended).await;
        assert!((seconds * SECOND..=(seconds + 1) * SECOND).contains(&lasted), "stopped {ended} times: {lasted:?}");
    }
}

/// Returns the task that the controller must abort 20 s after the start of the test, while the namespace `waits` waits
/// for a slot. Each row of `held` contains a namespace, the start time of its task, and the time until which the
/// received bytes satisfy the data rate.
fn task_to_end(held: &[(&str, u64, Option<u64>)], waits: &str, ended: u32) -> Option<u64> {
    let began = Instant::now();
    let at = |seconds: u64| began + Duration::from_secs(seconds);
    let mut common = Common::default();
    for (namespace, since, covered_until) in held {
        let (id, _) = common.enqueue(namespace, 0);
        common.grant(&Limits { total: usize::MAX, ..FETCHES }, at(*since));
        common.held.get_mut(&id).unwrap().covered_until = covered_until.map(at);
    }
    common.enqueue(waits, ended);
    common.task_to_end(&FETCHES, at(20))
}

#[test]
fn the_longest_slow_task_of_the_namespace_with_the_most_slots_is_ended() {
    type Rows<'a> = &'a [(&'a str, u64, Option<u64>)];
    let rows: [(Rows<'_>, &str, Option<u64>); 8] = [
        (&[("a", 0, Some(0)), ("a", 1, Some(1)), ("b", 0, Some(0))], "c", Some(0)),
        (&[("b", 0, Some(0)), ("a", 1, Some(1)), ("a", 2, Some(2))], "c", Some(1)),
        (&[("b", 0, Some(0)), ("a", 1, Some(19)), ("a", 2, Some(18))], "c", Some(0)),
        (&[("b", 0, Some(15)), ("a", 1, Some(19)), ("a", 2, Some(17))], "c", Some(2)),
        (&[("b", 0, Some(15)), ("a", 1, Some(19)), ("a", 2, Some(18))], "c", None),
        (&[("a", 0, None), ("a", 1, None), ("b", 2, Some(10))], "c", Some(2)),
        (&[("a", 0, None), ("a", 1, None), ("b", 2, None)], "c", None),
        (&[("a", 0, Some(0)), ("a", 1, Some(1)), ("b", 0, Some(0))], "b", None),
    ];
    for (held, waits, expected) in rows {
        assert_eq!(task_to_end(held, waits, 2), expected, "{held:?}, {waits} waits");
    }
}

#[test]
fn a_light_namespace_preempts_the_newest_task_of_a_heavier_namespace() {
    type Rows<'a> = &'a [(&'a str, u64, Option<u64>)];
    let rows: [(Rows<'_>, &str, Option<u64>); 5] = [
        (&[("a", 0, Some(20)), ("b", 1, Some(20)), ("c", 19, Some(20))], "d", Some(2)),
        (&[("a", 0, Some(20)), ("b", 1, Some(20)), ("c", 19, None)], "d", Some(1)),
        (&[("a", 0, Some(20)), ("b", 1, Some(20)), ("c", 20, Some(20))], "d", Some(1)),
        (&[("a", 0, Some(20)), ("b", 1, Some(20)), ("c", 16, Some(20))], "c", None),
        (&[("a", 0, Some(0)), ("b", 1, Some(0))], "d", None),
    ];
    for (held, waits, expected) in rows {
        assert_eq!(task_to_end(held, waits, 0), expected, "{held:?}, {waits} waits");
    }
}
