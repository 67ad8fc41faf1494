//! Watches, creates and deletes the pods in the pools.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer as StoreWriter;
use kube::runtime::watcher::{Config, Event};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::{Change, FreePod, Waiting, in_turns, plan};
use super::taken::owner;
use super::waiting::Pool;
use crate::api::auto::PooledPod;
use crate::api::names::{LABEL_POOL, LABEL_POOL_SHARD, pool_pod_server_name, pool_pod_tls_secret, workspace_object};
use crate::controller::authority::Generations;
use crate::controller::namespaces::{Namespaces, RunSettings};
use crate::controller::workspace::tls;
use crate::rpc::identity::IdentityError;
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::scope::Scope;
use crate::runtime::tolerant_watcher::watcher_with;
use crate::runtime::writes::{WriteError, Writer};

/// Maximum interval between two maintenance rounds. A changed namespace annotation takes effect in the next round.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum interval between two maintenance rounds.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of pod changes per round.
const MAX_CHANGES: usize = 16;
/// Backoff of all pools in a namespace after a failed change, or after a pod has ended.
const RETRY_DELAY: Duration = Duration::from_secs(60);
/// Maximum delay until the cache contains a new pod. During this delay, the plan includes the pod even if the cache
/// does not contain it.
const UNCACHED: Duration = Duration::from_secs(60);
/// Time after which the controller checks the certificate of an idle pod again. The certificate of a pod that stays in
/// its pool for months would otherwise expire.
const CERTIFIED: Duration = Duration::from_secs(24 * 60 * 60);
/// Duration of the controller's start phase. During this phase, the plan keeps the pods of unused pools, because the
/// pools may not contain all sleeping Workspaces yet.
const START_PHASE: Duration = Duration::from_secs(5 * 60);

#[derive(Debug, Error)]
enum PoolError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("Secret {secret} exists and does not belong to pod {pod} of a pool")]
    ForeignSecret { secret: String, pod: String },
}

/// Dependencies of [`Maintenance`].
#[derive(Clone)]
pub struct MaintenanceParts {
    pub client: Client,
    pub scope: Scope,
    pub reader: Reader,
    pub writer: Writer,
    pub authority: watch::Receiver<Arc<Generations>>,
    pub namespaces: Namespaces,
}

/// Creates and deletes the pods in the pools.
pub struct Maintenance {
    pool: Pool,
    parts: MaintenanceParts,
    /// Whether the cache contains all pool pods.
    is_listed: AtomicBool,
}

/// State that the controller keeps between two maintenance rounds. The state is empty after a restart, so the
/// controller then reads the certificates again.
struct Memory {
    started: Instant,
    /// UIDs of the pods with current certificates, and the times of the checks. A new CA does not invalidate these
    /// entries: the pool key depends on the CA, so the controller replaces the pods.
    certified: HashMap<String, Instant>,
    /// Pods that the cache may not contain yet, and their creation times.
    created: Vec<(FreePod, Instant)>,
    /// Times at which the backoff of namespaces started.
    failed: HashMap<String, Instant>,
    /// Namespace of the last change. The next round starts with the following namespace.
    last: String,
}

impl Memory {
    fn new() -> Self {
        let (certified, created, failed) = (HashMap::new(), Vec::new(), HashMap::new());
        Memory { started: Instant::now(), certified, created, failed, last: String::new() }
    }

    /// Returns the UIDs of the pods whose certificates need no check. Removes all other entries.
    fn certified(&mut self, pods: &[FreePod]) -> HashSet<String> {
        let uids: HashSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        self.certified.retain(|uid, checked| uids.contains(uid.as_str()) && checked.elapsed() < CERTIFIED);
        self.certified.keys().cloned().collect()
    }
}

impl std::fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maintenance").finish_non_exhaustive()
    }
}

impl Maintenance {
    pub fn new(pool: Pool, parts: MaintenanceParts) -> Self {
        Maintenance { pool, parts, is_listed: AtomicBool::new(false) }
    }

    /// Maintains the pools until `end` is canceled. `cache` writes the pod cache of the pools.
    pub async fn run(self, cache: StoreWriter<Pod>, end: CancellationToken) {
        tokio::select! {
            () = end.cancelled() => {}
            () = self.watch(cache) => {}
            () = self.maintain() => {}
        }
    }

