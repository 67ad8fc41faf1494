//! Finds the open runs whose pod or node is about to disappear, so that their reconciliation interrupts them in time.
//!
//! While the agent reports the progress of a run, the reconciliation reads neither the pod nor the node. This component
//! only records the runs for which it must read both: a pod event reports the deletion of the pod, and a task checks the
//! nodes of all open runs. The decision depends only on the pod and the node, so a restart loses nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio_util::sync::CancellationToken;

use crate::api::auto::Update;
use crate::api::names;
use crate::controller::update::pod_mark;
use crate::controller::update::queue::Updates;
use crate::runtime::reads::Reader;
use crate::runtime::requeue::Requeue;

/// Interval between two checks of the nodes. The shortest notice of a cloud provider is 30 seconds.
const NODE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of nodes that a check reads at the same time.
const CONCURRENT_READS: usize = 10;
/// Message of the kubelet in the condition `Ready` of its node during a graceful shutdown.
const SHUTTING_DOWN: &str = "node is shutting down";
/// Time in which a run must end on a node that is shutting down. Managed clusters usually configure 30 seconds.
const SHUTDOWN_SECONDS: u32 = 20;
/// Time in which a run must end after the notice of a machine that the provider takes back. AWS and Azure give two minutes and
/// at least 30 seconds.
const RECLAIM_SECONDS: u32 = 90;

/// Taints with which a component announces that it removes the node, and the time in which a run must end, in seconds.
/// `None` means that the grace period of the pod applies, because the component waits for it. The component removes the
/// node although the pod has annotations that exclude a voluntary disruption.
const TAINTS: [(&str, Option<u32>); 9] = [
    // Karpenter uses the same taint for spot interruptions and for expired nodes.
    ("karpenter.sh/disrupted", Some(RECLAIM_SECONDS)),
    ("karpenter.sh/disruption", Some(RECLAIM_SECONDS)),
    ("ToBeDeletedByClusterAutoscaler", None),
    ("aws-node-termination-handler/spot-itn", Some(RECLAIM_SECONDS)),
    ("aws-node-termination-handler/asg-lifecycle-termination", Some(RECLAIM_SECONDS)),
    ("aws-node-termination-handler/scheduled-maintenance", None),
    ("aws-node-termination-handler/rebalance-recommendation", None),
    ("cloud.google.com/impending-node-termination", Some(SHUTDOWN_SECONDS)),
    ("node.cloudprovider.kubernetes.io/shutdown", Some(SHUTDOWN_SECONDS)),
];

/// Announced removal of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    /// Cause, for messages.
    pub cause: String,
    /// Time in which a run must end, in seconds, or `None` for the grace period of the pod.
    pub seconds: Option<u32>,
}

/// Returns the announced removal of a node, or `None` if the node is not about to be removed.
pub fn disruption(node: &Node) -> Option<Disruption> {
    let name = node.name_any();
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let known = |key: &str| TAINTS.iter().find(|(taint, _)| *taint == key);
    let tainted = taints.filter_map(|taint| known(&taint.key)).min_by_key(|(_, seconds)| seconds.unwrap_or(u32::MAX));
    let by_taint = tainted
        .map(|(taint, seconds)| Disruption { cause: format!("node {name} has the taint {taint}"), seconds: *seconds });
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_shutting_down = conditions.any(|condition| {
        condition.type_ == "Ready" && condition.message.as_ref().is_some_and(|message| message.contains(SHUTTING_DOWN))
    });
    let shutdown = || Disruption { cause: format!("node {name} is shutting down"), seconds: Some(SHUTDOWN_SECONDS) };
    if is_shutting_down { Some(shutdown()) } else { by_taint }
}

/// Open runs whose pod or node the reconciliation must read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Interruptions {
    requeue: Requeue<Update>,
    /// UIDs of the Updates. Hold the lock only for short critical sections, and never across an `.await`.
    runs: Arc<Mutex<HashSet<String>>>,
}

impl Interruptions {
    pub fn new(requeue: Requeue<Update>) -> Self {
        Interruptions { requeue, runs: Arc::default() }
    }

    /// Returns whether the pod or the node of this run is about to disappear.
    pub fn contains(&self, uid: &str) -> bool {
        self.lock().contains(uid)
    }

    /// Records the run of a pod that is being deleted.
    pub fn observe_pod(&self, pod: &Pod) {
        let uid = pod.annotations().get(names::ANNOTATION_RUN).filter(|_| pod.metadata.deletion_timestamp.is_some());
        let (Some(uid), Some(name), Some(namespace)) = (uid, pod_mark::update_name(pod), pod.namespace()) else {
            return;
        };
        self.record(uid.clone(), ObjectRef::new(&name).within(&namespace));
    }

