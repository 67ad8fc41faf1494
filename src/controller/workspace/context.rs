//! Dependencies of a Workspace reconciliation, and the state that the controller keeps in memory between
//! reconciliations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use kube::core::Selector;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::activity::Activity;
use super::agent_probe::AgentProbes;
use super::apply_conflicts::APPLIES;
use super::input_watch::InputWatch;
use super::pod_settings::PodSettings;
use super::polls::Polls;
use super::pool::Pool;
use super::repeats::{Delays, Repeats};
use super::silence::Silences;
use crate::api::auto::Workspace;
use crate::api::names;
use crate::artifact;
use crate::controller::authority::Generations;
use crate::controller::namespaces::Namespaces;
use crate::controller::references::References;
use crate::controller::update::Updates;
use crate::rpc::client::Agents;
use crate::runtime::events::Events;
use crate::runtime::fair_slots::{FairSlots, Limits};
use crate::runtime::first_objects::FirstObjects;
use crate::runtime::index::CacheSync;
use crate::runtime::reads::Reader;
use crate::runtime::writes::Writer;
use crate::source::git::Git;
use crate::telemetry::metrics::Metrics;

/// Limits for concurrent source streams to agents, in total and for each namespace. A waiting reconciliation occupies
/// a controller worker, so the number of workers also limits the queue.
const STREAMS: Limits = Limits { total: 8, per_key: 3, waiting_per_key: 1024 };
/// Maximum number of slow streams, which do not occupy the slots of [`STREAMS`]. This limit also bounds the memory
/// that the stream buffers use.
const SLOW_STREAMS: usize = 24;
/// Delays between deliveries of the same source to the same pod.
const DELIVERIES: Delays =
    Delays { immediate: 2, first: Duration::from_secs(5), longest: Duration::from_secs(10 * 60) };
/// Delays between replacements of the pod for the same spec.
const REPLACEMENTS: Delays =
    Delays { immediate: 2, first: Duration::from_secs(60), longest: Duration::from_secs(30 * 60) };
/// Interval between two reads of a Workspace's objects while the pod is ready. The interval can be long, because a
/// deleted object affects only the next pod.
const TRUSTED_AT_REST: Duration = Duration::from_secs(10 * 60);
/// Interval between two reads of a Workspace's objects while the pod is not ready. The interval is short, because the
/// pod can be waiting for a missing object.
const TRUSTED_AT_START: Duration = Duration::from_secs(60);
/// Minimum delay between the start of the controller and its first read of a ready Workspace's objects. The maximum
/// delay is [`TRUSTED_AT_REST`]. The controller selects each delay at random, which distributes the reads over time.
const MIN_FIRST_DELAY: Duration = Duration::from_secs(60);

/// Dependencies of a Workspace reconciliation.
pub struct Context {
    pub reader: Reader,
    pub writer: Writer,
    pub agents: Agents,
    /// CA that signs the certificates of agents. When the CA changes, the controller reconciles all Workspaces.
    pub authority: watch::Receiver<Arc<Generations>>,
    /// Store of artifact bytes.
    pub artifacts: artifact::Store,
    /// Artifact size limits, which the controller includes in each request that sends an artifact to an agent.
    pub artifact_limits: artifact::Limits,
    /// Fetcher for artifacts that no other controller provides.
    pub fetcher: artifact::Fetcher,
    /// Poller for the Git repositories of Workspaces.
    pub git: Git,
    pub metrics: Metrics,
    /// All Updates that the Update controller watches. The Workspace controller finds the open runs in this store.
    pub updates: Updates,
    /// Waits until the cache of Updates is complete.
    pub caches: CacheSync,
    pub events: Events,
    pub pods: PodSettings,
    /// ServiceAccount for pods whose Workspace sets no ServiceAccount.
    pub default_service_account: Option<String>,
    /// Default idle time before a Workspace goes to sleep, or `None` if idle Workspaces stay awake by default.
    pub default_idle_after: Option<SignedDuration>,
    /// Label selector for the Secrets and ConfigMaps whose changes trigger runs.
    pub watched: Option<Selector>,
    pub probes: AgentProbes,
    pub inputs: InputWatch,
    pub polls: Polls,
    pub references: References,
    /// Cache of the namespaces that are being deleted.
    pub namespaces: Namespaces,
    pub pool: Pool,
    /// Workspaces from the initial list of the watch, which the first reconciliations use. The Stack controller fills
    /// this store.
    pub first_workspaces: FirstObjects<Workspace>,
    pub memory: Memory,
}

