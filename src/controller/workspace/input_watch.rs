//! Watches Secrets and ConfigMaps that have the Flux watch label. A run reads only mounted values, and the kubelet
//! mounts a changed value with a delay. After an object has changed, the controller therefore polls the agents of all
//! Workspaces that mount the object more frequently. The frequent polls stop when the agents report the change or a
//! timeout expires. The watches receive only metadata. Without permission to watch, the controller polls the agents
//! at the normal interval.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::ListParams;
use kube::core::{PartialObjectMeta, Selector};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::auto::Workspace;
use crate::api::tolerant::Tolerant;
use crate::runtime::requeue::Requeue;
use crate::runtime::scope::Scope;
use crate::runtime::tolerant_watcher;

/// Time for which the controller polls more frequently after a change. The kubelet syncs each pod about once a
/// minute.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(3 * 60);
/// Minimum poll interval after a change. The actual interval is a quarter of the time since the change, but at least
/// the minimum and at most the maximum.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum poll interval after a change.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// Retry interval after the API server has forbidden a watch.
const REFUSED_RETRY: Duration = Duration::from_secs(5 * 60);

/// Namespace and name of an object.
type Key = (String, String);

/// Objects that Workspaces mount, and changes that the kubelet has not mounted yet. Clones are cheap and share the
/// same state.
#[derive(Clone)]
pub struct InputWatch(Arc<Shared>);

struct Shared {
    requeue: Requeue<Workspace>,
    /// Objects that each Workspace mounts. Hold the lock only for short critical sections, and never across an
    /// `.await`.
    mounts: Mutex<HashMap<Key, Mounts>>,
}

/// Objects that a Workspace mounts, such as `Secret/aws`.
#[derive(Default)]
struct Mounts {
    objects: BTreeSet<String>,
    /// Objects whose last change the kubelet has not mounted yet, and the time of that change.
    pending: HashMap<String, Instant>,
}

impl fmt::Debug for InputWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputWatch").finish_non_exhaustive()
    }
}

impl InputWatch {
    /// Creates the watch. `requeue` receives the Workspaces whose agents the controller must poll.
    pub fn new(requeue: Requeue<Workspace>) -> Self {
        InputWatch(Arc::new(Shared { requeue, mounts: Mutex::default() }))
    }

    /// Watches the objects that match the label selector until `end` is canceled.
    pub async fn run(self, client: Client, scope: Scope, selector: Selector, end: CancellationToken) {
        let watches = async {
            tokio::join!(
                self.follow::<Secret>(client.clone(), &scope, &selector),
                self.follow::<ConfigMap>(client, &scope, &selector),
            )
        };
        tokio::select! {
            () = end.cancelled() => {}
            _ = watches => {}
        }
    }

