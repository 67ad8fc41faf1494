//! Tests for the queued runs of Updates that leave the cache.

use futures::{FutureExt, StreamExt};
use kube::runtime::watcher::Event;

use super::*;
use crate::api::auto::UpdateSpec;
use crate::controller::update::queue::updates;
use crate::runtime::index::StoreWriter as _;
use crate::runtime::run_limiter::Limits;
use crate::telemetry::metrics::Metrics;

fn update(name: &str, uid: &str) -> Update {
    let mut update = Update::new(name, UpdateSpec::default());
    update.metadata.namespace = Some("apps".to_owned());
    update.metadata.uid = Some(uid.to_owned());
    update
}

fn run(uid: &str) -> Run {
    Run { uid: uid.to_owned(), namespace: "apps".to_owned(), workspace: uid.to_owned(), ..Run::default() }
}

fn list(listed: &[Update]) -> Vec<Event<Update>> {
    let objects = listed.iter().cloned().map(Event::InitApply);
    std::iter::once(Event::Init).chain(objects).chain([Event::InitDone]).collect()
}

/// Returns the names of the Updates that the limiter requeues after the given events. Before the events, the Updates
/// `a` and `b` are cached, and their runs are queued.
fn requeued_after(events: &[Event<Update>]) -> String {
    let limits = Limits { all: 2, each_namespace: 2, each_node: 3 };
    let run_limiter = RunLimiter::new(limits, Metrics::default());
    let open = ["x", "y"].map(|uid| run_limiter.adopt(&run(uid)));
    for uid in ["a", "b"] {
        assert!(run_limiter.acquire(&run(uid), ObjectRef::new(uid).within("apps")).is_err());
    }
    let (updates, mut store) = updates();
    let mut withdraw = withdraw_deleted(updates, run_limiter.clone());
    for event in list(&[update("a", "a"), update("b", "b")]).iter().chain(events) {
        store.apply(event);
        withdraw(event);
    }
    drop(open);
    let mut requeues = Box::pin(run_limiter.requeues());
    let requeued = std::iter::from_fn(|| requeues.next().now_or_never().flatten());
    let mut names: Vec<String> = requeued.map(|update| update.name).collect();
    names.sort();
    names.join(" ")
}

#[tokio::test(start_paused = true)]
async fn the_queued_runs_of_updates_that_leave_the_cache_are_withdrawn() {
    let rows = [
        ("no event", Vec::new(), "a b"),
        ("a changed Update", vec![Event::Apply(update("a", "a"))], "a b"),
        ("a deleted Update", vec![Event::Delete(update("a", "a"))], "b"),
        ("a deleted Update without a queued run", vec![Event::Delete(update("c", "c"))], "a b"),
        ("a complete list", list(&[update("a", "a"), update("b", "b")]), "a b"),
        ("an incomplete list", vec![Event::Init, Event::InitApply(update("b", "b"))], "a b"),
        ("a list that lacks an Update", list(&[update("b", "b")]), "b"),
        ("a list with a new Update of the same name", list(&[update("a", "new"), update("b", "b")]), "b"),
        ("an empty list", list(&[]), ""),
    ];
    for (name, events, expected) in rows {
        assert_eq!(requeued_after(&events), expected, "{name}");
    }
}
