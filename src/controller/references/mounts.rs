//! Mounts of Secrets and ConfigMaps in a pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use crate::api::names;
use crate::runtime::writes::{WriteError, Writer};

/// Makes the kubelet remount the pod's Secrets and ConfigMaps. The kubelet syncs a pod immediately when an annotation
/// changes, and about once a minute otherwise.
pub async fn request_mounts(pod: &Pod, writer: &Writer, now: Timestamp) -> Result<(), WriteError> {
    let annotations = json!({names::ANNOTATION_MOUNTS_REQUESTED: now.to_string()});
    let namespace = pod.namespace().unwrap_or_default();
    let patch = json!({"metadata": {"annotations": annotations, "uid": pod.uid()}});
    writer.merge::<Pod>(&namespace, &pod.name_any(), &patch).await.map(drop)
}