    async fn follow<K>(&self, client: Client, scope: &Scope, selector: &Selector)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + fmt::Debug + Send + 'static,
        K: serde::de::DeserializeOwned,
    {
        let mut seen = Seen::default();
        loop {
            seen.until_allowed::<K>(scope.api(client.clone()), selector).await;
            let config = scope.other_kinds().labels_from(selector);
            let api = scope.api(client.clone());
            let mut events = pin!(tolerant_watcher::watcher::<PartialObjectMeta<K>>(api, config));
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        if let Some((namespace, name)) = seen.changed(event) {
                            self.changed(&namespace, &format!("{}/{name}", K::kind(&())));
                        }
                    }
                    Err(error) if is_forbidden(&error) => {
                        // The permissions can allow a list but not a watch. `Seen::until_allowed` then does not wait.
                        tokio::time::sleep(REFUSED_RETRY).await;
                        break;
                    }
                    Err(error) => tracing::debug!(kind = %K::kind(&()), %error, "watch interrupted; retrying"),
                }
            }
        }
    }

    /// Records a change to an object and requeues the Workspaces that mount the object.
    fn changed(&self, namespace: &str, object: &str) {
        let mut mounts = self.lock();
        let users = mounts.iter_mut().filter(|(key, mounts)| key.0 == namespace && mounts.objects.contains(object));
        for (key, mounts) in users {
            mounts.pending.insert(object.to_owned(), Instant::now());
            self.0.requeue.request(ObjectRef::new(&key.1).within(&key.0));
        }
    }

    /// Sets the objects that a Workspace mounts.
    pub(super) fn set_mounts(&self, namespace: &str, name: &str, objects: BTreeSet<String>) {
        let (mut mounts, key) = (self.lock(), (namespace.to_owned(), name.to_owned()));
        if objects.is_empty() {
            mounts.remove(&key);
            return;
        }
        let known = mounts.entry(key).or_default();
        known.pending.retain(|object, _| objects.contains(object));
        known.objects = objects;
    }

    /// Records that the kubelet has mounted the changes to the given objects.
    pub(super) fn mark_mounted<'a>(&self, namespace: &str, name: &str, objects: impl Iterator<Item = &'a String>) {
        if let Some(known) = self.lock().get_mut(&(namespace.to_owned(), name.to_owned())) {
            for object in objects {
                known.pending.remove(object);
            }
        }
    }

    /// Returns the delay before the next poll, or `None` if the kubelet has mounted all changes.
    pub(super) fn next_poll(&self, namespace: &str, name: &str) -> Option<Duration> {
        let mut mounts = self.lock();
        let known = mounts.get_mut(&(namespace.to_owned(), name.to_owned()))?;
        known.pending.retain(|_, since| since.elapsed() < CHANGE_TIMEOUT);
        known.pending.values().map(|since| (since.elapsed() / 4).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)).min()
    }

    /// Removes a deleted Workspace from the watch.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Mounts>> {
        self.0.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Last observed resource version of each labeled object, for a single kind. When a restarted watch lists all objects
/// again, the versions show which objects have changed.
#[derive(Default)]
struct Seen {
    versions: HashMap<Key, String>,
    /// Versions in the current, incomplete list.
    listed: HashMap<Key, String>,
    is_complete: bool,
    is_refused: bool,
}

impl Seen {
    /// Returns the object that an event reports as changed. Ignores deleted objects and the objects in the initial
    /// list.
    fn changed<K: Resource<DynamicType = ()>>(&mut self, event: Event<PartialObjectMeta<K>>) -> Option<Key> {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                let (key, version) = version(&object);
                let is_new = self.is_complete && self.versions.get(&key) != Some(&version);
                self.listed.insert(key.clone(), version);
                return is_new.then_some(key);
            }
            Event::InitDone => {
                self.versions = std::mem::take(&mut self.listed);
                self.is_complete = true;
            }
            Event::Apply(object) => {
                let (key, version) = version(&object);
                let before = self.versions.insert(key.clone(), version.clone());
                return (before != Some(version)).then_some(key);
            }
            Event::Delete(object) => {
                self.versions.remove(&version(&object).0);
            }
        }
        None
    }

    /// Waits until the API server permits listing the objects. The watch starts only after this wait, because a watch
    /// would log each rejection. This function logs only the first rejection, because an administrator can omit the
    /// permission on purpose.
    async fn until_allowed<K>(&mut self, api: Api<Tolerant<PartialObjectMeta<K>>>, selector: &Selector)
    where
        K: Resource<DynamicType = ()> + Clone + fmt::Debug + serde::de::DeserializeOwned,
    {
        let one = ListParams::default().labels_from(selector).limit(1);
        while let Err(kube::Error::Api(status)) = api.list(&one).await
            && status.code == 403
        {
            if !self.is_refused {
                let kind = K::kind(&());
                tracing::info!(%kind, error = status.message, "the API server forbids the watch; only the regular polls of the agents detect changes");
            }
            self.is_refused = true;
            tokio::time::sleep(REFUSED_RETRY).await;
        }
        self.is_refused = false;
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 403,
        _ => false,
    }
}

fn version<K: Resource<DynamicType = ()>>(object: &PartialObjectMeta<K>) -> (Key, String) {
    let metadata = &object.metadata;
    let key = (metadata.namespace.clone().unwrap_or_default(), object.name_any());
    (key, metadata.resource_version.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests;
