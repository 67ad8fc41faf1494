//! Records every observed state of the objects in a scene, for failure reports and for assertions about transient
//! states.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::pulumi::Stack;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch::{Receiver, Sender};
use tokio::task::JoinSet;

/// One observed state of an object.
#[derive(Clone, Debug)]
pub struct ObservedState {
    at: Duration,
    kind: String,
    name: String,
    version: String,
    gone: bool,
    object: Value,
}

/// The recorded states. Drop the timeline to end the watches.
pub struct Timeline {
    record: Record,
    watches: JoinSet<()>,
}

/// States that a timeline's watches have observed.
#[derive(Clone, Default)]
struct Record {
    observed: Arc<Mutex<Vec<ObservedState>>>,
    /// Notifies about new states.
    changes: Sender<()>,
}

impl Timeline {
    /// Starts the Stack, Workspace, Update and pod watches.
    pub fn start(client: &Client, namespace: &str) -> Timeline {
        let record = Record::default();
        let mut watches = JoinSet::new();
        let started = Instant::now();
        watches.spawn(watch(Api::<Stack>::namespaced(client.clone(), namespace), record.clone(), started));
        watches.spawn(watch(Api::<Workspace>::namespaced(client.clone(), namespace), record.clone(), started));
        watches.spawn(watch(Api::<Update>::namespaced(client.clone(), namespace), record.clone(), started));
        watches.spawn(watch(Api::<Pod>::namespaced(client.clone(), namespace), record.clone(), started));
        Timeline { record, watches }
    }

    /// Starts a watch of one kind.
    pub fn of<K>(api: Api<K>) -> Timeline
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned
            + Send
            + 'static,
    {
        let record = Record::default();
        let mut watches = JoinSet::new();
        watches.spawn(watch(api, record.clone(), Instant::now()));
        Timeline { record, watches }
    }

    /// Stops the watches. In a benchmark with thousands of objects, recording the object states would dominate the
    /// load.
    #[allow(dead_code, reason = "used by the benchmarks")]
    pub fn end(&mut self) {
        self.watches = JoinSet::new();
    }

    /// Returns a receiver of notifications about new states. Returns `None` if the watches are closed.
    pub fn changes(&self) -> Option<Receiver<()>> {
        (!self.watches.is_empty()).then(|| self.record.changes.subscribe())
    }

    /// Returns every observed state of all objects of this type.
    pub fn states_of<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let kind = K::kind(&());
        let of_kind = |state: &ObservedState| (state.kind == kind && !state.gone).then(|| state.object.clone());
        let observed = self.all();
        let objects = observed.iter().filter_map(of_kind).map(serde_json::from_value);
        objects.collect::<Result<_, _>>().expect("valid object")
    }

    /// Returns the time of the first observed state that matches `predicate`.
    pub fn first<K>(&self, predicate: impl Fn(&K) -> bool) -> Option<Duration>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let kind = K::kind(&());
        let of_kind = |state: &&ObservedState| state.kind == kind && !state.gone;
        let found = self.all();
        let is_match = |state: &&ObservedState| {
            serde_json::from_value(state.object.clone()).is_ok_and(|object| predicate(&object))
        };
        found.iter().filter(of_kind).find(is_match).map(|state| state.at)
    }

    /// Returns a string with one line per state.
    pub fn text(&self) -> String {
        self.all().iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn all(&self) -> Vec<ObservedState> {
        self.record.observed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn watch<K>(api: Api<K>, record: Record, started: Instant)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + 'static,
{
    // The API server can close a watch at any time. The watcher then starts a new watch.
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    loop {
        let (object, gone) = match events.try_next().await {
            Ok(Some(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => (object, false),
            Ok(Some(watcher::Event::Delete(object))) => (object, true),
            Ok(None) => return,
            Ok(Some(_)) | Err(_) => continue,
        };
        let state = ObservedState {
            at: started.elapsed(),
            kind: K::kind(&()).into_owned(),
            name: object.name_any(),
            version: object.resource_version().unwrap_or_default(),
            gone,
            object: serde_json::to_value(&object).unwrap_or_default(),
        };
        {
            let mut seen = record.observed.lock().unwrap_or_else(PoisonError::into_inner);
            if !seen.iter().any(|s| s.kind == state.kind && s.version == state.version && s.gone == state.gone) {
                seen.push(state);
            }
        }
        record.changes.send_replace(());
    }
}

fn line(state: &ObservedState) -> String {
    let ObservedState { at, kind, name, gone, object, .. } = state;
    let seconds = at.as_secs_f64();
    if *gone {
        return format!("{seconds:7.2} s  {kind} {name} is gone");
    }
    let status = &object["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten().map(|condition| {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        match (kind.as_str(), text("message")) {
            ("Pod", _) => format!("{}={}", text("type"), text("status")),
            (_, message) => format!("{}={} {} {message:?}", text("type"), text("status"), text("reason")),
        }
    });
    let conditions = conditions.collect::<Vec<_>>().join("; ");
    let deleting = if object["metadata"]["deletionTimestamp"].is_string() { ", being deleted" } else { "" };
    let generation = format!("{}/{}", status["observedGeneration"], object["metadata"]["generation"]);
    let phase = status["phase"].as_str().unwrap_or_default();
    format!("{seconds:7.2} s  {kind} {name} (generation {generation}{deleting}) {phase} {conditions}")
}