    /// Removes a run that is no longer open.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Checks the nodes of all open runs until `end` is canceled.
    pub async fn watch_nodes(self, updates: Updates, reader: Reader, end: CancellationToken) {
        let mut interval = tokio::time::interval(NODE_CHECK_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                _ = interval.tick() => {}
            }
            tokio::select! {
                () = end.cancelled() => return,
                () = self.check_nodes(&updates, &reader) => {}
            }
        }
    }

    async fn check_nodes(&self, updates: &Updates, reader: &Reader) {
        let mut by_node: BTreeMap<String, Vec<(String, ObjectRef<Update>)>> = BTreeMap::new();
        let mut open = HashSet::new();
        for update in updates.store().state().iter().filter(|update| !update.is_complete()) {
            let binding = update.status.as_ref().and_then(|status| status.run.as_ref());
            let (Some(binding), Some(uid)) = (binding, update.uid()) else { continue };
            open.insert(uid.clone());
            by_node.entry(binding.node_name.clone()).or_default().push((uid, ObjectRef::from_obj(update.as_ref())));
        }
        self.lock().retain(|uid| open.contains(uid));
        by_node.retain(|node, _| !node.is_empty());
        let reads = by_node.into_iter().map(|(node, runs)| async move {
            // Without the permission to read nodes, or if the read fails, the run continues.
            let found = reader.get_cluster_opt::<Node>(&node).await.ok().flatten();
            found.as_ref().and_then(disruption).map(|_| runs)
        });
        let reads = futures::stream::iter(reads);
        let disrupted: Vec<Option<Vec<_>>> =
            futures::StreamExt::collect(futures::StreamExt::buffer_unordered(reads, CONCURRENT_READS)).await;
        for (uid, update) in disrupted.into_iter().flatten().flatten() {
            self.record(uid, update);
        }
    }

    /// Records a run and requeues its Update, unless the run is already recorded.
    fn record(&self, uid: String, update: ObjectRef<Update>) {
        let is_new = self.lock().insert(uid);
        if is_new {
            self.requeue.request(update);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::requeue;

    fn disruption_of(taints: Value, message: &str) -> Option<(String, Option<u32>)> {
        let ready = json!({"type": "Ready", "status": "False", "message": message});
        let node = json!({"metadata": {"name": "n1"}, "spec": {"taints": taints}, "status": {"conditions": [ready]}});
        disruption(&serde_json::from_value(node).unwrap()).map(|found| (found.cause, found.seconds))
    }

    #[test]
    fn a_taint_or_a_shutdown_announces_the_removal_of_a_node() {
        let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
        let cause = |key: &str| format!("node n1 has the taint {key}");
        let (karpenter, autoscaler) = ("karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler");
        let rows = [
            (json!([]), "", None),
            (json!([taint("node.kubernetes.io/not-ready"), taint("team")]), "runtime is down", None),
            (json!([taint(karpenter)]), "", Some((cause(karpenter), Some(90)))),
            (json!([taint(autoscaler)]), "", Some((cause(autoscaler), None))),
            (json!([taint(autoscaler), taint(karpenter)]), "", Some((cause(karpenter), Some(90)))),
            (
                json!([taint(karpenter)]),
                "node is shutting down",
                Some(("node n1 is shutting down".to_owned(), Some(20))),
            ),
        ];
        for (taints, message, expected) in rows {
            assert_eq!(disruption_of(taints.clone(), message), expected, "{taints} {message}");
        }
    }

    #[test]
    fn the_deletion_of_the_pod_of_a_run_requeues_its_update_once() {
        let (requeue, mut requeued) = requeue::queue();
        let interruptions = Interruptions::new(requeue);
        let pod = |deleted: bool, run: Option<&str>| -> Pod {
            let annotations = run
                .map(|run| json!({names::ANNOTATION_RUN: run, names::ANNOTATION_RUN_UPDATE: format!("web-1/{run}")}));
            let mut metadata = json!({"name": "web-workspace-0", "namespace": "apps", "annotations": annotations});
            if deleted {
                metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        for (pod, expected) in
            [(pod(false, Some("uid")), false), (pod(true, None), false), (pod(true, Some("uid")), true)]
        {
            interruptions.observe_pod(&pod);
            assert_eq!(interruptions.contains("uid"), expected, "{pod:?}");
        }
        interruptions.observe_pod(&pod(true, Some("uid")));
        assert_eq!(requeued.next().now_or_never().flatten(), Some(ObjectRef::new("web-1").within("apps")));
        assert_eq!(requeued.next().now_or_never(), None, "the second event requeues nothing");
        interruptions.forget("uid");
        assert!(!interruptions.contains("uid"));
    }
}
