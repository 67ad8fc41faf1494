//! `free-pods`: frees the pods of ended runs after the controller was removed.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use pulumi_controller::api::names::{LABEL_COMPONENT, RUN_FINALIZER};
use serde::Serialize;
use serde_json::json;

use crate::plugin::args::{Format, FreePodsFlags};
use crate::plugin::cluster::Cluster;
use crate::plugin::controller;
use crate::plugin::error::PluginError;
use crate::plugin::progress::Progress;
use crate::plugin::screen::{self, Screen, table};

/// Removes the finalizer of a run from each pod that is being deleted and has ended.
///
/// # Errors
///
/// Returns an error if a controller is running, because it frees these pods itself, or if a request fails.
pub async fn run(cluster: &Cluster, flags: &FreePodsFlags, format: Format) -> Result<(), PluginError> {
    if let Some(running) = controller::find(cluster).await?.iter().find(|found| found.available > 0) {
        let (namespace, name) = (&running.namespace, &running.name);
        return Err(PluginError::NotReady(format!(
            "controller {namespace}/{name} is running, and frees the pods itself after it has recorded the results of their runs"
        )));
    }
    let parameters = ListParams::default().labels(&format!("{LABEL_COMPONENT}=workspace"));
    let pods: Vec<Pod> = cluster.list(&cluster.scope(flags.all_namespaces), parameters).await?;
    let held: Vec<HeldPod> = pods.iter().filter_map(HeldPod::of).collect();
    let mut progress = Progress::new();
    for (pod, held) in pods.iter().filter_map(|pod| Some((pod, HeldPod::of(pod)?))) {
        if !held.ended || flags.dry_run {
            continue;
        }
        let others: Vec<&String> = pod.finalizers().iter().filter(|finalizer| *finalizer != RUN_FINALIZER).collect();
        let patch = json!({"metadata": {"resourceVersion": pod.resource_version(), "finalizers": others}});
        cluster.merge::<Pod>(&held.namespace, &held.pod, &patch).await?;
        progress.success(&format!("pod {}/{} freed", held.namespace, held.pod));
    }
    screen::print(&HeldPods(held), format)
}

/// Pod that the finalizer of a run keeps, although a client has deleted it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct HeldPod {
    namespace: String,
    pod: String,
    /// Whether all containers have terminated.
    ended: bool,
}

#[derive(Serialize)]
#[serde(transparent)]
struct HeldPods(Vec<HeldPod>);

impl HeldPod {
    /// Returns the pod if it is being deleted and has the finalizer of a run.
    fn of(pod: &Pod) -> Option<Self> {
        let is_held = pod.finalizers().iter().any(|finalizer| finalizer == RUN_FINALIZER);
        (is_held && pod.metadata.deletion_timestamp.is_some()).then(|| HeldPod {
            namespace: pod.namespace().unwrap_or_default(),
            pod: pod.name_any(),
            ended: has_ended(pod),
        })
    }
}

/// Returns whether the kubelet has reported the end of all containers. Without this report, the run may still be in
/// progress.
fn has_ended(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let mut containers = status.container_statuses.iter().flatten().peekable();
    let has_containers = containers.peek().is_some();
    let is_terminated =
        containers.all(|container| container.state.as_ref().is_some_and(|state| state.terminated.is_some()));
    matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) || (has_containers && is_terminated)
}

impl Screen for HeldPods {
    fn text(&self) -> String {
        let state = |held: &HeldPod| if held.ended { "ended" } else { "may still execute a run" }.to_owned();
        let cells = |held: &HeldPod| vec![held.namespace.clone(), held.pod.clone(), state(held)];
        table(&["NAMESPACE", "POD", "STATE"], &self.0.iter().map(cells).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::reference_tests::assert_example;

    fn pod(name: &str, deleted: bool, finalizers: &[&str], status: Value) -> Pod {
        let mut metadata = json!({"name": name, "namespace": "apps", "finalizers": finalizers});
        if deleted {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    fn containers(states: &[Value]) -> Value {
        let status = |state: &Value| json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        json!({"containerStatuses": states.iter().map(status).collect::<Vec<_>>()})
    }

    #[test]
    fn only_deleted_pods_with_the_finalizer_of_a_run_are_held() {
        let (running, terminated) = (json!({"running": {}}), json!({"terminated": {"exitCode": 0}}));
        let held = |pod: &Pod| HeldPod::of(pod).map(|held| held.ended);
        let rows = [
            ("not deleted", pod("a", false, &[RUN_FINALIZER], json!({"phase": "Failed"})), None),
            ("another finalizer", pod("a", true, &["example.com/keep"], json!({"phase": "Failed"})), None),
            ("failed", pod("a", true, &[RUN_FINALIZER], json!({"phase": "Failed"})), Some(true)),
            ("terminated", pod("a", true, &[RUN_FINALIZER], containers(std::slice::from_ref(&terminated))), Some(true)),
            ("one container runs", pod("a", true, &[RUN_FINALIZER], containers(&[terminated, running])), Some(false)),
            ("unknown", pod("a", true, &[RUN_FINALIZER], json!({})), Some(false)),
        ];
        for (name, pod, expected) in rows {
            assert_eq!(held(&pod), expected, "{name}");
        }
    }

    #[test]
    fn the_held_pods_are_listed_with_their_state() {
        let pods = [
            pod("network-workspace-0", true, &[RUN_FINALIZER], json!({"phase": "Failed"})),
            pod("web-workspace-0", true, &[RUN_FINALIZER], json!({})),
        ];
        let held = pods.iter().filter_map(HeldPod::of).collect();
        assert_example("kubectl pulumi free-pods --dry-run", &HeldPods(held).text());
    }
}
