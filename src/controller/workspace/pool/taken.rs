//! Determines the state of the pod that a Workspace takes from a pool. All functions are pure.
//!
//! The controller records the pod in the Workspace's `status.pooledPod` before it adds the Workspace labels to the
//! pod. A restarted controller therefore continues with the same pod, and two Workspaces never use the same pod.

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::auto::{PooledPod, Workspace};
use crate::api::names::{ANNOTATION_REVISION_HASH, LABEL_POOL};
use crate::controller::workspace::metadata::{is_ours, labels, workspace_name};

/// State of the pod in `status.pooledPod` of a Workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pooled {
    /// The status contains no pod.
    None,
    /// The pod does not belong to a Workspace yet. Contains the resource version of the pod.
    Free { version: String },
    /// The pod belongs to the Workspace.
    Taken,
    /// The pod belongs to the Workspace, but its containers have terminated, for example after an eviction. The
    /// controller must replace the pod, because no StatefulSet does so.
    Ended,
    /// The pod no longer exists, is being deleted, or belongs to another Workspace or pool.
    Lost,
}

/// Returns the state of the pod in `status.pooledPod`. `pod` is the pod that has the recorded name. `key` is the key
/// of the pool whose template is the Workspace's current template. If `is_template_known` is `false`, for example because
/// the controller has not resolved the Git repository of the Workspace yet, the Workspace keeps a free pod.
pub fn pooled(workspace: &Workspace, pod: Option<&Pod>, key: Option<&str>, is_template_known: bool) -> Pooled {
    let Some(recorded) = workspace.pooled_pod() else { return Pooled::None };
    let Some(pod) = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&recorded.uid)) else { return Pooled::Lost };
    if is_ours(pod, &workspace.name_any()) {
        return if has_ended(pod) { Pooled::Ended } else { Pooled::Taken };
    }
    let is_deleted = pod.metadata.deletion_timestamp.is_some();
    let is_of_pool = match is_template_known {
        true => key.is_some() && pod.labels().get(LABEL_POOL).map(String::as_str) == key,
        false => true,
    };
    match workspace_name(pod).is_none() && !is_deleted && is_of_pool {
        true => Pooled::Free { version: pod.resource_version().unwrap_or_default() },
        false => Pooled::Lost,
    }
}

/// Returns whether the pod's containers have terminated and will not restart.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// Returns the JSON merge patch that assigns a pod to a Workspace. The API server rejects the patch if the pod has
/// changed. The patch also makes the kubelet update the mounted Secrets.
pub fn take_patch(workspace: &str, pod: &PooledPod, version: &str, revision_hash: &str, owner: &Service) -> Value {
    json!({"metadata": {
        "uid": pod.uid,
        "resourceVersion": version,
        "labels": labels(workspace),
        "annotations": {ANNOTATION_REVISION_HASH: revision_hash},
        "ownerReferences": self::owner(owner).map(|owner| json!([owner])),
    }})
}

/// Returns an owner reference from a pod to the Service of a Workspace. The Service is a suitable owner, because it
/// outlives the pod. A foreground deletion of the Workspace does not affect the Service, and the controller deletes
/// the Service last.
pub fn owner(service: &Service) -> Option<OwnerReference> {
    let reference = service.controller_owner_ref(&())?;
    Some(OwnerReference { block_owner_deletion: Some(false), ..reference })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(pod: Value) -> Workspace {
        let status = json!({"pooledPod": pod});
        serde_json::from_value(json!({"metadata": {"name": "app"}, "spec": {}, "status": status})).expect("a Workspace")
    }

    fn pod(change: fn(&mut Value)) -> Pod {
        let labels = json!({"auto.pulumi.com/component": "workspace", "auto.pulumi.com/pool": "key"});
        let mut pod = json!({"metadata": {"name": "a", "uid": "1", "resourceVersion": "7", "labels": labels}});
        change(&mut pod);
        serde_json::from_value(pod).expect("a Pod")
    }

    #[test]
    fn a_workspace_takes_only_a_free_pod_of_its_pool() {
        let name = "auto.pulumi.com/workspace-name";
        let of = |change: fn(&mut Value)| Some(pod(change));
        let rows = [
            ("free", of(|_| ()), Pooled::Free { version: "7".to_owned() }),
            ("no pod", None, Pooled::Lost),
            ("another UID", of(|pod| pod["metadata"]["uid"] = json!("2")), Pooled::Lost),
            ("another pool", of(|pod| pod["metadata"]["labels"]["auto.pulumi.com/pool"] = json!("b")), Pooled::Lost),
            ("deleted", of(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")), Pooled::Lost),
            (
                "of another Workspace",
                of(|pod| pod["metadata"]["labels"]["auto.pulumi.com/workspace-name"] = json!("other")),
                Pooled::Lost,
            ),
            (
                "of the Workspace",
                of(|pod| pod["metadata"]["labels"]["auto.pulumi.com/workspace-name"] = json!("app")),
                Pooled::Taken,
            ),
            (
                "evicted",
                of(|pod| {
                    pod["metadata"]["labels"]["auto.pulumi.com/workspace-name"] = json!("app");
                    pod["status"] = json!({"phase": "Failed", "reason": "Evicted"});
                }),
                Pooled::Ended,
            ),
        ];
        let recorded = workspace(json!({"name": "a", "uid": "1"}));
        for (case, pod, expected) in rows {
            assert_eq!(pooled(&recorded, pod.as_ref(), Some("key"), true), expected, "{case}");
        }
        let free = pod(|_| ());
        assert_eq!(pooled(&recorded, Some(&free), None, true), Pooled::Lost, "the template has changed");
        let expected = Pooled::Free { version: "7".to_owned() };
        assert_eq!(pooled(&recorded, Some(&free), None, false), expected, "the template is unknown");
        assert_eq!(pooled(&recorded, None, None, false), Pooled::Lost, "no pod");
        assert_eq!(pooled(&workspace(json!(null)), Some(&free), Some("key"), true), Pooled::None);
        assert_eq!(recorded.pod_name(), "a");
        let service = json!({"metadata": {"name": "app-workspace", "uid": "service"}});
        let service: Service = serde_json::from_value(service).expect("a Service");
        let recorded = recorded.pooled_pod().expect("a pod");
        let patch = take_patch("app", recorded, "7", "hash", &service);
        assert_eq!(patch["metadata"]["labels"][name], json!("app"));
        assert_eq!((&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]), (&json!("1"), &json!("7")));
        let owner = &patch["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Service"), &json!("service")));
        assert_eq!((&owner["controller"], &owner["blockOwnerDeletion"]), (&json!(true), &json!(false)));
    }
}