    async fn watch(&self, cache: StoreWriter<Pod>) {
        let MaintenanceParts { client, scope, .. } = &self.parts;
        let cached = cache.as_reader();
        let last = move |metadata: &ObjectMeta| {
            let reference = ObjectRef::new(metadata.name.as_deref()?).within(metadata.namespace.as_deref()?);
            Some(Pod::clone(&*cached.get(&reference)?))
        };
        // A deleted pod must leave the cache even if it can no longer be parsed.
        let pods = watcher_with(scope.api(client.clone()), pods_of_shard(scope), last, |_, _| ());
        let mut events = std::pin::pin!(pods.modify(strip_unused_fields).reflect(cache));
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if matches!(event, Event::InitDone) {
                        self.is_listed.store(true, Ordering::Relaxed);
                    }
                    self.pool.notify();
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "failed to watch pods of pools; retrying");
                }
            }
        }
    }

    async fn maintain(&self) {
        let mut memory = Memory::new();
        loop {
            // After the timeout, the next round reads the namespace settings again.
            let _ = tokio::time::timeout(MAX_INTERVAL, self.pool.changed()).await;
            // If the pod list were incomplete, the plan would create too many pods.
            if self.is_listed.load(Ordering::Relaxed) {
                Box::pin(self.round(&mut memory)).await;
            }
            tokio::time::sleep(MIN_INTERVAL).await;
        }
    }

    async fn round(&self, memory: &mut Memory) {
        memory.failed.retain(|_, failed| failed.elapsed() < RETRY_DELAY);
        memory.created.retain(|(pod, created)| {
            created.elapsed() < UNCACHED && self.pool.pod(&pod.namespace, &pod.name).is_none()
        });
        let waiting = self.pool.waiting();
        let mut pods = self.pool.free_pods();
        pods.extend(memory.created.iter().map(|(pod, _)| pod.clone()));
        let certified = memory.certified(&pods);
        let sizes = self.sizes(&waiting, &pods, memory).await;
        let keeps_unused = memory.started.elapsed() < START_PHASE;
        let changes = plan(&waiting, &pods, &sizes, &certified, keeps_unused);
        let (mut count, mut ended) = (0, Vec::new());
        for change in in_turns(changes, &memory.last) {
            let namespace = change.namespace();
            // The changes of a namespace in backoff do not count against the limit.
            if memory.failed.contains_key(namespace) {
                continue;
            }
            if count == MAX_CHANGES {
                break;
            }
            count += 1;
            namespace.clone_into(&mut memory.last);
            if change.deletes_ended_pod() {
                ended.push(namespace.to_owned());
            }
            if let Err(error) = self.perform(&change, memory).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    namespace,
                    "failed to change a pool of workspace pods; retrying in a minute"
                );
                memory.failed.insert(namespace.to_owned(), Instant::now());
            }
        }
        // A node under disk pressure, for example, can reject each new pod immediately.
        memory.failed.extend(ended.into_iter().map(|namespace| (namespace, Instant::now())));
    }

    /// Returns the number of idle pods per pool, by namespace. Omits namespaces whose number is unknown, and
    /// namespaces in backoff.
    async fn sizes(&self, waiting: &[Waiting], pods: &[FreePod], memory: &mut Memory) -> HashMap<String, usize> {
        let namespaces = waiting.iter().map(|waiting| &waiting.namespace).chain(pods.iter().map(|pod| &pod.namespace));
        let namespaces: HashSet<String> =
            namespaces.filter(|namespace| !memory.failed.contains_key(*namespace)).cloned().collect();
        let mut sizes = HashMap::new();
        for namespace in namespaces {
            let namespaces = &self.parts.namespaces;
            let settings = match namespaces.is_terminating(&namespace).await {
                // The API server creates no pods in this namespace, and its idle pods would delay the deletion.
                Ok(true) => Ok(RunSettings::default()),
                Ok(false) => namespaces.run_settings(&namespace).await,
                Err(error) => Err(error),
            };
            match settings {
                Ok(settings) => {
                    sizes.insert(namespace, settings.run_share.idle_pods.min(self.pool.maximum()));
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        namespace,
                        "failed to read the number of idle pods; retrying in a minute"
                    );
                    memory.failed.insert(namespace, Instant::now());
                }
            }
        }
        sizes
    }

    async fn perform(&self, change: &Change, memory: &mut Memory) -> Result<(), PoolError> {
        match change {
            Change::Delete(pod) => self.delete(pod).await,
            Change::Certify(pod) => self.certify(pod, memory).await,
            Change::Create { namespace, key, workspace } => {
                let Some(pod) = self.create(namespace, key, workspace).await? else { return Ok(()) };
                memory.created.push((pod.clone(), Instant::now()));
                // The pod does not start without its certificate. If issuing the certificate fails, the next round
                // retries.
                self.certify(&pod, memory).await
            }
        }
    }

    /// Deletes a pod. The API server rejects the deletion if the pod has changed, for example because a Workspace has
    /// taken the pod in the meantime. This conflict is an error, so that a tenant who continuously changes pods with the
    /// labels of a pool causes only one request per [`RETRY_DELAY`].
    async fn delete(&self, pod: &FreePod) -> Result<(), PoolError> {
        let Some(cached) = self.pool.pod(&pod.namespace, &pod.name) else { return Ok(()) };
        self.parts.writer.delete_if_unchanged::<Pod>(&cached).await?;
        tracing::info!(namespace = pod.namespace, pod = pod.name, "deleted an idle pod of a pool");
        Ok(())
    }

    /// Issues the certificate of a pod if the certificate is missing or outdated. Never replaces the Secret of another
    /// owner, but deletes the pod, so that a pod with another name replaces it.
    async fn certify(&self, pod: &FreePod, memory: &mut Memory) -> Result<(), PoolError> {
        let (authority, now) = (self.parts.authority.borrow().clone(), Timestamp::now());
        let (name, server_name) = (pool_pod_tls_secret(&pod.name), pool_pod_server_name(&pod.name, &pod.namespace));
        let found = self.parts.reader.get_opt::<Secret>(&pod.namespace, &name).await?;
        if found.as_ref().is_some_and(|secret| !tls::is_of_pod(secret, &pod.uid)) {
            let error = PoolError::ForeignSecret { secret: name, pod: pod.name.clone() };
            tracing::warn!(error = &error as &dyn std::error::Error, "deleting an idle pod that cannot start");
            return self.delete(pod).await;
        }
        if !found.is_some_and(|secret| tls::has_certificate(&secret, &server_name, &authority, now)) {
            let identity = PooledPod { name: pod.name.clone(), uid: pod.uid.clone() };
            let secret = tls::issue_for_pod(&identity, &pod.namespace, None, &authority, now)?;
            self.parts.writer.apply::<Secret>(&secret).await?;
        }
        memory.certified.insert(pod.uid.clone(), Instant::now());
        Ok(())
    }

    /// Creates a pod that the Service of a Workspace owns. Returns `None` if the template or the Service no longer
    /// exists.
    async fn create(&self, namespace: &str, key: &str, workspace: &str) -> Result<Option<FreePod>, PoolError> {
        let Some(template) = self.pool.template(key) else { return Ok(None) };
        let service = self.parts.reader.get_opt::<Service>(namespace, &workspace_object(workspace)).await?;
        let Some(owner) = service.as_ref().and_then(owner) else { return Ok(None) };
        let (name, shard) = (template.pod_name(), self.parts.scope.shard());
        let pod = template.pod(namespace, &name, shard.as_deref(), &owner);
        let pod = self.parts.writer.apply::<Pod>(&pod).await?;
        tracing::info!(namespace, pod = name, "created an idle pod in a pool");
        Ok(FreePod::of(&pod))
    }
}