/// State that the controller keeps in memory between reconciliations. The state is empty after a restart, so the
/// controller then performs some unnecessary reads and writes.
pub struct Memory {
    /// Version of each StatefulSet after the last apply, by namespace and name. Hold the lock only for short critical
    /// sections, and never across an `.await`.
    applied: Mutex<HashMap<(String, String), Version>>,
    streams: FairSlots,
    slow_streams: Semaphore,
    /// Workspaces whose objects the controller does not need to read yet.
    pub(super) verified_parts: VerifiedParts,
    /// Applies of the same content to outdated objects.
    pub(super) applies: Repeats,
    /// Deliveries of the same source to the same pod.
    pub(super) deliveries: Repeats,
    /// Replacements of the pod for the same spec.
    pub(super) replacements: Repeats,
    pub(super) activity: Activity,
    pub(super) silences: Silences,
    /// Agents that accept a call, but do not report its result.
    pub(super) ignored_calls: Silences,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            applied: Mutex::default(),
            streams: FairSlots::new(STREAMS),
            slow_streams: Semaphore::new(SLOW_STREAMS),
            verified_parts: VerifiedParts::default(),
            applies: Repeats::new(APPLIES),
            deliveries: Repeats::new(DELIVERIES),
            replacements: Repeats::new(REPLACEMENTS),
            activity: Activity::default(),
            silences: Silences::default(),
            ignored_calls: Silences::default(),
        }
    }
}

impl Memory {
    /// Returns whether a StatefulSet is unchanged since the last apply. If no version is recorded, records the current
    /// version and returns `true`.
    pub(super) fn is_unchanged(&self, found: &StatefulSet) -> bool {
        let version = Version::of(found);
        self.lock().entry(key_of(found)).or_insert_with(|| version.clone()) == &version
    }

    pub(super) fn record_applied(&self, stateful_set: &StatefulSet) {
        self.lock().insert(key_of(stateful_set), Version::of(stateful_set));
    }

    /// Removes the version of a StatefulSet that the controller deletes.
    pub(super) fn forget(&self, namespace: &str, name: &str) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Removes the state of a deleted Workspace.
    pub fn forget_workspace(&self, namespace: &str, name: &str) {
        self.forget(namespace, &names::workspace_object(name));
        self.verified_parts.forget((namespace, name));
        self.applies.forget((namespace, name));
        self.deliveries.forget((namespace, name));
        self.replacements.forget((namespace, name));
        self.activity.forget((namespace, name));
        self.silences.forget((namespace, name));
        self.ignored_calls.forget((namespace, name));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Version>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slots of source streams to agents, by namespace.
    pub(super) fn streams(&self) -> &FairSlots {
        &self.streams
    }

    /// Returns the slots of slow streams. A slow stream does not occupy a slot of [`Memory::streams`].
    pub(super) fn slow_streams(&self) -> &Semaphore {
        &self.slow_streams
    }
}

/// Version of an object. The version changes when the spec changes or the object is recreated.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    uid: String,
    generation: i64,
}

impl Version {
    fn of(stateful_set: &StatefulSet) -> Self {
        let generation = stateful_set.metadata.generation.unwrap_or_default();
        Self { uid: stateful_set.uid().unwrap_or_default(), generation }
    }
}

fn key_of(stateful_set: &StatefulSet) -> (String, String) {
    (stateful_set.namespace().unwrap_or_default(), stateful_set.name_any())
}

/// Cache of the Workspaces whose Service, certificate, PodDisruptionBudget and StatefulSet are current, by namespace
/// and name. The cache avoids reads. Between the start of a pod and the end of a run, the controller reconciles the
/// Workspace about twelve times, mostly because the pod has changed.
#[derive(Default)]
pub(super) struct VerifiedParts {
    /// State by namespace and name of the Workspace. Never hold the lock across an `.await`.
    known: Mutex<HashMap<(String, String), Known>>,
    /// Time of the first call to [`VerifiedParts::assume_current`].
    start: OnceLock<Instant>,
}

/// State of one Workspace's objects.
enum Known {
    Right(Seen),
    /// Time at which an object changed, or at which a read showed that an object was not current. Earlier reads can
    /// be stale.
    ChangedAt(Instant),
}

/// Inputs from which the current objects were created, and the time of the read.
struct Seen {
    parts_hash: String,
    authority: Arc<Generations>,
    at: Instant,
    /// Time until which the controller assumes that the objects are current. `None` if the controller has read the
    /// objects since it started.
    assumed_until: Option<Instant>,
}

