//! Tracks the free pods, and the Workspaces that can take a pod from a pool.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::plan::{FreePod, Waiting};
use super::taken::has_ended;
use super::template::PoolTemplate;
use crate::api::auto::PooledPod;
use crate::api::names::{LABEL_POOL, POOL_POD_PREFIX};
use crate::controller::workspace::metadata::workspace_name;

/// Time for which a pod remains reserved for a Workspace. By the end of this period, the pod cache shows whether the
/// Workspace has taken the pod.
const RESERVED: Duration = Duration::from_secs(60);
/// Time for which a pool keeps its pods after a Workspace has woken up. The Workspace often goes back to sleep soon.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// Namespace and name of a Workspace.
type Key = (String, String);

/// Pools of all namespaces. Clones are cheap and share the same state.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    /// Maximum number of idle pods per pool. Zero disables the pools.
    maximum: usize,
    /// Pool pods, including the pods that Workspaces have taken. The cached pods contain only the fields that
    /// [`Maintenance`](super::Maintenance) keeps.
    pods: Store<Pod>,
    /// State of the pools. Hold the lock only for short critical sections, and never across an `.await`.
    state: Mutex<State>,
    /// Notifies [`Maintenance`](super::Maintenance) when the state or the pods have changed.
    changed: Notify,
}

#[derive(Default)]
struct State {
    waiting: HashMap<Key, Sleeper>,
    /// Templates by key. Workspaces with the same key share a template.
    templates: HashMap<String, Arc<PoolTemplate>>,
    /// UIDs of the reserved pods, and the times at which they were reserved.
    reserved: HashMap<String, Instant>,
}

/// Workspace that is sleeping, or was sleeping until recently.
struct Sleeper {
    template: Arc<PoolTemplate>,
    since: Instant,
    /// Time at which the Workspace woke up, or `None` if it is sleeping.
    awake: Option<Instant>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates the pools, and the writer that fills their pod cache.
    pub fn new(maximum: usize) -> (Self, Writer<Pod>) {
        let (pods, writer) = reflector::store();
        let shared = Shared { maximum, pods, state: Mutex::default(), changed: Notify::new() };
        (Pool(Arc::new(shared)), writer)
    }

    /// Returns the maximum number of idle pods per pool.
    pub fn maximum(&self) -> usize {
        self.0.maximum
    }

    pub fn is_enabled(&self) -> bool {
        self.0.maximum > 0
    }

    /// Records that a Workspace is sleeping and can take a pod with the given template.
    pub fn offer(&self, namespace: &str, name: &str, template: PoolTemplate) {
        let mut state = self.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let is_known = |sleeper: &Sleeper| sleeper.awake.is_none() && sleeper.template.key == template.key;
        if !self.is_enabled() || state.waiting.get(&key).is_some_and(is_known) {
            return;
        }
        let shared = state.templates.entry(template.key.clone()).or_insert_with(|| Arc::new(template)).clone();
        state.waiting.insert(key, Sleeper { template: shared, since: Instant::now(), awake: None });
        drop(state);
        self.notify();
    }

    /// Records that a Workspace is awake, does not exist, or cannot take a pod.
    pub fn withdraw(&self, namespace: &str, name: &str) {
        let mut state = self.lock();
        let sleeper = state.waiting.get_mut(&(namespace.to_owned(), name.to_owned()));
        if let Some(sleeper) = sleeper.filter(|sleeper| sleeper.awake.is_none()) {
            sleeper.awake = Some(Instant::now());
        }
    }

    /// Reserves a free pod that is ready. Returns `None` if the pool has no such pod.
    pub fn reserve(&self, namespace: &str, key: &str) -> Option<PooledPod> {
        let ready = self.free_pods().into_iter().filter(|pod| pod.is_ready);
        let mut pods = ready.filter(|pod| pod.namespace == namespace && pod.key == key);
        let mut state = self.lock();
        let pod = pods.find(|pod| !state.reserved.contains_key(&pod.uid))?;
        state.reserved.insert(pod.uid.clone(), Instant::now());
        Some(PooledPod { name: pod.name, uid: pod.uid })
    }