/// Returns the configuration for watching the pool pods of this shard. Each shard knows only its own Workspaces, so the
/// pods of other shards would be pods without demand, which the plan deletes.
fn pods_of_shard(scope: &Scope) -> Config {
    let shard = match scope.shard() {
        Some(shard) => format!("{LABEL_POOL_SHARD}={shard}"),
        // These pods include the pods from controller versions without this label.
        None => format!("!{LABEL_POOL_SHARD}"),
    };
    scope.other_kinds().labels(&format!("{LABEL_POOL},{shard}"))
}

/// Removes the pod fields that [`Pool`] does not use.
fn strip_unused_fields(pod: &mut Pod) {
    pod.spec = None;
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    if let Some(status) = &mut pod.status {
        let (conditions, phase) = (status.conditions.take(), status.phase.take());
        *status = PodStatus { conditions, phase, ..PodStatus::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_certificate_of_an_idle_pod_is_checked_once_per_day() {
        let pod = |uid: &str| FreePod {
            namespace: "team".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            key: "key".to_owned(),
            is_ready: true,
            has_ended: false,
        };
        let mut memory = Memory::new();
        memory.certified.insert("a".to_owned(), Instant::now());
        memory.certified.insert("gone".to_owned(), Instant::now());
        assert_eq!(memory.certified(&[pod("a"), pod("new")]), HashSet::from(["a".to_owned()]));
        assert_eq!(memory.certified.len(), 1);
        tokio::time::advance(CERTIFIED).await;
        assert!(memory.certified(&[pod("a")]).is_empty());
    }

    #[test]
    fn a_shard_watches_only_the_pods_of_its_own_pools() {
        let selector = |selector: Option<&str>| {
            pods_of_shard(&Scope::new(None, selector.map(str::to_owned))).label_selector.unwrap_or_default()
        };
        let rows = [
            (None, "auto.pulumi.com/pool,!auto.pulumi.com/pool-shard"),
            (Some("!sharding.fluxcd.io/key"), "auto.pulumi.com/pool,auto.pulumi.com/pool-shard=42da7484"),
            (Some("sharding.fluxcd.io/key=shard1"), "auto.pulumi.com/pool,auto.pulumi.com/pool-shard=73fdc1be"),
        ];
        for (shard, expected) in rows {
            assert_eq!(selector(shard), expected);
        }
    }
}
