//! Records the times at which a watch observes the states of objects. These times are more precise than the timestamps
//! in a status, which have a resolution of one second.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::{StreamExt, TryStreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// Seconds since the Unix epoch.
pub type Moment = f64;

pub fn now() -> Moment {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after the Unix epoch").as_secs_f64()
}

/// All observed states of all objects of one kind. Drop this value to stop the watch.
pub struct Moments<K> {
    seen: Arc<Mutex<Vec<(Moment, K)>>>,
    _watch: JoinSet<()>,
}

impl<K> Moments<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    pub fn watch(api: Api<K>) -> Moments<K> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut watch = JoinSet::new();
        watch.spawn(record(api, seen.clone()));
        Moments { seen, _watch: watch }
    }

    /// Returns the time of the first state that matches `predicate`. Panics if no state matches.
    pub fn first(&self, what: &str, predicate: impl Fn(&K) -> bool) -> Moment {
        let (moment, _) = self.find(predicate).unwrap_or_else(|| panic!("no {} was observed {what}", K::kind(&())));
        moment
    }

    pub fn find(&self, predicate: impl Fn(&K) -> bool) -> Option<(Moment, K)> {
        self.seen().iter().find(|(_, object)| predicate(object)).cloned()
    }

    /// Returns, for each object, the time of the first state that matches `predicate`. The times are in the order of
    /// the object names.
    pub fn first_of_each(&self, predicate: impl Fn(&K) -> bool) -> Vec<Moment> {
        let mut moments = std::collections::BTreeMap::new();
        for (moment, object) in self.seen().iter().filter(|(_, object)| predicate(object)) {
            moments.entry(object.meta().name.clone()).or_insert(*moment);
        }
        moments.into_values().collect()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<(Moment, K)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn record<K>(api: Api<K>, seen: Arc<Mutex<Vec<(Moment, K)>>>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push((now(), object));
            }
            Ok(None) => return,
            Ok(Some(_)) | Err(_) => {}
        }
    }
}
