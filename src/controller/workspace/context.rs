//! Dependencies of a Workspace reconcile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{Client, ResourceExt};
use tokio::sync::watch;

use super::agent_probe::AgentProbes;
use super::apply_conflicts::Applies;
use super::input_watch::InputWatch;
use super::pod_settings::PodSettings;
use super::verified_parts::VerifiedParts;
use crate::artifact;
use crate::controller::authority::Generations;
use crate::controller::references::References;
use crate::controller::update::Updates;
use crate::rpc::client::Agents;
use crate::runtime::events::Events;
use crate::runtime::fair_slots::{FairSlots, Limits};
use crate::runtime::index::CacheSync;
use crate::runtime::reads::Reader;
use crate::runtime::writes::Writer;
use crate::source::git::Git;
use crate::telemetry::metrics::Metrics;

/// Limits for concurrent source streams to agents, in total and per namespace. A waiting reconcile occupies a reconcile slot,
/// so the number of these slots bounds the queue.
const STREAMS: Limits = Limits { total: 8, per_key: 3, waiting_per_key: 1024 };

/// Dependencies of a Workspace reconcile.
pub struct Context {
    /// Lists events, which the reader does not support.
    pub client: Client,
    pub reader: Reader,
    pub writer: Writer,
    pub agents: Agents,
    /// Signs the certificates of agents. A change triggers a reconcile of all Workspaces.
    pub authority: watch::Receiver<Arc<Generations>>,
    /// Stores the bytes of artifacts.
    pub artifacts: artifact::Store,
    /// Size limits for agents.
    pub artifact_limits: artifact::Limits,
    /// Fetches artifacts that no other controller provides.
    pub fetcher: artifact::Fetcher,
    /// Polls the Git repositories of Workspaces.
    pub git: Git,
    pub metrics: Metrics,
    /// Updates in scope, which show the open runs. The controller fills it.
    pub updates: Updates,
    /// Waits until the cache of Updates is complete.
    pub caches: CacheSync,
    pub events: Events,
    pub pods: PodSettings,
    /// ServiceAccount of pods whose Workspace does not specify one.
    pub default_service_account: Option<String>,
    pub probes: AgentProbes,
    pub inputs: InputWatch,
    pub references: References,
    pub memory: Memory,
}

/// State between reconciles. It only saves or limits work, so losing it is safe.
pub struct Memory {
    /// Version of each StatefulSet after the last apply, by namespace and name. Locked only for short sections.
    applied: Mutex<HashMap<(String, String), Version>>,
    streams: FairSlots,
    /// Workspaces whose objects need not be read again yet.
    pub(super) verified_parts: VerifiedParts,
    pub(super) applies: Applies,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            applied: Mutex::default(),
            streams: FairSlots::new(STREAMS),
            verified_parts: VerifiedParts::default(),
            applies: Applies::default(),
        }
    }
}

impl Memory {
    /// Returns whether a StatefulSet is unchanged since the last apply. A StatefulSet without a known version counts as
    /// unchanged.
    pub(super) fn is_unchanged(&self, found: &StatefulSet) -> bool {
        let version = Version::of(found);
        self.lock().entry(key(found)).or_insert_with(|| version.clone()) == &version
    }

    pub(super) fn applied(&self, stateful_set: &StatefulSet) {
        self.lock().insert(key(stateful_set), Version::of(stateful_set));
    }

    pub(super) fn forget(&self, namespace: &str, name: &str) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Version>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slots for source streams to agents, by namespace.
    pub(super) fn streams(&self) -> &FairSlots {
        &self.streams
    }
}

/// Detects whether the spec of an object has changed or the object was recreated.
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

fn key(stateful_set: &StatefulSet) -> (String, String) {
    (stateful_set.namespace().unwrap_or_default(), stateful_set.name_any())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stateful_set(uid: &str, generation: i64) -> StatefulSet {
        let metadata = json!({"namespace": "team", "name": "app-workspace", "uid": uid, "generation": generation});
        serde_json::from_value(json!({"metadata": metadata})).expect("a StatefulSet")
    }

    #[test]
    fn a_changed_stateful_set_is_detected_until_it_is_applied_again() {
        let memory = Memory::default();
        assert!(memory.is_unchanged(&stateful_set("a", 1)), "the first sight is believed");
        assert!(memory.is_unchanged(&stateful_set("a", 1)));
        assert!(!memory.is_unchanged(&stateful_set("a", 2)), "edited");
        assert!(!memory.is_unchanged(&stateful_set("b", 1)), "made anew by somebody else");
        memory.applied(&stateful_set("a", 3));
        assert!(memory.is_unchanged(&stateful_set("a", 3)));
        memory.forget("team", "app-workspace");
        assert!(memory.is_unchanged(&stateful_set("b", 1)));
    }
}