impl Seen {
    /// Returns whether the entry is recent enough to replace a read of the objects. `ready` states whether the pod is
    /// ready.
    fn is_valid(&self, ready: bool) -> bool {
        match self.assumed_until {
            Some(until) => ready && Instant::now() < until,
            None => self.at.elapsed() < if ready { TRUSTED_AT_REST } else { TRUSTED_AT_START },
        }
    }
}

impl VerifiedParts {
    /// Returns whether a recent read has shown that the objects with the given hash are current. If `true`, the
    /// caller need not read the objects. `ready` states whether the pod is ready.
    pub(super) fn contains(
        &self,
        workspace: (&str, &str),
        parts_hash: &str,
        authority: &Arc<Generations>,
        ready: bool,
    ) -> bool {
        let known = self.lock();
        let Some(Known::Right(seen)) = known.get(&key(workspace)) else { return false };
        seen.parts_hash == parts_hash && Arc::ptr_eq(&seen.authority, authority) && seen.is_valid(ready)
    }

    /// Delays the first read of a Workspace's objects after the start of the controller. The Workspace status and the
    /// pod must show that the objects are current. Without the delay, the controller would read the objects of all
    /// Workspaces at once when it starts.
    pub(super) fn assume_current(&self, workspace: (&str, &str), parts_hash: &str, authority: &Arc<Generations>) {
        let start = *self.start.get_or_init(Instant::now);
        let mut known = self.lock();
        // The assumption applies only during the start phase, and only to Workspaces that the cache does not contain.
        if start.elapsed() >= TRUSTED_AT_REST - MIN_FIRST_DELAY || known.contains_key(&key(workspace)) {
            return;
        }
        let (min, max) = (start.elapsed() + MIN_FIRST_DELAY, TRUSTED_AT_REST);
        let delay = min + max.saturating_sub(min).mul_f64(fastrand::f64());
        let seen = Seen {
            parts_hash: parts_hash.to_owned(),
            authority: authority.clone(),
            // The start time replaces the read time, so that the cache keeps the entry until the maximum delay has
            // passed.
            at: start,
            assumed_until: Some(start + delay),
        };
        known.insert(key(workspace), Known::Right(seen));
    }

    /// Records that all objects are current. `started` is the time at which the reads started.
    pub(super) fn insert(
        &self,
        workspace: (&str, &str),
        parts_hash: &str,
        authority: &Arc<Generations>,
        started: Instant,
    ) {
        let mut known = self.lock();
        known.retain(|_, known| known.at().elapsed() < TRUSTED_AT_REST);
        if matches!(known.get(&key(workspace)), Some(Known::ChangedAt(changed)) if *changed >= started) {
            return;
        }
        let (parts_hash, authority) = (parts_hash.to_owned(), authority.clone());
        let seen = Seen { parts_hash, authority, at: started, assumed_until: None };
        known.insert(key(workspace), Known::Right(seen));
    }

    /// Ends the assumption of [`VerifiedParts::assume_current`]. Returns whether the objects were assumed to be current.
    pub(super) fn end_assumption(&self, workspace: (&str, &str)) -> bool {
        let mut known = self.lock();
        let is_assumed = matches!(known.get(&key(workspace)), Some(Known::Right(seen)) if seen.assumed_until.is_some());
        if is_assumed {
            known.insert(key(workspace), Known::ChangedAt(Instant::now()));
        }
        is_assumed
    }

    /// Records that an object has changed or is not current.
    pub(super) fn invalidate(&self, workspace: (&str, &str)) {
        self.lock().insert(key(workspace), Known::ChangedAt(Instant::now()));
    }

