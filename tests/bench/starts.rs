//! Records when the runs for one revision start in all namespaces, in the order in which a watch observes the starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::TryStreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use pulumi_controller::api::auto::Update;
use tokio::task::JoinSet;

/// The observed runs. Drop this value to stop the watch.
pub struct Starts {
    seen: Arc<Mutex<Seen>>,
    _watch: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    /// UIDs of the Updates whose runs have started.
    started: BTreeSet<String>,
    /// Workspace namespace and name for each started run, in the order of the starts.
    order: Vec<(String, String)>,
    /// UIDs of the Updates that are complete.
    complete: BTreeSet<String>,
}

impl Starts {
    /// Starts the watch, which also reports the runs that have already started.
    pub fn watch(client: &Client, revision: &str) -> Starts {
        let seen = Arc::<Mutex<Seen>>::default();
        let mut watch = JoinSet::new();
        watch.spawn(record(Api::all(client.clone()), revision.to_owned(), seen.clone()));
        Starts { seen, _watch: watch }
    }

    /// Returns the number of runs that have started.
    pub fn number(&self) -> usize {
        self.seen().order.len()
    }

    /// Returns the number of runs that are complete.
    pub fn complete(&self) -> usize {
        self.seen().complete.len()
    }

    /// Returns the number of started runs whose Workspace matches `predicate`.
    pub fn number_of(&self, predicate: impl Fn(&str) -> bool) -> usize {
        self.seen().order.iter().filter(|(_, workspace)| predicate(workspace)).count()
    }

    /// Returns the maximum difference between any two namespaces' numbers of started runs. The function considers the
    /// starts until all runs in one namespace have started. With a fair order, the difference is small.
    pub fn spread(&self) -> usize {
        let order: Vec<String> = self.seen().order.iter().map(|(namespace, _)| namespace.clone()).collect();
        let mut totals: BTreeMap<&str, usize> = BTreeMap::new();
        order.iter().for_each(|namespace| *totals.entry(namespace).or_default() += 1);
        let mut begun: BTreeMap<&str, usize> = totals.keys().map(|namespace| (*namespace, 0)).collect();
        let mut spread = 0;
        for namespace in &order {
            *begun.entry(namespace).or_default() += 1;
            let (least, most) = (begun.values().min(), begun.values().max());
            spread = spread.max(most.copied().unwrap_or_default() - least.copied().unwrap_or_default());
            if begun.get(namespace.as_str()) == totals.get(namespace.as_str()) {
                break;
            }
        }
        spread
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn record(api: Api<Update>, revision: String, seen: Arc<Mutex<Seen>>) {
    let mut updates = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
    loop {
        match updates.try_next().await {
            Ok(Some(update)) if update.artifact().is_some_and(|artifact| artifact.revision == revision) => {
                seen.lock().unwrap_or_else(PoisonError::into_inner).add(&update);
            }
            Ok(None) => return,
            Ok(Some(_)) | Err(_) => {}
        }
    }
}

impl Seen {
    fn add(&mut self, update: &Update) {
        let uid = update.uid().unwrap_or_default();
        let has_started = update.status.as_ref().is_some_and(|status| status.run.is_some());
        if has_started && self.started.insert(uid.clone()) {
            self.order.push((update.namespace().unwrap_or_default(), update.spec.workspace_name.clone()));
        }
        if update.is_complete() {
            self.complete.insert(uid);
        }
    }
}