    /// Returns the Workspaces that can take a pod, or could take a pod until recently.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let mut state = self.lock();
        state.waiting.retain(|_, sleeper| sleeper.awake.is_none_or(|awake| awake.elapsed() < KEPT));
        state.templates.retain(|_, template| Arc::strong_count(template) > 1);
        let waiting = state.waiting.iter().map(|((namespace, name), sleeper)| Waiting {
            namespace: namespace.clone(),
            workspace: name.clone(),
            key: sleeper.template.key.clone(),
            is_asleep: sleeper.awake.is_none(),
            since: sleeper.awake.unwrap_or(sleeper.since),
        });
        waiting.collect()
    }

    /// Returns the pods that no Workspace has taken or reserved.
    pub(super) fn free_pods(&self) -> Vec<FreePod> {
        let pods = self.0.pods.state();
        let mut state = self.lock();
        state.reserved.retain(|_, since| since.elapsed() < RESERVED);
        let free = pods.iter().filter_map(|pod| FreePod::of(pod));
        free.filter(|pod| !state.reserved.contains_key(&pod.uid)).collect()
    }

    /// Returns a pod from the cache.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.0.pods.get(&ObjectRef::new(name).within(namespace))
    }

    pub(super) fn template(&self, key: &str) -> Option<Arc<PoolTemplate>> {
        self.lock().templates.get(key).cloned()
    }

    pub(super) fn notify(&self) {
        self.0.changed.notify_one();
    }

    /// Waits until the state or the pods have changed.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FreePod {
    /// Returns the pod, or `None` if a Workspace has taken the pod, the pod is being deleted, or the controller has not
    /// created the pod. A user can create any pod with the labels of a pool.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let key = pod.labels().get(LABEL_POOL)?.clone();
        let is_ours = pod.metadata.name.as_ref().is_some_and(|name| name.starts_with(POOL_POD_PREFIX));
        if !is_ours || workspace_name(pod).is_some() || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        Some(FreePod {
            namespace: pod.namespace()?,
            name: pod.name_any(),
            uid: pod.uid()?,
            key,
            is_ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            has_ended: has_ended(pod),
        })
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::api::names::LABEL_WORKSPACE_NAME;

    fn pod(name: &str, labels: &[(&str, &str)], ready: &str) -> Pod {
        let labels: HashMap<&str, &str> = labels.iter().copied().collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .expect("a Pod")
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_reserved_for_one_workspace() {
        let (pool, mut writer) = Pool::new(2);
        let pods = [
            pod("pulumi-pool-starting", &[(LABEL_POOL, "key")], "False"),
            pod("pulumi-pool-other", &[(LABEL_POOL, "another")], "True"),
            pod("pulumi-pool-taken", &[(LABEL_POOL, "key"), (LABEL_WORKSPACE_NAME, "web")], "True"),
            pod("pod-of-a-user", &[(LABEL_POOL, "key")], "True"),
            pod("pulumi-pool-free", &[(LABEL_POOL, "key")], "True"),
        ];
        for pod in pods {
            writer.apply_watcher_event(&Event::Apply(pod));
        }
        assert_eq!(pool.reserve("elsewhere", "key"), None);
        let expected = Some(PooledPod { name: "pulumi-pool-free".to_owned(), uid: "pulumi-pool-free".to_owned() });
        assert_eq!(pool.reserve("team", "key"), expected);
        assert_eq!(pool.reserve("team", "key"), None, "the pod is reserved");
        assert_eq!(pool.free_pods().len(), 2);
        tokio::time::advance(RESERVED).await;
        assert_eq!(pool.reserve("team", "key"), expected, "no Workspace has taken the pod");
    }
}