    /// Removes the state of a deleted Workspace.
    fn forget(&self, workspace: (&str, &str)) {
        self.lock().remove(&key(workspace));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn at(&self) -> Instant {
        match self {
            Known::Right(seen) => seen.at,
            Known::ChangedAt(changed) => *changed,
        }
    }
}

fn key((namespace, name): (&str, &str)) -> (String, String) {
    (namespace.to_owned(), name.to_owned())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::rpc::identity::Authority;

    fn stateful_set(uid: &str, generation: i64) -> StatefulSet {
        let metadata = json!({"namespace": "team", "name": "app-workspace", "uid": uid, "generation": generation});
        serde_json::from_value(json!({"metadata": metadata})).expect("a StatefulSet")
    }

    #[test]
    fn a_changed_stateful_set_is_detected_until_it_is_applied_again() {
        let memory = Memory::default();
        assert!(memory.is_unchanged(&stateful_set("a", 1)), "the first version is trusted");
        assert!(memory.is_unchanged(&stateful_set("a", 1)));
        assert!(!memory.is_unchanged(&stateful_set("a", 2)), "edited");
        assert!(!memory.is_unchanged(&stateful_set("b", 1)), "recreated by another client");
        memory.record_applied(&stateful_set("a", 3));
        assert!(memory.is_unchanged(&stateful_set("a", 3)));
        memory.forget("team", "app-workspace");
        assert!(memory.is_unchanged(&stateful_set("b", 1)));
    }

    const APP: (&str, &str) = ("team", "app");

    #[test]
    fn nothing_remains_of_a_deleted_workspace() {
        let memory = Memory::default();
        memory.record_applied(&stateful_set("a", 1));
        memory.verified_parts.insert(APP, "a", &authority(), Instant::now());
        memory.applies.record(APP, "a");
        memory.deliveries.record(APP, "a");
        memory.replacements.record(APP, "a");
        memory.activity.record(APP, Timestamp::now());
        memory.silences.record(APP, Some("pod"), Timestamp::now());
        memory.forget_workspace("team", "app");
        assert!(memory.lock().is_empty() && memory.verified_parts.lock().is_empty());
        assert!(memory.applies.is_empty() && memory.deliveries.is_empty() && memory.replacements.is_empty());
        assert!(memory.activity.is_empty() && memory.silences.is_empty());
    }

    fn authority() -> Arc<Generations> {
        Arc::new(Generations::first(Authority::generate(Timestamp::now()).expect("valid authority")))
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_ready_workspaces_are_read_some_time_after_the_start() {
        let (verified, ours, next) = (VerifiedParts::default(), authority(), authority());
        verified.assume_current(APP, "a", &ours);
        assert!(verified.contains(APP, "a", &ours, true));
        assert!(!verified.contains(APP, "a", &ours, false), "the pod is not ready");
        assert!(!verified.contains(APP, "b", &ours, true), "a different spec");
        assert!(!verified.contains(APP, "a", &next, true), "a different authority");
        tokio::time::advance(MIN_FIRST_DELAY - Duration::from_millis(1)).await;
        assert!(verified.contains(APP, "a", &ours, true), "the minimum delay has not passed");
        assert!(verified.end_assumption(APP) && !verified.end_assumption(APP));
        verified.assume_current(APP, "a", &ours);
        assert!(!verified.contains(APP, "a", &ours, true), "the assumption has ended");
        let other = ("team", "other");
        verified.assume_current(other, "a", &ours);
        tokio::time::advance(TRUSTED_AT_REST - MIN_FIRST_DELAY).await;
        verified.insert(APP, "a", &ours, Instant::now());
        verified.assume_current(other, "a", &ours);
        assert!(!verified.contains(other, "a", &ours, true), "the maximum delay has passed");
        assert!(!verified.end_assumption(APP), "the objects were read");
        let late = ("team", "late");
        verified.assume_current(late, "a", &ours);
        assert!(!verified.contains(late, "a", &ours, true), "not after the start");
    }

    #[tokio::test(start_paused = true)]
    async fn owned_objects_are_verified_again_after_expiry_or_input_changes() {
        let (verified, ours, next) = (VerifiedParts::default(), authority(), authority());
        assert!(!verified.contains(APP, "a", &ours, true), "not read yet");
        verified.insert(APP, "a", &ours, Instant::now());
        assert!(verified.contains(APP, "a", &ours, true));
        assert!(!verified.contains(APP, "b", &ours, true), "a different spec");
        assert!(!verified.contains(APP, "a", &next, true), "a different authority");
        assert!(!verified.contains(("team", "other"), "a", &ours, true));
        tokio::time::advance(TRUSTED_AT_START).await;
        assert!(!verified.contains(APP, "a", &ours, false), "too old for a pod that is not ready");
        assert!(verified.contains(APP, "a", &ours, true));
        tokio::time::advance(TRUSTED_AT_REST).await;
        assert!(!verified.contains(APP, "a", &ours, true), "too old");
        let started = Instant::now();
        verified.insert(APP, "a", &ours, started);
        verified.invalidate(APP);
        assert!(!verified.contains(APP, "a", &ours, true), "changed after the read");
        verified.insert(APP, "a", &ours, started);
        assert!(!verified.contains(APP, "a", &ours, true), "changed during the read");
        tokio::time::advance(Duration::from_millis(1)).await;
        verified.insert(APP, "a", &ours, Instant::now());
        assert!(verified.contains(APP, "a", &ours, true), "read again");
    }
}
