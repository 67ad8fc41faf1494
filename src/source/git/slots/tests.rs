//! Tests for slots under load, with simulated time.

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Starts `each` tasks per namespace. Each task receives `rate` bytes per second for up to `lasts`. Returns the results of the
/// tasks.
fn tasks(
    slots: &TaskSlots,
    namespaces: &[&str],
    each: usize,
    rate: u64,
    lasts: Duration,
) -> JoinSet<Result<(), GitError>> {
    let mut tasks = JoinSet::new();
    for namespace in namespaces.iter().cycle().take(namespaces.len() * each) {
        let (slots, namespace) = (slots.clone(), names(&[*namespace]));
        tasks.spawn(async move {
            let slot = of_any(&slots, &namespace).await?;
            let began = Instant::now();
            let received = move || Some(u64::try_from(began.elapsed().as_millis()).unwrap() * rate / 1000);
            let work = async {
                sleep(lasts).await;
                Ok(())
            };
            slot.run("fetching the commit", 0, received, work).await
        });
    }
    tasks
}

/// Returns the time that a namespace waits for a slot.
async fn wait(slots: &TaskSlots, namespace: &str) -> Duration {
    let started = Instant::now();
    let slot = timeout(Duration::from_secs(3600), of_any(slots, &names(&[namespace]))).await;
    drop(slot.expect("there is a slot within an hour").expect("it may wait"));
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_shared_repository_may_use_a_slot_of_any_of_its_namespaces() {
    let slots = TaskSlots::new(Limits { total: 3, per_namespace: 1, ..FETCHES });
    let (busy, both) = (names(&["busy"]), names(&["busy", "other"]));
    let _held = of_any(&slots, &busy).await.unwrap();
    let wait = async |namespaces: &[String]| timeout(SECOND, of_any(&slots, namespaces)).await;
    assert!(wait(&busy).await.is_err(), "its namespace has its slot");
    assert!(wait(&both).await.unwrap().is_ok());
    assert!(wait(&[]).await.unwrap().is_err(), "no Stack follows it any more");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_without_a_slot_waits_at_most_a_second_for_slow_servers() {
    let hour = Duration::from_secs(3600);
    // Two namespaces leave the reserved slot free. A third namespace can use that slot, and a slow task is ended for the next
    // waiting namespace.
    let rows: [(&str, Limits, &[&str], u64, bool); 6] = [
        ("silent servers for queries", QUERIES, &["a", "b"], 0, false),
        ("silent servers for fetches", FETCHES, &["a", "b"], 0, false),
        ("fetches at 8 KiB/s", FETCHES, &["a", "b"], 8 << 10, false),
        ("fetches that are not slow", FETCHES, &["a", "b"], 256 << 10, false),
        ("each fetch is of another namespace", FETCHES, &["a", "b", "c"], 8 << 10, true),
        ("long packings", PACKINGS, &["a", "b"], 0, true),
    ];
    for (what, limits, hostile, rate, is_ended) in rows {
        let slots = TaskSlots::new(limits);
        let mut tasks = tasks(&slots, hostile, 50, rate, hour);
        sleep(15 * SECOND).await;
        for round in 0..3 {
            let waited = wait(&slots, "victim").await;
            assert!(waited <= SECOND, "{what}, round {round}: it waits {waited:?}");
            sleep(15 * SECOND).await;
        }
        let Err(ended) = tasks.join_next().await.unwrap().unwrap() else {
            assert!(!is_ended, "{what}: a slow task is ended");
            continue;
        };
        let is_reported = ended.to_string().contains("because other namespaces wait for a slot");
        assert!(is_ended && is_reported, "{what}: {ended}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_slot_is_bounded_by_the_slow_task_limit() {
    for limits in [QUERIES, FETCHES] {
        let slots = TaskSlots::new(limits);
        let _slow = tasks(&slots, &["a", "b"], 50, 0, Duration::from_secs(3600));
        sleep(CHECK / 2).await;
        let waited = wait(&slots, "victim").await;
        assert!(waited <= limits.slow_limits.several + 2 * CHECK, "all tasks have begun just now: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_slow_fetches_are_ended() {
    let slots = TaskSlots::new(FETCHES);
    let mut fast = tasks(&slots, &["a"], 2, 256 << 10, 300 * SECOND);
    let mut slow = tasks(&slots, &["b"], 1, 8 << 10, 300 * SECOND);
    sleep(30 * SECOND).await;
    assert!(wait(&slots, "victim").await <= SECOND);
    assert!(slow.join_next().await.unwrap().unwrap().is_err(), "the slow one is ended, though it is the only one of b");
    let mut third = tasks(&slots, &["c"], 1, 256 << 10, 300 * SECOND);
    sleep(SECOND).await;
    assert!(wait(&slots, "victim").await > 200 * SECOND, "no task is slow");
    while let Some(done) = fast.join_next().await {
        done.unwrap().unwrap();
    }
    third.join_next().await.unwrap().unwrap().unwrap();
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
async fn uninterruptible_work_is_not_ended() {
    let slots = TaskSlots::new(Limits { total: 2, ..FETCHES });
    let packs = of_any(&slots, &names(&["a"])).await.unwrap();
    packs.run("fetching the commit", 0, || None, async { Ok(()) }).await.unwrap();
    let mut slow = tasks(&slots, &["a"], 1, 0, 3600 * SECOND);
    sleep(15 * SECOND).await;
    assert!(wait(&slots, "victim").await <= SECOND, "the other task of that namespace is ended");
    assert!(slow.join_next().await.unwrap().unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn previously_ended_work_gets_more_time() {
    let lasts = async |ended: u32| {
        let slots = TaskSlots::new(Limits { total: 1, ..FETCHES });
        let slot = of_any(&slots, &names(&["a"])).await.unwrap();
        let waiting = tokio::spawn({
            let slots = slots.clone();
            async move { wait(&slots, "victim").await }
        });
        let began = Instant::now();
        let work = std::future::pending::<Result<(), GitError>>();
        slot.run("fetching the commit", ended, || Some(0), work).await.expect_err("it is ended");
        let lasted = began.elapsed();
        drop(slot);
        waiting.await.unwrap();
        lasted
    };
    for (ended, seconds) in [(0, 10), (1, 20), (3, 80), (9, 80)] {
        let lasted = lasts(ended).await;
        assert!((seconds * SECOND..=(seconds + 1) * SECOND).contains(&lasted), "ended {ended} times: {lasted:?}");
    }
}

#[test]
fn the_longest_slow_task_of_the_namespace_with_the_most_slots_is_ended() {
    let began = Instant::now();
    let at = |seconds: u64| began + Duration::from_secs(seconds);
    let slow_limits = FETCHES.slow_limits;
    // Each row consists of a namespace, the start of its task, and the time up to which the received bytes are sufficient.
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
        let mut common = Common::default();
        for (namespace, began, slow) in held {
            let (id, _) = common.enter(namespace, usize::MAX);
            let task = common.held.get_mut(&id).unwrap();
            (task.began, task.paid_until) = (at(*began), slow.map(at));
        }
        common.enter(waits, 0);
        assert_eq!(common.to_end(slow_limits, at(20)), expected, "{held:?}, {waits} waits");
    }
}
